"""Positives made in the text: what they are, and that training on them is training on pairs."""

from __future__ import annotations

import csv
import json
import pickle
import shutil

import pytest
import torch
from test_runs import corpus, options, state_of, train  # noqa: F401 (corpus is a fixture)
from tiny import SENTENCES, WORDS, make_tokenizer, options_of

from hf_robustcse.augmentation import TextAugmentation
from hf_robustcse.cards.model import card_text
from hf_robustcse.data import ContrastiveCollator, load_corpus, text_hash, tokenize_corpus
from hf_robustcse.errors import UserError
from hf_robustcse.methods import METHODS
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.runs import parse_arguments, run
from hf_robustcse.stream import TextStream
from hf_robustcse.synonyms import read_word_list, replace_words
from hf_robustcse.typos import add_typos, leave_out

TEXTS = [f"{a} {b}" for a in WORDS[:8] for b in SENTENCES[:6]]
UNSEEN = {"eval_strategy": "no", "eval_tasks": "none", "eval_steps": False}  # what is compared is the weights


@pytest.fixture
def word_list(tmp_path):
    path = tmp_path / "words.tsv"
    path.write_text("dog\tcat\nhouse\tgarden\tpark\nruns\twalks\n", encoding="utf-8")
    return path


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return path


def loader_of(rows, tokenizer, workers=0, **options):
    collator = ContrastiveCollator(tokenizer, **options)
    return torch.utils.data.DataLoader(rows, batch_size=8, collate_fn=collator, num_workers=workers)


def same_batches(ones, others):
    for one, other in zip(ones, others, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[key], other[key]) for key in one if torch.is_tensor(one[key]))


def test_typos_of_what_is_left():
    text = "A man plays the guitar in Berlin, loudly"
    whole, left = (TextAugmentation("typos", rate=0.5, seed=7, drop=drop)(text) for drop in (0.0, 1.0))
    assert leave_out(text, rate=1.0, seed=7) == "plays guitar Berlin loudly" and len(left.split()) == 4
    assert left == add_typos("plays guitar Berlin loudly", rate=0.5, seed=7) and whole == add_typos(
        text, rate=0.5, seed=7
    )


@pytest.mark.parametrize("kind", ["typos", "synonyms"])
def test_the_second_view_is_the_changed_text(kind, lines, word_list):
    tokenizer, path = make_tokenizer(), str(word_list) if kind == "synonyms" else None
    augmentation = TextAugmentation(kind, rate=0.5, seed=7, word_list=path)
    if kind == "typos":
        others = [add_typos(text, rate=0.5, seed=7) for text in TEXTS]
        assert all(a != b for a, b in zip(TEXTS, others, strict=True))
    else:
        others = [replace_words(text, read_word_list(path), rate=0.5, seed=7) for text in TEXTS]
        assert sum(a != b for a, b in zip(TEXTS, others, strict=True)) > 20
    rows = tokenize_corpus(load_corpus(lines), tokenizer, 6, augmentation=augmentation)
    for row, text, other in zip(rows, TEXTS, others, strict=True):
        both = [tokenizer(one, truncation=True, max_length=6)["input_ids"] for one in (text, other)]
        assert row == {"input_ids": both, "text_hash": [text_hash(text), text_hash(other)],
                       "length": max(map(len, both))}  # fmt: skip
    assert [pickle.loads(pickle.dumps(augmentation))(text) for text in TEXTS] == others  # workers read the list again
    assert list(tokenize_corpus(load_corpus(lines), tokenizer, 6, num_proc=2, augmentation=augmentation)) == list(rows)


def test_batches_are_the_same_with_workers_and_texts_reach_the_method(lines):
    tokenizer, augmentation = make_tokenizer(), TextAugmentation("typos", seed=3)
    rows = tokenize_corpus(load_corpus(lines), tokenizer, 16, keep_text=True, augmentation=augmentation)
    assert rows["text"] == TEXTS
    extras = {"extras": _letters}
    first = list(loader_of(rows, tokenizer, **extras))
    same_batches(first, loader_of(rows, tokenizer, 2, **extras))
    assert first[0]["letters"].tolist() == [len(text) for text in TEXTS[:8]]
    assert first[0]["input_ids"].shape[:2] == (8, 2)


def _letters(texts):
    return {"letters": torch.tensor([len(text) for text in texts])}


