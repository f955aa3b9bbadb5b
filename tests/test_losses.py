"""The losses for the stock trainer of sentence-transformers are the methods' own."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from tiny import SENTENCES

from hf_robustcse.data import text_hash
from hf_robustcse.errors import UserError
from hf_robustcse.losses import METHODS, RobustCSELoss
from hf_robustcse.model import RobustCSEModel

TEXTS = [*SENTENCES[:6], SENTENCES[1]]  # one twice


@pytest.mark.parametrize("method", [*METHODS, "gs_infonce+dclr+vadv"])
def test_equals_the_method_of_the_model(method, bert, tmp_path):
    options = {"dclr_complement": "self", "dclr_threshold": 0.99} if "dclr" in method else {}
    ours = RobustCSEModel.from_encoder(
        bert, method=method, method_options=options, pooler="mean", head="none", dropout=0.0
    ).train()
    ours.set_seed(4)
    ours.save_pretrained(tmp_path)
    theirs = SentenceTransformer(str(tmp_path), device="cpu").train()
    for module in theirs.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    theirs[0].model.config.attention_probs_dropout_prob = 0.0
    loss = RobustCSELoss(theirs, method, seed=4, **options)
    batch = ours.tokenizer(TEXTS, padding=True, return_tensors="pt")
    hashes = torch.tensor([[text_hash(text)] for text in TEXTS])
    want = ours(batch["input_ids"], batch["attention_mask"], hashes)["loss"]
    got = loss([theirs.preprocess(TEXTS)], None)
    assert torch.allclose(got, want, atol=1e-5)
    got.backward()
    want.backward()
    table = theirs[0].model.get_input_embeddings().weight.grad
    assert torch.allclose(table, ours.encoder.backbone.get_input_embeddings().weight.grad, atol=1e-5)
    assert loss.get_config_dict()["method"] == method


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_stock_trainer_trains(columns, bert, tmp_path):
    RobustCSEModel.from_encoder(bert, pooler="mean", head="none").save_pretrained(tmp_path / "model")
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    before = model.encode(SENTENCES, convert_to_tensor=True)
    rows = {f"column{i}": SENTENCES[i:] + SENTENCES[:i] for i in range(columns)}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "run"), max_steps=2, per_device_train_batch_size=5, learning_rate=1e-3,
        report_to="none", save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=Dataset.from_dict(rows), loss=RobustCSELoss(model, "dclr+vadv")
    ).train()
    assert not torch.allclose(model.encode(SENTENCES, convert_to_tensor=True), before, atol=1e-4)


def test_a_method_that_is_no_loss_on_its_own(bert):
    with pytest.raises(UserError, match="dcl is no loss on its own"):
        RobustCSELoss(SentenceTransformer(str(bert), device="cpu"), "dcl")
