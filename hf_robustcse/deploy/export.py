"""`hf-robustcse export`: a checkpoint as ONNX, float and int8, in the layout that sentence-transformers reads.

The folder is what `SentenceTransformer(OUT, backend="onnx", model_kwargs={"file_name": ...})` loads on a machine that
has neither this package nor our version of transformers. It is written with torch.onnx and onnxruntime, not with
sentence-transformers' `export_dynamic_quantized_onnx_model`: that needs optimum, whose releases so far do not allow
transformers 5, and it cannot average hidden states. The files have the names, and the quantised ones the settings, that
it would give them. What was written is compared with torch before the folder is put in its place.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
import platform
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    LayerNorm,
    Normalize,
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from torch import Tensor, nn
from transformers.utils import logging as transformers_logging

from hf_robustcse import layout
from hf_robustcse.cards.check import check_repo_id
from hf_robustcse.deploy.encode_command import DEFAULT_FILE
from hf_robustcse.deploy.export_command import MIN_COSINE, QUANTIZATIONS
from hf_robustcse.deploy.onnx_model import OUTPUT, load_onnx, require_onnx
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.evaluation.sts import StsData, evaluate_pairs, load_sts
from hf_robustcse.files import version_of, whole_folder, write_json

MAX_DIFFERENCE = 1e-5
"""Most that a coordinate of a normalised float embedding may differ from torch's."""

REPORT = "export.json"
_PROTOBUF_LIMIT = 2_000_000_000
_ALWAYS_COMPARED = [
    "", " ", "a", "!?", "A dog runs in the park.", "  spaces   and\ttabs  ", "naïve café – “quotes” …",
    "日本語の文です。", "Привет, мир", "مرحبا بالعالم", "\N{FAMILY} emoji \N{PARTY POPPER}", "x" * 300,
    "one two three four five six seven eight nine ten " * 120,
]  # fmt: skip


def run(
    model: str,
    output_dir: str,
    format: str,
    quantize: Sequence[str],
    min_cosine: float,
    eval_data_dir: str | None,
    overwrite: bool,
    argv: Sequence[str] = (),
) -> None:
    """Export, print what was measured and how to load it.

    Args:
        model: the checkpoint.
        output_dir: where to.
        format: `onnx`.
        quantize: targets, see `QUANTIZATIONS`, or `int8`.
        min_cosine: see `export_onnx`.
        eval_data_dir: evaluation data with STS-B dev; None takes the embedded dev set.
        overwrite: whether a folder that is there is replaced.
        argv: the command's words.

    Raises:
        UserError: as `export_onnx`.
    """
    folder = Path(output_dir).expanduser()
    if not -1 <= min_cosine <= 1:
        raise UserError(f"--min_cosine must be between -1 and 1, not {min_cosine}")
    if folder.exists() and not overwrite:
        raise UserError(f"--output_dir {output_dir} exists: add --overwrite to replace it, or name another")
    # The folder is replaced as a whole: that must not take a checkpoint, or anything else, away.
    if folder.exists() and not (folder / REPORT).is_file() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"--output_dir {output_dir} is no export (it has no {REPORT}), so it is kept: name another")
    transformers_logging.disable_progress_bar()
    data = load_sts("embedded_dev", None) if eval_data_dir is None else load_sts("stsb_dev", eval_data_dir)
    report = export_onnx(model, folder, quantize=quantize, min_cosine=min_cosine, dev_set=data)
    print(f"torch: {data.key} Spearman {report['torch']['spearman']:.2f}")
    for name, graph in report["files"].items():
        print(
            f"{name} ({graph['bytes'] / 1e6:.1f} MB): {data.key} Spearman {graph['spearman']:.2f}; against torch on "
            f"{report['sentences']} texts max difference {graph['max_difference']:.1e}, "
            f"min cosine {graph['min_cosine']:.6f}"
        )
    best = list(report["files"])[-1]
    print(f'next: SentenceTransformer({str(folder)!r}, backend="onnx", model_kwargs={{"file_name": {best!r}}})')
    print(
        f"or:   hf-robustcse encode --model {shlex.quote(str(folder))} --backend onnx --file_name {best} --input FILE "
        "--output OUT.parquet"
    )


