"""The data door of fine-tuning: formats, guards, and what a broken file says."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

import pytest

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.hub import HubSet, MissingData
from hf_robustcse.finetune.tasks import SOURCES, TASKS, Fetched, Source, find_task, load_split, prefetch_sets

RTE = dataclasses.replace(SOURCES["RTE"], rows={"train": 3, "dev": 2})
SQUAD = dataclasses.replace(SOURCES["SQuAD"], rows={"train": 5, "dev": 1})
DIALOGRE = dataclasses.replace(SOURCES["DialogRE"], rows={"dev": 2})
GOOD = "label\tsentence1\tsentence2\n0\ta dog runs\tan animal moves\n1\ta  cat sleeps\tit is awake\n"


def write(folder: Path, source: Source, name: str, text: str) -> Path:
    path = folder / source.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def test_every_task_names_known_sources_with_one_set_of_classes():
    for task in TASKS.values():
        for source, split in [*task.train, *(entry[:2] for entry in task.scored)]:
            assert split in SOURCES[source].rows
            assert SOURCES[source].labels == task.source.labels and SOURCES[source].columns == task.source.columns
    assert find_task("SST-2").name == "sst2" and find_task("CoLA").metrics[0] == "matthews"
    with pytest.raises(UserError, match="unknown task 'glue'; known: anli"):
        find_task("glue")


@pytest.mark.parametrize("name", ["dev.tsv", "dev.tsv.gz", "dev.csv", "dev.jsonl", "dev.jsonl.gz"])
def test_formats_give_the_same_rows(tmp_path, name):
    text = GOOD
    if ".csv" in name:
        text = GOOD.replace("\t", ",")
    if ".jsonl" in name:
        text = '{"premise": "a dog runs", "hypothesis": "an animal moves", "label": 0}\n\n'
        text += '{"premise": "a cat sleeps", "hypothesis": "it is awake", "label": 1, "more": null}\n'
    write(tmp_path, RTE, name, text)
    part = load_split(RTE, "dev", tmp_path)
    assert part.rows[1] == {"sentence1": "a cat sleeps", "sentence2": "it is awake", "label": 1}
    write(tmp_path / "other", RTE, "dev.tsv", GOOD)
    assert part.sha256 == load_split(RTE, "dev", tmp_path / "other").sha256 and part.complete


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD[:-20], "line 3"),
        (GOOD + "1\tx\ty\n", "has 3 rows in .*not 2: is the file cut off"),
        (GOOD.replace("1\ta  cat", "2\ta  cat"), "line 3: the label 2 is not one of RTE's, 0 to 1"),
        (GOOD.replace("1\ta  cat", "yes\ta  cat"), "line 3: the label 'yes' is not a number"),
        (GOOD.replace("sentence2", "target"), "line 2: there is no column sentence2 .found: label, sentence1, target"),
        (GOOD.replace("sentence2", "sentence1"), "line 1: a column is named twice"),
        (GOOD.replace("a dog runs", " "), "line 2: an empty sentence"),
        ("label\tsentence1\tsentence2\n", "RTE dev has no rows"),
    ],
)
def test_a_broken_file_is_one_line(tmp_path, text, said):
    write(tmp_path, RTE, "dev.tsv", text)
    with pytest.raises(UserError, match=said) as error:
        load_split(RTE, "dev", tmp_path)
    assert "\n" not in str(error.value)


def test_a_damaged_archive_and_missing_files(tmp_path):
    path = write(tmp_path, RTE, "dev.tsv.gz", GOOD)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(UserError, match="dev.tsv.gz"):
        load_split(RTE, "dev", tmp_path)
    with pytest.raises(MissingData, match=r"put glue/RTE/train or train_subset .*prefetch --tasks finetune"):
        load_split(RTE, "train", tmp_path)
    with pytest.raises(UserError, match="does not exist"):
        load_split(RTE, "train", tmp_path / "nowhere")


def test_a_training_set_may_be_a_part(tmp_path):
    write(tmp_path, RTE, "train_subset.tsv", GOOD)
    part = load_split(RTE, "train", tmp_path)
    assert part.n == 2 and not part.complete


def test_squad_in_both_forms(tmp_path):
    context, answers = "the dog runs", [{"text": "dog", "answer_start": 4}]
    official = {"data": [{"paragraphs": [{"context": context, "qas": [{"question": "who?", "answers": answers}]}]}]}
    flat = [{"context": context, "question": "who?", "answers": {"text": ["dog"], "answer_start": [4]}}]
    write(tmp_path / "a", SQUAD, "dev.json", json.dumps(official))
    write(tmp_path / "b", SQUAD, "dev.json.gz", json.dumps(flat))
    a, b = (load_split(SQUAD, "dev", tmp_path / name) for name in "ab")
    assert a.sha256 == b.sha256 and a.rows[0]["label"] == {"text": ["dog"], "answer_start": [4]}
    flat[0]["answers"]["answer_start"] = [5]
    write(tmp_path / "b", SQUAD, "dev.json.gz", json.dumps(flat))
    with pytest.raises(UserError, match="question 1: the answer 'dog' is not at character 5"):
        load_split(SQUAD, "dev", tmp_path / "b")
    write(tmp_path / "a", SQUAD, "dev.json", json.dumps(official)[:-9])
    with pytest.raises(UserError, match="cannot be read, is it cut off"):
        load_split(SQUAD, "dev", tmp_path / "a")


def test_dialogre_is_one_row_a_pair(tmp_path):
    pairs = [
        {"x": "Ann", "y": "Bob", "rid": [2, 36], "t": ["friend", ""]},
        {"x": "Bob", "y": "Ann", "rid": [37], "t": [""]},
    ]
    write(tmp_path, DIALOGRE, "dev.json", json.dumps([[["Speaker 1: hi", "Speaker 2: hey"], pairs]]))
    rows = load_split(DIALOGRE, "dev", tmp_path).rows
    assert rows[0]["label"] == [1, 35] and rows[1]["label"] == [] and rows[0]["triggers"] == ["friend"]
    pairs[0]["rid"] = [38]
    write(tmp_path, DIALOGRE, "dev.json", json.dumps([[["Speaker 1: hi"], pairs]]))
    with pytest.raises(UserError, match="dialogue 1: rid .38. is not within 1 and 37"):
        load_split(DIALOGRE, "dev", tmp_path)


@pytest.mark.parametrize("source", [RTE, SQUAD])
def test_what_prefetch_writes_is_what_was_read(tmp_path, source):
    if source is RTE:
        write(tmp_path, source, "dev.tsv", GOOD)
    else:
        flat = [{"context": "the dog", "question": "who?", "answers": {"text": ["dog"], "answer_start": [4]}}]
        write(tmp_path, source, "dev.json", json.dumps(flat))
    part = load_split(source, "dev", tmp_path)
    for path, text in Fetched(part.origin, part.sha256, part).files().items():
        (tmp_path / "to" / path).parent.mkdir(parents=True)
        (tmp_path / "to" / path).write_text(text, encoding="utf-8")
    again = load_split(source, "dev", tmp_path / "to")
    assert again.sha256 == part.sha256 and again.rows.to_list() == part.rows.to_list()


def test_prefetch_knows_what_the_hub_has():
    sets = prefetch_sets()
    assert {"SNLI_train", "MNLI_dev_mismatched", "ANLI_R3_test", "SQuAD_dev"} <= set(sets)
    assert not {"DialogRE_dev", "STSB_dev", "RTE_test"} & set(sets)


def test_the_hub_is_read_by_the_shared_reader(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    rows = ['{"premise": "a dog runs", "hypothesis": "it moves", "label": 0}',
            '{"premise": "a cat", "hypothesis": "a dog", "label": -1}',
            '{"premise": "a cat sleeps", "hypothesis": "it is awake", "label": 2}']  # fmt: skip
    (folder / "test.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    columns = {"sentence1": "premise", "sentence2": "hypothesis"}
    source = dataclasses.replace(
        SOURCES["SNLI"], rows={"test": 2}, hub=HubSet(str(folder), {"test": ("test",)}, columns=columns)
    )
    part = load_split(source, "test", None)
    assert part.n == 2 and part.rows[1] == {"sentence1": "a cat sleeps", "sentence2": "it is awake", "label": 2}
    assert part.origin.startswith(f"hub:{folder}")
    for name, split in (("RTE", "dev"), ("SQuAD", "dev"), ("DialogRE", "dev")):
        with pytest.raises(MissingData, match=f"{name} {split} cannot be had from the Hub .*--data_dir"):
            load_split(SOURCES[name], split, None)
