"""Robust sets: what each operator changes and what it leaves, the same in every process; sets that others published."""

from __future__ import annotations

import gzip
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value, load_from_disk

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import robust_sets
from hf_robustcse.evaluation.known_sets import KNOWN_SETS, find_known_set, group_invariance, load_known_robust_set
from hf_robustcse.evaluation.operators import OPERATORS, perturb_row
from hf_robustcse.evaluation.robust_sets import (
    invariance_rate,
    load_robust_set,
    moved,
    robust_set,
    save_robust_set,
)
from hf_robustcse.evaluation.sts import MissingData
from hf_robustcse.evaluation.word_lists import (
    CITIES,
    COUNTRIES,
    FEMALE_NAMES,
    MALE_NAMES,
    OTHER_WORDS,
    SHORT_NAMES,
)
from hf_robustcse.typos import swap_inside

SEEDS = range(25)
SYNONYMS = {"huge": ["vast", "immense"], "car": ["automobile"], "old": ["aged"], "dog": ["hound"]}


def synonyms(word: str) -> list[str]:
    return SYNONYMS.get(word, [])


def changes(operator: str, *texts: str, **options) -> set[tuple[str, ...]]:
    """What an operator makes of the texts, over the seeds."""
    options = {"synonyms": synonyms} | options
    return {tuple(perturb_row(texts, [operator], seed=seed, **options)[0]) for seed in SEEDS}


def test_word_lists():
    assert len(MALE_NAMES) == len(set(MALE_NAMES)) >= 60 and len(FEMALE_NAMES) == len(set(FEMALE_NAMES)) >= 60
    countries = {name for names in COUNTRIES.values() for name in names}
    cities = {name for names in CITIES.values() for name in names}
    assert len(countries) >= 40 and len(cities) >= 60
    assert not set(MALE_NAMES) & set(FEMALE_NAMES)
    assert not countries & cities and not (countries | cities) & {*MALE_NAMES, *FEMALE_NAMES}
    assert SHORT_NAMES.keys() <= {*MALE_NAMES, *FEMALE_NAMES}
    for word in OTHER_WORDS:
        assert {swap_inside(word, random.Random(seed)) for seed in range(60)} & OTHER_WORDS - {word}


# typos


def test_typos_swap_two_inner_letters_of_one_word_or_of_two_in_long_texts():
    text = "A man is playing the guitar in a quiet street near Berlin"
    for (changed,) in changes("typos", text):
        words = list(zip(text.split(), changed.split(), strict=True))
        ((before, after),) = [pair for pair in words if pair[0] != pair[1]]
        assert sorted(before) == sorted(after) and before[0] == after[0] and before[-1] == after[-1]
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 2 and before != "Berlin"
    long = f"{text} , and {text}"
    for (changed,) in changes("typos", long):
        assert sum(a != b for a, b in zip(long.split(), changed.split(), strict=True)) == 2


@pytest.mark.parametrize(
    "text", ["A cat is in it", "NASA Bob", "form and trial", "ab@mail.org https://some.where/here", ""]
)
def test_typos_leave(text):
    assert changes("typos", text) == {(text,)}


# contractions


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is not here.", "It isn't here."),
        ("He isn’t here.", "He is not here."),
        ("I am not sure.", "I'm not sure."),
        ("They cannot come.", "They can't come."),
        ("They can't come.", "They cannot come."),
        ("She won't go and they will not.", "She will not go and they won't."),
        ("the film ca n't win .", "the film can not win ."),
        ("the film can not win .", "the film ca n't win ."),
        ("you do n't say , and i 'm not amused .", "you do not say , and i am not amused ."),
        ("it does not work .", "it does n't work ."),
        ("they 're going and we are going .", "they are going and we 're going ."),
        ("I've seen it, she'll come.", "I have seen it, she will come."),
        ("It's a dog.", "It is a dog."),
        ("There is a dog.", "There's a dog."),
    ],
)
def test_contractions(text, expected):
    assert changes("contractions", text) == {(expected,)}


@pytest.mark.parametrize(
    "text",
    [
        "Isn't it fine?",
        "Why aren't the houses blue?",
        "Is not he here?",
        "It is fine, isn't it.",
        "He's gone and she'd go.",
        "He is taller than I am.",
        "I know what they are doing.",
        "It's been rain.",
        "Mary's dog wants ours.",
        "Oh, I'm-I'm there, you couldn't've come.",
    ],
)
def test_contractions_leave(text):
    assert changes("contractions", text) == {(text,)}


