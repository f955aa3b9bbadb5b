"""ONNX graphs give torch's embeddings, in the layout that sentence-transformers' ONNX backend reads."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from tiny import SENTENCES

pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")

from hf_robustcse import RobustCSEModel
from hf_robustcse.cli import main
from hf_robustcse.deploy import export
from hf_robustcse.deploy.export import MAX_DIFFERENCE, export_onnx
from hf_robustcse.deploy.onnx_model import load_onnx
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import StsData, load_sts

TEXTS = [*SENTENCES, "", "naïve 猫", "the dog " * 60]


@pytest.fixture(scope="module")
def dev_set() -> StsData:
    return load_sts("embedded_dev", None)


def save(encoder: Path, folder: Path, **options: object) -> Path:
    RobustCSEModel.from_encoder(encoder, **options).save_pretrained(folder)
    if encoder.name == "bert":  # the tokenizer of a real BERT gives token types
        path = folder / "tokenizer_config.json"
        names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
        path.write_text(json.dumps({**json.loads(path.read_text()), **names}))
    return folder


@pytest.fixture(scope="module")
def layered(encoders, tmp_path_factory) -> Path:
    """A BERT with an average of layers and a head in its embedding."""
    folder = tmp_path_factory.mktemp("deploy") / "model"
    return save(encoders["bert"], folder, pooler="first-last", head="mlp", keep_head=True)


@pytest.fixture(scope="module")
def exported(layered, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("deploy") / "export"
    export_onnx(layered, folder, quantize=["avx2", "arm64"], min_cosine=0.5)
    return folder


def differences(model: Path, folder: Path, file: str = "onnx/model.onnx") -> float:
    expected = SentenceTransformer(str(model), device="cpu").encode(TEXTS, normalize_embeddings=True)
    for batch_size in (1, 5):
        found = load_onnx(str(folder), file).encode(TEXTS, normalize_embeddings=True, batch_size=batch_size)
        assert np.abs(found - expected).max() < MAX_DIFFERENCE
    return float(np.abs(found - expected).max())


def test_layers_and_head_are_in_the_export(layered, exported):
    differences(layered, exported)
    modules = [entry["type"] for entry in json.loads((exported / "modules.json").read_text())]
    assert modules == [f"sentence_transformers.models.{kind}" for kind in ("Transformer", "Pooling", "Dense", "Dense")]
    assert "output_hidden_states" not in json.loads((exported / "config.json").read_text())
    assert sorted(file.name for file in (exported / "onnx").iterdir()) == [
        "model.onnx", "model_qint8_arm64.onnx", "model_quint8_avx2.onnx",
    ]  # fmt: skip
    # There are no torch weights that could be loaded without the average of layers.
    assert not list(exported.glob("*.safetensors")) and not list(exported.rglob("*.bin"))


def test_the_report_says_what_was_measured(exported):
    report = json.loads((exported / "export.json").read_text())
    assert report["files"]["onnx/model.onnx"]["max_difference"] <= MAX_DIFFERENCE
    assert report["files"]["onnx/model.onnx"]["spearman"] == pytest.approx(report["torch"]["spearman"], abs=0.01)
    int8 = report["files"]["onnx/model_quint8_avx2.onnx"]
    assert 0.5 < int8["min_cosine"] < 1 and report["bounds"]["min_cosine_int8"] == 0.5


def test_nothing_in_the_export_names_a_path(exported, layered):
    for file in exported.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            for secret in (str(layered), str(Path(export.__file__).parents[2]), "site-packages"):
                assert secret.encode() not in content, file


@pytest.mark.slow  # several seconds each
@pytest.mark.parametrize("family", ["distilbert", "roberta", "modernbert", "mpnet", "electra", "xlm-roberta"])
def test_families(family, encoders, tmp_path, dev_set):
    model = save(encoders[family], tmp_path / "model", pooler="cls")
    export_onnx(model, tmp_path / "export", dev_set=dev_set)
    differences(model, tmp_path / "export")


@pytest.mark.slow
def test_weights_that_protobuf_cannot_hold_lie_beside_the_graph(layered, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_PROTOBUF_LIMIT", 0)
    export_onnx(layered, tmp_path / "export", quantize=["avx2"], min_cosine=0.5)
    assert (tmp_path / "export/onnx/model.onnx_data").stat().st_size > 0
    differences(layered, tmp_path / "export")


def test_token_types_go_into_the_graph_where_the_model_has_them(exported):
    model = load_onnx(str(exported))
    assert "token_type_ids" in {given.name for given in model[0].session.get_inputs()}
    features = model.preprocess(["a cat"])
    expected = model(dict(features))["sentence_embedding"]
    del features["token_type_ids"]  # as from a tokenizer of another release
    assert (model(features)["sentence_embedding"] == expected).all()


def test_a_graph_that_disagrees_is_not_published(layered, exported, encoders, tmp_path, monkeypatch):
    other = save(encoders["bert"], tmp_path / "model", pooler="cls")
    monkeypatch.setattr(export, "_write_graph", lambda path, *_: shutil.copy(exported / "onnx/model.onnx", path))
    with pytest.raises(UserError, match="differs from torch"):
        export_onnx(other, tmp_path / "export")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    with pytest.raises(UserError, match="below --min_cosine 0.99999"):
        export_onnx(layered, tmp_path / "export", quantize=["avx2"], min_cosine=0.99999)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def refused(capsys, *words: object) -> str:
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    lines = capsys.readouterr().err.strip().splitlines()
    assert end.value.code == 2 and lines[-1].startswith("error: ")
    return lines[-1]


def test_bad_input_is_one_line(layered, exported, encoders, tmp_path, capsys, monkeypatch):
    command = ("export", "--output_dir", tmp_path / "x", "--model")
    assert "modules.json" in refused(capsys, *command, encoders["bert"])
    assert "--overwrite" in refused(capsys, "export", "--output_dir", exported, "--model", layered)
    before = sorted(Path(layered).rglob("*"))
    said = refused(capsys, "export", "--output_dir", layered, "--model", layered, "--overwrite")
    assert "is no export" in said and sorted(Path(layered).rglob("*")) == before
    assert "--min_cosine" in refused(capsys, *command, layered, "--min_cosine", "nan")
    assert "no id of the Hub" in refused(capsys, *command, "a b")
    assert "no onnx/other.onnx" in refused(
        capsys, "encode", "--model", exported, "--backend", "onnx", "--file_name", "onnx/other.onnx", "--input",
        Path(export.__file__).parents[1] / "assets/corpus.txt.gz", "--output", tmp_path / "x.npy",
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert 'onnxscript is not installed: pip install "hf_robustcse[onnx]"' in refused(capsys, *command, layered)
    assert not list(tmp_path.iterdir())
