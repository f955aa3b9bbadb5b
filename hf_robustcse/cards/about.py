"""What a card says of each method beside what its `Paper` and its options say."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class About:
    """A method in words.

    Attributes:
        label: as papers name it.
        idea: what it does, for a reader who knows contrastive learning.
        notes: what one has to know to use it.
        limits: what holds whatever was measured.
    """

    label: str
    idea: str
    notes: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()


ABOUT = {
    "simcse": About(
        "SimCSE",
        "A sentence is contrasted with itself under another dropout mask; the other sentences of the batch are the "
        "negatives. Head Linear-Tanh on `[CLS]` in training, dropped from the exported model.",
        (
            "It has no options of its own; `--temperature` (0.05), `--pooler`, `--head` and `--keep_head` are those of "
            "all methods. With pairs or triplets as a corpus it is the supervised form.",
        ),
    ),
    "vadv": About(
        "V-advCSE",
        "The contrastive loss plus `lambda` times a divergence between a sentence and itself under an adversarial "
        "perturbation of its word embeddings (Algorithm 1, eq. 11-14). Head: two-layer MLP with batch normalisation, "
        "dropped from the exported model.",
        limits=(
            "At lambda = 1e-6 the term weighs a millionth of the contrastive loss, so what a run with the defaults gains "
            "over `simcse` comes from the batch-norm head; a larger lambda is needed for the perturbation itself to "
            "matter.",
        ),
    ),
    "gs_infonce": About(
        "GS-InfoNCE",
        "SimCSE's loss with Gaussian noise vectors, fresh at every step, as additional negatives.",
        limits=(
            "Under cosine similarity the standard deviation of the noise has no effect while its mean is 0.",
        ),
    ),
    "dclr": About(
        "DCLR",
        "Noise negatives that gradient ascent moves to where the embeddings are least uniform, and weight 0 for "
        "in-batch negatives that a frozen complementary encoder finds too similar to the anchor.",
        limits=(
            "Without `--dclr_complement` no negative gets the weight 0: half of the method is off.",
            "The paper's step of 1e-3 hardly turns a noise vector; `--dclr_step relative` does.",
        ),
    ),
    "robustsentembed": About(
        "RobustSentEmbed",
        "A sentence under an adversarial perturbation of its word embeddings is one more positive and an anchor of its "
        "own, and a discriminator that is given the sentence embedding tells replaced from original tokens (eq. 2-10). "
        "Head: two-layer MLP with batch normalisation, dropped from the exported model.",
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
        "negatives, joint with masked-language modelling: `L = L_MLM + L_align + L~_align`. Projection and predictor "
        "are dropped from the exported model.",
        (
            "It has nothing to do with the decoupled loss that is also called DCL; that one is `--dclr_decoupled`.",
            "WordNet (`pip install hf_robustcse[wordnet]`) is found through `WORDNET_DIR`, nltk's data path or "
            "`/usr/share/wordnet`. Labelled pairs take the place of the augmentation; with them choose "
            "`--dcl_augmentation dropout`, which reads no text.",
            "Training of the paper: learning rate 1e-5 (released code: 2e-5, weight decay 0.1), cosine decay "
            "(`--lr_scheduler_type cosine`), batch 32 on 8 GPUs, length 128. What it reports was measured after "
            "fine-tuning.",
        ),
    ),
}
"""Method -> what it is."""