# names


def test_names_are_replaced_in_all_texts_by_others_of_the_same_gender():
    found = changes("names", "Mary's dog likes Kevin .", "A dog likes Kevin, and Mary left.")
    for first, second in found:
        woman, man = re.fullmatch(r"(\w+)'s dog likes (\w+) \.", first).groups()
        assert second == f"A dog likes {man}, and {woman} left."
        assert woman in FEMALE_NAMES and man in MALE_NAMES and woman != "Mary" and man != "Kevin"
    assert len(found) > 10


@pytest.mark.parametrize(
    "texts",
    [
        ("Clarence Thomas left.", "Thomas was here."),  # a surname
        ("King James and St. Paul and Henry VIII and Peter the Great.",),
        ("He saw the Victoria and Albert Museum near Martin Luther Street.",),
        ("Elizabeth met someone.", "Liz met someone."),
        ("Michael met someone.", "Mike met someone."),
        ("Robert left.", "robert left"),
        ("Robert left.", "ROBERT left"),
        ("Mary-Kate wrote to @Mary at mary@mail.org",),
        ("Johnson, Maryland and Ruthless",),
        ("a man named kevin",),
        ("He read Matthew 16:18 then.",),
        ("A picture of Mary and baby Jesus .", "The mother of God ."),
        ("A woman holds a Donald Duck bag.", "A woman is in Disney World."),
        ("Will and Rose met Washington in May.",),
    ],
)
def test_names_leave(texts):
    assert changes("names", *texts) == {texts}


# places


def test_places_are_replaced_in_all_texts_by_others_of_their_group():
    for first, second in changes("places", "Men walk in Paris and in Kenya.", "In Paris, and Kenya, men walk."):
        city, country = re.fullmatch(r"Men walk in (\w+) and in (\w+)\.", first).groups()
        assert second == f"In {city}, and {country}, men walk."
        assert city in CITIES["Europe"] and country in COUNTRIES["Africa"] and (city, country) != ("Paris", "Kenya")
    assert all(
        a != "A man is in Boston." and b == "A man is outside."
        for a, b in changes("places", "A man is in Boston.", "A man is outside.")
    )


@pytest.mark.parametrize(
    "texts",
    [
        ("A man walks in Paris.", "A man is in France."),
        ("A French man walks in Paris.",),
        ("A man walks in France.", "A French man walks."),
        ("A Danish man is in Denmark.",),
        ("A man walks in Chicago.", "He is in Illinois."),
        ("Paris is the capital.",),
        ("The Chicago Bulls and the University of Chicago and Jack London and Dallas, Texas.",),
        ("A man walks in Paris.", "a man in paris"),
        ("Parisians like Paris.",),
        ("A man in turkey and china",),
    ],
)
def test_places_leave(texts):
    assert changes("places", *texts) == {texts}


# numbers


def test_numbers_keep_their_order_and_equality():
    texts = ("There are 12 men , 15 black dogs and two cats in 1999 .", "The 15 dogs saw 12 men , or more than 11 .")
    for first, second in changes("numbers", *texts):
        men, dogs = map(
            int, re.fullmatch(r"There are (\d+) men , (\d+) black dogs and two cats in 1999 \.", first).groups()
        )
        assert second == f"The {dogs} dogs saw {men} men , or more than 11 ."
        assert 11 < men < dogs <= 18
    assert {first for first, _ in changes("numbers", *texts)} != {texts[0]}


@pytest.mark.parametrize(
    "texts",
    [
        ("2 men and 1 women",),
        ("3 men walk", "three men walk"),
        ("5 men and 7 women", "12 people"),
        ("4 men and two women", "6 people"),
        ("a man , a woman and another man walk down the long street", "3 people walk"),
        ("12 men", "a dozen men"),
        ("8 men", "half of the 4 men"),
        ("Chapter 5 women , Speaker 3: dogs",),
        ("in 1999 days , the 5th men , 3.5 men , 10,000 men , 5% men , $5 men , 15-year-old boys , 9/11 attacks",),
        ("$ 5 men , 3 . 5 men , 10 , 000 men , # 4 men",),
        ("12 miles , 7 stars , 5 dollars , 10 is , 8 of us",),
        ("60 minutes are an hour",),
        ("He is 30 years old",),
    ],
)
def test_numbers_leave(texts):
    assert changes("numbers", *texts) == {texts}


