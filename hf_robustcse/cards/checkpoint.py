"""What a model folder of ours says of itself."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError

from hf_robustcse import layout
from hf_robustcse.cards.check import check_repo_id
from hf_robustcse.cards.text import public_path
from hf_robustcse.errors import UserError
from hf_robustcse.files import read_json, sha256_file
from hf_robustcse.methods import METHODS
from hf_robustcse.modules import POOLERS
from hf_robustcse.report.read import clean
from hf_robustcse.report.table import BACKBONES

EMBEDDED = "embedded"
"""What a manifest calls the encoder that this package brings."""


@dataclasses.dataclass
class Checkpoint:
    """A folder in the published layout.

    Attributes:
        folder: where it is.
        name: of the card's title, without a path.
        repo_id: on the Hub, if it is known.
        methods: keys of `METHODS`.
        config: ``robustcse/config.json``.
        results: ``results.json``, {} if there is none.
        manifest: ``manifest.json``; of several seeds that of the seed which was exported; {} if there is none.
        dense: (folder, activation) of each layer behind the pooling.
        max_seq_length: that an embedding is computed of at most, None if it is not said.
        files: (name, sha256) of what was read.
    """

    folder: Path
    name: str
    repo_id: str | None
    methods: tuple[str, ...]
    config: dict[str, Any]
    results: dict[str, Any]
    manifest: dict[str, Any]
    dense: list[tuple[str, str]]
    max_seq_length: int | None
    files: list[tuple[str, str]]

    @property
    def method(self) -> str:
        """As on the command line, such as ``dclr+vadv``."""
        return "+".join(self.methods)

    @property
    def seeds(self) -> list[int]:
        """Of the training; the exported one if there were several is `exported_seed`."""
        seeds = self.results.get("seeds") or [self.results.get("seed"), self.manifest.get("identity", {}).get("seed")]
        return list(dict.fromkeys(seed for seed in seeds if isinstance(seed, int)))

    @property
    def base(self) -> str | None:
        """The encoder that training began with, as recorded; None if it was not."""
        base = self.manifest.get("identity", {}).get("model_name_or_path")
        return clean(base) if isinstance(base, str) and base else None

    @property
    def views(self) -> int:
        """1 for plain sentences, 2 or 3 for labelled pairs or triplets."""
        columns = self.manifest.get("corpus", {}).get("columns")
        return len(columns) if isinstance(columns, list) else 1

    @property
    def training(self) -> dict[str, Any]:
        """``training`` of the results; of several seeds that of the exported one."""
        training = mapping(self.results.get("training"))
        runs, seeds = training.get("runs"), self.results.get("seeds")
        if isinstance(runs, list) and isinstance(seeds, list) and self.results.get("exported_seed") in seeds:
            place = seeds.index(self.results["exported_seed"])
            return mapping(runs[place]) if place < len(runs) else {}
        return training


def mapping(value: Any) -> dict[str, Any]:
    """A mapping as it is, and {} for anything else."""
    return dict(value) if isinstance(value, Mapping) else {}


def read_checkpoint(model: str | Path, repo_id: str | None = None) -> Checkpoint:
    """Read a model folder; only ``robustcse/config.json`` has to be there.

    Args:
        model: the folder.
        repo_id: where it is or will be on the Hub.

    Raises:
        UserError: if it is no checkpoint of this project, or a file of it is damaged.
    """
    folder = Path(model)
    if not (folder / layout.CONFIG).is_file():
        raise UserError(f"{folder} is no checkpoint of this project: it has no {layout.CONFIG}")
    files: list[tuple[str, str]] = []
    config = _read(folder, layout.CONFIG, files)
    methods = tuple(part.strip() for part in str(config.get("method")).split("+"))
    if unknown := [name for name in methods if name not in METHODS]:
        raise UserError(f"{folder / layout.CONFIG} has the unknown method {clean(unknown[0])!r}")
    if config.get("pooler") not in POOLERS:
        raise UserError(f"{folder / layout.CONFIG} has the unknown pooler {clean(config.get('pooler'))!r}")
    results = _read(folder, "results.json", files)
    manifest = _read(folder, "manifest.json", files)
    if "identity" not in manifest and isinstance(results.get("exported_seed"), int):
        manifest = _read(folder, f"seed-{results['exported_seed']}/manifest.json", files)
    for name in ("identity", "arguments", "corpus", "encoder", "max_seq_length", "library_versions"):
        manifest[name] = mapping(manifest.get(name))
    if repo_id is not None:
        check_repo_id(repo_id, "--repo_id")
    absolute = folder.absolute()
    own = absolute.name if not re.fullmatch(r"seed-\d+", absolute.name) else f"{absolute.parent.name}-{absolute.name}"
    return Checkpoint(
        folder=folder, name=repo_id.rpartition("/")[2] if repo_id else clean(own), repo_id=repo_id, methods=methods,
        config=config, results=results, manifest=manifest if manifest["identity"] else {}, dense=_dense(folder),
        max_seq_length=_json(folder / "sentence_bert_config.json").get("max_seq_length"), files=files,
    )  # fmt: skip


def _read(folder: Path, name: str, files: list[tuple[str, str]]) -> dict[str, Any]:
    path = folder / name
    if not path.is_file():
        return {}
    files.append((name, sha256_file(path)))
    return _json(path)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    data = read_json(path)
    if not isinstance(data, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return data


def _dense(folder: Path) -> list[tuple[str, str]]:
    """The layers of a head that is part of the embedding, in order."""
    found = []
    for path in sorted(folder.glob("[0-9]*_Dense/config.json"), key=lambda path: int(path.parent.name.split("_")[0])):
        activation = str(_json(path).get("activation_function", ""))
        found.append((path.parent.name, activation.rpartition(".")[2]))
    return found


def is_hub_model(name: str | None) -> bool:
    """Whether a recorded name is the id of a model on the Hub for sure; a folder may look like one.

    Args:
        name: as recorded.
    """
    if name is None or public_path(name) != name or Path(name).exists():
        return False
    if name in BACKBONES:
        return True
    try:
        return isinstance(try_to_load_from_cache(name, "config.json"), str)  # it was fetched from there
    except HFValidationError:
        return False
