"""The release folder: what of a checkpoint is published, scrubbed, and checked as a whole."""

from __future__ import annotations

import re
import shutil
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from hf_robustcse import layout
from hf_robustcse.cards.about import FAMILY_TAGS
from hf_robustcse.cards.check import check_language, check_license, check_repo_id
from hf_robustcse.cards.checkpoint import read_checkpoint
from hf_robustcse.errors import UserError
from hf_robustcse.files import atomic_write_text, read_json, version_of, whole_folder, write_json
from hf_robustcse.modules import HEADS
from hf_robustcse.publish.scrub import Scrubber
from hf_robustcse.publish.verify import PAIR, SENTENCES, cosine, embed
from hf_robustcse.report.read import collect

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
_NEEDED = ("config.json", "modules.json", "sentence_bert_config.json", layout.CONFIG, layout.WEIGHTS)
_TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt",
    "vocab.json", "merges.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model", "tokenizer.model",
    "bpe.codes",
)  # fmt: skip
_ROOT = (*_NEEDED, "config_sentence_transformers.json", "model.safetensors.index.json", *_TOKENIZER)
_WEIGHTS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")
_SUFFIXES = (".json", ".txt", ".md", ".safetensors", ".model", ".codes")
# Files whose strings are ours, or the configuration of a library: all that looks like a path is one.
_CONFIGS = ("config.json", layout.CONFIG, "config_sentence_transformers.json")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Release:
    """A release folder that was built.

    Attributes:
        folder: where it is.
        files: path in it -> bytes.
        method: of the checkpoint.
        check: the two sentences of the load-time check and their cosine.
        weights: the type they are stored in, and how far the embeddings are from those of the checkpoint.
        warnings: what went wrong without harm to the weights.
    """

    folder: Path
    files: dict[str, int]
    method: str
    check: dict[str, Any]
    weights: dict[str, Any]
    warnings: tuple[str, ...] = ()