# synonyms and neutral text


def test_synonyms_are_replaced_in_all_texts():
    assert changes("synonyms", "The huge car .", "The car is huge") == {
        ("The vast car .", "The car is vast"),
        ("The immense car .", "The car is immense"),
        ("The huge automobile .", "The automobile is huge"),
    }
    assert changes("synonyms", "It is a car") == {("It is a car",)}  # not "a automobile"
    assert changes("synonyms", "It is an old city") == {("It is an aged city",)}
    assert changes("synonyms", "two dogs and the dog", "DOG") == {("two dogs and the dog", "DOG")}
    assert changes("synonyms", "the dog", "the hound") == {("the dog", "the hound")}


def test_neutral_text_is_appended_in_the_style_of_the_text():
    found = {new for new, _ in changes("neutral", "a fine film .", "another .", neutral_in=0)}
    assert all(new.startswith("a fine film . ") and new == new.lower() for new in found) and len(found) > 5
    assert all(new.endswith(" .") or "@" in new or "https://" in new for new in found)
    assert all(second == "another ." for _, second in changes("neutral", "One.", "another .", neutral_in=0))
    bare = {new.removeprefix("A fine film ") for (new,) in changes("neutral", "A fine film", neutral_in=0)}
    assert all(re.fullmatch(r"@[a-z]{6}|https://example\.org/[a-z]{6}", new) for new in bare)  # no sentence runs on
    assert changes("neutral", "", neutral_in=0) == {("",)}
    assert not any(
        "text" in new[9:].lower() for (new,) in changes("neutral", "It ends. ", neutral_in=0, protected=["text"])
    )


# all operators

TEXTS = (
    "Kevin and 12 men did not see a huge car in Paris. It was standing there.",
    "There is not a huge car, Kevin says, but 12 men in Paris.",
)


@pytest.mark.parametrize("operator", OPERATORS)
def test_protected_strings_and_fixed_texts_stay(operator):
    options = {"neutral_in": 0}
    assert all(new != TEXTS for new in changes(operator, *TEXTS, **options))
    if operator != "neutral":
        assert changes(operator, *TEXTS, protected=[text.upper() for text in TEXTS], **options) == {TEXTS}
        assert changes(operator, *TEXTS, fixed=[0, 1], **options) == {TEXTS}
    for first, second in changes(operator, *TEXTS, fixed=[1], **options):
        assert second == TEXTS[1]
        if operator in ("names", "places", "numbers", "synonyms"):  # the other text says the same
            assert first == TEXTS[0]
    protected = ["kevin", "12 men", "huge car", "Paris"]
    for new in changes(operator, *TEXTS, protected=protected, **options):
        for text, other in zip(TEXTS, new, strict=True):
            for string in protected:
                assert len(re.findall(string, other, re.I)) == len(re.findall(string, text, re.I)), new


def test_a_row_gets_the_same_with_and_without_other_operators_and_in_any_order():
    every, names = perturb_row(TEXTS, OPERATORS, seed=3, neutral_in=0, synonyms=synonyms)
    again, _ = perturb_row(TEXTS, OPERATORS[::-1], seed=3, neutral_in=0, synonyms=synonyms)
    assert every == again and names == list(OPERATORS)
    alone, _ = perturb_row(TEXTS, ["names"], seed=3)
    name = alone[0].split()[0]
    assert every[0].startswith(name) and f" {name} " in every[1]


def test_at_most_and_that_rare_operators_come_first():
    for seed in SEEDS:
        texts, names = perturb_row(TEXTS, OPERATORS, seed=seed, neutral_in=0, synonyms=synonyms, at_most=1)
        assert len(names) == 1 and tuple(texts) != TEXTS and names[0] not in ("typos", "neutral")
        assert len(perturb_row(TEXTS, OPERATORS, seed=seed, neutral_in=0, synonyms=synonyms, at_most=3)[1]) == 3
    assert perturb_row(["A cat."], OPERATORS[:5], seed=0, at_most=1) == (["A cat."], [])


