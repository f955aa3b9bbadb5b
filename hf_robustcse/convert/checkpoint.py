"""`hf-robustcse import`: a released SimCSE, DCLR, GS-InfoNCE or DiffCSE checkpoint into the published layout.

Those repositories save the state of their training model: the backbone under `bert.` or `roberta.`, the projection
head under `mlp.`, and whatever else they train. Converted ones hold the bare backbone, with the head in the place of
BERT's own pooler. Which vector is the embedding is written nowhere. Here keys are mapped by their prefix, everything
that was not taken is named, and the result is compared with the original before it is there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentence_transformers
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel
from transformers.utils import logging

from hf_robustcse import layout
from hf_robustcse.cards.check import check_repo_id
from hf_robustcse.convert import SOURCES
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import StsData, evaluate_pairs, load_sts
from hf_robustcse.files import sha256_file, whole_folder, write_json
from hf_robustcse.model import RobustCSEConfig, RobustCSEModel, load_tokenizer
from hf_robustcse.modules import Head

LEFT_OUT = {
    "lm_head.": "head of the masked-language model",
    "discriminator.": "DiffCSE's discriminator",
    "electra_head.": "classifier of DiffCSE's discriminator",
    "generator.": "DiffCSE's generator",
    "fix_bert.": "DCLR's frozen complement",
    "momentum_model.": "ESimCSE's momentum copy",
}
"""Prefixes that are known and have no place in a sentence encoder."""
TOKENIZER_FILES = (
    "tokenizer.json", "vocab.txt", "vocab.json", "sentencepiece.bpe.model", "spiece.model", "spm.model",
)  # fmt: skip
BOUND = 1e-5
"""The most that a component of an embedding may differ from the original's."""
TEXTS = [
    "A man is playing a guitar.",
    "Someone plays music",
    "The river rose by two metres overnight, and the lower half of the old town had to be left before the morning.",
    "No.",
    "Three dogs run across a snowy field while a child in a red coat watches them!",
    "interest rates 4.25 %",
]
"""What is embedded to compare; of different lengths, so that padding counts."""


def run(
    checkpoint: str,
    output_dir: str,
    source: str = "auto",
    pooler: str = "cls",
    keep_head: str = "auto",
    tokenizer: str | None = None,
    data_dir: str | None = None,
    argv: Sequence[str] = (),
) -> None:
    """Import a checkpoint, say what was mapped, compare it with the original and score it.

    Args:
        checkpoint: folder or Hub id.
        output_dir: the folder to write, which must not exist or be empty.
        source: a key of `SOURCES`, or auto.
        pooler: one of `modules.POOLERS`.
        keep_head: auto, yes or no.
        tokenizer: folder or Hub id.
        data_dir: with STS-B; without it the embedded dev set is scored.
        argv: the command's words.

    Raises:
        UserError: for a checkpoint that is none of these, is damaged or unsafe, or gives other embeddings than the
            original; nothing is written then.
    """
    out = Path(output_dir)
    if not checkpoint.strip() or not output_dir.strip():
        raise UserError("name a checkpoint and an --output_dir")
    if Path(checkpoint).is_file():
        raise UserError(f"{checkpoint} is a file: give the folder that it is in")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"--output_dir {output_dir} is there already: choose a new folder")
    if not Path(checkpoint).is_dir():
        if layout.leads_out(checkpoint):
            raise UserError(f"there is no folder {checkpoint}")
        check_repo_id(checkpoint, "the checkpoint")
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # its tables of names that it does not know; what is printed here says more
    layout.check_links(checkpoint)
    layout.check(checkpoint)
    if layout.find(checkpoint, layout.CONFIG) is not None:
        raise UserError(f"{checkpoint} is a checkpoint of this package already: there is nothing to import")
    if layout.find(checkpoint, "modules.json") is not None:
        raise UserError(
            f"{checkpoint} is a sentence-transformers model already (modules.json says how it pools): use it as it is"
        )
    dev = load_sts("STSB", data_dir, "dev") if data_dir else load_sts("embedded", None, "dev")
    files, weights = read_weights(checkpoint)
    try:
        config = AutoConfig.from_pretrained(checkpoint)
    except (OSError, ValueError) as error:
        raise UserError(f"{checkpoint} has no usable config.json ({' '.join(str(error).split())[:200]})") from None
    with torch.device("meta"):
        blank = AutoModel.from_config(config, dtype=torch.float32)
    mapped = map_keys(weights, blank, source)
    kept, why = _keeps_head(keep_head, checkpoint, mapped)
    model = _build(config, mapped, pooler, kept)
    model.attach_tokenizer(_tokenizer(tokenizer or checkpoint, config.vocab_size))
    lines = mapped.lines()
    lines.append(f"embedding: {pooler}{' and the head' if kept else ', without the head'} ({why})")
    print(*lines, sep="\n", flush=True)
    record = {
        "checkpoint": Path(checkpoint).name if Path(checkpoint).is_dir() else checkpoint,
        "sha256": {file.name: sha256_file(file) for file in files},
        "source": mapped.source,
        "tensors": {
            "backbone": len(mapped.backbone), "head": len(mapped.head) if mapped.head_kind != "none" else 0,
            "left_out": sorted(mapped.left_out), "unexpected": sorted(mapped.unexpected),
        },
        "pooler": pooler, "keep_head": kept, "why": why,
    }  # fmt: skip
    with whole_folder(out) as new:
        model.save_pretrained(new)
        record["largest_difference"] = compare(new, reference(checkpoint, model, mapped.head if kept else {}, pooler))
        print(f"embeddings equal those of {checkpoint} to {record['largest_difference']:.1e}", flush=True)
        record["dev"] = _score(model, dev, mapped, kept)
        write_json(new / "import.json", record)
    print(f"model: {out} -- SentenceTransformer({str(out)!r}) loads it; import.json lists what was mapped")