def build_release(
    model: str | Path,
    target: str | Path,
    *,
    repo_id: str | None = None,
    results: Sequence[str | Path] = (),
    dtype: str | None = None,
    extra_tags: Sequence[str] = (),
    token: str | None = None,
    card: Mapping[str, str | None] | None = None,
) -> Release:
    """Make the folder that is published out of a checkpoint; it appears whole or not at all.

    It holds the backbone, the tokenizer, ``modules.json`` with its folders, ``robustcse/``, ``results.json``,
    ``manifest.json``, the result files of `results` under ``results/`` and the card. Nothing else of the checkpoint
    enters: no states of the optimizer, no pickles, no logs, no hidden files, no links. Of local paths in the records
    the last part stays; tokens and the names of user and machine are taken out.

    Args:
        model: a checkpoint folder in the published layout (see `layout`).
        target: where to; a release that is there is replaced, anything else is refused.
        repo_id: OWNER/NAME on the Hub, for the card.
        results: more result files for the card (evaluations, attacks).
        dtype: float32, float16 or bfloat16 to store the weights so; loaders compute in float32 all the same, because
            ``config.json`` says so. None leaves them as they are.
        extra_tags: for the card's metadata.
        token: a secret that must not be in any file, beside the one of this machine.
        card: what no file records, for the card: license, language, base_model (see `cards.card_text`).

    Raises:
        UserError: if the folder cannot be published; the line names the file and what is wrong with it.
    """
    model, target = Path(model), Path(target)
    parts = _check_source(model)
    _check_target(model, target)
    if dtype is not None and dtype not in DTYPES:
        raise UserError(f"--dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if repo_id is not None:
        check_repo_id(repo_id, "--repo_id")
    for name, check_value in (("license", check_license), ("language", check_language)):
        if card and card.get(name):
            check_value(card[name])
    if card and card.get("base_model"):
        check_repo_id(card["base_model"], "--base_model")
    for path in map(Path, results):
        if not path.is_file():
            raise UserError(f"--results {path}: there is no such file")
        collect([path])  # complains of what is no result
    scrub = Scrubber(repo_id, (token,), (model, target))
    warnings: list[str] = []
    with whole_folder(target) as new:
        for name in parts:
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(model / name, new / name)
        for name in (name for name in _CONFIGS if name in parts):
            write_json(new / name, scrub.config(_no_remote_code(read_json(new / name), model / name)))
        _scrub_tokenizer(new / "tokenizer_config.json", scrub)
        stored = _store(new, dtype)
        config = read_json(new / "config.json")
        write_json(new / "config.json", {**config, "dtype": "float32"})
        before = embed(model, SENTENCES)
        after = embed(new, SENTENCES)
        weights = {
            "dtype": stored,
            "max_abs_difference": float((after - before).abs().max()),
            "min_cosine": min(1.0, *(cosine(a, b) for a, b in zip(before, after, strict=True))),
            "sentences": len(SENTENCES),
        }
        check = {"sentences": list(PAIR), "cosine": round(cosine(after[0], after[1]), 6)}
        about = {"check": check, "weights": weights, "hf-robustcse": version_of("hf-robustcse")}
        _write_records(model, new, results, about, scrub)
        method = str(read_json(new / layout.CONFIG)["method"])
        warnings += _write_card(new, method, repo_id, extra_tags, card or {})
        check_release(new, scrub)
        files = {p.relative_to(new).as_posix(): p.stat().st_size for p in sorted(new.rglob("*")) if p.is_file()}
    return Release(target, files, method, check, weights, tuple(warnings))


def _check_source(model: Path) -> list[str]:
    """The files of a checkpoint that are published, as paths in it."""
    if not model.is_dir():
        raise UserError(f"{model} is no folder: --model takes the folder of a checkpoint")
    if lacking := [name for name in _NEEDED if not (model / name).is_file()]:
        raise UserError(f"{model} is no checkpoint of this project: it has no {lacking[0]}")
    for name in ("config.json", "sentence_bert_config.json", layout.CONFIG):
        _no_remote_code(read_json(model / name), model / name)
    read_checkpoint(model)  # method, pooler and records are what they should be
    layout.check(str(model))
    config, length = read_json(model / layout.CONFIG), read_json(model / "sentence_bert_config.json")
    if config.get("head") not in HEADS or not isinstance(config.get("keep_head"), bool):
        raise UserError(f"{model / layout.CONFIG} has no head or keep_head that this package knows")
    if type(length.get("max_seq_length")) is not int or length["max_seq_length"] < 1:
        raise UserError(f"{model / 'sentence_bert_config.json'} has no max_seq_length above 0")
    modules = read_json(model / "modules.json")
    names = [path.name for path in model.iterdir() if path.name in _ROOT or _WEIGHTS.fullmatch(path.name)]
    names += [layout.CONFIG, layout.WEIGHTS]
    for module in modules:
        folder = module["path"]
        if folder and not _NAME.fullmatch(folder):
            raise UserError(f"{model / 'modules.json'}: the path {folder!r} is no plain folder name")
        inside = (f"{folder}/{name}" for name in ("config.json", "model.safetensors") if folder)
        names += [name for name in inside if (model / name).is_file()]
    for name in names:
        if (model / name).is_symlink() or (model / name).parent.is_symlink():
            raise UserError(f"{model / name} is a link: copy the folder with its files (cp -rL) and publish the copy")
    if not any(_WEIGHTS.fullmatch(name) for name in names):
        raise UserError(f"{model} has no model.safetensors: other formats are not published")
    return sorted(names)


def _check_target(model: Path, target: Path) -> None:
    here, there = model.resolve(), target.resolve()
    if there == here or there in here.parents:
        raise UserError(f"the release folder {target} would replace the model {model}: choose another --output_dir")
    if target.is_dir() and any(target.iterdir()):
        manifest = target / "manifest.json"
        if not (manifest.is_file() and "release" in read_json(manifest)):
            raise UserError(f"{target} is there and is no release folder: choose another --output_dir")
    elif target.exists() and not target.is_dir():
        raise UserError(f"{target} is a file: choose another --output_dir")


def _no_remote_code(config: Any, path: Path) -> Any:
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold a JSON object")
    if "auto_map" in config:
        raise UserError(f"{path} asks for code of its own (auto_map), which is not published")
    return config


def _scrub_tokenizer(path: Path, scrub: Scrubber) -> None:
    """Only what names files: a token may look like anything."""
    if not path.is_file():
        return
    config = _no_remote_code(read_json(path), path)
    for key, value in config.items():
        if isinstance(value, str) and (key.endswith(("_file", "_path")) or key == "_commit_hash"):
            config[key] = scrub.text(value)
    write_json(path, config)


def _store(folder: Path, dtype: str | None) -> str:
    """Store the weights as `dtype`; returns what the backbone is stored as."""
    paths = [path for path in folder.iterdir() if _WEIGHTS.fullmatch(path.name)]
    if dtype is None:
        with safe_open(paths[0], "pt") as file:
            names = list(file.keys())
            return str(file.get_tensor(names[0]).dtype).removeprefix("torch.")
    total = 0
    for path in [*paths, folder / layout.WEIGHTS]:
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        # The head stays: where it is part of the embedding, the layers of modules.json are made of it.
        tensors = {
            name: value if name.startswith("encoder.head.") else _cast(name, value, DTYPES[dtype])
            for name, value in load_file(path).items()
        }
        save_file(tensors, path, metadata=metadata)
        path.chmod(0o644)
        if path in paths:
            total += sum(value.numel() * value.element_size() for value in tensors.values())
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        content = read_json(index)
        write_json(index, {**content, "metadata": {**content.get("metadata", {}), "total_size": total}})
    return dtype


def _cast(name: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not value.is_floating_point():
        return value
    made = value.to(dtype)
    if value.isfinite().all() and not made.isfinite().all():
        raise UserError(f"--dtype float16 cannot hold {name}, which has values above 65504: use bfloat16")
    return made


def _write_records(
    model: Path, new: Path, results: Sequence[str | Path], about: dict[str, Any], scrub: Scrubber
) -> None:
    """``results.json`` and ``manifest.json``, and under ``results/`` what else the card's figures come from."""
    manifest: dict[str, Any] = {}
    if (model / "manifest.json").is_file():
        manifest = dict(_no_remote_code(read_json(model / "manifest.json"), model / "manifest.json"))
    own: dict[str, Any] = {}
    if (model / "results.json").is_file():
        own = _no_remote_code(read_json(model / "results.json"), model / "results.json")
    # The card prints the check, and finds it there.
    write_json(new / "results.json", scrub.record(own) | {"check": about["check"]})
    extra: dict[str, Path] = {}
    for path in map(Path, results):
        extra[_free_name(path, extra, scrub)] = path
    if "runs" in manifest:  # the root of several seeds holds the model of one of them
        seeds = manifest.get("seeds")
        for seed in seeds if isinstance(seeds, list) else []:
            path = model / f"seed-{seed}" / "results.json"
            if path.is_file():
                extra[f"seed-{seed}.json"] = path
        chosen = model / f"seed-{own.get('exported_seed')}" / "manifest.json"
        if chosen.is_file():
            manifest = {**_no_remote_code(read_json(chosen), chosen), "seeds": seeds}
    if (model / "results").is_dir():  # a release that is released again
        extra = {path.name: path for path in sorted((model / "results").glob("*.json"))} | extra
    for name, path in extra.items():
        content = _no_remote_code(read_json(path), path)
        write_json(new / "results" / name, scrub.record(content))
    manifest.pop("release", None)
    write_json(new / "manifest.json", scrub.record(manifest) | {"release": about})


def _free_name(path: Path, taken: Container[str], scrub: Scrubber) -> str:
    """A name for a result file: its own, or with its folder's in front where that is taken or says nothing."""

    def plain(name: str) -> str:
        return re.sub(r"[^A-Za-z0-9_.-]", "-", scrub.text(name).removesuffix(".json")).lstrip(".-") or "result"

    stem = plain(path.name)
    if stem == "results" or f"{stem}.json" in taken:
        stem = plain(f"{path.absolute().parent.name}-{path.name}")
    name, number = f"{stem}.json", 2
    while name in taken:
        name, number = f"{stem}-{number}.json", number + 1
    return name


def _write_card(
    folder: Path, method: str, repo_id: str | None, tags: Sequence[str], about: Mapping[str, str | None]
) -> list[str]:  # fmt: skip
    """The card, or one with the least if it cannot be rendered: a card is never a reason to lose the weights."""
    warnings = []
    try:
        from hf_robustcse.cards import card_text

        text = card_text(folder, repo_id=repo_id, results=sorted((folder / "results").glob("*.json")), **about)
    except Exception as error:  # whatever it is
        reason = " ".join(str(error).replace(f"{folder}/", "").split())[:200]
        warnings.append(f"the card could not be rendered ({type(error).__name__}: {reason}); a minimal one stands in")
        text = minimal_card(folder, method, repo_id)
    if tags:
        text = _with_tags(text, tags)
    atomic_write_text(folder / "README.md", text)
    return warnings


def minimal_card(folder: Path, method: str, repo_id: str | None) -> str:
    """A valid card of name, tags, how to load it, and the check; needs nothing that can fail."""
    check = read_json(folder / "manifest.json")["release"]["check"]
    name = repo_id or method
    lines = [
        "---", "library_name: sentence-transformers", "pipeline_tag: sentence-similarity", "tags:",
        *(f"- {tag}" for tag in (*FAMILY_TAGS, *method.split("+"))), "---", "", f"# {name}", "",
        f"A sentence encoder trained with `{method}` by hf_robustcse.", "", "```python",
        "from sentence_transformers import SentenceTransformer", "",
        f'model = SentenceTransformer("{repo_id or "PATH"}")',
        f"a, b = model.encode({check['sentences']!r}, normalize_embeddings=True)",
        f"print(a @ b)  # {check['cosine']:.4f}", "```", "",
    ]  # fmt: skip
    return "\n".join(lines)


def _with_tags(text: str, tags: Sequence[str]) -> str:
    from huggingface_hub import ModelCard

    card = ModelCard(text, ignore_metadata_errors=True)
    card.data.tags = list(dict.fromkeys([*(card.data.tags or []), *tags]))
    return str(card)


def check_release(folder: Path, scrub: Scrubber) -> None:
    """Refuse a folder that holds what is not published.

    Args:
        folder: a release.
        scrub: knows what must not be told.

    Raises:
        UserError: naming the file and what is in it.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            raise UserError(f"{name} cannot be published: it is a link")
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            raise UserError(f"{name} cannot be published: it is hidden")
        if path.is_dir():
            continue
        if path.suffix not in _SUFFIXES:
            raise UserError(f"{name} cannot be published: only {', '.join(_SUFFIXES)} are")
        found = _look_into(path, name, scrub)
        if found:
            raise UserError(f"{name} cannot be published: it holds {found}")


def _look_into(path: Path, name: str, scrub: Scrubber) -> str | None:
    if path.suffix == ".safetensors":
        try:
            with safe_open(path, "pt") as file:
                return scrub.find_in_record(file.metadata() or {})
        except SafetensorError as error:
            return f"no safetensors ({error})"
    if path.suffix == ".model":
        content = path.read_bytes()
        if content[:1] == b"\x80" or content[:2] == b"PK":
            return "a pickle"
        return scrub.find(content.decode("latin-1"))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return "no UTF-8 text"
    if name in _CONFIGS:
        return scrub.find_in_config(read_json(path))
    if name in ("results.json", "manifest.json") or name.startswith("results/"):
        return scrub.find_in_record(read_json(path))
    return scrub.find(text, prose=path.suffix == ".md")
