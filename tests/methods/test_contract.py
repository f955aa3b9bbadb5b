"""What holds for every method: one contract over all of `METHODS`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tiny import SENTENCES

from hf_robustcse import functional
from hf_robustcse.data import text_hash
from hf_robustcse.errors import UserError
from hf_robustcse.methods import METHODS, build
from hf_robustcse.model import RobustCSEModel

ROOT = Path(__file__).parents[2]
# The tiny encoder has no language model, and a bare batch no texts.
OPTIONS = {"dcl": {"dcl_augmentation": "dropout", "dcl_mlm_weight": 0.0, "dcl_hidden": 32}}


def batch_of(model, sentences=SENTENCES):
    batch = model.tokenizer(sentences, padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def test_files_keys_and_tests_agree():
    files = {path.stem for path in (ROOT / "hf_robustcse" / "methods").glob("*.py")} - {"__init__", "base"}
    tests = {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} - {"contract"}
    cards = {path.stem for path in (ROOT / "model_cards").glob("*.md")} - {"README"}
    assert files == set(METHODS) == tests == cards
    assert all(METHODS[name].name == name for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_contract(name, bert):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(bert, method=name, method_options=OPTIONS.get(name)).train()
    ids, mask = batch_of(model)
    embeddings = model.encoder.backbone.get_input_embeddings()
    output = model(ids, mask)
    assert output["loss"].dim() == 0 and output["loss"].isfinite()
    assert all(not value.requires_grad for term, value in output.items() if term != "loss")
    output["loss"].backward()
    assert embeddings.weight.grad.abs().sum() > 0
    pad = model.tokenizer.pad_token_id
    assert embeddings.weight.grad[pad].abs().max() < 1e-7  # padding has no influence

    model.save_pretrained(folder := Path(str(bert)) / f"copy-{name}")
    again = RobustCSEModel.from_pretrained(folder).train()
    torch.manual_seed(3)
    first = model(ids, mask)["loss"]
    torch.manual_seed(3)
    assert torch.equal(again(ids, mask)["loss"], first)  # a seed repeats, and all state went through the files


@pytest.mark.parametrize("name", METHODS)
def test_no_step_holds_a_three_dimensional_similarity(name, bert):
    """Nothing of the size (N, M, d), forward or backward."""
    from torch.utils._python_dispatch import TorchDispatchMode

    model = RobustCSEModel.from_encoder(bert, method=name, method_options=OPTIONS.get(name)).train()
    sentences = (SENTENCES * 20)[:160]
    ids, mask = batch_of(model, sentences)
    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(x, torch.Tensor):
                    largest = max(largest, x.numel())
            return out

    with Watch():
        model(ids, mask)["loss"].backward()
    count, length = ids.shape
    width = model.encoder.width
    assert count * count * width > 2 * largest
    assert largest <= max(2 * count * length * 32, 3 * count * count, 2 * count * 2 * length * length)


def test_equal_texts_are_not_contrasted(bert):
    torch.manual_seed(0)
    model = RobustCSEModel.from_encoder(bert, dropout=0.0).eval()
    texts = ["the dog runs", "a cat", "the dog runs", "a bird sees"]
    ids, mask = batch_of(model, texts)
    hashes = torch.tensor([[text_hash(text)] for text in texts])
    with torch.no_grad():
        h = model.encoder.head(model.encoder(mask, input_ids=ids))
        got = model(ids, mask, hashes)["loss"]
        weights = torch.tensor([[float(i == j or texts[i] != texts[j]) for j in range(4)] for i in range(4)])
        assert torch.allclose(got, functional.info_nce(h, h, negative_weights=weights), atol=1e-6)
        assert got < model(ids, mask)["loss"] - 0.1


def test_supervised_pairs_and_triplets(bert):
    """Positives and hard negatives are views of their own; a hard negative that is somebody's positive is masked."""
    model = RobustCSEModel.from_encoder(bert, dropout=0.0).eval()
    rows = [
        ["the dog runs", "a dog", "a cat sleeps"],
        ["a bird", "the bird sees", "a dog"],
        ["night", "the night", "day"],
    ]
    ids, mask = batch_of(model, [text for row in rows for text in row])
    ids, mask = ids.view(3, 3, -1), mask.view(3, 3, -1)
    hashes = torch.tensor([[text_hash(text) for text in row] for row in rows])
    with torch.no_grad():
        h = model.encoder.head(model.encoder(mask.flatten(0, 1), input_ids=ids.flatten(0, 1))).view(3, 3, -1)
        pairs = model(ids[:, :2], mask[:, :2], hashes[:, :2])["loss"]
        assert torch.allclose(pairs, functional.info_nce(h[:, 0], h[:, 1]), atol=1e-6)
        hard = torch.ones(3, 3)
        hard[0, 1] = 0  # "a dog" is row 0's positive
        triplets = model(ids, mask, hashes)["loss"]
        want = functional.info_nce(h[:, 0], h[:, 1], hard_negatives=h[:, 2], hard_negative_weights=hard)
        assert torch.allclose(triplets, want, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vad", "did you mean vadv"),
        ("nothing", "choose one of"),
        ("vadv+vadv", "names vadv twice"),
        ("", "unknown --method"),
    ],
)
def test_impossible_methods(name, message):
    with pytest.raises(UserError, match=message):
        build(name)
