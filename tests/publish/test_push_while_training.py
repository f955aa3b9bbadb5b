"""The trainer's standard Hub arguments against a Hub on the loopback interface."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest
from hub_server import READ_TOKEN, WRITE_TOKEN
from tiny import SENTENCES

from hf_robustcse import RobustCSEModel, RobustCSETrainer, RobustCSETrainingArguments
from hf_robustcse.data import ContrastiveCollator, load_corpus, tokenize_corpus
from hf_robustcse.errors import PushFailed, UserError
from hf_robustcse.publish import hub as client
from hf_robustcse.runs import parse_arguments, run


@pytest.fixture(autouse=True)
def _no_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "WAITS", (0.01,))


def make_trainer(bert: Path, tmp_path: Path, **arguments: object) -> RobustCSETrainer:
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    model = RobustCSEModel.from_encoder(bert)
    settings = RobustCSETrainingArguments(
        output_dir=str(tmp_path / "jqpublic77" / "simcse+x"), per_device_train_batch_size=2, max_steps=4, save_steps=2,
        eval_strategy="no", use_cpu=True, disable_tqdm=True, report_to=[], push_to_hub=True, **arguments,
    )  # fmt: skip
    data = tokenize_corpus(load_corpus(str(tmp_path / "text.txt")), model.tokenizer, 16)
    return RobustCSETrainer(model, settings, train_dataset=data, data_collator=ContrastiveCollator(model.tokenizer))


def published(hub, name: str, revision: str = "main") -> set[str]:
    return {name for name in hub.store.files("models", name, revision) if name != ".gitattributes"}


def titles(name: str, revision: str = "main") -> list[str]:
    found = huggingface_hub.HfApi().list_repo_commits(name, revision=revision)
    return [commit.title for commit in found][::-1]


def test_every_save_is_pushed_as_a_release(hub, bert, tmp_path):
    trainer = make_trainer(bert, tmp_path, hub_always_push=True, hub_private_repo=True)
    assert trainer.hub_model_id == "tester/simcse-x"  # the folder's name, as far as the Hub takes it
    assert huggingface_hub.HfApi().repo_info("tester/simcse-x").private
    trainer.train()
    assert titles("tester/simcse-x")[1:] == ["Training in progress, step 2", "Training in progress, step 4"]
    files = hub.store.files("models", "tester/simcse-x")
    assert {"model.safetensors", "modules.json", "README.md", "robustcse/config.json"} <= set(files)
    assert all(name.endswith((".json", ".md", ".safetensors", ".gitattributes")) for name in files)
    assert all(b"jqpublic77" not in content and WRITE_TOKEN.encode() not in content for content in files.values())
    saved = (Path(trainer.args.output_dir) / "checkpoint-4" / "training_args.json").read_text()
    assert WRITE_TOKEN not in saved


def test_states_go_to_a_branch_of_their_own_and_resume(hub, bert, tmp_path):
    trainer = make_trainer(bert, tmp_path, hub_model_id="org/s", hub_strategy="checkpoint", hub_token=WRITE_TOKEN)
    trainer.train()
    assert not [name for name in published(hub, "org/s") if name.startswith(("last-checkpoint", "checkpoint"))]
    states = published(hub, "org/s", "checkpoints")
    assert {"last-checkpoint/optimizer.pt", "last-checkpoint/trainer_state.json"} <= states
    assert all(name.startswith("last-checkpoint/") for name in states)
    files = hub.store.files("models", "org/s", "checkpoints")
    told = [name for name, content in files.items() if b"jqpublic77" in content or WRITE_TOKEN.encode() in content]
    assert not told
    there = huggingface_hub.snapshot_download("org/s", revision="checkpoints", local_dir=tmp_path / "fetched")
    step = json.loads((Path(there) / "last-checkpoint" / "trainer_state.json").read_text())["global_step"]
    other = make_trainer(bert, tmp_path / "fetched", hub_model_id="org/s", hub_strategy="end")
    assert other.train(resume_from_checkpoint=f"{there}/last-checkpoint").global_step == 4 >= step


def test_a_failed_push_does_not_end_training(hub, bert, tmp_path, capfd):
    trainer = make_trainer(bert, tmp_path, hub_model_id="org/s")
    hub.fail("POST", "/commit/", status=500, times=99)
    assert trainer.train().global_step == 4
    assert "warning: the checkpoint of step 2 was not pushed: the Hub answered 500" in capfd.readouterr().err


def test_strategy_end_pushes_nothing_while_training(hub, bert, tmp_path):
    make_trainer(bert, tmp_path, hub_model_id="org/s", hub_strategy="end").train()
    assert not published(hub, "org/s")


@pytest.mark.parametrize("seeds", [[], ["--seeds", "0", "1"]])
def test_a_token_that_cannot_write_is_refused_before_anything_is_read(hub, tmp_path, monkeypatch, seeds):
    monkeypatch.chdir(tmp_path)
    words = ["--push_to_hub", "--hub_model_id", "org/x", "--hub_token", READ_TOKEN, "--train_file", "not-there.txt"]
    with pytest.raises(UserError, match="the token of tester is read-only") as error:
        run(parse_arguments([*words, *seeds]))
    assert "then again: examples/run_unsup.py --push_to_hub --hub_model_id org/x --hub_token '***'" in str(error.value)
    assert READ_TOKEN not in str(error.value) and not (tmp_path / "runs").exists()


def test_when_the_push_in_the_end_fails_the_run_is_finished(hub, bert, tmp_path):
    # A tokenizer that may not be published; that is found only when the release is built.
    encoder, secret = shutil.copytree(bert, tmp_path / "encoder"), "hf_" + "Z9" * 12
    tokenizer = encoder / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text(encoding="utf-8").replace('"house"', f'"{secret}"'), encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    folder = tmp_path / "model"
    words = {
        "model_name_or_path": encoder, "train_file": tmp_path / "text.txt", "eval_tasks": "none", "max_steps": 1,
        "per_device_train_batch_size": 2, "use_cpu": True, "output_dir": folder, "hub_model_id": "org/two",
    }  # fmt: skip
    command = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    with pytest.raises(PushFailed) as error:
        run(parse_arguments([*command, "--push_to_hub", "--seeds", "0", "1", "--report_to", "none"]))
    assert "tokenizer.json cannot be published: it holds an access token" in str(error.value)
    assert f"the model is in {folder}; again: python examples/publish.py --model {folder} --repo_id org/two" in str(
        error.value
    )
    results = json.loads((folder / "results.json").read_text())
    assert results["training"]["status"] == "finished" and (folder / "model.safetensors").is_file()
    assert not hub.asked("POST", "/commit/")  # of the seeds none was pushed by itself
