"""Corpora: every source, every rule of choosing columns, every complaint, and the way to padded batches."""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import os
import pickle
from collections import Counter
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from hf_robustcse import data
from hf_robustcse.data import ContrastiveCollator, Corpus, load_corpus, text_hash, tokenize_corpus
from hf_robustcse.errors import UserError

SENTENCES = ['He said "hi", twice.', "Ein Mädchen läuft.", "一只猫", "it's; a tab-free\u2028line", "plain"]
PAIRS = [("a dog", "a puppy"), ("a, cat", 'the "cat"'), ("rain", "it rains")]
TRIPLETS = [(*pair, negative) for pair, negative in zip(PAIRS, ["a car", "nobody", "sun, mostly"], strict=True)]
FORMATS = [".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet"]


@pytest.fixture(autouse=True)
def quiet():
    datasets.disable_progress_bars()


def write(path: Path, content: str | bytes) -> Path:
    content = content.encode("utf-8") if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def write_rows(path: Path, names: list[str], rows: list[tuple]) -> Path:
    extension = Path(path.name.removesuffix(".gz")).suffix
    if extension == ".parquet":
        sink = pa.BufferOutputStream()
        pq.write_table(pa.table({name: [row[i] for row in rows] for i, name in enumerate(names)}), sink)
        return write(path, sink.getvalue().to_pybytes())
    if extension == ".txt":
        text = "".join(f"{row[0]}\n" for row in rows)
    elif extension == ".tsv":
        text = "".join("\t".join(row) + "\n" for row in [tuple(names), *rows])
    elif extension == ".csv":
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.with_suffix(".tmp"), "w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([names, *rows])
        text = path.with_suffix(".tmp").read_bytes().decode("utf-8")
        path.with_suffix(".tmp").unlink()
    else:
        text = "".join(json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)
    return write(path, text)


def rows_of(corpus: Corpus) -> list[tuple[str, ...]]:
    return [tuple(row[name] for name in data.VIEWS[: corpus.views]) for row in corpus.dataset]


def texts_of(corpus: Corpus) -> list[str]:
    assert corpus.views == 1
    return [text for (text,) in rows_of(corpus)]


