"""AdvSTS and texts against themselves, on an encoder that counts words."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import spearmanr

from hf_robustcse.attacks import Recipe, attack_examples
from hf_robustcse.attacks.outcomes import attacked_row
from hf_robustcse.attacks.pairs import load_pair_task, pair_metrics, pair_victim, self_examples, sts_examples
from hf_robustcse.attacks.transformations import Synonyms
from hf_robustcse.attacks.victims import PairSimilarity
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.evaluation.sts import StsData

TABLE = {"big": ["large", "huge"], "dog": ["hound"], "runs": ["jogs"], "cat": ["feline"], "sleeps": ["dozes"]}
WORDS = sorted({word for key, words in TABLE.items() for word in (key, *words)} | set("a the fast red".split()))
RECIPE = Recipe("table", "", Synonyms(lambda word: TABLE.get(word, []), "a table"), ranking="delete")
PAIRS = [
    ("a big dog runs", "the big dog runs fast", 5.0),
    ("a cat sleeps", "the dog runs", 0.0),
    ("a red cat", "the cat sleeps", 2.5),
    ("the big cat", "a cat sleeps", 3.0),
    ("the dog", "the dog", 0.0),  # predicted 1: already beyond
]


class Count:
    """Embeds a text as how often each word is in it, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.asked.update(texts)
        return np.array([[text.split().count(word) for word in WORDS] for text in texts], dtype=np.float32)


def cosine(first: str, second: str) -> float:
    u, v = Count()([first, second]).astype(float)
    return float(u @ v / np.sqrt((u @ u) * (v @ v))) if u.any() and v.any() else 0.0


def sts(task: str = "STSB", pairs: list = PAIRS) -> StsData:
    return StsData(task, "test", {"test": pairs}, "here", "0")


def go(examples, recipe=RECIPE, **options):
    encode = Count()
    found = dict(attack_examples(enumerate(examples), recipe, pair_victim(encode, examples), **options))
    return [found[number] for number in range(len(examples))], encode


def test_scores_are_scaled_and_one_sentence_is_free():
    (one, *_) = sts_examples(sts("STSB", [("a b", "c", 4.0), ("d", "e", 0.0)]))
    assert one.goal.gold == 0.8 and one.goal.distance == 0.5
    assert one.columns == {"sentence2": "c"} and one.context == {"sentence1": "a b"}
    (one, *_) = sts_examples(sts("SICKR", [("a b", "c", 4.0), ("d", "e", 1.0)]), edit="first", distance=0.3)
    assert one.goal.gold == 0.75 and one.goal.distance == 0.3 and one.columns == {"sentence1": "a b"}
    (one, *_) = sts_examples(sts("STSB", [("a b", "c", 4.0), ("d", "e", 0.0)]), edit="either")
    assert one.columns == {"sentence1": "a b", "sentence2": "c"} and not one.context and not one.frozen
    for options, said in (({"edit": "both"}, "second, first, either"), ({"distance": 0}, "above 0 and at most 1")):
        with pytest.raises(UserError, match=said):
            sts_examples(sts(), **options)
    with pytest.raises(UserError, match="at least 0 and below 1"):
        self_examples(["a"], threshold=1.0)


def test_an_attack_moves_the_similarity_away_from_the_gold_score():
    outcomes, _ = go(sts_examples(sts()))
    first = outcomes[0]
    # gold 1, cosine 3 / sqrt(4 * 5); without one of the words in common 1 - 2 / sqrt(20) >= 0.5
    assert float(first.before) == pytest.approx(3 / np.sqrt(20)) and first.status == "succeeded"
    assert len(first.perturbed.changed) == 1 and float(first.after) == pytest.approx(2 / np.sqrt(20))
    assert outcomes[1].status == "failed" and not outcomes[1].perturbed.changed  # no word in common, nor can there be
    assert outcomes[4].status == "skipped" and outcomes[4].queries == 1
    for outcome, (left, _, score) in zip(outcomes, PAIRS, strict=True):
        assert float(outcome.after) == pytest.approx(cosine(left, outcome.perturbed.text))
        assert (abs(float(outcome.after) - score / 5) >= 0.5) == (outcome.status in ("succeeded", "skipped"))


@pytest.mark.parametrize("edit", ["first", "either"])
def test_the_other_sentence_or_both(edit):
    outcomes, _ = go(sts_examples(sts(), edit=edit, distance=0.9))
    rows = [attacked_row(one, outcome) for one, outcome in zip(sts_examples(sts(), edit=edit), outcomes, strict=True)]
    assert [row["sentence1"] for row in rows] == [pair[0] for pair in PAIRS]
    assert [row["sentence2"] for row in rows] == [pair[1] for pair in PAIRS]
    assert [name for name in rows[0] if name.startswith("perturbed_")] == [
        "perturbed_sentence1", *(["perturbed_sentence2"] if edit == "either" else [])
    ]  # fmt: skip
    perturbed = [(row["perturbed_sentence1"], row.get("perturbed_sentence2", row["sentence2"])) for row in rows]
    assert perturbed[0] != PAIRS[0][:2]
    assert [row["similarity_after"] for row in rows] == pytest.approx([cosine(*pair) for pair in perturbed])


def test_what_is_untouched_is_embedded_once():
    examples = sts_examples(sts()) + self_examples([pair[1] for pair in PAIRS[:3]])
    _, encode = go(examples, width=2)
    assert all(encode.asked[text] == 1 for one in examples for text in one.context.values())
    assert max(encode.asked.values()) == 1 and sum(encode.asked.values()) > 20