@pytest.mark.parametrize(
    ("operator", "message"),
    [("rhyme", "unknown operator 'rhyme'; known: typos"), ("neutral", "neutral_in"), ("synonyms", "needs synonyms")],
)
def test_bad_operators(operator, message):
    with pytest.raises(UserError, match=message):
        perturb_row(["a"], [operator], seed=0)


# data sets


@pytest.fixture
def pairs() -> Dataset:
    rows = {
        "id": range(4),
        "a": [TEXTS[0], "Mary left.", "A cat.", TEXTS[0]],
        "b": [TEXTS[1], "Mary sat.", "It", TEXTS[1]],
    }
    features = Features(
        {"id": Value("int32"), "a": Value("string"), "label": ClassLabel(names=["no", "yes"]), "b": Value("string")}
    )
    return Dataset.from_dict({name: list(values) for name, values in rows.items()} | {"label": [0, 1, 1, 0]}, features)


def test_robust_set_keeps_rows_columns_and_types(pairs):
    made = robust_set(pairs, ["a", "b"], operators=["names", "numbers"])
    assert made.column_names == ["id", "a", "b", "label", "operators", "row"]
    assert all(made.features[name] == pairs.features[name] for name in pairs.column_names)
    assert made["id"] == pairs["id"] and made["label"] == pairs["label"] and list(made["row"]) == [0, 1, 2, 3]
    assert [len(names) for names in made["operators"]] == [1, 1, 0, 1] and made["operators"][1] == ["names"]
    assert made[2]["a"] == "A cat." and made[0]["a"] != TEXTS[0]
    both = robust_set(pairs, ["a", "b"], operators=["names", "numbers"], per_example=2)
    assert [names for names in both["operators"]] == [["names", "numbers"], ["names"], [], ["names", "numbers"]]
    assert len(robust_set(pairs.select([]), ["a"], operators=["typos"])) == 0


def test_a_row_is_perturbed_by_its_texts_alone(pairs):
    made = robust_set(pairs, ["a", "b"], synonyms=synonyms, seed=5)
    turned = robust_set(pairs.select([3, 2, 1, 0]), ["a", "b"], synonyms=synonyms, seed=5)
    assert made["a"] == turned["a"][::-1] and made["operators"] == turned["operators"][::-1]
    assert made[0]["a"] == made[3]["a"]
    assert any(robust_set(pairs, ["a", "b"], synonyms=synonyms, seed=seed)["a"] != made["a"] for seed in range(3))


