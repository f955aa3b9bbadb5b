"""GS-InfoNCE: Gaussian noise as additional negatives (Wu et al. 2021)."""

from __future__ import annotations

import dataclasses
import math

from hf_robustcse.distributed import world_size
from hf_robustcse.errors import UserError
from hf_robustcse.methods.base import Batch, Contribution, Method, Paper
from hf_robustcse.modules import SharedNoise


class GSInfoNCE(Method):
    """InfoNCE with ``lambda * sum_k exp(s(g_k, h_i)/t)``, g_k ~ N(mu, sigma^2), in the denominator (GS-InfoNCE).

    The M = multiple * batch vectors are fresh at every step and shared by the batch. They are drawn for the global
    batch, so the number of processes does not change them, and from a counter that is saved with the model.

    The similarity is the cosine: while mu is 0, sigma has no effect at all. With a large mu every g_k points along
    (1, ..., 1), so what counts is mu / sigma.

    Paper: lambda 1, M three times the batch (STS average with 0: 76.25, 1: 76.90, 2: 77.11, 3: 77.63, 4: 76.81, 8:
    76.94, 16: 75.57), batch 64 for all backbones. The released code has sigma 0.5 (BERT-base, RoBERTa-large) or 0.1,
    an encoder dropout of 0.2 for the BERT models and 0.1 for RoBERTa, and the learning rates 3e-5, 1e-5, 1e-5 and 2e-5
    for BERT-base, BERT-large, RoBERTa-base and RoBERTa-large.
    """

    name = "gs_infonce"
    head = "tanh"
    paper = Paper(
        title="Smoothed Contrastive Learning for Unsupervised Sentence Embedding",
        arxiv="2109.04321",
        bibtex="""@inproceedings{wu2022smoothed,
  title = {Smoothed Contrastive Learning for Unsupervised Sentence Embedding},
  author = {Wu, Xing and Gao, Chaochen and Su, Yipeng and Han, Jizhong and Wang, Zhongyuan and Hu, Songlin},
  booktitle = {International Conference on Computational Linguistics (COLING)},
  year = {2022}
}""",
        reported={
            "bert-base-uncased": {
                "STS12": 70.12, "STS13": 82.57, "STS14": 75.21, "STS15": 82.89, "STS16": 80.23, "STSB": 79.70,
                "SICKR": 72.70, "sts_avg": 77.63,
            },
            "bert-large-uncased": {"sts_avg": 79.13},
            "roberta-base": {"sts_avg": 77.74},
            "roberta-large": {"sts_avg": 79.18},
        },
    )  # fmt: skip

    @dataclasses.dataclass
    class Options:
        """Command-line options."""

        gs_lambda: float = dataclasses.field(
            default=1.0, metadata={"help": "Weight of the noise negatives (paper: 1)."}
        )
        gs_multiple: float = dataclasses.field(
            default=3.0, metadata={"help": "Noise negatives, as a multiple of the global batch (paper: 3)."}
        )
        gs_mu: float = dataclasses.field(default=0.0, metadata={"help": "Mean of the noise (paper: 0)."})
        gs_sigma: float = dataclasses.field(
            default=1.0,
            metadata={
                "help": "Standard deviation of the noise; no effect while gs_mu is 0 (paper: 1; released code: 0.5 or "
                "0.1)."
            },
        )

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        o = self.options
        self.check_not_negative("gs_lambda", "gs_multiple")
        if not 0 < o.gs_sigma < math.inf or not math.isfinite(o.gs_mu):
            raise UserError(f"--gs_sigma must be a number above 0, not {o.gs_sigma}, and --gs_mu a finite one")
        self.noise = SharedNoise()

    def forward(self, batch: Batch) -> Contribution:
        """The noise negatives of this step, (M, d)."""
        o = self.options
        count = round(o.gs_multiple * len(batch.h) * world_size())
        noise = o.gs_mu + o.gs_sigma * self.noise.rows(count, batch.h.detach())
        return Contribution(noise=noise, noise_weight=o.gs_lambda)
