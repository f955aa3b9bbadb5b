"""Embeddings that are kept: the same figures, nothing encoded twice, nothing stale."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import sts
from hf_robustcse.evaluation.compare import run_comparison
from hf_robustcse.evaluation.embedders import Embedder, load_embedder
from hf_robustcse.evaluation.run import run_evaluation


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many texts went through a model, by forward pass."""
    found: list[int] = []
    plain = Embedder._plain

    def counting(self: Embedder, features: dict[str, torch.Tensor]) -> torch.Tensor:
        found.append(len(features["input_ids"]))
        return plain(self, features)

    monkeypatch.setattr(Embedder, "_plain", counting)
    return found


@pytest.fixture
def data(tmp_path: Path, pairs: list, write_tsv: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(sts.TASKS, "STSB", sts.StsTask("STSB", {"test": len(pairs)}))
    write_tsv(tmp_path / "data/sts/STSB/test.tsv", pairs)
    return tmp_path / "data"


def test_only_what_is_new_is_encoded(bert: Path, sentences: list[str], tmp_path: Path, encoded: list[int]) -> None:
    plain = load_embedder(str(bert), pooling="mean", device="cpu")(sentences)
    encoded.clear()
    cache = tmp_path / "cache"
    first = load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=cache)
    np.testing.assert_allclose(first(sentences[:40]), plain[:40], atol=1e-6)
    assert sum(encoded) == 40
    # Another process, in another order, with texts that the tokenizer makes equal and others that are new.
    wanted = [sentences[50], *reversed(sentences[:40]), sentences[0].upper(), sentences[50]]
    encoded.clear()
    again = load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=cache)
    np.testing.assert_array_equal(again(wanted)[1:41], first(sentences[:40])[::-1])
    np.testing.assert_array_equal(again(wanted)[41], first(sentences[:1])[0])
    assert sum(encoded) == 1
    assert len(list(cache.rglob("*.safetensors"))) == 2
    assert again([]).shape == (0, 24)


def test_another_model_pooling_or_length_is_not_taken_for_the_same(
    bert: Path, sentences: list[str], tmp_path: Path, encoded: list[int]
) -> None:
    other = tmp_path / "other"
    shutil.copytree(bert, other)
    model = AutoModel.from_pretrained(other)
    with torch.no_grad():
        model.encoder.layer[1].output.dense.bias[3] += 1e-3
    model.save_pretrained(other)
    config = tmp_path / "config"
    shutil.copytree(bert, config)
    settings = json.loads((config / "config.json").read_text())
    (config / "config.json").write_text(json.dumps(settings | {"hidden_act": "relu"}))
    moved = tmp_path / "moved"
    shutil.copytree(bert, moved)

    def embed(folder: Path, **how: object) -> np.ndarray:
        encoded.clear()
        return load_embedder(str(folder), device="cpu", embedding_cache=tmp_path / "cache", **how)(sentences)

    embed(bert, pooling="mean")
    embed(moved, pooling="mean")
    assert not encoded  # the same model elsewhere
    mean: dict[str, object] = {"pooling": "mean"}
    others = [(other, mean), (config, mean), (bert, {"pooling": "cls"}), (bert, {"pooling": "first-last"})]
    for folder, how in (*others, (bert, mean | {"max_seq_length": 4})):
        found = embed(folder, **how)
        assert encoded
        np.testing.assert_allclose(found, load_embedder(str(folder), device="cpu", **how)(sentences), atol=1e-5)


def test_a_comparison_after_evaluations_encodes_nothing(
    bert: Path, data: Path, tmp_path: Path, encoded: list[int]
) -> None:
    cache = tmp_path / "cache"
    how = {"data_dir": data, "device": "cpu", "noise_rates": [0.5]}
    tasks = ["stsb", "noise"]
    plain = run_comparison(str(bert), str(bert), tasks, pooling="cls", **how)
    for _ in range(2):
        encoded.clear()
        kept = run_evaluation(str(bert), tasks, pooling="cls", embedding_cache=cache, **how)
    assert not encoded
    alone = run_evaluation(str(bert), tasks, pooling="cls", **how)
    assert kept["tasks"] == alone["tasks"]
    for kind, found in kept["noise"].items():
        assert found["STSB"]["spearman"] == pytest.approx(alone["noise"][kind]["STSB"]["spearman"], abs=1e-6)
    encoded.clear()
    found = run_comparison(str(bert), str(bert), tasks, pooling="cls", embedding_cache=cache, **how)
    assert not encoded
    assert found["tasks"] == plain["tasks"]
    for name, record in found["noise"]["tasks"].items():
        assert record["a"] == pytest.approx(plain["noise"]["tasks"][name]["a"], abs=1e-6)