class Mapped:
    """The tensors of a checkpoint by what becomes of them.

    Attributes:
        source: a key of `SOURCES`.
        width: d.
        backbone: by the names that the backbone has for them.
        head: by their names within the head; empty if there is none.
        head_name: their prefix in the checkpoint.
        left_out: known, and not part of a sentence encoder.
        unexpected: unknown names.
    """

    def __init__(self, source: str, width: int) -> None:
        self.source = source
        self.width = width
        self.backbone: dict[str, Tensor] = {}
        self.head: dict[str, Tensor] = {}
        self.head_name = ""
        self.left_out: list[str] = []
        self.unexpected: list[str] = []

    @property
    def own_head(self) -> dict[str, Tensor]:
        """The head by the names of ours."""
        return {
            re.sub(r"^net\.|^dense(?=\.)", lambda m: "" if m[0] == "net." else "0", k): v for k, v in self.head.items()
        }

    @property
    def head_kind(self) -> str:
        """Which head of ours it is: tanh, mlp, or none."""
        if self.source == "dclr":  # it follows BERT's own pooler, which is no part of a head here
            return "none"
        shapes = {key: value.shape for key, value in self.own_head.items()}
        heads = (kind for kind in ("tanh", "mlp") if _shapes(Head(kind, self.width)) == shapes)
        return next(heads, "none")

    def lines(self) -> list[str]:
        """What was mapped, for people."""
        head = self.head_kind
        lines = [f"source: {self.source}", f"backbone: {len(self.backbone)} tensors"]
        if self.head and head != "none":
            lines.append(f"head: {len(self.head)} tensors, {self.head_name}* -> robustcse/ ({head})")
        elif self.head:
            reason = "it follows BERT's pooler" if self.source == "dclr" else "no head here has its shape"
            lines.append(f"head: left out, {len(self.head)} tensors {self.head_name}*: {reason}")
        for prefix, count in sorted(Counter(key.split(".")[0] + "." for key in self.left_out).items()):
            lines.append(f"left out: {count} tensors {prefix}* ({LEFT_OUT.get(prefix, 'buffers of positions')})")
        return lines + [f"unexpected, left out: {key}" for key in self.unexpected]


def _shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    return {key: value.shape for key, value in module.state_dict().items()}


def read_weights(checkpoint: str) -> tuple[list[Path], dict[str, Tensor]]:
    """All tensors of a checkpoint by name, and the files that they came from; nothing in them is executed.

    Raises:
        UserError: if there are none, or a file is damaged or holds more than tensors.
    """
    files = layout.weight_files(checkpoint)
    if not files:
        raise UserError(
            f"{checkpoint} has no model.safetensors and no pytorch_model.bin, or cannot be reached: give a folder, or "
            "a Hub id that is reachable or in the cache"
        )
    weights: dict[str, Tensor] = {}
    for file in files:
        if file.suffix == ".safetensors":
            found = layout.read_safetensors(file)
        else:
            try:
                found = torch.load(file, map_location="cpu", weights_only=True)
            except Exception as error:  # damaged archives have a dozen kinds of their own
                reason = " ".join(str(error).split())[:200]
                raise UserError(f"{file} is damaged, or holds more than tensors and is not read ({reason})") from None
        if not isinstance(found, dict) or not all(
            isinstance(k, str) and isinstance(v, Tensor) for k, v in found.items()
        ):
            raise UserError(f"{file} is no dictionary from names to tensors")
        weights |= found
    return files, weights