def export_onnx(
    model_name_or_path: str,
    output_dir: str | Path,
    *,
    quantize: Sequence[str] = (),
    min_cosine: float = MIN_COSINE,
    dev_set: StsData | None = None,
) -> dict[str, Any]:
    """Write a checkpoint as ONNX, compare it with torch, and put it in its place if it agrees.

    A weighted average of layers (the poolings `first-last` and `top-two`) becomes part of the graph, whose output is
    then that average; all other modules stay as they are, in the folders that `modules.json` names.

    Args:
        model_name_or_path: checkpoint folder or Hub id with `modules.json`: a transformer, then any of
            WeightedLayerPooling, Pooling, Dense, LayerNorm, Normalize.
        output_dir: replaced as a whole, or left as it was if anything fails.
        quantize: targets of `QUANTIZATIONS`, or `int8`; each gives `onnx/model_TYPE_TARGET.onnx`.
        min_cosine: least cosine of an int8 embedding with torch's, in [-1, 1].
        dev_set: scored with torch and with each graph; None takes the embedded dev set. Its sentences are compared too.

    Returns:
        What `export.json` holds: `torch` {`spearman` x 100}, `files`: graph -> {`bytes`, `max_difference` and
        `min_cosine` of normalised embeddings, `spearman` x 100}, `sentences`, `dev_set`, `max_seq_length`, `bounds`,
        `versions`.

    Raises:
        UserError: if a package is missing, the model cannot be exported, or a graph disagrees with torch by more than
            `MAX_DIFFERENCE` or `min_cosine`.
    """
    require_onnx("onnx", "onnxscript", "onnxruntime")
    if not Path(model_name_or_path).exists():
        check_repo_id(str(model_name_or_path), "--model")
    if layout.find(str(model_name_or_path), "modules.json") is None:
        raise UserError(
            f"{model_name_or_path} has no modules.json, which says how to pool: give a checkpoint of this package or "
            "another sentence-transformers model; a folder, or a Hub id that can be reached or is cached"
        )
    model = load_embedder(str(model_name_or_path), device="cpu").model
    transformer, layers, rest = _modules(model)
    targets = list(dict.fromkeys(_this_machine() if target == "int8" else target for target in quantize))
    dev_set = load_sts("embedded_dev", None) if dev_set is None else dev_set
    texts = list(dict.fromkeys([*_ALWAYS_COMPARED, *dev_set.sentences]))
    row_of = {text: row for row, text in enumerate(texts)}

    def spearman(rows: np.ndarray) -> float:
        scores = evaluate_pairs(lambda sentences: rows[[row_of[text] for text in sentences]], dev_set.subsets)
        return scores["spearman"]

    expected = _embed(model, texts)
    report: dict[str, Any] = {
        "torch": {"spearman": spearman(expected)},
        "files": {},
        "sentences": len(texts),
        "dev_set": {"name": dev_set.key, "pairs": dev_set.n, "sha256": dev_set.sha256},
        "max_seq_length": model.max_seq_length,
        "bounds": {"max_difference_float": MAX_DIFFERENCE, "min_cosine_int8": min_cosine},
        "versions": {name: version_of(name) for name in ("torch", "transformers", "onnx", "onnxscript", "onnxruntime")},
    }
    with whole_folder(output_dir) as folder:
        (folder / "onnx").mkdir(parents=True)
        _write_modules(folder, model, rest, folded=layers is not None)
        _write_graph(folder / DEFAULT_FILE, transformer, layers)
        files = {DEFAULT_FILE: None}
        for target in targets:
            name = f"onnx/model_{QUANTIZATIONS[target].lower()}_{target}.onnx"
            _quantize(folder / DEFAULT_FILE, folder / name, QUANTIZATIONS[target])
            files[name] = target
        for name, target in files.items():
            found = _embed(load_onnx(str(folder), name), texts)
            difference, cosine = float(np.abs(found - expected).max()), float((found * expected).sum(axis=1).min())
            weights = [file for file in (folder / name, folder / f"{name}_data") if file.exists()]
            report["files"][name] = {
                "bytes": sum(file.stat().st_size for file in weights),
                "max_difference": difference,
                "min_cosine": min(cosine, 1.0),
                "spearman": spearman(found),
            }
            if target is None and not difference <= MAX_DIFFERENCE:
                raise UserError(
                    f"{name} differs from torch by {difference:.1e} in a coordinate, more than {MAX_DIFFERENCE:.0e}: "
                    "nothing was written; please report the model type"
                )
            if target is not None and not cosine >= min_cosine:
                worst = texts[int((found * expected).sum(axis=1).argmin())]
                raise UserError(
                    f"{name}: the cosine with torch falls to {cosine:.4f} (for {worst[:40]!r}), below --min_cosine "
                    f"{min_cosine}: nothing was written; export without --quantize {target}, or lower --min_cosine"
                )
        write_json(folder / REPORT, report)
    return report


def _this_machine() -> str:
    """The target that is right on this machine and its kin; uint8 weights are exact on every x86 processor."""
    return "arm64" if platform.machine().lower() in ("arm64", "aarch64") else "avx2"


def _modules(model: SentenceTransformer) -> tuple[Transformer, WeightedLayerPooling | None, list[nn.Module]]:
    """The transformer, the average of layers if there is one, and the modules behind them."""
    transformer, *rest = list(model)
    if not isinstance(transformer, Transformer):
        raise UserError(f"a model that begins with {type(transformer).__name__} cannot be exported, only a transformer")
    layers = rest.pop(0) if rest and isinstance(rest[0], WeightedLayerPooling) else None
    for module in rest:
        if type(module) not in (Pooling, Dense, LayerNorm, Normalize):
            raise UserError(f"the module {type(module).__name__} cannot be exported")
    return transformer, layers, rest


