"""The contrastive methods as losses of sentence-transformers' own trainer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_robustcse.errors import UserError
from hf_robustcse.methods import Batch, build
from hf_robustcse.perturb import SharedDropout, dropout_off, words_of

METHODS = ("simcse", "vadv", "gs_infonce", "dclr")


class RobustCSELoss(nn.Module):
    """A method, or a stack of methods, as a drop-in loss of the stock ``SentenceTransformerTrainer``.

    One column of texts trains on dropout pairs, two on pairs, three on triplets; a labels column is ignored. There is
    no projection head: the embeddings are contrasted as the model gives them. The count of the noise that was drawn
    belongs to this module and is not in the trainer's checkpoints, so a resumed run draws other noise than an
    uninterrupted one; `RobustCSETrainer` has no such limit. The complementary encoder of dclr reads what the tokenizer
    makes of its own tokens.

    Args:
        model: any SentenceTransformer whose first module is a transformers encoder.
        method: simcse, vadv, gs_infonce or dclr, or some of them joined by ``+``.
        temperature: of the similarities.
        seed: of the noise.
        **options: of the methods, such as ``gs_multiple=3.0``.

    Raises:
        UserError: for another method or a bad option.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        method: str = "gs_infonce",
        *,
        temperature: float = 0.05,
        seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__()
        self.method = build(method, options)
        for name in self.method.methods:
            if name not in METHODS:
                raise UserError(f"{name} is no loss on its own: use RobustCSETrainer; losses are {', '.join(METHODS)}")
        self.model = model
        self.temperature = temperature
        self.method.set_seed(seed)

    def forward(self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None) -> Tensor:
        """The loss of a batch.

        Args:
            sentence_features: of each column, as the model's tokenizer makes them; (N, L) each.
            labels: ignored.

        Returns:
            A scalar.
        """
        columns = list(sentence_features)
        bare = getattr(self.model, "module", self.model)  # inside DDP
        table = next(m for m in bare.modules() if isinstance(m, PreTrainedModel)).get_input_embeddings()
        ids, mask = columns[0]["input_ids"], columns[0]["attention_mask"]
        embeds = table(ids)
        same_dropout = SharedDropout(embeds.device)

        def encode(x: Tensor) -> Tensor:
            features = {"inputs_embeds": x, "attention_mask": mask.repeat(len(x) // len(mask), 1)}
            return self.model(features)["sentence_embedding"]

        with same_dropout:
            pooled = encode(embeds)
        others = [self.model(dict(column))["sentence_embedding"] for column in columns[1:]] or [encode(embeds)]
        batch = Batch(
            input_ids=ids,
            attention_mask=mask,
            positive_ids=columns[1]["input_ids"] if len(columns) > 1 else None,
            positive_mask=columns[1]["attention_mask"] if len(columns) > 1 else None,
            words=words_of(bare.tokenizer, ids, mask),
            extras=self._extras(bare, ids),
            embeds=embeds,
            pooled=pooled,
            pooled_pos=others[0],
            h=pooled,
            h_pos=others[0],
            hard_negatives=others[1] if len(others) > 1 else None,
            text_hash=torch.stack([_row_hash(c["input_ids"], c["attention_mask"]) for c in columns], dim=1),
            embed=table,
            encode=encode,
            encode_ids=lambda i, m: self.model({"input_ids": i, "attention_mask": m})["sentence_embedding"],
            project=lambda x: x,
            dropout_free=lambda: dropout_off(self.model),
            same_dropout=lambda: same_dropout,
            temperature=self.temperature,
        )
        return self.method(batch)[0]

    def _extras(self, model: SentenceTransformer, ids: Tensor) -> dict[str, Tensor]:
        if not self.method.needs_text:
            return {}
        return self.method.collate(model.tokenizer.batch_decode(ids, skip_special_tokens=True))

    def get_config_dict(self) -> dict[str, Any]:
        """What sentence-transformers writes into a model card."""
        return {"method": self.method.name, "temperature": self.temperature, **self.method.options()}

    @property
    def citation(self) -> str:
        """The papers' BibTeX entries."""
        return "\n".join(m.paper.bibtex for m in self.method.methods.values() if m.paper.bibtex)


def _row_hash(ids: Tensor, mask: Tensor) -> Tensor:
    """(N,) numbers that are equal where the (N, L) tokens under the mask are, whatever the padding."""
    total = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    for token, real in zip(ids.T, mask.T.bool(), strict=True):
        total = torch.where(real, total * 6364136223846793005 + token + 1442695040888963407, total)  # wraps around
    return total