def test_what_is_untouched_is_never_forgotten():
    encode = Count()
    victim = PairSimilarity(encode, untouched=["a dog"])
    for start in range(0, 24000, 4000):
        victim([("a dog", f"the dog {number}") for number in range(start, start + 4000)])
    assert encode.asked["a dog"] == 1 and sum(encode.asked.values()) == 24001


def test_outcomes_do_not_depend_on_what_is_attacked_beside():
    together, _ = go(sts_examples(sts()))
    for number, one in enumerate(sts_examples(sts())):
        (alone,), _ = go([one], width=1)
        assert alone.perturbed.texts == together[number].perturbed.texts and alone.queries == together[number].queries


def test_constraints_read_the_edited_sentence_only():
    seen = set()

    class Looks:
        def keep(self, original, current, candidates):
            yield from ()
            seen.add((original.texts, len(original)))
            return candidates

        def describe(self):
            return {}

    go(self_examples(["a big dog"]), Recipe("looks", "", RECIPE.transformation, (Looks(),)))
    assert seen == {(("a big dog",), 3)}


def test_a_text_against_itself():
    texts = ["a big dog runs", "the fast red"]
    outcomes, _ = go(self_examples(texts, threshold=0.75))
    assert [outcome.status for outcome in outcomes] == ["succeeded", "failed"]
    assert cosine(texts[0], outcomes[0].perturbed.text) == pytest.approx(0.75)  # one word of four
    row = attacked_row(self_examples(texts)[0], outcomes[0])
    assert row["text"] == texts[0] and row["gold"] == 1 and row["words_changed"] == 0.25
    metrics = pair_metrics([row])
    assert metrics["spearman_before"] is None and metrics["distance_after"] == pytest.approx(0.25)


def test_the_summary():
    examples = sts_examples(sts())
    outcomes, _ = go(examples)
    rows = [attacked_row(one, outcome) for one, outcome in zip(examples, outcomes, strict=True)]
    metrics = pair_metrics(rows)
    gold = [pair[2] / 5 for pair in PAIRS]
    after = [cosine(row["sentence1"], row["perturbed_sentence2"]) for row in rows]
    before = [cosine(*pair[:2]) for pair in PAIRS]
    succeeded = [i for i in range(4) if abs(after[i] - gold[i]) >= 0.5]
    assert (metrics["attempted"], metrics["skipped"], metrics["n"]) == (4, 1, 5)
    assert metrics["succeeded"] == len(succeeded) and metrics["success_rate"] == 25 * len(succeeded)
    assert metrics["spearman_before"] == pytest.approx(100 * spearmanr(np.round(before, 9), gold)[0])
    assert metrics["spearman_after"] == pytest.approx(100 * spearmanr(np.round(after, 9), gold)[0])
    assert metrics["distance_after"] == pytest.approx(np.abs(np.array(after) - gold).mean())
    assert metrics["queries_per_example"] == np.mean([outcome.queries for outcome in outcomes[:4]])
    assert metrics["words_changed"] == pytest.approx(np.mean([100 * rows[i]["words_changed"] for i in succeeded]))
    skipped = pair_metrics(rows[4:])
    assert skipped["success_rate"] is None and skipped["queries_per_example"] is None
    with pytest.raises(UserError, match="no pair was attacked"):
        pair_metrics([])


def test_tasks_by_name(tmp_path):
    table = tmp_path / "mine.tsv"
    table.write_text("score\tsentence1\tsentence2\n5\ta dog\ta hound\n1\ta cat\ta dog\n", encoding="utf-8")
    task = load_pair_task("sick-r", data_file=table)
    assert task.name == "SICKR" and [one.goal.gold for one in task.examples] == [1, 0] and task.source == str(table)
    assert task.more == [{"row": 0, "score": 5}, {"row": 1, "score": 1}]
    text = tmp_path / "text.txt"
    text.write_text("a dog\na cat\n", encoding="utf-8")
    task = load_pair_task("similarity", data_file=text, threshold=0.8)
    assert [one.columns["text"] for one in task.examples] == ["a dog", "a cat"]
    assert task.examples[0].goal.distance == pytest.approx(0.2) and len(task.sha256) == 64
    with pytest.raises(UserError, match="unknown STS task 'MR'"):
        load_pair_task("MR", data_file=table)
    with pytest.raises(UserError, match="text.txt, line 1: the header must be"):
        load_pair_task("STSB", data_file=text)


def test_a_real_encoder_is_attacked(bert):
    embedder = load_embedder(str(bert), pooling="mean", device="cpu")
    examples = self_examples(["the dog runs in the park .", "a cat sleeps on the house"], threshold=0.9)
    recipe = Recipe("table", "", Synonyms(lambda word: [w for w in ("night", "sees", "under") if w != word], "words"))
    outcomes = dict(attack_examples(enumerate(examples), recipe, pair_victim(embedder, examples)))
    assert embedder.alone and len(outcomes) == 2
    for number, outcome in outcomes.items():
        text, changed = examples[number].columns["text"], outcome.perturbed.text
        u, v = embedder([text, changed]).astype(float)
        assert float(outcome.after) == pytest.approx(u @ v / np.linalg.norm(u) / np.linalg.norm(v), abs=1e-5)
        assert (outcome.status == "succeeded") == (float(outcome.after) <= 0.9)