def test_a_stream_has_the_same_second_view(lines):
    tokenizer, augmentation = make_tokenizer(), TextAugmentation("typos", seed=3)
    whole = load_corpus(lines)
    rows = tokenize_corpus(whole, tokenizer, 16, augmentation=augmentation)
    expected = {row["text_hash"][0]: (row["text_hash"][1], row["input_ids"][1]) for row in rows}

    def batches(workers):
        stream = TextStream(load_corpus(lines, streaming=True), tokenizer, ContrastiveCollator(tokenizer),
                            max_length=16, batch_size=8, shuffle_buffer=16, augmentation=augmentation)  # fmt: skip
        return [batch for batch, _ in zip(stream.loader(num_workers=workers), range(9), strict=False)]

    found = batches(0)  # into the second epoch of 6 steps
    same_batches(found, batches(2))
    for batch in found:
        for (mine, other), ids, mask in zip(
            batch["text_hash"].tolist(), batch["input_ids"][:, 1], batch["attention_mask"][:, 1], strict=True
        ):
            assert expected[mine] == (other, ids[mask.bool()].tolist())


RUNS = [("vadv", False), ("dclr+vadv", True)]
SLOW = [(method, streaming) for method in ("simcse", "vadv", "dclr", "dclr+vadv") for streaming in (False, True)]


