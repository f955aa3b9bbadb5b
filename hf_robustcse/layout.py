"""The published layout of a checkpoint: what is written where, and how it is found again.

The root is the bare backbone with its tokenizer, so ``AutoModel`` loads it. ``modules.json`` and the module folders
make it a sentence-transformers model with nothing of ours installed. ``robustcse/`` holds what only training needs:
the method's configuration, its state and the projection head.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch
import transformers  # its models load on first use
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers.utils import cached_file

from hf_robustcse.encoder import SentenceEncoder
from hf_robustcse.errors import UserError
from hf_robustcse.files import read_json, version_of, write_json

FOLDER = "robustcse"
CONFIG = f"{FOLDER}/config.json"
WEIGHTS = f"{FOLDER}/model.safetensors"
BACKBONE = "encoder.backbone."
"""Prefix of the backbone's weights in the state of a `RobustCSEModel`."""


def find(model_name_or_path: str, file: str, **hub: Any) -> Path | None:
    """The local path of one file of a checkpoint folder or Hub repository, or None if it has no such file.

    None too if it is not in the cache and the Hub does not answer, or not with this token.

    Raises:
        UserError: if there is no such folder, repository or revision.
    """
    folder = Path(model_name_or_path)
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    try:
        found = cached_file(
            model_name_or_path, file, _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False, _raise_exceptions_for_gated_repo=False, **hub,
        )  # fmt: skip
    except OSError as error:
        raise UserError(f"cannot find {model_name_or_path!r}: {' '.join(str(error).split())}") from error
    return None if found is None else Path(found)


def own_pooling(model_name_or_path: str, **hub: Any) -> str | None:
    """The pooling that a checkpoint brings, by the names of ``modules.POOLERS``; None if it brings none that has one.

    Raises:
        UserError: as `find`.
    """
    if path := find(model_name_or_path, CONFIG, **hub):
        return read_json(path).get("pooler", "cls")  # a default is not written
    path = find(model_name_or_path, "1_Pooling/config.json", **hub)
    found = read_json(path) if path else {}
    modes = {"cls": "pooling_mode_cls_token", "mean": "pooling_mode_mean_tokens"}
    return next((kind for kind, mode in modes.items() if found.get(mode) or found.get("pooling_mode") == kind), None)


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
    write_module_list(directory, modules)


def write_module_list(
    directory: Path,
    modules: Sequence[tuple[str, str]],
    *,
    prompts: Mapping[str, str] | None = None,
    default_prompt_name: str | None = None,
    similarity_fn_name: str | None = "cosine",
) -> None:
    """``modules.json`` and the settings beside it, in the form that every release of sentence-transformers reads.

    Args:
        directory: of the model.
        modules: (folder in it, name of the class), in order; the first is the transformer, in the root.
        prompts: of the model, by name.
        default_prompt_name: the one that is used where none is asked for.
        similarity_fn_name: how embeddings are compared.
    """
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
            "prompts": dict(prompts or {}),
            "default_prompt_name": default_prompt_name,
            "similarity_fn_name": similarity_fn_name,
        },
    )


def read_rest(model_name_or_path: str, **hub: Any) -> dict[str, Tensor]:
    """The head and the method's state of a checkpoint.

    Raises:
        UserError: if the file is not there, or cut off.
    """
    path = find(model_name_or_path, WEIGHTS, **hub)
    if path is None:
        raise UserError(f"{model_name_or_path} has no {WEIGHTS}")
    return read_safetensors(path)


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file.

    Raises:
        UserError: if it is cut off or no safetensors file.
    """
    with _open(path) as file:
        return {key: file.get_tensor(key) for key in file.keys()}


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a file, of which only the header is read.

    Raises:
        UserError: if it is cut off or no safetensors file.
    """
    with _open(path) as file:
        return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is cut off or no safetensors file ({error}): fetch it again, or convert it") from error


