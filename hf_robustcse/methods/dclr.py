"""DCLR: optimised noise negatives and instance weighting (Zhou et al. 2022)."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from hf_robustcse import functional, layout
from hf_robustcse.distributed import gather_rows, rank, world_size
from hf_robustcse.errors import UserError
from hf_robustcse.methods.base import Batch, Contribution, Method, Paper, Term
from hf_robustcse.modules import SharedNoise

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class DCLR(Method):
    """Noise negatives moved by gradient ascent, and weight 0 for false negatives, DCLR eq. 2-6.

    M = k * batch vectors N(0, sigma^2), shared by the batch and drawn for the global one, take t steps of length beta
    along the normalised gradient of the non-uniformity loss (eq. 2-4); nothing of that reaches the encoder. A frozen
    complementary encoder C gives an in-batch negative the weight 0 when its cosine with the anchor is phi or more
    (eq. 5). The positive is never masked. Under cosine similarity a step of 1e-3 hardly turns a vector whose norm is
    near the square root of d: ``--dclr_step relative`` measures it in units of the vector's norm.

    Paper: t 4, beta 1e-3, sigma 1; k 1, 2.5, 4, 5 and phi 0.9, 0.85, 0.9, 0.85 for BERT-base, RoBERTa-base,
    BERT-large, RoBERTa-large; batch 128 (base) and 256 (large); learning rate 3e-5 (1e-5 RoBERTa-large), 3 epochs;
    large models start from SimCSE checkpoints. Table 2, STS average: whole 77.22, without noise 76.17, without
    weighting 76.31, random noise 75.22, distillation from C 75.05, self weighting 73.93.

    Departures of the released code, none of them default: the positive stays in the denominator, which eq. 6 leaves
    out (here it stays in; ``--dclr_decoupled`` is eq. 6 as printed, no relation to DCL); the noise negatives all have
    the weight 1, while the paper scores the vectors themselves against C's embeddings (``--dclr_noise_weights
    complement``, which needs equal widths).
    """

    name = "dclr"
    outside = ("dclr_complement",)
    head = "tanh"
    paper = Paper(
        title="Debiased Contrastive Learning of Unsupervised Sentence Representations",
        arxiv="2205.00656",
        bibtex="""@inproceedings{zhou2022debiased,
  title = {Debiased Contrastive Learning of Unsupervised Sentence Representations},
  author = {Zhou, Kun and Zhang, Beichen and Zhao, Wayne Xin and Wen, Ji-Rong},
  booktitle = {Annual Meeting of the Association for Computational Linguistics (ACL)},
  year = {2022}
}""",
        reported={
            "bert-base-uncased": {
                "STS12": 70.81, "STS13": 83.73, "STS14": 75.11, "STS15": 82.56, "STS16": 78.44, "STSB": 78.31,
                "SICKR": 71.59, "sts_avg": 77.22,
            },
            "bert-large-uncased": {"sts_avg": 78.90},
            "roberta-base": {"sts_avg": 77.87},
            "roberta-large": {"sts_avg": 79.30},
        },
    )  # fmt: skip

    @dataclasses.dataclass
    class Options:
        """Command-line options."""

        dclr_k: float = dataclasses.field(
            default=1.0,
            metadata={
                "help": "Noise negatives, as a multiple of the global batch (paper: 1, 2.5, 4, 5 for BERT-base, "
                "RoBERTa-base, BERT-large, RoBERTa-large)."
            },
        )
        dclr_sigma: float = dataclasses.field(
            default=1.0, metadata={"help": "Standard deviation of the noise before it moves (paper: 1)."}
        )
        dclr_steps: int = dataclasses.field(
            default=4, metadata={"help": "t, ascent steps of the noise; 0 for random noise (paper: 4)."}
        )
        dclr_step_size: float = dataclasses.field(
            default=1e-3, metadata={"help": "beta, length of a step (paper: 1e-3)."}
        )
        dclr_step: Literal["literal", "relative"] = dataclasses.field(
            default="literal",
            metadata={
                "help": "beta as a length (paper), or relative to the length of each noise vector, which turns it."
            },
        )
        dclr_threshold: float = dataclasses.field(
            default=0.9,
            metadata={
                "help": "phi, cosine under C from which a negative has weight 0 (paper: 0.9 BERT, 0.85 RoBERTa)."
            },
        )
        dclr_complement: str | None = dataclasses.field(
            default=None,
            metadata={
                "help": "C: folder or Hub id of a SentenceTransformer or an AutoModel, or self, the model itself "
                "(default: none, no instance weighting; paper: an unsupervised SimCSE model).",
            },
        )
        dclr_complement_pooling: Literal["cls", "mean"] = dataclasses.field(
            default="cls", metadata={"help": "Pooling of a C that does not bring its own."}
        )
        dclr_complement_use: Literal["weight", "distill"] = dataclasses.field(
            default="weight",
            metadata={"help": "Instance weighting, or distillation of C's in-batch similarities (paper: Table 2)."},
        )
        dclr_noise_weights: Literal["one", "complement"] = dataclasses.field(
            default="one", metadata={"help": "Weights of the noise: 1 (released code), or by C (paper)."}
        )
        dclr_decoupled: bool = dataclasses.field(
            default=False, metadata={"help": "Leave the positive out of the denominator, as eq. 6 is printed."}
        )
        dclr_cache: int = dataclasses.field(
            default=200_000, metadata={"help": "Sentences whose embeddings under C are kept for later epochs."}
        )

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        o = self.options
        self.check_not_negative("dclr_k", "dclr_steps", "dclr_step_size", "dclr_cache")
        if not 0 < o.dclr_sigma < math.inf:
            raise UserError(f"--dclr_sigma must be a number above 0, not {o.dclr_sigma}")
        if o.dclr_complement is None and (o.dclr_complement_use == "distill" or o.dclr_noise_weights == "complement"):
            raise UserError("--dclr_complement_use distill and --dclr_noise_weights complement need --dclr_complement")
        self.noise = SharedNoise()
        self._cache: dict[int, Tensor] = {}
        self._complement: list[SentenceTransformer] = []

    @property
    def needs_text(self) -> bool:
        """C has a tokenizer of its own."""
        return self.options.dclr_complement not in (None, "self")

    @property
    def complement(self) -> SentenceTransformer:
        """C, loaded when it is first needed."""
        if not self._complement:  # in a list: frozen and named by the options, it is no part of the checkpoint
            self._complement.append(load_complement(self.options.dclr_complement, self.options.dclr_complement_pooling))
        return self._complement[0]

    def collate(self, texts: list[str]) -> dict[str, Tensor]:
        """The texts as C reads them: ``dclr_input_ids`` and ``dclr_attention_mask``, (N, L')."""
        if not self.needs_text:
            return {}
        features = self.complement.preprocess(texts)
        return {f"dclr_{key}": features[key] for key in ("input_ids", "attention_mask")}

    @torch.no_grad()
    def _complementary(self, batch: Batch) -> Tensor:
        """C's embeddings of the anchors, (N, d')."""
        if self.options.dclr_complement == "self":
            return batch.pooled.detach()
        if "dclr_input_ids" not in batch.extras:
            raise UserError(
                "dclr needs the texts: ContrastiveCollator(tokenizer, model.method.collate), keep_text=True"
            )
        keys = None if batch.text_hash is None else batch.text_hash[:, 0].tolist()
        if keys is not None and all(key in self._cache for key in keys):
            return torch.stack([self._cache[key] for key in keys]).to(batch.h)
        device = batch.h.device
        complement = self.complement.to(device)

        def embed(ids: Tensor, mask: Tensor) -> Tensor:
            return complement({"input_ids": ids, "attention_mask": mask})["sentence_embedding"].float()

        x = batch.in_chunks(embed, *(batch.extras[f"dclr_{key}"].to(device) for key in ("input_ids", "attention_mask")))
        if keys is not None:
            self._cache.update(zip(keys, x.cpu(), strict=True) if len(self._cache) < self.options.dclr_cache else ())
        return x.to(batch.h.dtype)

    def forward(self, batch: Batch) -> Contribution:
        """Noise negatives (M, d), weights (N, G), and with ``distill`` a term of its own."""
        o = self.options
        h, h_pos = gather_rows(batch.h).detach(), gather_rows(batch.h_pos).detach()
        count = round(o.dclr_k * len(batch.h) * world_size())
        out = Contribution(decoupled=o.dclr_decoupled)
        if count:
            out.noise = functional.ascend_noise(
                o.dclr_sigma * self.noise.rows(count, h), h, h_pos, steps=o.dclr_steps, lr=o.dclr_step_size,
                temperature=batch.temperature, relative=o.dclr_step == "relative", rows=batch.chunk_size,
            )  # fmt: skip
        if o.dclr_complement is None:
            return out
        x = gather_rows(self._complementary(batch))
        ours = slice(rank() * len(batch.h), (rank() + 1) * len(batch.h))
        similarity = functional.cosine_matrix(x, x)
        if o.dclr_complement_use == "distill":
            student = functional.cosine_matrix(batch.h, gather_rows(batch.h_pos)) / batch.temperature
            value = functional.divergence(similarity[ours] / batch.temperature, student, kind="kl")
            out.terms["distillation"] = Term(value, 1.0)
            return out
        out.negative_weights = functional.instance_weights(similarity, o.dclr_threshold)[ours]
        if o.dclr_noise_weights == "complement" and count:
            if x.shape[1] != out.noise.shape[1]:
                raise UserError(
                    f"--dclr_noise_weights complement needs a complementary encoder of width {out.noise.shape[1]}, "
                    f"not {x.shape[1]}"
                )
            out.noise_weight = (functional.cosine_matrix(x[ours], out.noise) < o.dclr_threshold).to(x.dtype)
        return out


def load_complement(name: str, pooling: str) -> SentenceTransformer:
    """A frozen encoder on the CPU.

    Args:
        name: folder or Hub id of a SentenceTransformer, or of an encoder for ``AutoModel``.
        pooling: of the latter.

    Raises:
        UserError: if it cannot be loaded.
    """
    from sentence_transformers import SentenceTransformer  # seconds to import, and the options need none of it
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    layout.check(name)
    try:
        if layout.find(name, "modules.json") is not None:
            model = SentenceTransformer(name, device="cpu")
        else:
            encoder: Any = Transformer(name)
            model = SentenceTransformer(
                modules=[encoder, Pooling(encoder.get_embedding_dimension(), pooling_mode=pooling)], device="cpu"
            )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot load --dclr_complement {name!r}: {' '.join(str(error).split())}") from error
    return model.eval().requires_grad_(False)