def test_the_same_in_every_process(pairs):
    code = (
        "import json, sys; from hf_robustcse.evaluation.operators import *; texts = json.loads(sys.argv[1]);"
        "print(json.dumps([perturb_row(texts, OPERATORS, seed=s, neutral_in=0, at_most=2, synonyms=lambda w:"
        " {'huge': ['vast', 'immense']}.get(w, [])) for s in range(20)]))"
    )
    outputs = set()
    for hash_seed in ("0", "1"):
        environment = {**__import__("os").environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", code, json.dumps(TEXTS)]
        outputs.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(outputs) == 1 and len(json.loads(outputs.pop())) == 20


def test_protect_and_fixed_columns(pairs):
    made = robust_set(pairs, ["a", "b"], operators=["names"], protect=lambda row: ["Mary"] if row["id"] == 1 else [])
    assert [bool(names) for names in made["operators"]] == [True, False, False, True]
    made = robust_set(pairs, ["a"], operators=["names", "typos"], per_example=2, fixed=["b"])
    assert made["b"] == pairs["b"] and {name for names in made["operators"] for name in names} == {"typos"}


def test_answers_are_found_again():
    context = "They didn't see Paris. They didn't say that it was Paris that they saw in the end of Paris."
    dataset = Dataset.from_dict({"context": [context]})
    for seed in range(10):
        made = robust_set(
            dataset,
            ["context"],
            operators=["contractions", "typos", "places", "neutral"],
            per_example=4,
            neutral_in="context",
            seed=seed,
            protect=lambda row: ["Paris"],
        )[0]
        assert made["operators"] == ["typos", "contractions", "neutral"]
        starts = [match.start() for match in re.finditer("Paris", context)]
        found = [moved(context, made["context"], start, "Paris") for start in starts]
        assert found == [match.start() for match in re.finditer("Paris", made["context"])] != starts
    with pytest.raises(UserError, match="does not begin at character 3"):
        moved(context, context, 3, "Paris")
    with pytest.raises(UserError, match="3 times in a text and 2 times"):
        moved(context, context[:-7], 16, "Paris")


def test_operators_without_their_resource(pairs, monkeypatch, capsys):
    def nothing(**options):
        raise UserError("there is no WordNet here")

    monkeypatch.setattr(robust_sets, "load_wordnet", nothing)
    with pytest.raises(UserError, match="synonyms needs WordNet or a word list.*WORDNET_DIR"):
        robust_set(pairs, ["a"], operators=["synonyms"])
    assert capsys.readouterr().err == ""
    made = robust_set(pairs, ["a", "b"])
    assert capsys.readouterr().err.count("\n") == 1
    used = {name for names in made["operators"] for name in names}
    assert used and not used & {"synonyms", "neutral"}
    assert robust_set(pairs, ["a"], operators=["synonyms"], synonyms=synonyms)["operators"][0] == ["synonyms"]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ([], {}, "at least one column"),
        (["a"], {"fixed": ["a"]}, "each perturbed or fixed column once"),
        (["c"], {}, "no column 'c'; there are id, a, b, label"),
        (["label"], {}, "label holds no text"),
        (["a"], {"operators": []}, "at least one operator"),
        (["a"], {"operators": ["rhyme"]}, "unknown operator"),
        (["a"], {"operators": ["neutral"]}, "neutral_in"),
        (["a"], {"neutral_in": "b"}, "neutral_in must be one of the perturbed columns a"),
        (["a"], {"per_example": 0}, "1 or more"),
    ],
)
def test_bad_input(pairs, columns, options, message):
    with pytest.raises(UserError, match=message):
        robust_set(pairs, columns, **({"synonyms": synonyms} | options))


def test_bad_data():
    with pytest.raises(UserError, match="row 1 has no text in the column a"):
        robust_set(Dataset.from_dict({"a": ["x", None]}), ["a"], operators=["typos"])
    with pytest.raises(UserError, match="column row.*rename"):
        robust_set(Dataset.from_dict({"a": ["x"], "row": [1]}), ["a"], operators=["typos"])


# saving


def test_save_and_load(pairs, tmp_path):
    made = robust_set(pairs, ["a", "b"], operators=["typos"])
    save_robust_set(pairs, made, tmp_path / "deep" / "set")
    again = load_from_disk(str(tmp_path / "deep" / "set"))
    assert list(again) == ["original", "robust"]
    assert again["robust"].to_list() == made.to_list() and again["original"].features == pairs.features
    second = robust_set(pairs, ["a", "b"], operators=["typos"], seed=1)
    save_robust_set(pairs, second, tmp_path / "deep" / "set")
    assert load_robust_set(tmp_path / "deep" / "set")["robust"].to_list() == second.to_list() != made.to_list()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["set"]