def test_what_is_refused(bert: Path, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    for place, said in ((tmp_path / "file", "no folder and cannot become one"), (tmp_path / "file/in", "cannot become"),
                        ("", "names no folder")):  # fmt: skip
        with pytest.raises(UserError, match=said):
            load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=place)
    monkeypatch.setattr("hf_robustcse.evaluation.embedding_cache.world_size", lambda: 2)
    with pytest.raises(UserError, match="single process"):
        load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=tmp_path / "cache")
    monkeypatch.undo()
    load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=tmp_path / "cache")(sentences)
    [path] = (tmp_path / "cache").rglob("*.safetensors")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read, delete it"):
        load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=tmp_path / "cache")(sentences)


def test_what_is_not_finite_is_not_kept(bert: Path, sentences: list[str], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(bert, broken)
    model = AutoModel.from_pretrained(broken)
    with torch.no_grad():
        model.embeddings.LayerNorm.weight.fill_(float("nan"))
    model.save_pretrained(broken)
    embedder = load_embedder(str(broken), pooling="mean", device="cpu", embedding_cache=tmp_path / "cache")
    with pytest.raises(UserError, match="hold a NaN"):
        embedder(sentences)
    assert not list(tmp_path.glob("cache/**/*.safetensors"))


def test_two_processes_may_keep_the_same_text_and_one_model_may_change(
    bert: Path, sentences: list[str], tmp_path: Path, encoded: list[int]
) -> None:
    cache = tmp_path / "cache"
    plain = load_embedder(str(bert), pooling="mean", device="cpu")(sentences)
    one, other = (load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=cache) for _ in range(2))
    for embedder in (one, other):
        embedder(sentences[:2])  # both have looked: neither sees what the other keeps from here on
    one(sentences[:30])
    other(sentences[20:50])
    encoded.clear()
    third = load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=cache)
    np.testing.assert_allclose(third(sentences), plain, atol=1e-5)
    assert sum(encoded) == 10
    with torch.no_grad():
        third.model[0].auto_model.embeddings.LayerNorm.bias += 0.1
    changed = third(sentences)
    assert np.abs(changed - plain).max() > 1e-3
    np.testing.assert_allclose(third(sentences[::-1]), changed[::-1], atol=1e-5)
    assert len(list(cache.iterdir())) == 2


def test_a_pooler_that_is_drawn_anew_makes_no_other_model(
    bert: Path, sentences: list[str], tmp_path: Path, encoded: list[int]
) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(bert, bare)
    weights = load_file(bare / "model.safetensors")
    save_file({name: tensor for name, tensor in weights.items() if "pooler" not in name}, bare / "model.safetensors",
              metadata={"format": "pt"})  # fmt: skip
    for seed in (0, 1):
        torch.manual_seed(seed)
        encoded.clear()
        load_embedder(str(bare), pooling="first-last", device="cpu", embedding_cache=tmp_path / "cache")(sentences)
    assert not encoded
    # One that is read counts.
    for folder in (bert, tmp_path / "other"):
        if folder != bert:
            shutil.copytree(bert, folder)
            weights["pooler.dense.bias"] += 1.0
            save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        encoded.clear()
        load_embedder(str(folder), pooling="pooler", device="cpu", embedding_cache=tmp_path / "cache")(sentences)
        assert encoded


def test_equal_texts_are_one(bert: Path, tmp_path: Path) -> None:
    embedder = load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=tmp_path)
    asked: list[list[int]] = []

    def encode(rows: list[int]) -> torch.Tensor:
        asked.append(rows)
        return torch.tensor([[float(texts[row][0])] for row in rows])

    assert embedder.cache is not None
    for texts in ([(1,), (2,), (1,)], [(2,), (3,), (1,)]):
        assert embedder.cache(texts, encode).flatten().tolist() == [text[0] for text in texts]
    assert [len(rows) for rows in asked] == [2, 1]


def test_a_full_disk_costs_no_evaluation(
    bert: Path, sentences: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_robustcse.evaluation.embedding_cache.atomic_write_bytes", full)
    embedder = load_embedder(str(bert), pooling="mean", device="cpu", embedding_cache=tmp_path)
    assert embedder(sentences).shape == (60, 24)
    assert "not kept, [Errno 28] No space left on device" in capsys.readouterr().err
