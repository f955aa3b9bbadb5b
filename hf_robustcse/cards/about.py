"""What a card says of each method beside what its `Paper` and its options say."""

from __future__ import annotations

import dataclasses
from typing import Any

FAMILY_TAGS = ("sentence-transformers", "sentence-similarity", "feature-extraction", "robustness", "hf-robustcse")
"""The tags that every model of the family has on the Hub, before those of its methods."""


@dataclasses.dataclass(frozen=True)
class About:
    """A method in words.

    Attributes:
        label: as papers name it.
        idea: what it does, for a reader who knows contrastive learning.
        head: the head of training by default.
        notes: what one has to know to use it.
        limits: (what holds whatever was measured, the values of options under which it does).
    """

    label: str
    idea: str
    head: str
    notes: tuple[str, ...] = ()
    limits: tuple[tuple[str, dict[str, Any]], ...] = ()


_TANH = "Linear-Tanh in training, dropped from the exported model"
_MLP = "two-layer MLP with batch normalisation, dropped from the exported model"

ABOUT = {
    "simcse": About(
        "SimCSE",
        "A sentence is contrasted with itself under another dropout mask; the other sentences of the batch are the "
        "negatives.",
        "Linear-Tanh on `[CLS]` in training, dropped from the exported model",
        (
            "It has no options of its own; `--temperature` (0.05), `--pooler`, `--head` and `--keep_head` are those of "
            "all methods. With pairs or triplets as a corpus it is the supervised form.",
        ),
    ),
    "vadv": About(
        "V-advCSE",
        "The contrastive loss plus `lambda` times a divergence between a sentence and itself under an adversarial "
        "perturbation of its word embeddings (Algorithm 1, eq. 11-14).",
        _MLP,
        limits=(
            (
                "At lambda = 1e-6 the term weighs a millionth of the contrastive loss: what such a run gains over "
                "`simcse` comes from the batch-norm head, where it has one. A larger lambda is needed for the "
                "perturbation itself to matter.",
                {"vadv_lambda": 1e-6},
            ),
        ),
    ),
    "gs_infonce": About(
        "GS-InfoNCE",
        "SimCSE's loss with Gaussian noise vectors, fresh at every step, as additional negatives.",
        _TANH,
        limits=(
            (
                "Under cosine similarity the standard deviation of the noise has no effect while its mean is 0.",
                {"gs_mu": 0.0},
            ),
        ),
    ),
    "dclr": About(
        "DCLR",
        "Noise negatives that gradient ascent moves to where the embeddings are least uniform, and weight 0 for "
        "in-batch negatives that a frozen complementary encoder finds too similar to the anchor.",
        _TANH,
        limits=(
            (
                "Without `--dclr_complement` no negative gets the weight 0: half of the method is off.",
                {"dclr_complement": None},
            ),
            (
                "The paper's step of 1e-3 hardly turns a noise vector; `--dclr_step relative` does.",
                {"dclr_step": "literal", "dclr_step_size": 1e-3},
            ),
        ),
    ),
    "robustsentembed": About(
        "RobustSentEmbed",
        "A sentence under an adversarial perturbation of its word embeddings is one more positive and an anchor of its "
        "own, and a discriminator that is given the sentence embedding tells replaced from original tokens (eq. 2-10).",
        _MLP,
        (
            "`--rse_lambda2 0` trains without generator, discriminator and token table.",
            "A step costs max(K, T) attack passes over up to three times the batch, one pass more for the perturbed "
            "sentences, and one each of generator and discriminator.",
        ),
    ),
    "dcl": About(
        "DCL (disentangled)",
        "Disentangled contrastive learning: alignment of a sentence and its augmentation with a momentum copy of the "
        "encoder (eq. 7, 8), uniformity from power normalisation in the projection and the predictor (eq. 9), no "
        "negatives, joint with masked-language modelling: `L = L_MLM + L_align + L~_align`.",
        "none; projection and predictor are dropped from the exported model",
        (
            "It has nothing to do with the decoupled loss that is also called DCL; that one is `--dclr_decoupled`.",
            "WordNet (`pip install hf_robustcse[wordnet]`) is found through `WORDNET_DIR`, nltk's data path or "
            "`/usr/share/wordnet`. Labelled pairs take the place of the augmentation; with them choose "
            "`--dcl_augmentation dropout`, which reads no text.",
            "Training of the paper: learning rate 1e-5 (released code: 2e-5, weight decay 0.1), cosine decay "
            "(`--lr_scheduler_type cosine`), batch 32 on 8 GPUs, length 128. What it reports was measured after "
            "fine-tuning; BERT-base without it has 82.3 on GLUE, 78.9 on its robust sets, and under PWWS 47.0 (CoLA), "
            "87.4 (SNLI) and 59.0 (DialogRE).",
        ),
    ),
    "anchor": About(
        "Anchor",
        "A sentence with typos (or synonyms, or the positive of a pair) is taught to stand where a frozen copy of the "
        "encoder, as it was before training, puts the sentence itself; the sentence is held there too. No negatives. "
        "After Reimers & Gurevych 2020, eq. 1, whose student reads translations.",
        "none",
        (
            "The frozen copy is part of no embedding; the folder `robustcse/` of a checkpoint keeps it, to train on.",
            "Stacked on a contrastive method, as `simcse+anchor`, it pulls against the loss that spreads the space: "
            "`--anchor_weight` and `--anchor_clean_weight` settle it.",
        ),
    ),
}
"""Method -> what it is."""