def complaint(source, **options) -> str:
    with pytest.raises(UserError) as caught:
        load_corpus(str(source), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Formats


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("gz", ["", ".gz"])
@pytest.mark.parametrize("extension", FORMATS)
def test_every_format_gives_the_sentences_back(tmp_path, extension, gz, streaming):
    path = write_rows(tmp_path / f"corpus{extension}{gz}", ["text"], [(text,) for text in SENTENCES])
    corpus = load_corpus(str(path), streaming=streaming)
    assert texts_of(corpus) == SENTENCES
    assert corpus.dataset.column_names == ["text"]
    if streaming:
        assert corpus.report is None
    else:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        assert corpus.report.files == [{"path": str(path), "sha256": digest, "bytes": path.stat().st_size}]
        assert corpus.report.sha256 == hashlib.sha256(digest.encode()).hexdigest()


def test_extensions_ignore_case(tmp_path):
    assert texts_of(load_corpus(str(write(tmp_path / "CORPUS.TXT", "one\n")))) == ["one"]


def test_path_objects_are_sources(tmp_path):
    assert texts_of(load_corpus(write(tmp_path / "a.txt", "one\n"))) == ["one"]


def test_home_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    write(tmp_path / "a.txt", "one\n")
    assert texts_of(load_corpus("~/a.txt")) == ["one"]


@pytest.mark.parametrize("extension", [".txt", ".csv", ".tsv", ".jsonl"])
def test_byte_order_mark_and_crlf(tmp_path, extension):
    plain = write_rows(tmp_path / f"plain{extension}", ["text"], [("one",), ("two",)]).read_bytes()
    crlf = plain.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    corpus = load_corpus(str(write(tmp_path / f"windows{extension}", b"\xef\xbb\xbf" + crlf)))
    assert texts_of(corpus) == ["one", "two"]
    assert corpus.report.columns == ["text"]


def test_only_newlines_end_a_line(tmp_path):
    line = "a\u2028b\u2029c\x0bd\x0ce\x1cf\x85g\rh"
    assert texts_of(load_corpus(str(write(tmp_path / "a.txt", f"{line}\nnext")))) == [line, "next"]


def test_csv_fields_may_span_lines_and_tsv_knows_no_quoting(tmp_path):
    multi = write(tmp_path / "a.csv", 'text,id\n"two\nlines",1\nplain,2\n')
    assert texts_of(load_corpus(str(multi))) == ["two\nlines", "plain"]
    quoted = write(tmp_path / "a.tsv", 'text\tid\n"open quote\t1\n"both"\t2\n')
    assert texts_of(load_corpus(str(quoted))) == ['"open quote', '"both"']


def test_parquet_types(tmp_path):
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        table = pa.table({"text": pa.array(["a", None, "b"]).cast(kind), "a.b": pa.array(["x", "y", "z"])})
        pq.write_table(table, tmp_path / "a.parquet")
        corpus = load_corpus(str(tmp_path / "a.parquet"))
        assert texts_of(corpus) == ["a", "b"] and corpus.report.blank == 1
    assert texts_of(load_corpus(str(tmp_path / "a.parquet"), text_columns=["a.b"])) == ["x", "y", "z"]


# Folders


def test_folder_is_read_recursively_in_order_without_hidden_files(tmp_path):
    write(tmp_path / "b.txt", "three\n")
    write(tmp_path / "a" / "z.txt.gz", "one\ntwo\n")
    write(tmp_path / ".hidden.txt", "no\n")
    write(tmp_path / ".git" / "c.txt", "no\n")
    write(tmp_path / "README.md", "no\n")
    corpus = load_corpus(str(tmp_path))
    assert texts_of(corpus) == ["one", "two", "three"]
    assert [Path(file["path"]).name for file in corpus.report.files] == ["z.txt.gz", "b.txt"]
    digests = "".join(file["sha256"] for file in corpus.report.files)
    assert corpus.report.sha256 == hashlib.sha256(digests.encode()).hexdigest()


@pytest.mark.parametrize("streaming", [False, True])
def test_folder_of_mixed_formats(tmp_path, streaming):
    for number, extension in enumerate(FORMATS):
        write_rows(tmp_path / f"{number}{extension}", ["text"], [(f"sentence {number}",)])
    write(tmp_path / "9.csv", "")
    corpus = load_corpus(str(tmp_path), streaming=streaming)
    assert texts_of(corpus) == [f"sentence {number}" for number in range(len(FORMATS))]


def test_folder_whose_files_disagree(tmp_path):
    write(tmp_path / "a.txt", "one\n")
    write(tmp_path / "b.csv", "sentence\ntwo\n")
    message = complaint(tmp_path)
    assert "its files disagree" in message and "a.txt gives text" in message and "b.csv gives sentence" in message
    write_rows(tmp_path / "pairs" / "a.csv", ["sent0", "sent1"], PAIRS)
    write_rows(tmp_path / "pairs" / "b.csv", ["sent0", "sent1", "hard_neg"], TRIPLETS)
    assert "files disagree" in complaint(tmp_path / "pairs")
    corpus = load_corpus(str(tmp_path / "pairs"), text_columns=["sent0", "sent1"])
    assert rows_of(corpus) == PAIRS and corpus.report.duplicates == len(PAIRS)


def test_folder_without_corpus_files(tmp_path):
    write(tmp_path / "notes.md", "x")
    assert "holds no corpus file; known extensions: .txt, .csv" in complaint(tmp_path)


# Columns


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["whatever"], ["whatever"]),
        (["id", "text", "label"], ["text"]),
        (["sentence", "label"], ["sentence"]),
        (["sent0", "sent1"], ["sent0", "sent1"]),
        (["sent0", "sent1", "hard_neg"], ["sent0", "sent1", "hard_neg"]),
        (["anchor", "positive"], ["anchor", "positive"]),
        (["negative", "positive", "anchor"], ["anchor", "positive", "negative"]),
        (["query", "positive"], ["query", "positive"]),
        (["query", "positive", "negative", "id"], ["query", "positive", "negative"]),
        (["text", "positive"], ["text", "positive"]),
        (["text", "positive", "negative"], ["text", "positive", "negative"]),
    ],
)
@pytest.mark.parametrize("extension", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_known_columns_are_found(tmp_path, extension, names, chosen):
    rows = [tuple(f"{name} {row}" for name in names) for row in range(2)]
    corpus = load_corpus(str(write_rows(tmp_path / f"a{extension}", names, rows)))
    assert corpus.report.columns == chosen and corpus.views == len(chosen)
    assert corpus.dataset.column_names == list(data.VIEWS[: len(chosen)])
    assert rows_of(corpus) == [tuple(f"{name} {row}" for name in chosen) for row in range(2)]


@pytest.mark.parametrize(
    "names", [["a", "b"], ["text", "sentence"], ["query", "text", "positive"], ["sent0", "label"], ["Text", "id"]]
)
def test_unclear_columns_are_listed(tmp_path, names):
    message = complaint(write_rows(tmp_path / "a.csv", names, [tuple("xyz"[: len(names)])]))
    assert f"the columns are {', '.join(map(repr, names))}; name one" in message and "--text_column" in message


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("extension", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_named_columns(tmp_path, extension, streaming):
    path = str(write_rows(tmp_path / f"a{extension}", ["a", "b", "c"], TRIPLETS))
    for names, expected in (
        (["b"], [(row[1],) for row in TRIPLETS]),
        (["c", "a"], [(row[2], row[0]) for row in TRIPLETS]),
        (["a", "b", "c"], TRIPLETS),
    ):
        corpus = load_corpus(path, text_columns=names, streaming=streaming)
        assert corpus.views == len(names) and rows_of(corpus) == expected


def test_wrong_column_names(tmp_path):
    path = write_rows(tmp_path / "a.csv", ["premise", "hypothesis"], [("x", "y")])
    assert "no column 'premises', the columns are 'premise', 'hypothesis'; did you mean 'premise'?" in complaint(
        path, text_columns=["premises"]
    )
    assert "no column 'q', the columns are 'premise', 'hypothesis'; choose with" in complaint(path, text_columns=["q"])
    assert "4 text columns given (a, b, c, d); name 1" in complaint(path, text_columns=list("abcd"))
    assert "named twice (premise, premise)" in complaint(path, text_columns=["premise", "premise"])
    assert "no column 'b', the columns are 'text'" in complaint(write(tmp_path / "a.txt", "x"), text_columns=["b"])


def test_two_columns_of_one_name(tmp_path):
    assert "2 columns are called 'text'" in complaint(write(tmp_path / "a.csv", "text,text\na,b\n"))


# Complaints


def test_missing_files_and_unknown_extensions(tmp_path):
    assert "no such file or folder; check the path" in complaint(tmp_path / "nothing" / "here")
    assert "no such file or folder" in complaint("missing.txt")
    assert "no such file or folder" in complaint("folder/missing.jsonl.gz")
    assert "no such file or folder" in complaint("./some/where")
    assert "no such file or folder" in complaint("a b c")
    assert "unknown extension '.docx'; known: .txt, .csv, .tsv, .jsonl, .json, .parquet, each also with .gz" in (
        complaint(write(tmp_path / "a.docx", "x"))
    )
    assert "unknown extension ''" in complaint(write(tmp_path / "plain", "x"))
    assert "no corpus given" in complaint(" ")


@pytest.mark.parametrize("extension", [".txt", ".csv", ".tsv", ".jsonl", ".txt.gz"])
def test_lines_that_are_not_text(tmp_path, extension):
    path = tmp_path / f"a{extension}"
    good = b'{"text": "fine"}\n' if extension == ".jsonl" else b"fine\n"
    message = complaint(write(path, good * 16 + b"caf\xe9\n"))
    assert f"{path}: line 17 is not UTF-8; is this a binary file?" in message
    message = complaint(write(path, good * 2 + b"nul\0\n"))
    assert f"{path}: line 3 holds a NUL byte; is this a binary file?" in message


def test_utf16_is_refused(tmp_path):
    assert "line 1 holds a NUL byte" in complaint(write(tmp_path / "a.txt", "text\n".encode("utf-16")))


@pytest.mark.parametrize(
    ("name", "content", "fragment"),
    [
        ("a.csv", "text,id\nfine,1\n\none, two,2\n", "line 4 has 3 fields, the header has 2; quote with"),
        ("a.csv", 'text,id\n"a\nb",1\nalone\n', "line 4 has 1 fields, the header has 2"),
        ("a.csv", 'text,id\nfine,1\n"open,2\nmore,3\n', "line 3 is not CSV"),
        ("a.csv", "text;id\nfine;1\n", "line 1 names one column, 'text;id'; separate columns by commas"),
        ("a.csv", "\ntext\nfine\n", "line 1 is blank; the first line has to name the columns"),
        ("a.tsv", "text\tid\nfine\t1\na\tb\tc\n", "line 3 has 3 fields, the header has 2; no field may hold a tab"),
        ("a.tsv", "text,id\nfine,1\n", "line 1 names one column, 'text,id'"),
        ("a.jsonl", '{"text": "fine"}\n{"text": \n', "line 2 is not JSON (Expecting value); write one object a line"),
        ("a.jsonl", '{"text": "fine"}\n\n["x"]\n', "line 3 is a JSON list; write one object a line"),
        ("a.json", '[\n{"text": "x"}\n]\n', "line 1 is not JSON"),
        ("a.jsonl", "[" * 100_000 + "\n", "line 1 is not JSON"),
        ("a.jsonl", '{"text": "x", "id": 1}\n{"id": 2}\n', "line 2 has no key 'text', its keys: 'id'"),
        ("a.jsonl", '{"text": "x"}\n{"text": 5}\n', "line 2 has a 'text' that is 5, not a string"),
        ("a.jsonl", '{"text": "x"}\n{"text": null}\n', "line 2 has a 'text' that is null, not a string"),
        ("a.jsonl", '{"text": "x"}\n{"text": "\\ud800"}\n', "line 2 has a 'text' that is not valid Unicode"),
    ],
)
def test_malformed_rows_are_named(tmp_path, name, content, fragment):
    path = write(tmp_path / name, content)
    assert f"{path}: {fragment}" in complaint(path)


def test_damaged_files(tmp_path):
    path = write(tmp_path / "a.txt.gz", "a sentence of some length\n" * 1000)
    path.write_bytes(path.read_bytes()[:-20])
    assert f"{path}: cannot be read, is it damaged, cut short" in complaint(path)
    path.write_bytes(b"never compressed\n")
    assert "a.txt.gz: cannot be read" in complaint(path)
    path = write_rows(tmp_path / "b.parquet", ["text"], [("x",)])
    path.write_bytes(path.read_bytes()[:-9])
    assert "b.parquet: cannot be read" in complaint(path)
    packed = tmp_path / "b.parquet.gz"
    assert "b.parquet.gz: cannot be read" in complaint(write(packed, b"PAR1 not really"))
    packed.write_bytes(gzip.compress(b"x" * 1000)[:15])
    assert "b.parquet.gz: cannot be read" in complaint(packed)


def test_damaged_parquet_pages(tmp_path):
    path = write_rows(tmp_path / "a.parquet", ["text"], [(f"sentence {n}",) for n in range(5000)])
    content = bytearray(path.read_bytes())
    content[4:2000] = b"\xff" * 1996
    path.write_bytes(content)
    assert "a.parquet: cannot be read" in complaint(path)


def test_parquet_that_holds_no_text(tmp_path):
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "a.parquet")
    assert "column 'text' holds int64, not text" in complaint(tmp_path / "a.parquet")
    broken = pa.StringArray.from_buffers(1, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff"))
    pq.write_table(pa.table({"text": broken}), tmp_path / "b.parquet")
    assert "column 'text' holds bytes that are not UTF-8" in complaint(tmp_path / "b.parquet")


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("name", "content"), [("a.txt", ""), ("a.txt", " \n\t\n\n"), ("a.csv", ""), ("a.csv", "text\n"), ("a.jsonl", "\n")]
)
def test_empty_corpora(tmp_path, name, content, streaming):
    assert "the corpus is empty" in complaint(write(tmp_path / name, content), streaming=streaming)


# Cleaning and the report


def test_blanks_and_duplicates_are_counted(tmp_path):
    path = write(tmp_path / "a.txt", "  one \n\ntwo\none\n\u00a0\t\n three\ntwo")
    corpus = load_corpus(str(path))
    assert texts_of(corpus) == ["one", "two", "three"]
    report = corpus.report
    assert (report.rows, report.blank, report.duplicates, report.kept) == (7, 2, 2, 3)
    assert "7 read, 2 blank dropped, 2 duplicate dropped, 3 in the corpus" in report.lines()[2]
    corpus = load_corpus(str(path), dedup=False)
    assert texts_of(corpus) == ["one", "two", "one", "three", "two"]
    assert (corpus.report.rows, corpus.report.blank, corpus.report.duplicates, corpus.report.kept) == (7, 2, 2, 5)
    assert "2 duplicate kept, 5 in the corpus" in corpus.report.lines()[2]


def test_duplicates_and_blanks_of_pairs_concern_the_chosen_columns(tmp_path):
    rows = [("a", "b", "1"), ("a", "c", "2"), ("a", " ", "3"), ("a ", "b", "4"), ("", "b", "5"), ("ab", "x", "6")]
    path = str(write_rows(tmp_path / "a.csv", ["anchor", "positive", "id"], [*rows, ("a", "bx", "7")]))
    corpus = load_corpus(path)
    assert rows_of(corpus) == [("a", "b"), ("a", "c"), ("ab", "x"), ("a", "bx")]
    assert (corpus.report.blank, corpus.report.duplicates) == (2, 1)
    assert texts_of(load_corpus(path, text_columns=["anchor"])) == ["a", "ab"]


def test_max_rows_counts_kept_rows(tmp_path):
    path = str(write(tmp_path / "a.txt", "one\n\none\ntwo\nthree\nfour\n"))
    corpus = load_corpus(path, max_rows=2)
    assert texts_of(corpus) == ["one", "two"] and corpus.report.rows == 4 and corpus.report.kept == 2
    assert texts_of(load_corpus(path, max_rows=99)) == ["one", "two", "three", "four"]
    assert texts_of(load_corpus(path, max_rows=3, streaming=True)) == ["one", "one", "two"]
    assert "max_rows is 0; it must be at least 1" in complaint(path, max_rows=0)


@pytest.mark.parametrize("rows", [1, 2, 10, 999, 1000])
def test_percentiles(tmp_path, rows):
    lengths = np.random.default_rng(rows).geometric(0.07, size=rows)
    lines = [" ".join([f"w{row}"] * int(length)) for row, length in enumerate(lengths)]
    report = load_corpus(str(write(tmp_path / "a.txt", "\n".join(lines)))).report
    expected = [int(np.percentile(lengths, percent, method="inverted_cdf")) for percent in (50, 90, 99, 100)]
    assert [report.words_p50, report.words_p90, report.words_p99, report.words_max] == expected


def test_report_is_printable_and_plain(tmp_path):
    path = write_rows(tmp_path / "a.tsv", ["sent0", "sent1"], PAIRS)
    report = load_corpus(str(path)).report
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
    assert set(report.to_dict()) >= {"source", "files", "rows", "blank", "duplicates", "kept", "columns", "sha256"}
    lines = report.lines()
    assert lines[0] == f"corpus: {path} (1 file, {path.stat().st_size:,} bytes, sha256 {report.sha256[:12]})"
    assert lines[1] == "columns: sent0, sent1 (pairs)"
    assert lines[3] == "words: median 2, 90 % up to 2, 99 % up to 2, longest 2"


def test_more_rows_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_CHUNK_ROWS", 7)
    rows = [(f"sentence {number}", f"positive {number}") for number in range(50)]
    for extension in (".csv", ".parquet"):
        corpus = load_corpus(str(write_rows(tmp_path / f"a{extension}", ["anchor", "positive"], rows)))
        assert rows_of(corpus) == rows and corpus.dataset[33]["positive"] == "positive 33"


def test_a_changed_file_is_read_anew(tmp_path):
    path = write(tmp_path / "a.txt", "one\ntwo\n")
    before = load_corpus(str(path))
    write(path, "uno\ndue\n")
    after = load_corpus(str(path))
    assert texts_of(after) == ["uno", "due"] and texts_of(load_corpus(str(path), streaming=True)) == ["uno", "due"]
    assert before.report.sha256 != after.report.sha256 and before.dataset._fingerprint != after.dataset._fingerprint


# Streaming


def test_streaming_equals_loading_without_duplicates(tmp_path):
    for part in range(3):
        lines = [f"  sentence {part} {row} " if row % 4 else "" for row in range(20)]
        write(tmp_path / f"{part}.txt.gz", "\n".join(lines))
    stream = load_corpus(str(tmp_path), streaming=True)
    assert isinstance(stream.dataset, datasets.IterableDataset)
    expected = texts_of(load_corpus(str(tmp_path)))
    assert texts_of(stream) == expected
    assert texts_of(stream) == expected, "a second epoch reads the same"
    assert stream.dataset.num_shards == 3
    shards = [row["text"] for index in range(3) for row in stream.dataset.shard(3, index)]
    assert Counter(shards) == Counter(expected)


def test_streaming_resumes(tmp_path):
    for part in range(2):
        write(tmp_path / f"{part}.txt", "\n".join(f"sentence {part} {row}" for row in range(5)))
    dataset = load_corpus(str(tmp_path), streaming=True).dataset
    iterator = iter(dataset)
    head = [next(iterator)["text"] for _ in range(7)]
    state = dataset.state_dict()
    fresh = load_corpus(str(tmp_path), streaming=True).dataset
    fresh.load_state_dict(state)
    assert head + [row["text"] for row in fresh] == texts_of(load_corpus(str(tmp_path)))


def test_streaming_keeps_duplicates_and_meets_bad_rows_later(tmp_path):
    corpus = load_corpus(
        str(write(tmp_path / "a.jsonl", '{"text": "x"}\n{"text": "x"}\n{"text": 1}\n')), streaming=True
    )
    iterator = iter(corpus.dataset)
    assert [next(iterator)["text"] for _ in range(2)] == ["x", "x"]
    with pytest.raises(UserError, match="line 3 has a 'text' that is 1"):
        next(iterator)


def test_streaming_through_workers(tmp_path):
    for part in range(2):
        write(tmp_path / f"{part}.txt", "\n".join(f"sentence {part} {row}" for row in range(5)))
    dataset = load_corpus(str(tmp_path), streaming=True).dataset
    assert list(pickle.loads(pickle.dumps(dataset))) == list(dataset)
    loader = torch.utils.data.DataLoader(dataset, num_workers=2, batch_size=None)
    assert Counter(row["text"] for row in loader) == Counter(row["text"] for row in dataset)


# The Hub


@pytest.fixture
def hub(monkeypatch):
    """`hub[name, config, split]` is what `load_dataset` finds."""
    shelf: dict[tuple[str, str | None, str], datasets.Dataset] = {}

    def load_dataset(name, config=None, *, split, streaming):
        dataset = shelf[name, config, split]
        return dataset.to_iterable_dataset() if streaming else dataset

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return shelf


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_data_sets(hub, streaming):
    table = {"id": [1, 2, 3, 4], "text": [" one ", None, "two", "  "]}
    hub["org/name", None, "train"] = hub["name", "conf-1.0", "dev"] = datasets.Dataset.from_dict(table)
    corpus = load_corpus("org/name", streaming=streaming)
    assert texts_of(corpus) == ["one", "two"] and corpus.dataset.column_names == ["text"]
    assert texts_of(corpus) == ["one", "two"]
    assert texts_of(load_corpus("name:conf-1.0", split="dev", streaming=streaming)) == ["one", "two"]
    if not streaming:
        report = corpus.report
        assert (report.files, report.rows, report.blank, report.kept) == ([], 4, 2, 2) and len(report.sha256) == 64
        assert "org/name (Hub data set, sha256" in report.lines()[0]


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_triplets_and_complaints(hub, streaming):
    columns = dict(zip(["anchor", "positive", "negative"], zip(*TRIPLETS, strict=True), strict=True))
    hub["t", None, "train"] = datasets.Dataset.from_dict({**columns, "score": [1, 2, 3]})
    assert rows_of(load_corpus("t", streaming=streaming)) == TRIPLETS
    assert "no column 'anker'" in complaint("t", text_columns=["anker"], streaming=streaming)
    assert "t: column 'score' holds int" in complaint("t", text_columns=["score"], streaming=streaming)
    hub["blank", None, "train"] = datasets.Dataset.from_dict({"text": ["", " "]})
    hub["none", None, "train"] = datasets.Dataset.from_dict({"text": []})
    assert "the corpus is empty" in complaint("blank", streaming=streaming)
    if not streaming:  # a data set of no rows cannot become a stream
        assert "the corpus is empty" in complaint("none")


@pytest.mark.parametrize("streaming", [False, True])
def test_hub_out_of_reach(tmp_path, monkeypatch, streaming):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    message = complaint("nobody-here/nothing-at-all:config", streaming=streaming)
    assert message.startswith("nobody-here/nothing-at-all:config: neither a file or folder here nor a Hub data set")
    assert "check the name, the network" in message


@pytest.mark.parametrize("source", ["text", "csv", "json:default"])
def test_names_of_loaders_do_not_read_the_working_directory(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    for extension in FORMATS:
        write_rows(tmp_path / f"mine{extension}", ["text"], [("not asked for",)])
    assert "no such file or folder" in complaint(source)


# Hashes and tokens


def test_text_hash_is_pinned():
    # Computed once: another process, machine or release has to find the same numbers.
    assert text_hash("A man is playing a guitar.") == -8214382935162416257
    assert text_hash("naïve 猫") == 137387015996184863
    assert -(2**63) <= text_hash("x") < 2**63 and text_hash("a") != text_hash("b")


WORDS = 'a dog puppy cat the rain it rains car nobody sun mostly , . plain "'.split()


def make_tokenizer(special: bool = True, **options) -> PreTrainedTokenizerFast:
    vocabulary = {token: index for index, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    if special:
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
        )
    options = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", **options}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **options)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
@pytest.mark.parametrize("side", ["right", "left"])
def test_tokens_are_the_tokenizers_own(tmp_path, names, streaming, side):
    tokenizer = make_tokenizer(truncation_side=side)
    path = write_rows(tmp_path / "a.jsonl", ["a", "b", "c"], TRIPLETS)
    corpus = load_corpus(str(path), text_columns=names, streaming=streaming)
    tokens = tokenize_corpus(corpus, tokenizer, max_length=4)
    assert sorted(tokens.column_names) == ["input_ids", "length", "text_hash"]
    rows = list(tokens)
    assert len(rows) == len(TRIPLETS)
    for row, texts in zip(rows, TRIPLETS, strict=True):
        texts = texts[: len(names)]
        expected = [tokenizer(text, truncation=True, max_length=4)["input_ids"] for text in texts]
        assert row["input_ids"] == expected
        assert row["text_hash"] == [text_hash(text) for text in texts]
        assert row["length"] == max(map(len, expected)) <= 4
    assert list(tokens) == rows


def test_tokens_with_processes(tmp_path):
    path = write(tmp_path / "a.txt", "\n".join(f"{word} {other}" for word in WORDS for other in WORDS))
    corpus = load_corpus(str(path))
    assert list(tokenize_corpus(corpus, make_tokenizer(), 8, num_proc=2)) == list(
        tokenize_corpus(corpus, make_tokenizer(), 8)
    )


def test_tokens_follow_the_tokenizer_and_the_length(tmp_path):
    corpus = load_corpus(str(write(tmp_path / "a.txt", "the dog rains .\n")))
    tokenizer = make_tokenizer()
    assert tokenize_corpus(corpus, tokenizer, 3)[0]["input_ids"] == [tokenizer("the")["input_ids"]]
    assert tokenize_corpus(corpus, tokenizer, 4)[0]["length"] == 4
    assert tokenize_corpus(corpus, make_tokenizer(special=False), 4)[0]["length"] == 4


def test_tokenizer_complaints(tmp_path):
    corpus = load_corpus(str(write(tmp_path / "a.txt", "the dog\n\u200b\u200d\n")))
    with pytest.raises(UserError, match="the tokenizer has no padding token; set one"):
        tokenize_corpus(corpus, make_tokenizer(pad_token=None), 8)
    with pytest.raises(UserError, match="the tokenizer has no padding token"):
        ContrastiveCollator(make_tokenizer(pad_token=None))
    with pytest.raises(UserError, match="max_length is 2; with 2 special tokens it must be at least 3"):
        tokenize_corpus(corpus, make_tokenizer(), 2)
    silent = make_tokenizer(special=False)
    silent.backend_tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\u200b")
    blank = load_corpus(str(write(tmp_path / "b.txt", "\u200b\u200b\n")))
    with pytest.raises(UserError, match="into no token; remove that sentence"):
        tokenize_corpus(blank, silent, 8)


# Batches


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_padding_is_the_tokenizers_on_the_right(tmp_path, names, side):
    tokenizer = make_tokenizer(padding_side=side, pad_token="[SEP]")  # a pad id that is not 0 and occurs in the text
    path = write_rows(tmp_path / "a.csv", ["a", "b", "c"], TRIPLETS)
    rows = list(tokenize_corpus(load_corpus(str(path), text_columns=names), tokenizer, 16))
    batch = ContrastiveCollator(tokenizer)(rows)
    flat = [view for row in rows for view in row["input_ids"]]
    tokenizer.padding_side = "right"
    expected = tokenizer.pad({"input_ids": flat}, return_tensors="pt")
    shape = (len(rows), len(names), max(map(len, flat)))
    for key in ("input_ids", "attention_mask"):
        assert batch[key].shape == shape and batch[key].dtype == torch.int64 and batch[key].is_contiguous()
        assert torch.equal(batch[key], expected[key].view(shape))
    assert set(batch) == {"input_ids", "attention_mask", "text_hash"}
    assert batch["text_hash"].dtype == torch.int64
    assert batch["text_hash"].tolist() == [row["text_hash"] for row in rows]


def test_collator_works_in_a_loader(tmp_path):
    tokenizer = make_tokenizer()
    for streaming in (False, True):
        path = write_rows(tmp_path / "a.tsv", ["a", "b"], PAIRS)
        corpus = load_corpus(str(path), text_columns=["a", "b"], streaming=streaming)
        collator = pickle.loads(pickle.dumps(ContrastiveCollator(tokenizer)))
        loader = torch.utils.data.DataLoader(tokenize_corpus(corpus, tokenizer, 8), batch_size=2, collate_fn=collator)
        shapes = [tuple(batch["input_ids"].shape[:2]) for batch in loader]
        assert shapes == [(2, 2), (1, 2)]
