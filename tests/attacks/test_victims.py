"""Victims: what they answer is what the model says, however the texts are batched."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from tiny import make_encoder
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_robustcse.attacks.victims import (
    Asked,
    EncoderWithHead,
    PairSimilarity,
    batches_of_tokens,
    load_classifier,
)
from hf_robustcse.errors import UserError


def test_batches_hold_all_texts_once_within_the_budget():
    lengths = [5, 900, 3, 3, 3, 64, 64, 70, 1, 5, 5, 5, 2000]
    batches = list(batches_of_tokens(lengths, 256))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[i] for i in batch)
        assert len(batch) == 1 or longest * len(batch) <= 256
    assert list(batches_of_tokens([], 256)) == []


def test_batches_of_many_texts_have_one_length():
    batches = list(batches_of_tokens([10] * 50 + [11] * 50, 200))
    assert all(len({10 if i < 50 else 11 for i in batch}) == 1 for batch in batches if len(batch) * 10 > 60)


def test_logits_become_probabilities_and_nonsense_is_refused():
    assert np.allclose(Asked(lambda texts: [[0.0, np.log(3)] for _ in texts])(["a", "b"]), [[0.25, 0.75]] * 2)
    assert np.allclose(Asked(lambda texts: torch.tensor([[0.1, 0.9]] * len(texts)))(["a"]), [[0.1, 0.9]], atol=1e-7)
    for victim in (lambda texts: [1.0] * len(texts), lambda texts: [[0.5, 0.5]], lambda texts: [[1.0]] * len(texts)):
        with pytest.raises(UserError, match="the victim answered 2 texts with shape"):
            Asked(victim)(["a", "b"])
    with pytest.raises(UserError, match="answer to 'b' is not finite"):
        Asked(lambda texts: [[float("nan") if text == "b" else 0.5, 0.5] for text in texts])(["a", "b"])


def test_any_callable_is_asked_in_batches_of_similar_length():
    calls = []

    def victim(texts):
        calls.append(texts)
        return [[0.5, 0.5] for _ in texts]

    texts = ["x" * (number % 50) for number in range(100)]
    Asked(victim, batch_size=10)(texts)
    assert [len(call) for call in calls] == [10] * 10
    assert max(len(call[0]) - len(call[-1]) for call in calls) <= 5


TEXTS = ["the dog runs", "a cat", "the old man reads a book today .", "", "zebra", "yak", "the dog  runs", "a " * 200]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    changes = {"kind": AutoModelForSequenceClassification, "num_labels": 3}
    return make_encoder(tmp_path_factory.mktemp("victims") / "classifier", "bert", **changes)


@pytest.mark.parametrize("pairs", [False, True])
def test_a_classifier_gives_what_its_model_gives_one_text_at_a_time(folder, pairs):
    victim = load_classifier(str(folder), device="cpu")
    victim.model.double()
    texts = [(text, "a red ball") for text in TEXTS] if pairs else TEXTS
    tokenizer = AutoTokenizer.from_pretrained(folder)
    expected = []
    for text in texts:
        features = tokenizer(*([text] if not pairs else text), truncation=True, max_length=64, return_tensors="pt")
        with torch.no_grad():
            expected.append(victim.model(**features).logits[0].softmax(-1).numpy())
    for budget in (1, 20, 10_000):
        victim.batch_tokens = budget
        assert np.allclose(victim(texts), expected, atol=1e-12)
        shuffled = [5, 2, 7, 0, 1, 6, 3, 4]
        assert np.allclose(victim([texts[i] for i in shuffled]), np.array(expected)[shuffled], atol=1e-12)


def test_texts_of_equal_tokens_go_through_the_model_once(folder):
    victim = load_classifier(str(folder), device="cpu")
    victim(["the dog runs", "the  dog runs", "zebra", "yak", "the cat"])
    assert victim.forwards == 3


def test_folders_that_are_no_classifiers(folder, bert, tmp_path):
    with pytest.raises(UserError, match="no model folder"):
        load_classifier(str(tmp_path / "absent"))
    with pytest.raises(UserError, match="not a classifier"):
        load_classifier(str(bert))


def test_an_encoder_with_a_head():
    def encode(texts):
        return np.array([[len(text), text.count("a")] for text in texts], dtype=np.float32)

    head = LogisticRegression().fit([[1, 0], [2, 1], [9, 5], [8, 6]], [0, 0, 1, 1])
    victim = EncoderWithHead(encode, head)
    assert np.allclose(victim(["aa", "bbb"]), head.predict_proba([[2, 2], [3, 0]]))
    linear = nn.Linear(8, 2)
    u, v = np.array([2.0, 2.0]), np.array([3.0, 0.0])
    features = np.concatenate([u, v, abs(u - v), u * v])
    with torch.no_grad():
        expected = linear(torch.tensor(features, dtype=torch.float32)).softmax(-1).numpy()
    assert np.allclose(EncoderWithHead(encode, linear)([("aa", "bbb")])[0], expected, atol=1e-6)


def test_a_similarity_embeds_a_repeated_text_once():
    encoded = []

    def encode(texts):
        encoded.extend(texts)
        return torch.tensor([[1.0, float(text == "b")] for text in texts])

    victim = PairSimilarity(encode)
    assert np.allclose(victim([("x", "a"), ("x", "b")]), [1.0, 0.5**0.5])
    victim([("x", "c"), ("x", "d")])
    assert encoded == ["x", "a", "b", "c", "d"]


def test_long_texts_fit_where_the_tokenizer_knows_no_limit(tmp_path):
    """RoBERTa has two more positions than it takes tokens."""
    make_encoder(tmp_path, "roberta", kind=AutoModelForSequenceClassification, num_labels=2)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.model_max_length = 10**30
    tokenizer.save_pretrained(tmp_path)
    victim = load_classifier(str(tmp_path), device="cpu")
    assert victim.max_length == 64
    assert victim(["the dog " * 200, "a cat"]).shape == (2, 2)


def test_logits_that_happen_to_add_up_to_one_are_logits():
    assert np.allclose(
        Asked(lambda texts: [[3.0, -2.0]] * len(texts))(["a"]), [[1 / (1 + np.exp(-5)), 1 / (1 + np.exp(5))]]
    )
