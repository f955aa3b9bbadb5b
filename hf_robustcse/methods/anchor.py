"""Anchor: a perturbed sentence is taught to stand where the sentence stood before training."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, Literal

import torch
from torch import Tensor

from hf_robustcse import functional
from hf_robustcse.augmentation import TextAugmentation, check_rate, check_word_list
from hf_robustcse.encoder import SentenceEncoder
from hf_robustcse.errors import UserError
from hf_robustcse.methods.base import Batch, Contribution, Method, Paper, Term, tokenized


class Anchor(Method):
    """``L = w |f(x) - T(x)|^2 + v |f(x') - T(x)|^2`` on vectors of length 1, without negatives.

    T is the encoder as training finds it, pooler included, frozen and without dropout: it is part of the state of
    training, and of no embedding. The first part keeps a sentence where it was, the second brings its perturbed
    version x' there: typos or synonyms, made anew from the text alone, or the positive of the batch (a labelled
    paraphrase or translation, what ``--augmentation`` makes, or the sentence under another dropout mask, from which
    there is little to learn). ``--augmentation typos`` in its place makes noisy positives for the contrastive loss,
    which may then be lowered by embeddings that leave out all that can be misspelt; here nothing is gained by that.

    Source: knowledge distillation to a student that reads translations, Reimers & Gurevych 2020, eq. 1, whose teacher
    is another model and whose distance is the mean squared error of vectors of any length. Departures: the student
    starts as its own teacher and reads perturbed text; lengths, which a cosine does not see, are divided out, so that
    the parts are 2 - 2 cos, in [0, 4]; both parts have a weight (there 1 and 1).
    """

    name = "anchor"
    head = "none"
    contrastive = False
    outside = ("anchor_wordlist",)
    paper = Paper(
        title="Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation",
        arxiv="2004.09813",
        bibtex="""@inproceedings{reimers2020making,
  title = {Making Monolingual Sentence Embeddings Multilingual using Knowledge Distillation},
  author = {Reimers, Nils and Gurevych, Iryna},
  booktitle = {Empirical Methods in Natural Language Processing (EMNLP)},
  year = {2020}
}""",
        reported={},
    )

    @dataclasses.dataclass
    class Options:
        """Command-line options."""

        anchor_noise: Literal["typos", "synonyms", "pair"] = dataclasses.field(
            default="typos",
            metadata={"help": "x': the sentence with typos, with synonyms, or the positive that the batch has."},
        )
        anchor_rate: float = dataclasses.field(
            default=0.3, metadata={"help": "Share of the words that typos or synonyms change."}
        )
        anchor_wordlist: str | None = dataclasses.field(
            default=None, metadata={"help": "File with tab-separated synonyms on each line, in place of WordNet."}
        )
        anchor_weight: float = dataclasses.field(
            default=1.0, metadata={"help": "v, weight of the perturbed sentence's distance to T(x)."}
        )
        anchor_clean_weight: float = dataclasses.field(
            default=1.0, metadata={"help": "w, weight of the sentence's own distance to T(x)."}
        )

    def __init__(self, options: Options | None = None) -> None:
        super().__init__(options)
        o = self.options
        self.check_not_negative("anchor_weight", "anchor_clean_weight")
        check_rate(o.anchor_noise, o.anchor_rate, option="anchor")
        check_word_list(o.anchor_noise, o.anchor_wordlist, option="anchor")
        self._seed = 0
        self._tokenizer: Any | None = None
        self._max_length = 0
        self._noise: TextAugmentation | None = None

    def attach(self, encoder: SentenceEncoder) -> None:
        """Copy the encoder as it is now; a checkpoint's own copy is loaded over it."""
        self.teacher = SentenceEncoder(copy.deepcopy(encoder.backbone), pooler=encoder.pooler.kind)
        self.teacher.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Anchor:
        """Leave the teacher without dropout, in training too."""
        super().train(mode)
        self.teacher.eval()
        return self

    def attach_tokenizer(self, tokenizer: Any, max_length: int) -> None:
        """Keep them for x'."""
        self._tokenizer, self._max_length = tokenizer, max_length

    def set_seed(self, seed: int) -> None:
        """Seed the noise."""
        super().set_seed(seed)
        self._seed, self._noise = seed, None

    @property
    def paired(self) -> bool:
        """x' is made here, unless it is the batch's positive."""
        return not self.needs_text

    @property
    def needs_text(self) -> bool:
        """Typos and synonyms are made in the text."""
        return self.options.anchor_noise != "pair"

    def collate(self, texts: list[str]) -> dict[str, Tensor]:
        """x' of the texts: ``anchor_input_ids`` and ``anchor_attention_mask``, (N, L')."""
        if not self.needs_text:
            return {}
        if self._noise is None:  # not before: a word list that a checkpoint names has to be confirmed first
            o = self.options
            self._noise = TextAugmentation(
                o.anchor_noise, rate=o.anchor_rate, seed=self._seed, word_list=o.anchor_wordlist, option="anchor"
            )
        return tokenized(self.name, self._tokenizer, [self._noise(text) for text in texts], self._max_length)

    def forward(self, batch: Batch) -> Contribution:
        """The terms ``clean`` and ``anchor``, each in [0, 4]."""
        o = self.options
        if not self.needs_text:
            noisy = batch.pooled_pos
        elif "anchor_input_ids" in batch.extras:
            noisy = batch.encode_ids(batch.extras["anchor_input_ids"], batch.extras["anchor_attention_mask"])
        else:
            raise UserError(
                "anchor needs the texts: ContrastiveCollator(tokenizer, model.method.collate), keep_text=True"
            )
        with torch.no_grad():
            target = batch.in_chunks(
                lambda ids, mask: self.teacher(mask, input_ids=ids), batch.input_ids, batch.attention_mask
            )
        terms = {
            "clean": Term(functional.regression_loss(batch.pooled, target), o.anchor_clean_weight),
            "anchor": Term(functional.regression_loss(noisy, target), o.anchor_weight),
        }
        return Contribution(terms=terms)