def weight_files(model_name_or_path: str, **hub: Any) -> list[Path]:
    """The files of a checkpoint's weights: safetensors if it has them, else torch's own; whole or in shards.

    Raises:
        UserError: for an index that names a file outside the checkpoint, or one that is not there.
    """
    for name in ("model.safetensors", "pytorch_model.bin"):
        if path := find(model_name_or_path, name, **hub):
            return [path]
        if index := find(model_name_or_path, f"{name}.index.json", **hub):
            shards = read_json(index)
            shards = shards.get("weight_map") if isinstance(shards, dict) else None
            if not isinstance(shards, dict) or not all(isinstance(shard, str) for shard in shards.values()):
                raise UserError(f"{index} has no weight_map from tensors to files")
            paths = []
            for shard in sorted(set(shards.values())):
                found = None if leads_out(shard) else find(model_name_or_path, shard, **hub)
                if found is None or found.suffix != Path(name).suffix:
                    raise UserError(f"{index} names {shard!r}, which is no {Path(name).suffix} file of the checkpoint")
                paths.append(found)
            return paths
    return []


def leads_out(name: str) -> bool:
    """Whether a path, on any system, is absolute or goes up, and so may lead out of the folder that it is relative to.

    >>> [leads_out(name) for name in ("1_Pooling", "org/model", "/etc/passwd", "a/../../b", "~/x", "C:/x", "file://x")]
    [False, False, True, True, True, True, True]
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    return (
        PurePosixPath(name).is_absolute() or bool(PureWindowsPath(name).anchor or PureWindowsPath(name).drive)
        or ".." in parts or name.startswith("~") or "://" in name or "\0" in name
    )  # fmt: skip


# The kinds of numbers of a model's configuration that memory or time is proportional to, and the most of each.
_SIZES = (
    (re.compile(r"layers?$|depth$"), 256),
    (re.compile(r"vocab_size$|position"), 10_000_000),
    (re.compile(r"^num_|^n_|size$|dim$|width$|rank$|heads$|labels$|features$|^d_|_dims?_|buckets$"), 1_000_000),
)
_BYTES_PER_PARAMETER = 0.25
"""The least that a parameter takes in a file of weights: two bits, less than any encoder's."""
_OWN_MODULES = ("Transformer", "WeightedLayerPooling", "Pooling", "Dense")


def check_sizes(settings: Mapping[str, Any], where: str | Path) -> None:
    """Refuse numbers that no model has, before anything of their size is made.

    Args:
        settings: a configuration.
        where: what it is, for the message.

    Raises:
        UserError: for the first of them.
    """
    for name, value in settings.items():
        if isinstance(value, dict):
            check_sizes(value, where)
        elif isinstance(value, int | float):
            limit = next((limit for pattern, limit in _SIZES if pattern.search(str(name))), None)
            if limit is not None and not -1 <= value <= limit:
                raise UserError(f"{where} asks for {name} {value}; the most is {limit:,}: this is no usable model")


def check(model_name_or_path: str, **hub: Any) -> None:
    """Look at a model that someone else may have made before any library loads it.

    Everything that is refused here would run code that comes with the model, read files outside it, or take memory out
    of proportion to its weights. What is no model at all is left to the loading to complain about.

    Args:
        model_name_or_path: folder or Hub id of an encoder, a sentence-transformers model or a checkpoint of this
            package; the last has to keep to what this package writes.
        **hub: revision, token, cache_dir, local_files_only.

    Raises:
        UserError: for the first thing that is refused.
    """
    try:
        path = find(model_name_or_path, "config.json", **hub)
        modules = find(model_name_or_path, "modules.json", **hub)
    except UserError:  # no such id, or no access to it
        return
    if path is None and modules is None:
        return
    own = find(model_name_or_path, CONFIG, **hub) is not None
    if own:
        check_links(model_name_or_path)
        for name in ("tokenizer_config.json", "sentence_bert_config.json", "adapter_config.json"):
            extra = find(model_name_or_path, name, **hub)
            if extra and (name.startswith("adapter") or "auto_map" in _object(extra)):
                raise UserError(f"{extra} names other code or another model, which no checkpoint of this package does")
    if modules:
        _check_modules(model_name_or_path, modules, own, **hub)
    if path:
        _check_backbone(model_name_or_path, path, own, **hub)


