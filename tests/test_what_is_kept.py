"""Which words an embedding comes from: encoders that read one part of a sentence alone."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from hf_robustcse.errors import UserError

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import what_is_kept  # noqa: E402

PAIRS = [
    ("A man plays in the park.", "A man plays on 2 guitars!", 4.0),
    ("Some dogs run: at 7.", "An old dogs dream, in bed", 2.0),
    ("The birds sang to me", "Two cats slept by it", 1.0),
]


def test_a_sentence_is_cut_in_two():
    assert what_is_kept.cut("A man isn't in Berlin, 12!")[1:] == ("Berlin", "A man isn ' t in , 12 !")
    assert what_is_kept.cut("Mädchen") == ("Mädchen", "Mädchen", "")


@pytest.mark.filterwarnings("ignore:.*all similarities are equal")
@pytest.mark.parametrize(("reads", "other"), [(1, 2), (2, 1)])
def test_an_encoder_of_one_part(reads, other):
    """It finds every sentence by that part, and by the other one, of which it reads nothing, none."""
    part = {s: what_is_kept.cut(s)[reads] for a, b, _ in PAIRS for s in (a, b)}
    codes = {text: np.random.default_rng(number).normal(size=8) for number, text in enumerate(sorted(part.values()))}

    def encode(texts):
        return np.stack([codes.get(part.get(text, text), np.full(8, 0.5)) for text in texts])

    found = what_is_kept.measure(encode, PAIRS)
    names = what_is_kept.PARTS
    assert found[f"{names[reads]}, found"] == 100 and found[f"{names[other]}, found"] <= 100 / 6
    assert found["sentence, STS"] == found[f"{names[reads]}, STS"]


def test_bad_input(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["what_is_kept", "simcse"])
    with pytest.raises(SystemExit) as error:
        what_is_kept.main()
    assert error.value.code == 2
    with pytest.raises(UserError, match="a=.*there is no model, nor folders seed-0"):
        what_is_kept.folders("a", tmp_path)
