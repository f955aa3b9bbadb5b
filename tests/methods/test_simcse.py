"""SimCSE: two dropout views of one batch, in one pass."""

from __future__ import annotations

import torch
from tiny import SENTENCES

from hf_robustcse import functional
from hf_robustcse.model import RobustCSEModel


def test_the_loss_is_info_nce_of_two_dropout_views(bert):
    model = RobustCSEModel.from_encoder(bert, dropout=0.2).train()
    batch = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    torch.manual_seed(5)
    got = model(ids, mask)
    torch.manual_seed(5)
    h = model.encoder.head(model.encoder(mask.repeat(2, 1), input_ids=ids.repeat(2, 1)))
    assert not torch.allclose(h[: len(ids)], h[len(ids) :])
    assert torch.allclose(got["loss"], functional.info_nce(*h.split(len(ids)), temperature=0.05), atol=1e-6)
    assert torch.equal(got["loss"], got["contrastive"])


def test_head_is_linear_tanh_and_dropped_from_the_embedding(bert):
    model = RobustCSEModel.from_encoder(bert)
    assert [type(layer).__name__ for layer in model.encoder.head] == ["Linear", "Tanh"]
    kept = RobustCSEModel.from_encoder(bert, keep_head=True)
    kept.load_state_dict(model.state_dict())
    assert not torch.allclose(model.encode(SENTENCES), kept.encode(SENTENCES), atol=1e-3)
