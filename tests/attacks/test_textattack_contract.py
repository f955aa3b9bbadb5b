"""What TextAttack asks of a model wrapper; benchmarks/textattack_victims.py runs TextAttack itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_robustcse.attacks.victims import Classifier, EncoderWithHead

TEXTS = ["a gripping film", "dull", "the plot is thin , the jokes are stale", "a gripping film"]


def encode(texts: list[str]) -> np.ndarray:
    return np.array([[len(text), text.count(" "), text.count("a")] for text in texts], dtype=np.float32)


def victims(encoders) -> dict[str, object]:
    folder = str(encoders["bert"])
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    fitted = LogisticRegression().fit(encode(TEXTS), [0, 1, 0, 0])
    return {
        "classifier": Classifier(model, AutoTokenizer.from_pretrained(folder)),
        "logistic regression": EncoderWithHead(encode, fitted),
        "linear layer": EncoderWithHead(encode, nn.Linear(3, 2)),
    }


@pytest.mark.parametrize("name", ["classifier", "logistic regression", "linear layer"])
def test_victims_are_model_wrappers(name, encoders):
    """A list of strings gives an array of probabilities that add up to 1 to 1e-6; the goal function reads `.model`."""
    victim = victims(encoders)[name]
    rows = victim(TEXTS)
    assert isinstance(rows, np.ndarray) and rows.shape[0] == 4 and rows.shape[1] >= 2
    scores = torch.tensor(rows)
    assert ((scores.sum(dim=1) - 1).abs() < 1e-6).all() and (scores >= 0).all()
    assert torch.equal(scores[0], scores[3])
    assert isinstance(victim.model, (nn.Module, LogisticRegression))
    torch.testing.assert_close(torch.tensor(victim(TEXTS[:1])), scores[:1], atol=1e-6, rtol=0)


def test_pairs_come_as_tuples(encoders):
    folder = str(encoders["bert"])
    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=3)
    rows = Classifier(model, AutoTokenizer.from_pretrained(folder))([("a man", "sleeps"), ("a dog", "runs fast")])
    assert rows.shape == (2, 3) and np.allclose(rows.sum(axis=1), 1, atol=1e-6)


def test_equal_tokens_have_equal_answers_in_any_company(encoders):
    """Else an attack would take the rounding of another batch for progress: Hopkins and hopkins may be the same."""
    victim = victims(encoders)["classifier"]
    alone = victim(["a film by hopkins"])
    texts = [*(f"{text} {text}" for text in TEXTS), "a film by Hopkins", "a  film by hopkins"]
    assert (victim(texts)[-2:] == alone).all()
    assert victim.forwards == 4
    assert not (victim(["a film"]) == alone).any()
