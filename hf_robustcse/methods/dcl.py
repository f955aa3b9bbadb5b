"""DCL: alignment with a momentum encoder and power normalisation, without negatives (Chen et al. 2021)."""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hf_robustcse import functional
from hf_robustcse.encoder import SentenceEncoder
from hf_robustcse.errors import UserError
from hf_robustcse.methods.base import Batch, Contribution, Method, Paper, Term, tokenized
from hf_robustcse.mlm import MaskedLM, mask_tokens, mean_over_chosen, mlm_total
from hf_robustcse.modules import BatchNorm, PowerNorm, SharedNoise
from hf_robustcse.synonyms import Synonyms, load_wordnet, read_word_list, replace_words


class DCL(Method):
    """``L = L_MLM + L_align + L~_align`` on a sentence X and its augmentation X', without negatives (DCL).

    ``L_align = |g(q_theta(X)) - sg(p_xi(X'))|^2 = 2 - 2 cos`` (eq. 8, both sides normalised), and L~_align with X and
    X' swapped. q_theta is the projection of the encoder's f, g a predictor, both trained. p_xi is the projection of a
    second encoder, the target, that starts as a copy and follows after every update: ``xi <- tau_m xi + (1 - tau_m)
    theta`` (eq. 7), projection included; the statistics of its normalisations are its own. Uniformity comes from the
    power normalisation in projection and predictor (eq. 9, `PowerNorm`).

    X' has some words replaced by WordNet synonyms, or is the labelled positive if there is one. A sentence always gets
    the same synonyms under the same seed, so a resumed run sees what an uninterrupted one sees. X and X' go through
    projection and predictor as one batch, so the statistics are those of both. 15 % of the words of X are masked
    (80 % mask token, 10 % random, 10 % kept) for L_MLM, with the head of the checkpoint's own masked-language model.

    Paper: learning rate 1e-5, cosine decay, batch 32 on each of 8 GPUs, length 128, masking 15 %. The rest is the
    released code's: tau_m 0.996, both MLPs 512 -> norm -> ReLU -> 128; its learning rate is 2e-5 with a weight decay
    of 0.1. Open in both, and chosen here: the rate of replacement, and one alpha of 0.9 for both passes of the power
    normalisation with 1000 steps of warm-up. "dcl" is *disentangled* contrastive learning: the decoupled denominator
    is an option of ``dclr``.

    Reported (Figure 3): under power normalisation the mean cosine of positive pairs is 0.9842 and of random pairs
    0.7904; with batch normalisation or none nothing collapses either. The other results are of encoders that were
    fine-tuned afterwards: CoLA 58.8, SNLI 91.0, DialogRE 64.2, under the attack PWWS 48.2, 90.5, 63.2 (BERT 47.0, 87.4,
    59.0); GLUE 83.0 (82.3), its robust sets 79.5 (78.9).
    """

    name = "dcl"
    needs_float32 = True
    outside = ("dcl_wordlist",)
    head = "none"
    contrastive = False
    paper = Paper(
        title="Disentangled Contrastive Learning for Learning Robust Textual Representations",
        arxiv="2104.04907",
        bibtex="""@article{chen2021disentangled,
  title = {Disentangled Contrastive Learning for Learning Robust Textual Representations},
  author = {Chen, Xiang and Xie, Xin and Bi, Zhen and Ye, Hongbin and Deng, Shumin and Zhang, Ningyu and Chen, Huajun},
  journal = {arXiv preprint arXiv:2104.04907},
  year = {2021}
}""",
        reported={
            "bert-base-uncased": {
                "glue_avg": 83.0, "glue_robust_avg": 79.5, "squad_f1": 88.4, "squad_em": 81.0, "squad_robust_f1": 86.8,
                "squad_robust_em": 78.1, "CoLA": 58.8, "SNLI": 91.0, "DialogRE": 64.2, "CoLA_pwws": 48.2,
                "SNLI_pwws": 90.5, "DialogRE_pwws": 63.2, "positive_cosine": 0.9842, "random_cosine": 0.7904,
            },
        },
        tables={"_pwws": "Table 3", "_cosine": "Figure 3"},
    )  # fmt: skip

    @dataclasses.dataclass
    class Options:
        """Command-line options; "open" is what paper and code leave to the reader."""

        dcl_momentum: float = dataclasses.field(
            default=0.996, metadata={"help": "tau_m, how much of the target stays at an update (released code: 0.996)."}
        )
        dcl_momentum_schedule: Literal["constant", "cosine"] = dataclasses.field(
            default="constant",
            metadata={"help": "tau_m stays, or rises to 1 over the training along a cosine (paper: constant)."},
        )
        dcl_hidden: int = dataclasses.field(
            default=512, metadata={"help": "Hidden width of projection and predictor (released code: 512)."}
        )
        dcl_width: int = dataclasses.field(
            default=128, metadata={"help": "Output width of projection and predictor (released code: 128)."}
        )
        dcl_norm: Literal["power", "batch", "none"] = dataclasses.field(
            default="power", metadata={"help": "Normalisation in projection and predictor (paper: power)."}
        )
        dcl_alpha: float = dataclasses.field(
            default=0.9, metadata={"help": "Decay of the power normalisation's statistics (open)."}
        )
        dcl_warmup: int = dataclasses.field(
            default=1000, metadata={"help": "Batches that power normalisation takes the statistics of (open)."}
        )
        dcl_augmentation: Literal["wordnet", "wordlist", "dropout"] = dataclasses.field(
            default="wordnet",
            metadata={
                "help": "X': WordNet synonyms (paper; needs WordNet), synonyms of --dcl_wordlist, or X under another "
                "dropout mask."
            },
        )
        dcl_wordlist: str | None = dataclasses.field(
            default=None, metadata={"help": "File with tab-separated synonyms on each line."}
        )
        dcl_rate: float = dataclasses.field(
            default=0.3, metadata={"help": "Share of the words with a synonym that are replaced (open)."}
        )
        dcl_mlm_weight: float = dataclasses.field(
            default=1.0, metadata={"help": "Weight of the masked-language-model loss; 0 for none (paper: 1)."}
        )
        dcl_mask_rate: float = dataclasses.field(
            default=0.15, metadata={"help": "Share of the words that are masked for it (paper: 0.15)."}
        )

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        o = self.options
        for name, low, high in (
            ("dcl_momentum", 0, 1), ("dcl_rate", 0, 1), ("dcl_mask_rate", 0, 1), ("dcl_hidden", 1, math.inf),
            ("dcl_width", 1, math.inf), ("dcl_warmup", 0, math.inf), ("dcl_mlm_weight", 0, 1e6),
        ):  # fmt: skip
            if not low <= getattr(o, name) <= high:
                raise UserError(f"--{name} must be at least {low} and at most {high}, not {getattr(o, name)}")
        if not 0 <= o.dcl_alpha < 1:
            raise UserError(f"--dcl_alpha must be at least 0 and below 1, not {o.dcl_alpha}")
        if (o.dcl_augmentation == "wordlist") != (o.dcl_wordlist is not None):
            raise UserError("--dcl_augmentation wordlist and --dcl_wordlist FILE belong together")
        self.noise = SharedNoise()
        self._seed = 0
        self._tokenizer: Any | None = None
        self._max_length = 0
        self._synonyms: Synonyms | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Without the synonyms, which each worker of a data loader reads itself."""
        return {**self.__dict__, "_synonyms": None}

    def _mlp(self, width: int) -> nn.Sequential:
        o = self.options
        layers: list[nn.Module] = [nn.Linear(width, o.dcl_hidden), nn.ReLU(), nn.Linear(o.dcl_hidden, o.dcl_width)]
        if o.dcl_norm == "power":
            layers.insert(1, PowerNorm(o.dcl_hidden, o.dcl_alpha, o.dcl_alpha, o.dcl_warmup))
        elif o.dcl_norm == "batch":
            layers.insert(1, BatchNorm(o.dcl_hidden))
        return nn.Sequential(*layers)

    def attach(self, encoder: SentenceEncoder) -> None:
        """Build the target, a copy of the encoder as it is now, the MLPs, and the head of the language model."""
        self.projection, self.predictor = self._mlp(encoder.width), self._mlp(self.options.dcl_width)
        self.target = SentenceEncoder(copy.deepcopy(encoder.backbone), pooler=encoder.pooler.kind).requires_grad_(False)
        self.target_projection = copy.deepcopy(self.projection).requires_grad_(False)
        if self.options.dcl_mlm_weight:
            try:
                self.mlm = MaskedLM(encoder.backbone)
            except UserError as error:
                raise UserError(f"{error}: dcl trains this encoder with --dcl_mlm_weight 0 alone") from error

    def load_pretrained(self, model_name_or_path: str, **kwargs: Any) -> None:
        """Take the weights of the language model's head from the checkpoint of the encoder."""
        if self.options.dcl_mlm_weight:
            try:
                self.mlm.load_pretrained(model_name_or_path, **kwargs)
            except UserError as error:
                raise UserError(f"{error}: --dcl_mlm_weight 0 trains dcl without one") from error

    def attach_tokenizer(self, tokenizer: Any, max_length: int) -> None:
        """Keep them for X' and for the mask token."""
        self._tokenizer, self._max_length = tokenizer, max_length
        if self.options.dcl_mlm_weight and tokenizer.mask_token_id is None:
            raise UserError("the tokenizer has no mask token: dcl needs --dcl_mlm_weight 0")

    def set_seed(self, seed: int) -> None:
        """Seed masks and synonyms."""
        super().set_seed(seed)
        self._seed = seed  # beside the buffer of the noise, which a worker of the data loader cannot read off a GPU

    @property
    def paired(self) -> bool:
        """Synonyms make a positive of their own."""
        return self.options.dcl_augmentation == "dropout"

    @property
    def needs_text(self) -> bool:
        """Synonyms are chosen in the text."""
        return self.options.dcl_augmentation != "dropout"

    def collate(self, texts: list[str]) -> dict[str, Tensor]:
        """X' of the texts: ``dcl_input_ids`` and ``dcl_attention_mask``, (N, L')."""
        o = self.options
        if not self.needs_text:
            return {}
        if self._synonyms is None:
            self._synonyms = load_wordnet() if o.dcl_augmentation == "wordnet" else read_word_list(o.dcl_wordlist)
        others = [replace_words(text, self._synonyms, rate=o.dcl_rate, seed=self._seed) for text in texts]
        return tokenized(self.name, self._tokenizer, others, self._max_length)

    @torch.no_grad()
    def after_update(self, encoder: SentenceEncoder, progress: float) -> None:
        """Eq. 7; `progress` in [0, 1] drives the cosine schedule."""
        momentum = self.options.dcl_momentum
        if self.options.dcl_momentum_schedule == "cosine":
            momentum = 1 - (1 - momentum) * (1 + math.cos(math.pi * progress)) / 2
        for target, online in ((self.target.backbone, encoder.backbone), (self.target_projection, self.projection)):
            for xi, theta in zip(target.parameters(), online.parameters(), strict=True):
                xi.lerp_(theta.to(xi.dtype), 1 - momentum)

    def _augmented(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Ids and mask of X', (N, L'), and f of it, (N, d)."""
        if batch.positive_ids is not None:
            return batch.positive_ids, batch.positive_mask, batch.pooled_pos
        if not self.needs_text:
            return batch.input_ids, batch.attention_mask, batch.pooled_pos
        if "dcl_input_ids" not in batch.extras:
            raise UserError("dcl needs the texts: ContrastiveCollator(tokenizer, model.method.collate), keep_text=True")
        ids, mask = batch.extras["dcl_input_ids"], batch.extras["dcl_attention_mask"]
        return ids, mask, batch.encode_ids(ids, mask)

    def _mlm_total(self, masked: Tensor, mask: Tensor, targets: Tensor, chosen: Tensor) -> Tensor:
        """The cross-entropy of the chosen tokens of some rows, (1,)."""
        return mlm_total(self.mlm(masked, mask, chosen), targets, chosen)[None]

    def forward(self, batch: Batch) -> Contribution:
        """The terms ``align``, in [0, 8], and ``mlm``, in nats."""
        o, count = self.options, len(batch.pooled)
        ids, mask, pooled = self._augmented(batch)
        online = self.predictor(self.projection(torch.cat([batch.pooled, pooled]))).split(count)
        with torch.no_grad():
            sides = [
                batch.in_chunks(lambda ids, mask: self.target(mask, input_ids=ids), *texts)
                for texts in ((batch.input_ids, batch.attention_mask), (ids, mask))
            ]
            target = self.target_projection(torch.cat(sides)).split(count)
        align = functional.regression_loss(online[0], target[1]) + functional.regression_loss(online[1], target[0])
        terms = {"align": Term(align, 1.0)}
        if o.dcl_mlm_weight:
            noise = self.noise(batch.h.new_zeros((*batch.input_ids.shape, 3), dtype=torch.float32))
            masked, chosen = mask_tokens(
                batch.input_ids, batch.words, noise, rate=o.dcl_mask_rate, vocabulary=len(self._tokenizer),
                mask_token_id=self._tokenizer.mask_token_id,
            )  # fmt: skip
            total = batch.in_chunks(self._mlm_total, masked, batch.attention_mask, batch.input_ids, chosen).sum()
            terms["mlm"] = Term(mean_over_chosen(total, chosen), o.dcl_mlm_weight)
        return Contribution(terms=terms)