def check_links(model_name_or_path: str) -> None:
    """Refuse links that lead out of a folder, but for those of a Hub cache into its own files.

    Raises:
        UserError: naming the link.
    """
    folder = Path(model_name_or_path)
    if not folder.is_dir():
        return
    root = folder.resolve()
    allowed = [root, root.parents[1] / "blobs"] if root.parent.name == "snapshots" else [root]
    for path in [*folder.glob("*"), *folder.glob("*/*")]:
        if path.is_symlink() and not any(path.resolve().is_relative_to(place) for place in allowed):
            raise UserError(f"{path} is a link that leads out of the folder: put the file itself there")


def _object(path: Path) -> dict[str, Any]:
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object")
    return value


def _check_modules(name: str, path: Path, own: bool, **hub: Any) -> None:
    """Refuse module classes from elsewhere, which are imported by their name, and folders outside the model."""
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise UserError(f"{path} is not a list of modules")
    for module in modules:
        kind, folder = module.get("type"), module.get("path")
        if not isinstance(kind, str) or not re.fullmatch(r"sentence_transformers(\.\w+)+", kind):
            raise UserError(f"{path} names the module {kind!r}, which is not part of sentence-transformers: not loaded")
        if own and kind.rpartition(".")[2] not in _OWN_MODULES:
            raise UserError(f"{path} names the module {kind!r}, which no checkpoint of this package has")
        if not isinstance(folder, str) or leads_out(folder):
            raise UserError(f"{path} names the folder {folder!r}, which is outside the model")
        found = find(name, f"{folder}/config.json", **hub) if folder else None
        if found is None:
            continue
        settings = _object(found)
        check_sizes(settings, found)
        if kind.endswith(".Dense"):
            activation = settings.get("activation_function", "torch.nn.")
            if not isinstance(activation, str) or not activation.startswith("torch.nn."):
                raise UserError(f"{found} names the activation {activation!r}, which is none of torch.nn")
            weights = find(name, f"{folder}/model.safetensors", **hub)
            shape = (settings.get("out_features"), settings.get("in_features"))
            if weights and read_shapes(weights).get("linear.weight") != shape:
                raise UserError(f"{found} asks for a layer of {shape}, which {weights.name} beside it does not hold")


def _check_backbone(name: str, path: Path, own: bool, **hub: Any) -> None:
    """Refuse code that comes with the model, and a configuration that asks for more than the weights can fill."""
    settings = _object(path)
    check_sizes(settings, path)
    attention = [settings.get(key) for key in ("attn_implementation", "_attn_implementation")]
    if any(isinstance(value, str) and "/" in value for value in attention) or (
        "auto_map" in settings and (own or settings.get("model_type") not in transformers.CONFIG_MAPPING)
    ):
        raise UserError(f"{path} needs code that comes with the model, which is never run: choose another model")
    files = weight_files(name, **hub)
    held = {k: v for file in files if file.suffix == ".safetensors" for k, v in read_shapes(file).items()}
    try:
        with torch.device("meta"):  # shapes without memory
            wanted = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(**settings)).state_dict()
    except Exception as error:  # each kind of model complains of its settings in its own way
        if own:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"{path} describes no model that can be built ({reason[:200]})") from error
        return
    if own and held:
        check_shapes({k: v for k, v in wanted.items() if k in held}, held, path)
    parameters, size = sum(tensor.numel() for tensor in wanted.values()), sum(file.stat().st_size for file in files)
    if files and parameters * _BYTES_PER_PARAMETER > size:
        raise UserError(f"{path} asks for {parameters:,} parameters; the weights beside it are {size:,} bytes")


def check_shapes(wanted: Mapping[str, Tensor], held: Mapping[str, tuple[int, ...]], config: str | Path) -> None:
    """Refuse weights that are not those that a configuration describes.

    Args:
        wanted: name -> tensor, which may be on the device ``meta``.
        held: name -> shape, as in the file.
        config: the configuration, for the message.

    Raises:
        UserError: for the first that is missing, too many or of another shape.
    """
    for key in sorted(wanted.keys() | held.keys()):
        want, have = (tuple(wanted[key].shape) if key in wanted else None), held.get(key)
        if want != have:
            raise UserError(
                f"{config} does not fit the weights beside it: {key} is {have or 'missing'} there and "
                f"{want or 'unknown'} by the configuration"
            )
