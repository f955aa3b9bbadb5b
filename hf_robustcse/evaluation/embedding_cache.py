"""Embeddings kept in a folder, so that the next evaluation of the same model does not compute them again."""

from __future__ import annotations

import hashlib
import json
import sys
import uuid
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
from hf_robustcse.files import atomic_write_bytes, version_of

KEY = 16  # bytes of a text's key
ENCODING = 1  # counts up when `Embedder` embeds otherwise than before: what was kept is another model's then


class EmbeddingCache:
    """The embeddings of a model in a folder that holds those of many.

    A model is known by its weights, configuration and modules, with the versions of the libraries and the kind of
    device; a text by its tokens. Nothing that was written is changed: what is new becomes a file beside the others, so
    that several processes may write. A model that is trained on is another model.

    Args:
        folder: of all models; made if it is not there.
        model: the SentenceTransformer, in the precision that it embeds with.
        about: what else the embeddings depend on: JSON values.

    Raises:
        UserError: if `folder` is none and cannot become one, or there are several processes, which share the encoding.
    """

    def __init__(self, folder: str | Path, model: SentenceTransformer, about: Mapping[str, Any]) -> None:
        if world_size() > 1:
            raise UserError("--embedding_cache is for a single process: leave it out, or start one process")
        if not str(folder):
            raise UserError("--embedding_cache names no folder")
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"--embedding_cache {folder} is no folder and cannot become one: {error}") from error
        self.folder, self.model, self.about = Path(folder), model, about
        self._of = ""  # the model that the next two are of
        self._place: dict[bytes, int] = {}
        self._rows = np.zeros((0, 0), np.float32)

    def __call__(self, texts: Sequence[tuple[int, ...]], encode: Callable[[list[int]], Tensor]) -> Tensor:
        """The embeddings of n texts, of which only those that are not kept are computed, and then kept.

        What cannot be written is said on stderr, and embedded all the same.

        Args:
            texts: the token ids of each.
            encode: m positions in `texts` -> their (m, d) embeddings.

        Returns:
            (n, d) float32, on the CPU.

        Raises:
            UserError: for a file that cannot be read.
        """
        if (of := _digest(self.model, self.about)) != self._of:
            self._of, self._place, self._rows = of, {}, np.zeros((0, 0), np.float32)
            self._read(self.folder / of)
        keys = [hashlib.blake2b(np.asarray(ids, np.int64).tobytes(), digest_size=KEY).digest() for ids in texts]
        if missing := {key: row for row, key in enumerate(keys) if key not in self._place}:
            rows = encode(list(missing.values())).cpu().numpy().astype(np.float32, copy=False)
            if np.isfinite(rows).all():  # what is not is the caller's to tell, and nobody's to keep
                self._write(self.folder / of, list(missing), rows)
            self._add(list(missing), rows)
        return torch.from_numpy(self._rows[[self._place[key] for key in keys]])

    def _add(self, keys: Sequence[bytes], rows: np.ndarray) -> None:
        self._place |= {key: len(self._place) + number for number, key in enumerate(keys)}
        self._rows = np.concatenate([self._rows, rows]) if len(self._rows) else rows

    def _read(self, folder: Path) -> None:
        for path in sorted(folder.glob("*.safetensors")):
            try:
                tensors = load_file(path)
                rows, keys = tensors["embeddings"], [key.tobytes() for key in tensors["keys"]]
                if len(keys) != len(rows) or any(len(key) != KEY for key in keys):
                    raise ValueError("keys and embeddings do not fit")
            except (OSError, SafetensorError, KeyError, ValueError) as error:
                raise UserError(f"{path} of the --embedding_cache cannot be read, delete it: {error}") from error
            # Two processes may have embedded the same text.
            new = {key: row for row, key in enumerate(keys) if key not in self._place}
            self._add(list(new), rows[list(new.values())])

    def _write(self, folder: Path, keys: Sequence[bytes], rows: np.ndarray) -> None:
        table = np.frombuffer(b"".join(keys), np.uint8).reshape(-1, KEY)
        try:
            data = save({"keys": table, "embeddings": np.ascontiguousarray(rows)})
            atomic_write_bytes(folder / f"{uuid.uuid4().hex}.safetensors", data)
        except OSError as error:
            print(f"--embedding_cache {self.folder}: not kept, {error}", file=sys.stderr)


def _digest(model: SentenceTransformer, about: Mapping[str, Any]) -> str:
    """What a model is, wherever it lies."""
    found = hashlib.sha256()
    backbone = getattr(model[0], "auto_model", None)
    config = getattr(backbone, "config", None)
    said = {key: value for key, value in (config.to_dict() if config else {}).items() if key != "_name_or_path"}
    packages = ("torch", "transformers", "sentence-transformers", "hf_robustcse")
    said = {"config": said, "modules": repr(model), "padding": model.tokenizer.padding_side, "encoding": ENCODING}
    said |= {"device": model.device.type, "versions": {name: version_of(name) for name in packages}, **about}
    found.update(json.dumps(said, sort_keys=True, default=str).encode())
    # Transformers draws a pooler that a checkpoint does not bring; it is read by the pooling of that name alone.
    pooler = getattr(backbone, "pooler", None) if about.get("pooling") != "pooler" else None
    unread = {tensor.data_ptr() for tensor in pooler.state_dict().values()} if pooler is not None else set()
    for name, tensor in sorted(model.state_dict().items()):
        if tensor.data_ptr() in unread:
            continue
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest()
