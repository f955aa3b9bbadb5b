"""Runs on a streamed corpus, and what is refused of the strategies that share one run among processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from safetensors.torch import load_file
from test_distributed import ROOT, launch
from test_runs import SCRIPT, corpus, kill_at, options, start, state_of, train  # noqa: F401 (corpus is a fixture)
from tiny import SENTENCES, make_encoder

from hf_robustcse.errors import UserError
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.runs import parse_arguments, run
from hf_robustcse.trainer import RobustCSETrainer

CONFIGS = sorted((Path(__file__).parents[1] / "examples" / "accelerate").glob("*.yaml"))
STREAM = {
    "streaming": None, "shuffle_buffer": 50, "per_device_train_batch_size": 64, "max_steps": 14, "eval_steps": 4,
    "save_total_limit": 9, "collapse_threshold": 0,
}  # fmt: skip


def same(one, two):
    a, b = state_of(one), state_of(two)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_goes_on_bit_equal_in_the_next_epoch(workers, bert, corpus, tmp_path):  # noqa: F811
    """6 steps an epoch: one run goes on from step 4 into the second one, one from step 8 into the third."""
    train(bert, corpus, tmp_path / "whole", method="vadv", **STREAM)
    for step in (4, 8):
        again = tmp_path / f"again-{step}"
        shutil.copytree(tmp_path / "whole" / f"checkpoint-{step}", again / f"checkpoint-{step}")
        shutil.copy(tmp_path / "whole" / "manifest.json", again)
        more = {"resume_from_checkpoint": "last", "dataloader_num_workers": workers}
        train(bert, corpus, again, method="vadv", **STREAM, **more)
        assert same(tmp_path / "whole" / "checkpoint-14", again / "checkpoint-14")
    states = [json.loads((tmp_path / n / "checkpoint-14" / "trainer_state.json").read_text()) for n in ("whole", again)]
    logged = [[entry for entry in state["log_history"] if "eval_runtime" not in entry] for state in states]
    assert [entry["epoch"] for entry in logged[0]] == [entry["epoch"] for entry in logged[1]]
    position = states[0]["stateful_callbacks"]["StreamPosition"]["attributes"]["position"]
    assert position["epoch"] == 2


@pytest.mark.slow
def test_a_killed_stream_goes_on_bit_equal(bert, corpus, tmp_path):  # noqa: F811
    common = {**STREAM, "per_device_train_batch_size": 8, "max_steps": 150, "eval_steps": 10, "save_total_limit": 20,
              "dataloader_num_workers": 1}  # fmt: skip
    whole = start(options(bert, corpus, tmp_path / "whole", **common))
    broken = options(bert, corpus, tmp_path / "broken", **common)
    kill_at(broken, tmp_path / "broken" / "checkpoint-70")
    resumed = start([*broken, "--resume_from_checkpoint", "last"])
    output = resumed.communicate()[0]
    assert resumed.returncode == 0 and "resuming from" in output, output[-3000:]
    assert whole.wait() == 0
    assert same(tmp_path / "whole" / "checkpoint-150", tmp_path / "broken" / "checkpoint-150")


def two_processes(tmp_path, *more):
    encoder = tmp_path / "encoder"
    if not encoder.exists():
        make_encoder(encoder)
        text = "\n".join(f"{a} {b}" for a in SENTENCES for b in SENTENCES)
        (tmp_path / "corpus.txt").write_text(text, encoding="utf-8")
    return [
        SCRIPT, "--method", "vadv", "--model_name_or_path", encoder, "--train_file", tmp_path / "corpus.txt",
        "--streaming", "--shuffle_buffer", 30, "--dropout", "0.0", "--eval_tasks", "embedded_dev", "--eval_steps", 7,
        "--max_steps", 14, "--learning_rate", "1e-3", "--use_cpu", "--disable_tqdm", "true", *more,
    ]  # fmt: skip


def near(one, two, start):
    """Trained by plain gradient descent, runs that saw the same differ by rounding alone; Adam would amplify it."""
    begun = load_file(start / "model.safetensors")
    a, b = (load_file(folder / "model.safetensors") for folder in (one, two))
    difference = sum((a[key] - b[key]).square().sum() for key in a).sqrt()
    return difference < 1e-3 * sum((a[key] - begun[key]).square().sum() for key in a).sqrt()


def weights(folder):
    return torch.cat([value.flatten() for _, value in sorted(load_file(folder / "model.safetensors").items())])


SGD = ("--optim", "sgd", "--learning_rate", "0.05")


def resume(tmp_path, source, again, *options, processes=2, runner=()):
    """A run that goes on from step 7 of another one; its weights at step 14 are in the folder that is returned."""
    shutil.copytree(tmp_path / source / "checkpoint-7", tmp_path / again / "checkpoint-7")
    shutil.copy(tmp_path / source / "manifest.json", tmp_path / again)
    more = ("--output_dir", tmp_path / again, "--resume_from_checkpoint", "last", *options)
    launch(*runner, *two_processes(tmp_path, *more), processes=processes)
    return tmp_path / again / "checkpoint-14"


@pytest.mark.slow
def test_two_processes_stream_what_one_does_and_each_goes_on_from_the_other(tmp_path):
    """10 steps of 10 sentences are an epoch; the run goes on from step 7."""
    one, two = ("--per_device_train_batch_size", 10), ("--per_device_train_batch_size", 5)
    launch(*two_processes(tmp_path, "--output_dir", tmp_path / "one", *one, *SGD), processes=1)
    launch(*two_processes(tmp_path, "--output_dir", tmp_path / "two", *two, *SGD))
    start, whole = tmp_path / "encoder", tmp_path / "one" / "checkpoint-14"
    assert near(tmp_path / "two" / "checkpoint-14", whole, start)
    assert near(resume(tmp_path, "one", "one-on-2", *two, *SGD), whole, start)
    assert near(resume(tmp_path, "two", "two-on-1", *one, *SGD, processes=1), whole, start)
    launch(*two_processes(tmp_path, "--output_dir", tmp_path / "adam", *two))
    again = resume(tmp_path, "adam", "adam-again", *two)
    assert torch.equal(weights(again), weights(tmp_path / "adam" / "checkpoint-14"))


@pytest.mark.slow
def test_fsdp_trains_saves_and_goes_on_as_ddp_does(tmp_path, monkeypatch):
    batch, runner = ("--per_device_train_batch_size", 5), (ROOT / "tests/fsdp_on_cpu.py",)
    launch(*two_processes(tmp_path, "--output_dir", tmp_path / "ddp", *batch, *SGD))
    config = yaml.safe_load(next(path for path in CONFIGS if path.stem == "fsdp").read_text())["fsdp_config"]
    names = {"fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP"}  # as accelerate launch passes them
    for key, value in config.items():
        monkeypatch.setenv(names.get(key, key.upper()), str(value).lower() if isinstance(value, bool) else str(value))
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    launch(*runner, *two_processes(tmp_path, "--output_dir", tmp_path / "fsdp", *batch, *SGD))
    assert (tmp_path / "fsdp" / "checkpoint-7" / "pytorch_model_fsdp.bin").is_file()  # it was no DDP
    assert near(tmp_path / "fsdp" / "checkpoint-14", tmp_path / "ddp" / "checkpoint-14", tmp_path / "encoder")
    a, b = (json.loads((tmp_path / name / "results.json").read_text()) for name in ("fsdp", "ddp"))
    assert a["tasks"]["embedded_dev"]["spearman"] == pytest.approx(b["tasks"]["embedded_dev"]["spearman"], abs=0.02)
    assert json.loads((tmp_path / "fsdp" / "manifest.json").read_text())["strategy"] == "FSDP"
    launch(*runner, *two_processes(tmp_path, "--output_dir", tmp_path / "adam", *batch))
    again = resume(tmp_path, "adam", "adam-again", *batch, runner=runner)
    assert torch.equal(weights(again), weights(tmp_path / "adam" / "checkpoint-14"))
    assert "Accelerate has no FSDP on CPUs" in refused(tmp_path, monkeypatch, "FSDP_VERSION", "2")


def refused(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    said = launch(*two_processes(tmp_path, "--output_dir", tmp_path / "no"), succeeds=False)
    return next(line for line in said.splitlines() if line.startswith("error: "))


def test_a_dry_run_prints_the_plan_and_writes_nothing(bert, corpus, tmp_path, capsys, monkeypatch):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    more = {"dry_run": None, "max_steps": -1, "gradient_accumulation_steps": 2, "num_train_epochs": 3,
            "report_to": "tensorboard"}  # fmt: skip
    plan = train(bert, corpus, tmp_path / "run", **more)["plan"]
    assert sorted(tmp_path.rglob("*")) == before
    assert (plan["steps"], plan["sentences_per_step"], plan["negatives"], plan["processes"]) == (75, 16, 7, 1)
    assert plan["seconds_per_step"] > 0 and plan["peak_bytes"] > plan["state_bytes"] > 16 * 1000
    printed = capsys.readouterr().out
    assert "8 sentences x 1 process x 2 accumulated = 16; 7 negatives" in printed and "nothing was written" in printed
    with pytest.raises(UserError, match="nowhere.txt"):
        run(parse_arguments(options(bert, "nowhere.txt", tmp_path / "run", dry_run=None)))
    assert train(bert, corpus, tmp_path / "run", dry_run=None, **STREAM)["plan"]["steps"] == 14


def test_options_that_do_not_go_with_a_stream(bert, corpus, tmp_path):  # noqa: F811
    for more, message in (
        ({"shuffle_buffer": 9}, "--shuffle_buffer belongs to --streaming"),
        ({"streaming": None, "train_sampling_strategy": "group_by_length"}, "needs a corpus in memory"),
        ({"streaming": None, "preprocessing_num_workers": 2}, "use --dataloader_num_workers"),
        ({"streaming": None, "shuffle_buffer": -1}, "--shuffle_buffer must be at least 0"),
    ):
        with pytest.raises(UserError, match=message):
            train(bert, corpus, tmp_path / "run", **more)


def test_a_checkpoint_without_a_position_is_refused(bert, corpus, tmp_path):  # noqa: F811
    train(bert, corpus, tmp_path / "run", **STREAM)
    for path in (tmp_path / "run").glob("checkpoint-*/trainer_state.json"):
        state = json.loads(path.read_text())
        del state["stateful_callbacks"]["StreamPosition"]
        path.write_text(json.dumps(state))
    with pytest.raises(UserError, match="does not say how far the stream was read"):
        train(bert, corpus, tmp_path / "run", resume_from_checkpoint="last", **STREAM)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_reads_the_configurations(path):
    config = load_config_from_file(str(path))
    settings = yaml.safe_load(path.read_text())
    assert config.num_processes == settings["num_processes"]
    assert {"fsdp": "FSDP", "zero1": "DEEPSPEED", "zero2": "DEEPSPEED"}.get(path.stem, "MULTI_GPU") == (
        config.distributed_type.value
    )


def strategy_of(bert, method="simcse", *, precision="no", stage=None, classes=("BertLayer",), **plugin):
    """What `RobustCSETrainer` says of a strategy, whose settings are given as Accelerate gives them."""
    fsdp = {"fsdp_version": 2, "state_dict_type": "FULL_STATE_DICT", "cpu_ram_efficient_loading": False} | plugin
    state = SimpleNamespace(
        mixed_precision=precision,
        distributed_type=DistributedType.FSDP,
        fsdp_plugin=FullyShardedDataParallelPlugin(
            auto_wrap_policy="transformer_based_wrap", transformer_cls_names_to_wrap=classes, **fsdp
        ),
        deepspeed_plugin=SimpleNamespace(zero_stage=stage),
    )
    trainer = SimpleNamespace(
        accelerator=SimpleNamespace(state=state), is_fsdp_enabled=stage is None, is_deepspeed_enabled=stage is not None,
        _check_wrapped=RobustCSETrainer._check_wrapped,
    )  # fmt: skip
    RobustCSETrainer._check_strategy(trainer, RobustCSEModel.from_encoder(bert, method=method))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fsdp_version": 1}, "set fsdp_version: 2"),
        ({"state_dict_type": "SHARDED_STATE_DICT"}, "set fsdp_state_dict_type: FULL_STATE_DICT"),
        ({"cpu_offload": True}, "set fsdp_offload_params: false"),
        ({"classes": ["BertEmbeddings", "BertLayer"]}, "set fsdp_transformer_layer_cls_to_wrap: BertLayer"),
        ({"classes": None}, "set fsdp_transformer_layer_cls_to_wrap: BertLayer"),
        ({"method": "vadv", "precision": "bf16"}, "rounds away what vadv adds"),
        ({"method": "vadv", "precision": "bf16", "stage": 2}, "DeepSpeed casts the weights to bf16"),
        ({"stage": 3}, "ZeRO-3 is not supported"),
    ],
)
def test_what_a_strategy_cannot_do_is_refused(settings, message, bert, monkeypatch):
    monkeypatch.setenv("FSDP_VERSION", str(settings.get("fsdp_version", 2)))
    with pytest.raises(UserError, match=message):
        strategy_of(bert, **settings)


def test_what_a_strategy_can_do(bert, monkeypatch):
    monkeypatch.setenv("FSDP_VERSION", "2")
    strategy_of(bert, precision="bf16")
    strategy_of(bert, stage=2, method="vadv")
