"""The release folder: what enters it, what is taken out of it, and what is refused."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from hf_robustcse.errors import UserError
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.publish import build_release, verify
from hf_robustcse.publish.scrub import Scrubber

EXAMPLE = Path(__file__).parents[2] / "examples" / "publish.py"


def run_example(*words: object) -> None:
    spec = importlib.util.spec_from_file_location("publish_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main([str(word) for word in words])


def texts(folder: Path) -> str:
    return "\n".join(p.read_bytes().decode("latin-1") for p in sorted(folder.rglob("*")) if p.is_file())


def test_only_what_belongs_there_enters_and_it_tells_nothing(checkpoint, tmp_path):
    extra = tmp_path / "jqpublic77" / "results.json"
    extra.parent.mkdir()
    extra.write_text(
        json.dumps(
            {**json.loads((checkpoint / "results.json").read_text()), "command": f"run_eval.py --model {checkpoint}"}
        )
    )
    release = build_release(
        checkpoint, tmp_path / "release", repo_id="org/simcse", results=[extra], extra_tags=["mine"]
    )
    files = {p.relative_to(release.folder).as_posix() for p in release.folder.rglob("*") if p.is_file()}
    assert files == {
        "README.md", "config.json", "config_sentence_transformers.json", "manifest.json", "model.safetensors",
        "modules.json", "results.json", "results/user-results.json", "robustcse/config.json",
        "robustcse/model.safetensors", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json",
        "1_Pooling/config.json",
    }  # fmt: skip
    assert set(release.files) == files and not release.warnings
    for word in ("jqpublic77", "hf_A1b2", str(tmp_path), "my own token", "/home", "C:\\", "~/"):
        assert word not in texts(release.folder), word
    results = json.loads((release.folder / "results.json").read_text())
    assert results["command"] == "run_unsup.py --train_file wiki.txt --output_dir=simcse-tiny --note '***'"
    assert results["tasks"]["stsb_dev"]["source"] == "dev.tsv" and results["tasks"]["stsb_dev"]["spearman"] == 61.5
    manifest = json.loads((release.folder / "manifest.json").read_text())
    assert manifest["identity"]["model_name_or_path"] == "bert"
    assert manifest["corpus"] == {"files": [{"path": "wiki.txt"}], "source": "https://example.org/a/wiki.txt"}
    assert manifest["release"]["check"] == release.check and len(release.check["sentences"]) == 2
    card = (release.folder / "README.md").read_text()
    assert "- mine\n" in card and "61.50" in card and f"{release.check['cosine']:.4f}" in card


@pytest.mark.parametrize("dtype, bound", [("float16", 2e-2), ("bfloat16", 2e-1)])
def test_half_precision_is_stored_measured_and_computed_with_in_float32(checkpoint, tmp_path, dtype, bound):
    release = build_release(checkpoint, tmp_path / "release", dtype=dtype)
    kind = getattr(torch, dtype)
    assert {v.dtype for v in load_file(release.folder / "model.safetensors").values()} == {kind}
    assert release.files["model.safetensors"] < 0.7 * (checkpoint / "model.safetensors").stat().st_size
    assert release.weights["dtype"] == dtype and 0 < release.weights["max_abs_difference"] < bound
    assert AutoModel.from_pretrained(release.folder).dtype == torch.float32


def test_weights_beyond_float16_are_refused(checkpoint, tmp_path):
    model = shutil.copytree(checkpoint, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    weights["embeddings.LayerNorm.bias"][0] = 1e6
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"float16 cannot hold embeddings\.LayerNorm\.bias.*use bfloat16"):
        build_release(model, tmp_path / "release", dtype="float16")
    assert not (tmp_path / "release").exists()


def test_a_head_that_is_part_of_the_embedding_is_published_in_half_precision_too(bert, tmp_path):
    RobustCSEModel.from_encoder(bert, method="vadv", keep_head=True).save_pretrained(tmp_path / "model")
    state = torch.get_rng_state()
    release = build_release(tmp_path / "model", tmp_path / "release", dtype="float16")
    assert torch.equal(torch.get_rng_state(), state)  # a training in another thread goes on as it would
    assert verify(release.folder)["max_abs_difference"] <= 1e-5


@pytest.mark.parametrize("name", ["house", "bert", "Gao"])
def test_a_user_whose_name_is_a_word_can_publish(checkpoint, tmp_path, monkeypatch, name):
    assert '"house"' in (checkpoint / "tokenizer.json").read_text()
    model = shutil.copytree(checkpoint, tmp_path / "model")
    change_json(model / "manifest.json", identity={"seed": 0}, note=f"made by {name}", own={name: 1})
    monkeypatch.setenv("LOGNAME", name)
    monkeypatch.setattr("socket.gethostname", lambda: name)
    release = build_release(model, tmp_path / "release", repo_id="org/simcse")
    assert not release.warnings and json.loads((release.folder / "config.json").read_text())["model_type"] == "bert"
    if name == "house":
        manifest = json.loads((release.folder / "manifest.json").read_text())
        assert manifest["note"] == "made by user" and "Gao" in (release.folder / "README.md").read_text()


def change_json(path: Path, **values: object) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**content, **values}), encoding="utf-8")


@pytest.mark.parametrize("case, message", [
    ("no config", "no checkpoint of this project: it has no robustcse/config.json"),
    ("remote code", r"config.json asks for code of its own \(auto_map\)"),
    ("foreign module", "'custom.Module', which is not part of sentence-transformers"),
    ("outside", r"names the folder '\.\./elsewhere', which is outside the model"),
    ("link", "tokenizer.json is a link"),
    ("pickle", "has no model.safetensors"),
    ("secret in the tokenizer", "tokenizer.json cannot be published: it holds an access token"),
    ("secret in the weights", "model.safetensors cannot be published: it holds an access token"),
    ("broken record", "results.json is not JSON"),
    ("no method", "config.json has the unknown method 'None'"),
    ("no head", "config.json has no head or keep_head"),
    ("no length", "sentence_bert_config.json has no max_seq_length above 0"),
    ("huge", "asks for vocab_size 1000000000; the most is"),
    ("adapter", "adapter_config.json names other code or another model"),
])  # fmt: skip
def test_what_cannot_be_published_is_refused_in_one_line(checkpoint, tmp_path, case, message):
    model = shutil.copytree(checkpoint, tmp_path / "model")
    secret = "hf_" + "Z9" * 12
    modules = json.loads((model / "modules.json").read_text())
    if case == "no config":
        (model / "robustcse/config.json").unlink()
    elif case == "remote code":
        change_json(model / "config.json", auto_map={"AutoModel": "modeling.Model"})
    elif case == "foreign module":
        (model / "modules.json").write_text(json.dumps([*modules, {"path": "2_X", "type": "custom.Module"}]))
    elif case == "outside":
        (model / "modules.json").write_text(json.dumps([modules[0], {**modules[1], "path": "../elsewhere"}]))
    elif case == "link":
        (model / "tokenizer.json").rename(tmp_path / "t.json")
        (model / "tokenizer.json").symlink_to(tmp_path / "t.json")
    elif case == "pickle":
        (model / "model.safetensors").rename(model / "pytorch_model.bin")
    elif case == "secret in the tokenizer":
        (model / "tokenizer.json").write_text((model / "tokenizer.json").read_text().replace('"house"', f'"{secret}"'))
    elif case == "secret in the weights":
        weights = load_file(model / "model.safetensors")
        save_file(weights, model / "model.safetensors", metadata={"format": "pt", "by": secret})
    elif case in ("no method", "no head"):
        change_json(model / "robustcse" / "config.json", **{case.split()[1]: None})
    elif case == "no length":
        change_json(model / "sentence_bert_config.json", max_seq_length="many")
    elif case == "huge":
        change_json(model / "config.json", vocab_size=10**9)
    elif case == "adapter":
        (model / "adapter_config.json").write_text('{"base_model_name_or_path": "elsewhere"}')
    elif case == "broken record":
        (model / "results.json").write_text("{")
    with pytest.raises(UserError, match=message) as error:
        build_release(model, tmp_path / "release")
    assert secret not in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "release").exists() and not list(tmp_path.glob(".release*"))


def test_a_release_replaces_a_release_and_nothing_else(checkpoint, tmp_path):
    first = build_release(checkpoint, tmp_path / "release")
    again = build_release(checkpoint, tmp_path / "release")
    assert first == again
    assert build_release(first.folder, tmp_path / "b" / "release").files == first.files  # a release is a checkpoint
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("...")
    with pytest.raises(UserError, match="is there and is no release folder"):
        build_release(checkpoint, mine)
    with pytest.raises(UserError, match="would replace the model"):
        build_release(first.folder, first.folder)
    assert (mine / "thesis.tex").exists() and first.folder.is_dir()


def test_what_was_named_for_the_card_has_to_be_right(checkpoint, tmp_path):
    """It is not the card's failure then, which would cost no more than a plain card."""
    (tmp_path / "other.json").write_text('{"nonsense": 1}')
    with pytest.raises(UserError, match=r"other.json is no result"):
        build_release(checkpoint, tmp_path / "release", results=[tmp_path / "other.json"])
    with pytest.raises(UserError, match="--base_model not an id"):
        build_release(checkpoint, tmp_path / "release", card={"base_model": "not an id"})
    assert not (tmp_path / "release").exists()