def test_saving_leaves_nothing_half_written_and_nothing_else_overwritten(pairs, tmp_path, monkeypatch):
    made = robust_set(pairs, ["a"], operators=["typos"])
    save_robust_set(pairs, made, tmp_path / "set")
    other = tmp_path / "other"
    other.mkdir()
    (other / "file").write_text("mine")
    with pytest.raises(UserError, match="is no robust set"):
        save_robust_set(pairs, made, other)
    with pytest.raises(UserError, match="is no robust set"):
        load_robust_set(other)
    with pytest.raises(UserError, match="as many"):
        save_robust_set(pairs.select([0]), made, tmp_path / "set")
    monkeypatch.setattr(robust_sets.DatasetDict, "save_to_disk", lambda self, path: (Path(path).mkdir(), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        save_robust_set(pairs, made, tmp_path / "set")
    assert load_robust_set(tmp_path / "set")["robust"].to_list() == made.to_list()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "set"]


def test_invariance_rate():
    assert invariance_rate([0, 1, 1, 0], [0, 1, 0, 1], [["typos"], [], ["names"], ["typos"]]) == pytest.approx(100 / 3)
    with pytest.raises(UserError, match="no row was changed"):
        invariance_rate([0], [0], [[]])
    with pytest.raises(UserError, match="1 predictions, 2 perturbed"):
        invariance_rate([0], [0, 1], [True])


# published sets


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = ("\n".join(lines) + "\n").encode("utf-8")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def objects(*rows: dict) -> list[str]:
    return [json.dumps(row) for row in rows]


def test_adversarial_glue(tmp_path):
    write(tmp_path / "attack/AdvGLUE/mnli-mm.tsv", ["label\tpremise\thypothesis", '2\tA "b\tc  d', "0\te\tf"])
    with pytest.raises(UserError, match="has 2 rows in .*mnli-mm.tsv, expected 162"):
        load_known_robust_set("advglue mnli-mm", tmp_path)
    for folder in (tmp_path, tmp_path / "attack"):
        found = load_known_robust_set("AdvGLUE/mnli_mm", folder, check_rows=False)
        assert found.dataset.to_list() == [
            {"label": 2, "sentence1": 'A "b', "sentence2": "c d"},
            {"label": 0, "sentence1": "e", "sentence2": "f"},
        ]
    assert (found.name, found.split, found.tasks[0], found.original) == ("AdvGLUE_MNLI-MM", "dev", "MNLI", None)
    assert (
        found.label_names == ("entailment", "neutral", "contradiction") == tuple(found.dataset.features["label"].names)
    )
    assert found.text_columns == ["sentence1", "sentence2"] and len(found.sha256) == 64 and found.n == 2
    assert "Wang et al. 2021" in found.citation


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3\ta\tb", "mnli.tsv, line 3: the label 3 is not one of AdvGLUE_MNLI's, 0 to 2"),
        ("-1\ta\tb", "line 3: the label -1 is negative"),
        ("x\ta\tb", "line 3: the label 'x' is not an integer"),
        ("1\ta", "line 3: 2 fields"),
        ("1\ta\t ", "line 3: an empty sentence"),
    ],
)
def test_malformed_tables(tmp_path, line, message):
    write(tmp_path / "attack/AdvGLUE/mnli.tsv", ["label\tpremise\thypothesis", "1\ta\tb", line])
    with pytest.raises(UserError, match=re.escape(message)):
        load_known_robust_set("AdvGLUE_MNLI", tmp_path, check_rows=False)


def test_counterfactual_nli(tmp_path):
    def row(premise: str, hypothesis: str, label: int) -> dict:
        return {"premise": premise, "hypothesis": hypothesis, "label": label}

    folder = tmp_path / "nli/SNLI_CAD"
    write(folder / "test_original.jsonl.gz", objects(row("p", "h", 0), row("q", "i", 1)))
    edited = [row("p1", "h", 1), row("p2", "h", 2), row("q1", "i", 0), row("q2", "i", 2)]
    write(folder / "test_revised_premise.jsonl", objects(*edited))
    write(
        folder / "test_revised_hypothesis.jsonl",
        objects(*(row(r["hypothesis"], r["premise"], r["label"]) for r in edited)),
    )
    found = load_known_robust_set("snli-cad", tmp_path, check_rows=False)
    assert found.split == "test" and found.n == len(found.original) == 8
    assert list(found.original["sentence1"]) == ["p", "p", "q", "q"] * 2
    assert list(found.dataset["sentence1"]) == ["p1", "p2", "q1", "q2", "h", "h", "i", "i"]
    assert list(found.dataset["revised"]) == ["revised_premise"] * 4 + ["revised_hypothesis"] * 4
    write(folder / "test_original.jsonl.gz", objects(row("q", "i", 1), row("p", "h", 0)))
    with pytest.raises(UserError, match="row 1 of test_revised_premise has the label of its original"):
        load_known_robust_set("SNLI_CAD", tmp_path, check_rows=False)
    write(folder / "test_original.jsonl.gz", objects(*[row("q", "i", 1)] * 3))
    with pytest.raises(UserError, match="4 rows of test_revised_premise do not belong to 3 originals"):
        load_known_robust_set("SNLI_CAD", tmp_path, check_rows=False)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is a JSON list; write one object a line"),
        ('{"text": "a"}', "line 2: no label"),
        ('{"text": 3, "label": 1}', "line 2: text is no text"),
        ('{"text": "a", "label": 2}', "line 2: the label 2 is not one of IMDB_contrast's"),
        ('{"text": "a", "label": true}', "line 2: the label True is not an integer"),
    ],
)
def test_malformed_objects(tmp_path, line, message):
    folder = tmp_path / "classification/IMDB_contrast"
    write(folder / "test_original.jsonl", ['{"text": "a", "label": 0}'] * 2)
    write(folder / "test_contrast.jsonl", ['{"text": "b", "label": 1}', line])
    with pytest.raises(UserError, match=re.escape(message)):
        load_known_robust_set("IMDB_contrast", tmp_path, check_rows=False)