def map_keys(weights: Mapping[str, Tensor], blank: PreTrainedModel, source: str = "auto") -> Mapped:
    """Sort the tensors of a checkpoint by the prefix of their names.

    Args:
        weights: by name.
        blank: the backbone of its configuration, on any device.
        source: a key of `SOURCES`, or auto.

    Raises:
        UserError: if the backbone lacks tensors, or has them in another shape.
    """
    wanted = blank.state_dict()
    prefix = f"{blank.base_model_prefix}."
    inside = any(key.startswith(prefix) and key.removeprefix(prefix) in wanted for key in weights)
    mapped = Mapped(_source_of(weights) if source == "auto" else source, blank.config.hidden_size)
    mapped.head_name = "mlp." if inside or "mlp.dense.weight" in weights or "mlp.net.0.weight" in weights else "pooler."
    for key, tensor in weights.items():
        name = key.removeprefix(prefix) if inside else key
        if key.startswith(mapped.head_name):
            mapped.head[key.removeprefix(mapped.head_name)] = tensor.float()
        elif name in wanted and key.startswith(prefix if inside else ""):
            if tensor.shape != wanted[name].shape:
                raise UserError(
                    f"{key} is {tuple(tensor.shape)}, but {tuple(wanted[name].shape)} by config.json: it is that of "
                    "another model"
                )
            mapped.backbone[name] = tensor.float().contiguous()
        elif key.startswith(tuple(LEFT_OUT)) or name.endswith("position_ids"):
            mapped.left_out.append(key)
        else:
            mapped.unexpected.append(key)
    missing = sorted(key for key in wanted.keys() - mapped.backbone.keys() if not key.startswith("pooler."))
    if missing:
        raise UserError(
            f"{len(missing)} of {len(wanted)} tensors of {type(blank).__name__} are missing, such as {missing[0]}; the "
            f"checkpoint has {len(weights)}, such as {min(weights, default='none')}"
        )
    return mapped


def _source_of(weights: Mapping[str, Tensor]) -> str:
    """Who writes such keys; GS-InfoNCE's are those of SimCSE."""
    if any(key.startswith(("discriminator.", "electra_head.", "mlp.net.")) for key in weights):
        return "diffcse"
    return "dclr" if any(key.startswith("fix_bert.") for key in weights) else "simcse"


def _keeps_head(keep_head: str, checkpoint: str, mapped: Mapped) -> tuple[bool, str]:
    """Whether the head is part of the embedding, and why."""
    if keep_head == "no" or not mapped.head:
        return False, "--keep_head no" if keep_head == "no" else "the checkpoint has no head"
    name = Path(checkpoint).name.lower()
    supervised = re.search(r"(?<![a-z])sup(ervised)?(?![a-z])", name) is not None
    if keep_head == "auto" and not (supervised and mapped.source == "simcse"):
        return False, "the head is for training only in an unsupervised model; --keep_head yes if this is not one"
    if mapped.head_kind == "none":
        raise UserError(f"the head {mapped.head_name}* of this {mapped.source} checkpoint has no counterpart here, so "
                        "it cannot be part of the embedding: --keep_head no leaves it out")  # fmt: skip
    return True, "--keep_head yes" if keep_head == "yes" else f"`sup` in the name {name}; --keep_head no leaves it out"


def _tokenizer(name: str, vocabulary: int) -> Any:
    """The tokenizer; transformers would make up an empty one where there is none."""
    if not any(layout.find(name, file) for file in TOKENIZER_FILES):
        raise UserError(f"{name} has no tokenizer: --tokenizer names the folder or Hub id of the encoder it began with")
    tokenizer = load_tokenizer(name)
    if len(tokenizer) > vocabulary:
        raise UserError(f"the tokenizer of {name} has {len(tokenizer)} tokens, the encoder {vocabulary}: --tokenizer")
    return tokenizer