def _write_modules(folder: Path, model: SentenceTransformer, rest: list[nn.Module], *, folded: bool) -> None:
    """Everything but the graph: configuration, tokenizer, `modules.json` and its folders."""
    transformer = model[0]
    transformer.auto_model.config.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if folded:
        config.pop("output_hidden_states", None)
    write_json(folder / "config.json", config)
    model.tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":  # transformers 4 knows it under its old name
        write_json(path, {**settings, "tokenizer_class": "PreTrainedTokenizerFast"})
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": model.max_seq_length, "do_lower_case": bool(transformer.do_lower_case)},
    )
    listed = [("", "Transformer")]
    for module in rest:
        kind = type(module).__name__
        listed.append((f"{len(listed)}_{kind}", kind))
        (folder / listed[-1][0]).mkdir()
        module.save(str(folder / listed[-1][0]))
        if isinstance(module, Pooling):
            _write_pooling(folder / listed[-1][0], module)
    layout.write_module_list(
        folder, listed, prompts=model.prompts, default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
    )  # fmt: skip


def _write_pooling(folder: Path, module: Pooling) -> None:
    """The pooling's configuration in the form that every release of sentence-transformers since 2.0 reads."""
    modes = [module.pooling_mode] if isinstance(module.pooling_mode, str) else list(module.pooling_mode)
    keys = {
        "cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
    }  # fmt: skip
    write_json(
        folder / "config.json",
        {
            "word_embedding_dimension": module.embedding_dimension,
            **{f"pooling_mode_{key}": mode in modes for mode, key in keys.items()},
            "include_prompt": module.include_prompt,
        },
    )


class _Graph(nn.Module):
    """The backbone with tensors as arguments and one output, the token embeddings."""

    def __init__(self, backbone: nn.Module, names: list[str], layers: WeightedLayerPooling | None) -> None:
        super().__init__()
        self.backbone = backbone
        self.names = names
        self.start = 0 if layers is None else layers.layer_start
        weights = [] if layers is None else layers.layer_weights.detach().double()
        self.weights = [float(weight / weights.sum()) for weight in weights]

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(self.names, inputs, strict=True))
        output = self.backbone(**named, output_hidden_states=bool(self.weights), return_dict=True)
        if not self.weights:
            return output.last_hidden_state
        states = output.hidden_states[self.start :]
        return sum(weight * state for weight, state in zip(self.weights, states, strict=True) if weight)


def _write_graph(path: Path, transformer: Transformer, layers: WeightedLayerPooling | None) -> None:
    """Trace the backbone with free batch size and length."""
    import onnx

    backbone = transformer.auto_model.eval()
    example = transformer.tokenizer(["two texts", "of different length"], padding=True, return_tensors="pt")
    known = inspect.signature(backbone.forward).parameters
    names = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in example and name in known]
    noisy = logging.getLogger("torch.onnx")
    level = noisy.level
    noisy.setLevel(logging.ERROR)  # it tells of operators of packages that are not there
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                _Graph(backbone, names, layers), tuple(example[name] for name in names), dynamo=True, verbose=False,
                input_names=names, output_names=[OUTPUT], external_data=False,
                dynamic_shapes=(tuple({0: "batch_size", 1: "sequence_length"} for _ in names),),
            )  # fmt: skip
    except Exception as error:  # the exporter's exceptions share no public base
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"torch.onnx cannot export {type(backbone).__name__}: {reason}") from error
    finally:
        noisy.setLevel(level)
    large = sum(parameter.numel() * parameter.element_size() for parameter in backbone.parameters()) > _PROTOBUF_LIMIT
    proto = program.model_proto
    # The trace leaves the checkout's path in every node's metadata.
    for node in proto.graph.node:
        del node.metadata_props[:]
    onnx.save_model(
        proto, os.fspath(path), save_as_external_data=large, all_tensors_to_one_file=True, location=f"{path.name}_data"
    )


def _quantize(source: Path, target: Path, weights: str) -> None:
    """Dynamic quantisation, with the settings that optimum has for these targets."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # it recommends a preprocessing that the exporter has done already
    try:
        quantize_dynamic(
            source, target, per_channel=True, reduce_range=False, weight_type=QuantType[weights],
            use_external_data_format=source.with_name(f"{source.name}_data").exists(),
            extra_options={"WeightSymmetric": True},
        )  # fmt: skip
    finally:
        logger.setLevel(level)


def _embed(model: SentenceTransformer, texts: Sequence[str]) -> np.ndarray:
    """(n, d) normalised embeddings in float64, as a user gets them: prompts and all."""
    rows = model.encode(list(texts), batch_size=32, show_progress_bar=False).astype(np.float64)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
