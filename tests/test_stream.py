"""A streamed corpus: each row once an epoch, the same steps for any number of processes and workers, and resuming."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from tiny import WORDS, make_tokenizer

from hf_robustcse.data import ContrastiveCollator, Place, load_corpus, read_chunks, text_hash
from hf_robustcse.errors import UserError
from hf_robustcse.stream import POSITION, TextStream

TEXTS = [f"{a} {b}" for a in WORDS[:10] for b in WORDS[:5]]  # 50 different ones
HASHES = {text_hash(text): text for text in TEXTS}


def write(path: Path, texts: list[str]) -> Path:
    extension = path.suffixes[0]
    if extension == ".txt":
        raw = "".join(f" {text} \n" for text in texts)
    elif extension == ".csv":
        raw = "text\n" + "".join(f'"{text}\n"\n' for text in texts)  # a record of two lines
    elif extension == ".tsv":
        raw = "id\ttext\n" + "".join(f"{i}\t{text}\n" for i, text in enumerate(texts))
    elif extension == ".jsonl":
        raw = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    else:
        pq.write_table(pa.table({"text": texts}), path, row_group_size=7)
        return path
    path.write_bytes(gzip.compress(raw.encode()) if path.suffix == ".gz" else raw.encode())
    return path


@pytest.fixture
def folder(tmp_path):
    """The sentences in five files of five kinds, with blank lines among them."""
    shares = [TEXTS[i::5] for i in range(5)]
    (tmp_path / "corpus").mkdir()
    for name, texts in zip(["a.txt", "b.csv", "c.jsonl.gz", "d.parquet", "e.tsv"], shares, strict=True):
        write(tmp_path / "corpus" / name, [texts[0], "", *texts[1:], ""])
    return tmp_path / "corpus"


def stream_of(source, process=0, processes=1, max_rows=None, **options) -> TextStream:
    corpus, tokenizer = load_corpus(source, streaming=True, max_rows=max_rows), make_tokenizer()
    options = {"max_length": 16, "batch_size": 4, "shuffle_buffer": 12, "seed": 3} | options
    stream = TextStream(corpus, tokenizer, ContrastiveCollator(tokenizer), **options)
    stream.process, stream.processes = process, processes
    return stream


def batches(stream: TextStream, count: int, **loader) -> list[list[str]]:
    return [[HASHES[number] for (number,) in b["text_hash"].tolist()] for b in take(stream, count, **loader)]


def take(stream: TextStream, count: int, **loader) -> list[dict]:
    return list(itertools.islice(stream.loader(**loader), count))


def test_each_row_once_an_epoch_in_another_order_each_time(folder):
    steps = batches(stream_of(folder), 36)  # three epochs of 12 steps, two rows are left out of each
    epochs = [steps[i : i + 12] for i in (0, 12, 24)]
    for epoch in epochs:
        rows = [text for step in epoch for text in step]
        assert len(set(rows)) == 48 and set(rows) <= set(TEXTS)
    assert len({json.dumps(epoch) for epoch in epochs}) == 3
    assert batches(stream_of(folder, seed=4), 12) != epochs[0]
    neighbours = [{text[:3] for text in step} for step in epochs[0]]
    assert sum(map(len, neighbours)) > 24  # not in the order of the files


def test_without_a_buffer_the_files_are_read_in_order(folder):
    first, second = (batches(stream_of(folder, shuffle_buffer=0), 24)[i : i + 12] for i in (0, 12))
    assert first == second
    in_order = [row["text"] for row in load_corpus(folder, streaming=True).dataset]
    assert [text for step in first for text in step] == in_order[:48]


@pytest.mark.parametrize(("processes", "workers"), [(4, 0), (2, 2)])
def test_neither_processes_nor_workers_change_the_steps(folder, processes, workers):
    whole = batches(stream_of(folder, batch_size=4), 15)
    shares = [
        batches(stream_of(folder, i, processes, batch_size=4 // processes), 15, num_workers=workers)
        for i in range(processes)
    ]
    assert [list(itertools.chain(*step)) for step in zip(*shares, strict=True)] == whole


@pytest.mark.parametrize(("buffer", "workers"), [(0, 0), (12, 0), (1000, 0), (12, 2)])
def test_goes_on_from_any_step(folder, buffer, workers):
    whole = take(stream_of(folder, shuffle_buffer=buffer), 30)
    # Within a window, at its end, at the end of an epoch, after it.
    for done in (2, 12) if workers else (1, 2, 3, 11, 12, 13, 25):
        fresh = stream_of(folder, shuffle_buffer=buffer)
        fresh.load_position(json.loads(json.dumps(whole[done - 1][POSITION])))
        for a, b in zip(whole[done:], take(fresh, 30 - done, num_workers=workers), strict=True):
            assert torch.equal(a["input_ids"], b["input_ids"]) and a[POSITION] == b[POSITION]


def test_goes_on_with_another_number_of_processes(folder):
    whole = take(stream_of(folder), 20)
    halves = []
    for process in range(2):
        stream = stream_of(folder, process, 2, batch_size=2)
        stream.load_position(whole[7][POSITION])
        halves.append(take(stream, 12))
    for step, (a, b) in zip(whole[8:], zip(*halves, strict=True), strict=True):
        assert torch.equal(step["text_hash"], torch.cat([a["text_hash"], b["text_hash"]]))


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.csv", "a.csv.gz", "a.tsv", "a.jsonl", "a.parquet"])
def test_chunks_begin_anywhere(tmp_path, name, monkeypatch):
    monkeypatch.setattr("hf_robustcse.data._CHUNK_ROWS", 8)
    monkeypatch.setattr("hf_robustcse.data._CHUNK_BYTES", 40)
    path = write(tmp_path / name, TEXTS)
    places = []
    for rows, after in read_chunks(path, ("text",), Place()):
        places += [after(i) for i in range(len(rows))]
    assert len(places) == 50
    for begin in (0, 1, 7, 8, 23, 49):
        rows = [row for chunk, _ in read_chunks(path, ("text",), places[begin]) for row in chunk]
        assert rows == [(text,) for text in TEXTS[begin:]], begin


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_row_is_one_line_from_a_worker_too(tmp_path, workers):
    lines = [json.dumps({"text": text}) for text in TEXTS]
    lines[29] = '{"text": 5}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    (tmp_path / "b.txt").write_bytes(b"one\ntwo\n\xff\n")
    with pytest.raises(UserError) as caught:
        batches(stream_of(tmp_path / "a.jsonl"), 30, num_workers=workers)
    assert str(caught.value) == f"{tmp_path / 'a.jsonl'}: line 30 has a 'text' that is 5, not a string"
    with pytest.raises(UserError, match="b.txt: line 3 is not UTF-8"):
        batches(stream_of(tmp_path / "b.txt", batch_size=2), 1, num_workers=workers)


def test_a_corpus_that_changed_is_noticed(tmp_path):
    path = write(tmp_path / "a.txt", TEXTS)
    position = take(stream_of(path), 7)[-1][POSITION]
    write(path, [*TEXTS[:5], "the dog", *TEXTS[5:]])
    stream = stream_of(path)
    stream.load_position(position)
    with pytest.raises(UserError, match="a.txt is not what it was when the checkpoint was written"):
        take(stream, 1)


@pytest.mark.parametrize("other", [{"seed": 4}, {"batch_size": 6}, {"shuffle_buffer": 8}])
def test_a_position_in_another_order_is_refused(tmp_path, other):
    path = write(tmp_path / "a.txt", TEXTS)
    position = take(stream_of(path), 5)[-1][POSITION]
    stream = stream_of(path, **other)
    stream.load_position(position)
    with pytest.raises(UserError, match="go on with the same files, seed, --shuffle_buffer and sentences of a step"):
        take(stream, 1)


def test_a_bad_row_is_mended_and_the_stream_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("hf_robustcse.data._CHUNK_ROWS", 5)
    lines = [json.dumps({"text": text}) for text in TEXTS]
    good = list(lines)
    lines[40] = "no JSON"
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(good))
    whole = take(stream_of(path), 12)
    path.write_text("\n".join(lines))
    stream, seen = stream_of(path), []
    with pytest.raises(UserError, match="line 41 is not JSON"):
        for batch in stream.loader():
            seen.append(batch)
    path.write_text("\n".join(good))
    stream = stream_of(path)
    assert seen  # the rows before it were trained on
    stream.load_position(seen[-1][POSITION])
    for a, b in zip(whole, seen + take(stream, 12 - len(seen)), strict=True):
        assert torch.equal(a["input_ids"], b["input_ids"])


def test_what_cannot_be_streamed(folder):
    with pytest.raises(UserError, match="fewer than one batch of 64"):
        take(stream_of(folder, batch_size=64), 1)
    with pytest.raises(UserError, match="fewer than one batch of 4"):
        take(stream_of(folder, max_rows=3), 1)
    with pytest.raises(UserError, match="--shuffle_buffer must be at least 0, not -1"):
        stream_of(folder, shuffle_buffer=-1)
    tokenizer = make_tokenizer()
    with pytest.raises(UserError, match="streaming=True"):
        TextStream(load_corpus(folder), tokenizer, ContrastiveCollator(tokenizer), max_length=8, batch_size=4)


def test_the_first_rows_alone(folder):
    rows = [text for step in batches(stream_of(folder, max_rows=8, shuffle_buffer=0), 4) for text in step]
    in_order = [row["text"] for row in load_corpus(folder, streaming=True).dataset][:8]
    assert rows == in_order * 2
    shuffled = batches(stream_of(folder, max_rows=8), 6)
    assert all(sorted(sum(shuffled[i : i + 2], [])) == sorted(in_order) for i in (0, 2, 4))


def test_texts_reach_a_collator_that_reads_them(folder):
    tokenizer = make_tokenizer()
    collator = ContrastiveCollator(tokenizer, lambda texts: {"letters": torch.tensor([len(text) for text in texts])})
    stream = TextStream(load_corpus(folder, streaming=True), tokenizer, collator, max_length=8, batch_size=4)
    (batch,) = take(stream, 1)
    assert batch["letters"].tolist() == [len(HASHES[number]) for (number,) in batch["text_hash"].tolist()]


def test_a_hub_data_set(monkeypatch):
    whole = datasets.Dataset.from_dict({"text": [*TEXTS, "", None]})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: whole.to_iterable_dataset(num_shards=4))
    monkeypatch.setattr("hf_robustcse.stream._HUB_ROWS", 5)
    steps = take(stream_of("org/name"), 30)
    texts = [HASHES[number] for step in steps[:12] for (number,) in step["text_hash"].tolist()]
    assert len(set(texts)) == 48
    for done, workers in ((1, 0), (12, 0), (13, 2)):
        stream = stream_of("org/name")
        stream.load_position(json.loads(json.dumps(steps[done - 1][POSITION])))
        for a, b in zip(steps[done:], take(stream, 30 - done, num_workers=workers), strict=True):
            assert torch.equal(a["input_ids"], b["input_ids"])
