"""Embeddings kept in a folder, so that the next evaluation of the same model does not compute them again."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from sentence_transformers import SentenceTransformer
from torch import Tensor

from hf_robustcse.distributed import world_size
from hf_robustcse.errors import UserError
from hf_robustcse.files import version_of

KEY = 16  # bytes of a text's key


class EmbeddingCache:
    """The embeddings of one model in a folder that holds those of many.

    A model is known by its weights, configuration and modules, with the versions of the libraries and the kind of
    device; a text by its tokens. Nothing that was written is changed: what is new becomes a file beside the others, so
    that several processes may write. A model that is trained on is another model.

    Args:
        folder: of all models; made when something is written.
        model: the SentenceTransformer, in the precision that it embeds with.
        about: what else the embeddings depend on: JSON values.

    Attributes:
        folder: this model's own.

    Raises:
        UserError: if `folder` is a file, or there are several processes, which share the encoding.
    """

    def __init__(self, folder: str | Path, model: SentenceTransformer, about: Mapping[str, Any]) -> None:
        if Path(folder).exists() and not Path(folder).is_dir():
            raise UserError(f"--embedding_cache {folder} is a file: name a folder")
        if world_size() > 1:
            raise UserError("--embedding_cache is for a single process: leave it out, or start one process")
        self.folder = Path(folder) / _digest(model, about)
        self._place: dict[bytes, int] | None = None
        self._rows: list[np.ndarray] = []

    def __call__(self, texts: Sequence[tuple[int, ...]], encode: Callable[[list[int]], Tensor]) -> Tensor:
        """The embeddings of n texts, of which only those that are not kept are computed, and then kept.

        Args:
            texts: the token ids of each.
            encode: m positions in `texts` -> their (m, d) embeddings.

        Returns:
            (n, d) float32, on the CPU.

        Raises:
            UserError: for a file that cannot be read.
        """
        if self._place is None:
            self._place = self._read()
        keys = [hashlib.blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=KEY).digest() for ids in texts]
        if missing := [row for row, key in enumerate(keys) if key not in self._place]:
            rows = encode(missing).cpu().numpy().astype(np.float32, copy=False)
            new = [keys[row] for row in missing]
            if np.isfinite(rows).all():  # what is not is the caller's to tell, and nobody's to keep
                self._write(new, rows)
            self._place |= {key: len(self._place) + number for number, key in enumerate(new)}
            self._rows.append(rows)
        return torch.from_numpy(np.concatenate(self._rows)[[self._place[key] for key in keys]])

    def _read(self) -> dict[bytes, int]:
        place: dict[bytes, int] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                tensors = load_file(path)
                rows, keys = tensors["embeddings"], tensors["keys"]
                if len(keys) != len(rows) or keys.shape[1:] != (KEY,):
                    raise ValueError("keys and embeddings do not fit")
            except (OSError, SafetensorError, KeyError, ValueError) as error:
                raise UserError(f"{path} of the --embedding_cache cannot be read, delete it: {error}") from error
            new = {key.tobytes(): number for number, key in enumerate(keys)}
            kept = [number for key, number in new.items() if key not in place]  # two processes may embed the same text
            place |= {keys[number].tobytes(): len(place) + row for row, number in enumerate(kept)}
            self._rows.append(rows[kept])
        return place

    def _write(self, keys: Sequence[bytes], rows: np.ndarray) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        table = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY)
        handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(save({"keys": table, "embeddings": np.ascontiguousarray(rows)}))
            os.replace(temporary, self.folder / f"{Path(temporary).name[1:]}.safetensors")
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def _digest(model: SentenceTransformer, about: Mapping[str, Any]) -> str:
    """What a model is, wherever it lies."""
    found = hashlib.sha256()
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    said = {key: value for key, value in (config.to_dict() if config else {}).items() if key != "_name_or_path"}
    versions = {package: version_of(package) for package in ("torch", "transformers", "sentence-transformers")}
    said = {"config": said, "modules": repr(model), "versions": versions, "device": model.device.type, **about}
    found.update(json.dumps(said, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()
