"""The published layout of a checkpoint: what is written where, and how it is found again.

The root is the bare backbone with its tokenizer, so ``AutoModel`` loads it. ``modules.json`` and the module folders
make it a sentence-transformers model with nothing of ours installed. ``robustcse/`` holds what only training needs:
the method's configuration, its state and the projection head.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.utils import cached_file

from hf_robustcse.encoder import SentenceEncoder
from hf_robustcse.files import version_of, write_json

FOLDER = "robustcse"
CONFIG = f"{FOLDER}/config.json"
WEIGHTS = f"{FOLDER}/model.safetensors"
BACKBONE = "encoder.backbone."
"""Prefix of the backbone's weights in the state of a `RobustCSEModel`."""


def find(model_name_or_path: str, file: str, **hub: Any) -> Path | None:
    """The local path of one file of a checkpoint folder or Hub repository, or None if it has no such file."""
    folder = Path(model_name_or_path)
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    found = cached_file(
        model_name_or_path, file, _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False, _raise_exceptions_for_gated_repo=False, **hub,
    )  # fmt: skip
    return None if found is None else Path(found)


def write(
    directory: str | Path,
    encoder: SentenceEncoder,
    state: dict[str, Tensor],
    *,
    config: dict[str, Any],
    tokenizer: Any | None = None,
    max_seq_length: int,
    keep_head: bool = False,
) -> None:
    """Write a checkpoint in the published layout; every file appears whole or not at all.

    Args:
        directory: made if need be; files of the same names are replaced.
        encoder: gives the backbone, the pooler and the head.
        state: the whole model's state; what does not belong to the backbone goes to ``robustcse/``.
        config: contents of ``robustcse/config.json``.
        tokenizer: saved at the root if given.
        max_seq_length: that readers of the checkpoint truncate to.
        keep_head: make the head part of the sentence embedding.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    backbone_state = {k.removeprefix(BACKBONE): v for k, v in state.items() if k.startswith(BACKBONE)}
    rest = {k: v.detach().cpu().contiguous() for k, v in state.items() if not k.startswith(BACKBONE)}
    temporary = Path(tempfile.mkdtemp(dir=directory, prefix=".writing-"))
    try:
        encoder.backbone.save_pretrained(temporary, state_dict=backbone_state)
        if tokenizer is not None:
            tokenizer.save_pretrained(temporary)
        (temporary / FOLDER).mkdir()
        write_json(temporary / CONFIG, config)
        save_file(rest, temporary / WEIGHTS, metadata={"format": "pt"})
        _write_sentence_transformers(temporary, encoder, max_seq_length, keep_head)
        for source in sorted(p for p in temporary.rglob("*") if p.is_file()):
            source.chmod(0o644)
            target = directory / source.relative_to(temporary)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_sentence_transformers(
    directory: Path, encoder: SentenceEncoder, max_seq_length: int, keep_head: bool
) -> None:
    """``modules.json`` and its folders, in the form that every release of sentence-transformers since 2.0 reads."""
    width = encoder.width
    kind = encoder.pooler.kind
    modules: list[tuple[str, str]] = [("", "Transformer")]
    write_json(directory / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    layers = encoder.pooler.layers
    if layers is not None:
        # An average of two layers is a weighted mean of all layers, which needs the backbone to return them all.
        count = encoder.backbone.config.num_hidden_layers
        weights = torch.zeros(count)  # of layers 1 .. count
        for layer in layers:
            weights[layer - 1 if layer > 0 else layer] += 1.0
        folder = f"{len(modules)}_WeightedLayerPooling"
        write_json(
            directory / folder / "config.json",
            {"word_embedding_dimension": width, "layer_start": 1, "num_hidden_layers": count},
        )
        save_file({"layer_weights": weights}, directory / folder / "model.safetensors")
        modules.append((folder, "WeightedLayerPooling"))
        path = directory / "config.json"
        write_json(path, {**json.loads(path.read_text(encoding="utf-8")), "output_hidden_states": True})
    folder = f"{len(modules)}_Pooling"
    write_json(
        directory / folder / "config.json",
        {
            "word_embedding_dimension": width,
            "pooling_mode_cls_token": kind == "cls",
            "pooling_mode_mean_tokens": kind != "cls",
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )
    modules.append((folder, "Pooling"))
    for weight, bias, activation in encoder.head.dense_layers() if keep_head else []:
        folder = f"{len(modules)}_Dense"
        write_json(
            directory / folder / "config.json",
            {"in_features": weight.shape[1], "out_features": weight.shape[0], "bias": True,
             "activation_function": activation},
        )  # fmt: skip
        save_file(
            {"linear.weight": weight.cpu().contiguous(), "linear.bias": bias.cpu().contiguous()},
            directory / folder / "model.safetensors",
        )
        modules.append((folder, "Dense"))
    write_json(
        directory / "modules.json",
        [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
            for i, (path, name) in enumerate(modules)
        ],
    )
    write_json(
        directory / "config_sentence_transformers.json",
        {
            "__version__": {
                "sentence_transformers": version_of("sentence-transformers"),
                "transformers": version_of("transformers"),
                "pytorch": version_of("torch"),
            },
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        },
    )


def read_rest(model_name_or_path: str, **hub: Any) -> dict[str, Tensor]:
    """The head and the method's state of a checkpoint."""
    path = find(model_name_or_path, WEIGHTS, **hub)
    if path is None:
        raise FileNotFoundError(f"{model_name_or_path} has no {WEIGHTS}")
    return load_file(path)