def test_a_file_that_is_cut_off(tmp_path):
    path = tmp_path / "nli/FEVER_SYMMETRIC/test.jsonl.gz"
    write(path, objects(*[{"premise": f"p{i}", "hypothesis": "h", "label": 0} for i in range(500)]))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="cannot be read"):
        load_known_robust_set("FEVER_SYMMETRIC", tmp_path)


def test_invariance_groups(tmp_path):
    path = tmp_path / "attack/CheckList/sentiment_inv.tsv"
    rows = ["typos\t0\t0\ta", "typos\t0\t1\tb", "typos\t1\t0\tc", "typos\t1\t1\td", "names\t0\t0\te", "names\t0\t2\tf"]
    write(path, ["test\tgroup\tvariant\ttext", *rows])
    found = load_known_robust_set("CheckList_sentiment_INV", tmp_path, check_rows=False)
    assert found.label_names == () and found.dataset[5] == {"test": "names", "group": 0, "variant": 2, "text": "f"}
    rates = group_invariance(found.dataset, [1, 1, 0, 1, 0, 0])
    assert rates == {"all": pytest.approx(200 / 3), "typos": 50.0, "names": 100.0}
    with pytest.raises(UserError, match="2 predictions for 6 rows"):
        group_invariance(found.dataset, [0, 1])
    with pytest.raises(UserError, match="no column group"):
        group_invariance(found.dataset.remove_columns("group"), [0] * 6)
    write(path, ["test\tgroup\tvariant\ttext", *rows[:-1]])
    with pytest.raises(UserError, match="the group 0 of the test 'names' needs variant 0 once, and others"):
        load_known_robust_set("CheckList_sentiment_INV", tmp_path, check_rows=False)


def test_sets_that_are_not_there(tmp_path):
    with pytest.raises(UserError, match="unknown robust set 'HANS'; known: AdvGLUE_SST2"):
        load_known_robust_set("HANS", tmp_path)
    with pytest.raises(UserError, match="has no split 'train'; it has dev"):
        load_known_robust_set("AdvGLUE_QQP", tmp_path, "train")
    with pytest.raises(MissingData, match=r"put attack/AdvGLUE/qqp.tsv \(header label<TAB>sentence1<TAB>sentence2\)"):
        load_known_robust_set("AdvGLUE_QQP", tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load_known_robust_set("AdvGLUE_QQP", tmp_path / "nowhere")
    assert find_known_set("checklist-qqp-inv") == "CheckList_QQP_INV"


@pytest.mark.slow
def test_published_sets(benchmark_data):
    for name, known in KNOWN_SETS.items():
        for split in known.rows:
            found = load_known_robust_set(name, benchmark_data, split)
            assert found.n == len(found.original or found.dataset)
            if found.label_names:
                assert set(found.dataset["label"]) <= set(range(len(found.label_names)))


@pytest.mark.slow
def test_robust_sets_of_real_text(benchmark_data):
    """Nearly every row changes, pairs stay consistent, and every operator finds something to do."""
    with gzip.open(benchmark_data / "nli/SNLI/dev.jsonl.gz", "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    data = Dataset.from_list(rows)
    operators = [name for name in OPERATORS if name != "synonyms"]
    made = robust_set(data, ["premise", "hypothesis"], operators=operators, neutral_in="premise")
    assert sum(map(bool, made["operators"])) > 0.99 * len(data)
    assert {name for names in made["operators"] for name in names} == set(operators)
    same = [row["premise"] == row["hypothesis"] for row in rows]
    for equal, row in zip(same, made, strict=True):
        if equal and set(row["operators"]) <= {"names", "places", "numbers"}:
            assert row["premise"] == row["hypothesis"]
