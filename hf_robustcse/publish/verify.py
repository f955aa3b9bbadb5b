"""Whether a folder is what sentence-transformers alone loads: in a process of its own, without this package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from hf_robustcse import layout
from hf_robustcse.encoder import SentenceEncoder, load_backbone
from hf_robustcse.errors import UserError
from hf_robustcse.files import read_json

PAIR = ("A man is playing a guitar.", "Someone is playing an instrument.")
"""Their cosine is recorded, and is on the card, so that whoever loads the model can see that it is the same."""
SENTENCES = (
    *PAIR, "The weather is cold today.", "Two dogs run through the snow.", "a", "Prices rose by 3.5 % in May, he said.",
    "What is the capital of France?", "It was not good, and I would not watch it again; the actors were bored too.",
)  # fmt: skip
TOLERANCE = 1e-5

# Runs alone. A module that is None in sys.modules cannot be imported, wherever it is installed.
_ALONE = """
import json, sys
sys.modules["hf_robustcse"] = None
from sentence_transformers import SentenceTransformer
folder, sentences = json.load(sys.stdin)
model = SentenceTransformer(folder, device="cpu", local_files_only=True)
rows = model.encode(sentences, show_progress_bar=False)
kinds = sorted({str(p.dtype) for p in model.parameters()})
print(json.dumps({"embeddings": rows.tolist(), "dtypes": kinds}))
"""


@torch.no_grad()
def embed(folder: Path, sentences: Sequence[str]) -> Tensor:
    """Embeddings as `RobustCSEModel.encode` computes them, (n, d) in float32, one sentence at a time.

    Args:
        folder: a checkpoint in the published layout.
        sentences: n texts.

    Raises:
        UserError: if it cannot be loaded.
    """
    config = read_json(folder / layout.CONFIG)
    backbone = load_backbone(str(folder))
    with torch.device("meta"):  # no random number is drawn: a training may be under way in another thread
        encoder = SentenceEncoder(backbone, pooler=config["pooler"], head=config["head"]).eval()
    mine, rest = "encoder.head.", layout.read_rest(str(folder))
    head = {k.removeprefix(mine): v.float() for k, v in rest.items() if k.startswith(mine)}
    encoder.head.load_state_dict(head, assign=True)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    length = read_json(folder / "sentence_bert_config.json")["max_seq_length"]
    rows = []
    for sentence in sentences:
        ids = tokenizer(sentence, truncation=True, max_length=length, return_tensors="pt")
        pooled = encoder(ids["attention_mask"], input_ids=ids["input_ids"])
        rows.append(encoder.head(pooled) if config["keep_head"] else pooled)
    return torch.cat(rows).float()


def cosine(a: Tensor, b: Tensor) -> float:
    """The cosine of two vectors (d,)."""
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))


def verify(folder: str | Path) -> dict[str, Any]:
    """Load a release by sentence-transformers alone, in a fresh process that cannot import this package.

    The process sees no token and no network, runs no code of the folder, and must embed as this package does.

    Args:
        folder: a release folder.

    Returns:
        ``{"max_abs_difference", "cosine", "dtypes"}``: the largest difference between an embedding there and here,
        relative to the largest entry where that is above 1; the cosine of the two sentences of the card there.

    Raises:
        UserError: if it does not load, or embeds otherwise.
    """
    folder = Path(folder).absolute()
    here = embed(folder, SENTENCES)
    hidden = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HUGGINGFACE_HUB_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(
        [sys.executable, "-c", _ALONE], input=json.dumps([str(folder), SENTENCES]), capture_output=True, text=True,
        env={**environment, "HF_HUB_OFFLINE": "1"}, encoding="utf-8", check=False,
    )  # fmt: skip
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["it died without a word"])[-1]
        raise UserError(f"sentence-transformers alone cannot load {folder.name}: {reason}")
    alone = json.loads(done.stdout.strip().splitlines()[-1])
    there = torch.tensor(alone["embeddings"])
    if there.shape != here.shape:
        raise UserError(f"{folder.name}: alone it embeds into {there.shape[1]} dimensions, here into {here.shape[1]}")
    difference = float((there - here).abs().max() / max(1.0, float(here.abs().max())))
    if not difference <= TOLERANCE:
        raise UserError(
            f"{folder.name}: sentence-transformers alone embeds otherwise than this package, by {difference:.2g}"
        )
    result = {"max_abs_difference": difference, "cosine": cosine(there[0], there[1]), "dtypes": alone["dtypes"]}
    expected = read_json(folder / "manifest.json")["release"]["check"]["cosine"]
    if abs(expected - result["cosine"]) > TOLERANCE:
        raise UserError(f"{folder.name}: the cosine of the card's check is {result['cosine']:.6f}, not {expected:.6f}")
    return result