def _build(config: PretrainedConfig, mapped: Mapped, pooler: str, keep_head: bool) -> RobustCSEModel:
    """The model with the mapped weights; its backbone has a pooler only if the checkpoint has one beside the head."""
    backbone = AutoModel.from_config(config, dtype=torch.float32)
    backbone.load_state_dict(mapped.backbone, strict=False)
    if not any(key.startswith("pooler.") for key in mapped.backbone) and getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    head = mapped.head_kind
    settings = RobustCSEConfig(
        method=SOURCES[mapped.source], pooler=pooler, keep_head=keep_head,
        **({} if head == "none" else {"head": head}),
    )  # fmt: skip
    model = RobustCSEModel(settings, backbone)
    if head != "none":
        model.encoder.head.load_state_dict(mapped.own_head)
    return model.eval()


@torch.no_grad()
def reference(checkpoint: str, model: RobustCSEModel, head: Mapping[str, Tensor], pooler: str) -> Tensor:
    """The embeddings of `TEXTS` by the original: `AutoModel` on its own files, pooled and projected by hand.

    Args:
        checkpoint: folder or Hub id of the original.
        model: gives the tokenizer and the length.
        head: the tensors of a head that is part of the embedding, else empty.
        pooler: one of `modules.POOLERS`.

    Returns:
        (n, d).
    """
    backbone = AutoModel.from_pretrained(checkpoint, dtype=torch.float32).eval()
    batch = model.tokenizer(
        TEXTS, padding=True, padding_side="right", truncation=True, max_length=model.max_seq_length, return_tensors="pt"
    )
    mask = batch["attention_mask"]
    output = backbone(input_ids=batch["input_ids"], attention_mask=mask, output_hidden_states=True)
    rows = output.last_hidden_state
    if layers := {"first-last": (1, -1), "top-two": (-2, -1)}.get(pooler):
        rows = (output.hidden_states[layers[0]] + output.hidden_states[layers[1]]) / 2
    if pooler == "cls":
        x = rows[:, 0]
    else:
        x = torch.stack([row[: int(length)].mean(dim=0) for row, length in zip(rows, mask.sum(dim=1), strict=True)])
    if "dense.weight" in head:
        x = torch.tanh(x @ head["dense.weight"].T + head["dense.bias"])
    elif head:
        norms = [(head[f"net.{i}.running_mean"], head[f"net.{i}.running_var"]) for i in (1, 4)]
        x = F.batch_norm(x @ head["net.0.weight"].T, *norms[0], head["net.1.weight"], head["net.1.bias"]).relu()
        x = F.batch_norm(x @ head["net.3.weight"].T, *norms[1])
    return x


def compare(folder: Path, want: Tensor) -> float:
    """The largest difference of the imported model's embeddings of `TEXTS`, by sentence-transformers and by us.

    Raises:
        UserError: if it is larger than `BOUND`.
    """
    stock = sentence_transformers.SentenceTransformer(str(folder), device="cpu").encode(TEXTS, show_progress_bar=False)
    ours = RobustCSEModel.from_pretrained(folder).encode(TEXTS).numpy()
    largest = float(max(np.abs(found - want.numpy()).max() for found in (stock, ours)))
    if not largest <= BOUND:
        raise UserError(f"the imported model's embeddings differ from the original's by {largest:.1e}: not written")
    return largest


def _score(model: RobustCSEModel, dev: StsData, mapped: Mapped, kept: bool) -> dict[str, Any]:
    """The Spearman correlation on a dev set; with a head that we have, also that of the other choice, as a check."""
    scores = {}
    for with_head in (False, True) if mapped.head_kind != "none" else (kept,):
        model.config.keep_head = with_head
        scores[with_head] = evaluate_pairs(model.encode, dev.subsets)["spearman"]
    model.config.keep_head = kept
    print(f"{dev.key} ({dev.n} pairs): spearman {scores[kept]:.2f}", end="")
    print(f", {scores[not kept]:.2f} {'without' if kept else 'with'} the head" if len(scores) > 1 else "")
    if scores.get(not kept, -100.0) > scores[kept] + 1:
        print(f"note: the other choice scores better; check whether it should be --keep_head {'no' if kept else 'yes'}")
    return {
        "set": dev.key, "n": dev.n, "source": Path(dev.source).name, "sha256": dev.sha256, "spearman": scores[kept],
        "spearman_other_head_choice": scores.get(not kept),
    }  # fmt: skip