@pytest.mark.parametrize(
    ("method", "streaming"), [*RUNS, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW if one not in RUNS)]
)
def test_training_is_that_on_a_corpus_of_pairs(method, streaming, bert, corpus, tmp_path):  # noqa: F811
    """The weights after two steps, those of a stream in chunks; the pairs' column of typos is written by hand."""
    texts = corpus.read_text(encoding="utf-8").splitlines()
    with open(tmp_path / "pairs.csv", "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "positive"])
        rows.writerows([text, add_typos(leave_out(text, rate=0.5, seed=5), rate=0.4, seed=5)] for text in texts)
    common = {"method": method, "max_steps": 2, "seed": 5, **UNSEEN}
    if streaming:
        common |= {"streaming": None, "shuffle_buffer": 100, "forward_chunk_size": 3}
    made = {"augmentation": "typos", "augmentation_rate": 0.4, "augmentation_drop": 0.5}
    train(bert, corpus, tmp_path / "made", **common, **made)
    train(bert, tmp_path / "pairs.csv", tmp_path / "pairs", **common)
    a, b = state_of(tmp_path / "made"), state_of(tmp_path / "pairs")
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


@pytest.mark.parametrize(
    ("method", "rows"),
    [("dclr+vadv", None), ("dclr+vadv", 3), *((name, None) for name in METHODS)],
)
def test_every_method_takes_them(method, rows, bert, lines):
    """The loss without and with chunks of three rows; text that is its own positive gives another one."""
    losses = {}
    for rate in (0.4, None):
        model = RobustCSEModel.from_encoder(bert, method=method, method_options=options_of(method), dropout=0.0).train()
        model.forward_chunk_size = rows
        augmentation = TextAugmentation("typos", rate=rate) if rate else str
        tokens = tokenize_corpus(load_corpus(lines), model.tokenizer, 16, augmentation=augmentation)
        torch.manual_seed(0)
        losses[rate] = model(**next(iter(loader_of(tokens, model.tokenizer))))["loss"]
    losses[0.4].backward()
    assert losses[0.4].isfinite() and losses[0.4].item() != losses[None].item()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_a_run_says_what_it_did_and_resumes_bit_equal(bert, corpus, tmp_path):  # noqa: F811
    """6 steps an epoch; the run goes on from step 4 and ends at step 10."""
    common = {
        "max_steps": 10, "per_device_train_batch_size": 64, "save_steps": 4, "save_total_limit": 9, **UNSEEN,
        "augmentation": "typos", "augmentation_rate": 1, "augmentation_drop": 0.5, "dropout": 0.0,
    }  # fmt: skip
    whole, again = tmp_path / "whole", tmp_path / "again"
    train(bert, corpus, whole, **common)
    shutil.copytree(whole / "checkpoint-4", again / "checkpoint-4")
    shutil.copy(whole / "manifest.json", again)
    train(bert, corpus, again, resume_from_checkpoint="last", dataloader_num_workers=1, **common)
    a, b = (state_of(folder / "checkpoint-10") for folder in (whole, again))
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    identity = json.loads((whole / "manifest.json").read_text())["identity"]
    assert (identity["augmentation"], identity["augmentation_rate"]) == ("typos", 1)
    config = RobustCSEModel.from_pretrained(whole).config
    assert (config.augmentation, config.augmentation_rate) == ("typos", 1)
    assert "| augmentation | typos, rate 1.0, 50% of the rest left out |" in card_text(whole)
    with pytest.raises(UserError, match="holds another run, with augmentation_rate 1.0"):
        train(bert, corpus, again, resume_from_checkpoint="last", **{**common, "augmentation_rate": 0.5})
    with pytest.raises(UserError, match="holds another run, with augmentation_drop 0.5"):
        train(bert, corpus, again, resume_from_checkpoint="last", **{**common, "augmentation_drop": 0})


def test_dry_run_and_synonyms_of_a_list(bert, corpus, word_list, tmp_path, capsys):  # noqa: F811
    made = {"augmentation": "synonyms", "augmentation_wordlist": word_list, "dropout": 0.0}
    plan = run(parse_arguments(options(bert, corpus, tmp_path / "run", dry_run=None, **made)))["plan"]
    assert plan["negatives"] == 7 and not (tmp_path / "run").exists()
    assert "teach nothing" not in capsys.readouterr().out  # without dropout the pairs still differ
    train(bert, corpus, tmp_path / "run", max_steps=1, **UNSEEN, **made)
    identity = json.loads((tmp_path / "run" / "manifest.json").read_text())["identity"]
    assert identity["augmentation"] == "synonyms" and identity["augmentation_wordlist"] == str(word_list)


BAD = {
    "rate of nothing": ({"augmentation": "typos", "augmentation_rate": 0}, "above 0 and at most 1 for typos, not 0"),
    "rate above 1": ({"augmentation": "synonyms", "augmentation_rate": 1.5}, "above 0 and at most 1 for synonyms"),
    "a list for typos": ({"augmentation": "typos", "augmentation_wordlist": "w"}, "belongs to synonyms, not to typos"),
    "drop above 1": ({"augmentation": "typos", "augmentation_drop": 1.5}, "--augmentation_drop must be at least 0 and"),
    "drop of nothing": ({"augmentation_drop": 0.5}, "--augmentation_drop belongs to typos, not to dropout"),
    "no list": ({"augmentation": "synonyms", "augmentation_wordlist": "none.tsv"}, "cannot read the word list none"),
    "no WordNet": ({"augmentation": "synonyms"}, "or name a list with --augmentation_wordlist"),
    "own positives": ({"augmentation": "typos", "train_file": "pairs.tsv"}, "this corpus brings its own: leave it out"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(case, bert, corpus, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    rows = [f"{text}\t{text} ." for text in TEXTS]
    (tmp_path / "pairs.tsv").write_text("\n".join(["text\tpositive", *rows]), encoding="utf-8")
    changes, message = BAD[case]
    with pytest.raises(UserError) as error:
        train(bert, corpus, tmp_path / "run", **changes)
    assert message in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_positives_that_are_missing_or_there_twice(bert, tmp_path):
    model = RobustCSEModel.from_encoder(bert, augmentation="typos", method="vadv", method_options=options_of("vadv"))
    batch = model.tokenizer(SENTENCES, padding=True, return_tensors="pt")
    with pytest.raises(UserError, match=r"augmentation=TextAugmentation\('typos', ...\)\) makes them"):
        model(batch["input_ids"], batch["attention_mask"])
    (tmp_path / "pairs.tsv").write_text("text\tpositive\na dog\ta cat\n", encoding="utf-8")
    for streaming in (False, True):
        pairs = load_corpus(tmp_path / "pairs.tsv", streaming=streaming)
        with pytest.raises(UserError, match="pairs.tsv brings its own positives"):
            tokenize_corpus(pairs, model.tokenizer, 8, augmentation=TextAugmentation("typos"))
    with pytest.raises(UserError, match="brings its own positives"):
        TextStream(pairs, model.tokenizer, ContrastiveCollator(model.tokenizer), max_length=8, batch_size=2,
                   augmentation=TextAugmentation("typos"))  # fmt: skip
    with pytest.raises(UserError, match="choose typos or synonyms"):
        TextAugmentation("shuffle")