def test_a_card_that_cannot_be_rendered_keeps_the_weights(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "hf_robustcse.cards", None)  # its import fails
    release = build_release(checkpoint, tmp_path / "release", repo_id="org/simcse")
    assert len(release.warnings) == 1 and "the card could not be rendered" in release.warnings[0]
    card = (release.folder / "README.md").read_text()
    assert 'SentenceTransformer("org/simcse")' in card and f"{release.check['cosine']:.4f}" in card
    assert (release.folder / "model.safetensors").is_file()


def test_the_root_of_several_seeds_brings_their_results(checkpoint, tmp_path):
    model = shutil.copytree(checkpoint, tmp_path / "model")
    for seed in (0, 1):
        shutil.copytree(checkpoint, model / f"seed-{seed}")
        change_json(model / f"seed-{seed}" / "manifest.json", identity={"seed": seed})
    (model / "manifest.json").write_text(json.dumps({"seeds": [0, 1], "runs": ["seed-0/manifest.json"]}))
    change_json(model / "results.json", exported_seed=1)
    release = build_release(model, tmp_path / "release")
    assert {"results/seed-0.json", "results/seed-1.json"} <= set(release.files)
    manifest = json.loads((release.folder / "manifest.json").read_text())
    assert manifest["identity"] == {"seed": 1} and manifest["seeds"] == [0, 1]


def test_scrubbing():
    scrub = Scrubber("jane/model", (SECRET := "not like a token of the Hub",))
    for text, expected in {
        "/data/corpus/wiki.txt": "wiki.txt",
        "~/x": "x",
        "file:///home/a/b.txt": "b.txt",
        "data/wiki.txt": "data/wiki.txt",
        "bert-base/uncased and/or n/a 1 / 2": "bert-base/uncased and/or n/a 1 / 2",
        "read from /srv/a/b.txt, then D:\\x\\y.txt": "read from b.txt, then y.txt",
        "https://user:pass@example.org/a": "https://example.org/a",
        "hub:org/set@0123": "hub:org/set@0123",
        f"a {SECRET} b": "a *** b",
        "cuda:0 (NVIDIA A100)": "cuda:0 (NVIDIA A100)",
        "</s> <br/>": "</s> <br/>",
    }.items():
        assert scrub.text(text) == expected
        assert scrub.text(expected) == expected
    assert scrub.record({"api_key": "x", "n": 1.5, "pad_token": None}) == {
        "api_key": "***",
        "n": 1.5,
        "pad_token": None,
    }
    assert ("jqpublic77", "user") in scrub.names
    assert ("jqpublic77", "user") not in Scrubber("jqpublic77/model").names  # who publishes under it has published it


def test_dry_run_builds_checks_and_shows_without_a_network(checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.chdir(tmp_path)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    run_example("--model", checkpoint, "--repo_id", "org/{method}-tiny", "--dry_run", "--dtype", "float16")
    folder = Path("runs/release-simcse-tiny")
    out = capsys.readouterr().out
    assert "model.safetensors" in out and "README.md begins:" in out and "nothing was uploaded" in out
    assert "sentence-transformers alone loads it" in out and "stored as float16" in out
    assert (folder / "manifest.json").is_file()


@pytest.mark.slow  # a process of its own once more
def test_what_embeds_otherwise_there_alone_does_not_pass(checkpoint, tmp_path):
    folder = build_release(checkpoint, tmp_path / "release").folder
    change_json(folder / "1_Pooling" / "config.json", pooling_mode_cls_token=False, pooling_mode_mean_tokens=True)
    with pytest.raises(UserError, match="sentence-transformers alone embeds otherwise than this package"):
        verify(folder)


@pytest.mark.parametrize("words, message", [
    (["--model", "nowhere", "--repo_id", "org/x", "--dry_run"], "nowhere is no folder"),
    (["--repo_id", "org/x"], "--model"),
    (["--model", "a", "b", "--repo_id", "org/x", "--dry_run"], "would both be org/x"),
    (["--model", "a", "--repo_id", "org/x", "--dtype", "int8"], "invalid choice"),
    (["--model", "a", "--repo_id", "org/a b", "--dry_run"], "no name of a repository"),
    (["--model", "a", "--repo_id", "org/x", "--dry_run", "--tag", "v 1"], "--tag 'v 1' is no name of a tag"),
    (["--model", "a", "--repo_id", "org/x", "--dry_run", "--revision", "a..b"], "no name of a branch"),
    (["--model", "a", "--repo_id", "org/x", "--dry_run", "--collection", "org/"], "no name of a collection"),
    (["--model", "a", "--repo_id", "org/x", "--dry_run", "--results", "none.json"], "a is no folder"),
])  # fmt: skip
def test_bad_input_of_the_command(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        run_example(*words)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and error.count("\n") == 1
