"""Runs as a user starts them: options, recipes, bad input, seeds, kill and resume, the embedded default."""

from __future__ import annotations

import csv
import gzip
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import SENTENCES, WORDS, make_encoder
from transformers import AutoConfig, AutoModel

from hf_robustcse import SentenceTransformer, layout, runs
from hf_robustcse.errors import TrainingStopped, UserError
from hf_robustcse.methods import METHODS
from hf_robustcse.runs import has_dropout, parse_arguments, run

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "run_unsup.py"


@pytest.fixture
def corpus(tmp_path):
    rng = random.Random(0)
    lines = {" ".join(rng.choices(WORDS, k=rng.randint(4, 12))) for _ in range(420)}
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(sorted(lines)[:400]) + "\n", encoding="utf-8")
    return path


def options(bert, corpus, folder, **changes):
    values = {
        "method": "simcse", "model_name_or_path": bert, "train_file": corpus, "output_dir": folder, "max_steps": 6,
        "per_device_train_batch_size": 8, "eval_tasks": "embedded_dev", "eval_steps": 3, "disable_tqdm": "true",
        "learning_rate": "1e-3", "use_cpu": None,
    }  # fmt: skip
    out = []
    for key, value in {**values, **changes}.items():
        if value is not False:
            out += [
                f"--{key}",
                *([] if value is None else map(str, value) if isinstance(value, list) else [str(value)]),
            ]
    return out


def train(*arguments, **changes):
    return run(parse_arguments(options(*arguments, **changes)))


def test_a_run_leaves_model_results_and_manifest(bert, corpus, tmp_path, capsys):
    folder = tmp_path / "run"
    results = train(bert, corpus, folder, method="vadv", gradient_accumulation_steps=2)
    printed = capsys.readouterr().out
    assert "400" in printed and "note: gradient accumulation" in printed and "7 negatives" in printed
    assert "run_eval.py" in printed
    saved = json.loads((folder / "results.json").read_text())
    assert saved == json.loads(json.dumps(results))
    task = saved["tasks"]["embedded_dev"]
    assert task["split"] == "dev" and task["n"] > 100 and -100 <= task["spearman"] <= 100
    assert saved["selection"]["on_test_set"] is False and saved["training"]["sentences"] == 6 * 2 * 8
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "finished" and manifest["negatives"] == 7 and manifest["dtype"] == "fp32"
    assert manifest["corpus"]["kept"] == 400 and len(manifest["identity"]["corpus_sha256"]) == 64
    assert manifest["evaluation"]["embedded_dev"]["rows"] == task["n"]
    assert SentenceTransformer.from_pretrained(str(folder), device="cpu").encode("the dog").shape == (16,)
    assert not [p for p in folder.glob("*") if p.suffix in (".bin", ".pt", ".pkl")]
    for path in folder.rglob("*.json"):
        assert "hf_" not in path.read_text().replace("hf_robustcse", "").replace("hf_argparser", "")


RECIPES = sorted((ROOT / "examples" / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
@pytest.mark.parametrize("variant", ["paper", "reference"])
def test_published_recipes_parse(recipe, variant, tmp_path):
    arguments = parse_arguments([str(recipe), "--variant", variant, "--output_dir", str(tmp_path)])
    assert recipe.stem.startswith(arguments.model.method.replace("_", "-"))
    assert set(arguments.data.eval_tasks) <= {"stsb_dev", "sickr_dev"} and arguments.recipe == str(recipe)
    if recipe.stem == "dclr-bert-base":
        assert arguments.method_options["dclr_decoupled"] == (variant == "paper")
    if recipe.stem == "gs-infonce-bert-base":
        assert arguments.model.dropout == (None if variant == "paper" else 0.2)


def test_a_variant_that_does_not_exist(tmp_path):
    with pytest.raises(UserError, match="--variant must be one of paper, reference"):
        parse_arguments(["--variant", "code"])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("temperature: {book: 1}\n")
    with pytest.raises(UserError, match="temperature may have values for paper and reference only"):
        parse_arguments([str(recipe)])


def test_a_pooling_that_is_not_the_encoders_own_is_told(bert, corpus, tmp_path, capsys):
    train(bert, corpus, tmp_path / "mean", max_steps=1, pooler="mean")
    assert "note:" not in capsys.readouterr().out
    train(tmp_path / "mean", corpus, tmp_path / "cls", max_steps=1)
    assert "embeds by mean pooling; --pooler mean trains it as it is used" in capsys.readouterr().out
    assert [layout.own_pooling(str(tmp_path / name)) for name in ("mean", "cls")] == ["mean", "cls"]
    (tmp_path / "mean" / layout.CONFIG).unlink()  # as anybody else's sentence encoder
    assert layout.own_pooling(str(tmp_path / "mean")) == "mean" and layout.own_pooling(str(bert)) is None


def test_recipe_and_overrides(bert, corpus, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "method: vadv\nlearning_rate: 2.0e-4\nvadv_epsilon: 0.5\neval_tasks: [stsb_dev, sickr_dev]\nbf16: false\n"
    )
    got = parse_arguments(
        [str(recipe), "--model_name_or_path", "x", "--vadv_epsilon", "0.25", "--output_dir", str(tmp_path)]
    )
    assert got.model.method == "vadv" and got.training.learning_rate == 2e-4
    assert got.method_options["vadv_epsilon"] == 0.25 and got.data.eval_tasks == ["stsb_dev", "sickr_dev"]
    assert not got.embedded and got.training.bf16 is False
    recipe.write_text("learning_rat: 1\n")
    with pytest.raises(UserError, match="unknown argument --learning_rat; did you mean --learning_rate"):
        parse_arguments([str(recipe)])
    recipe.write_text("- 1\n")
    with pytest.raises(UserError, match="option: value"):
        parse_arguments([str(recipe)])
    with pytest.raises(UserError, match="cannot read the recipe"):
        parse_arguments([str(tmp_path / "none.yaml")])


def test_supervised_triplets(bert, tmp_path):
    path = tmp_path / "nli.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["sent0", "sent1", "hard_neg"])
        writer.writerows([a, f"{a} today", f"not {a}"] for a in SENTENCES + [f"{s} slowly" for s in SENTENCES])
    results = train(bert, path, tmp_path / "run", keep_head=None)
    assert results["training"]["steps"] == 6
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["negatives"] == 15
    assert (tmp_path / "run" / "2_Dense" / "config.json").is_file()


def test_streaming(bert, corpus, tmp_path):
    assert train(bert, corpus, tmp_path / "run", streaming=None)["training"]["steps"] == 6


BAD = {
    "missing file": ({"train_file": "nowhere.txt"}, "nowhere.txt"),
    "empty corpus": ({"train_file": "empty.txt"}, "empty.txt"),
    "binary file": ({"train_file": "binary.txt"}, "binary.txt"),
    "wrong column": ({"train_file": "table.csv", "text_column": "sentnce"}, "did you mean"),
    "batch larger than corpus": ({"per_device_train_batch_size": 512}, "fewer than one batch of 512"),
    "batch of one": ({"per_device_train_batch_size": 1}, "no negatives"),
    "unknown method": ({"method": "vad"}, "did you mean vadv"),
    "folder of another run": ({"output_dir": "taken"}, "holds another run"),
    "output_dir is a file": ({"output_dir": "empty.txt"}, "is a file"),
    "unreachable model": ({"model_name_or_path": "org/not-here"}, "cannot load the encoder 'org/not-here'"),
    "no word embeddings": ({"model_name_or_path": "vit"}, "no word embeddings"),
    "unknown option": ({"vadv_epsilonn": 1}, "unknown argument --vadv_epsilonn; did you mean --vadv_epsilon"),
    "bad number": ({"learning_rate": "fast"}, "learning_rate"),
    "option of another method": ({"vadv_epsilon": 3}, "belongs to a method that --method simcse does not use"),
    "bad option value": ({"method": "vadv", "vadv_divergence": "tv"}, "vadv_divergence"),
    "bad pooler": ({"pooler": "average"}, "--pooler must be one of"),
    "bad head": ({"head": "linear"}, "--head must be one of"),
    "bad temperature": ({"temperature": 0}, "--temperature must be above 0"),
    "bad dropout": ({"dropout": 1.5}, "--dropout must be"),
    "test set selects": ({"eval_tasks": ["embedded_dev", "STS12"], "eval_data_dir": "data",
                          "metric_for_best_model": "sts12_spearman"}, "test set"),
    "missing dev set": ({"eval_tasks": "stsb_dev", "eval_data_dir": "data"}, "STSB"),
    "unknown dev set": ({"eval_tasks": "stsx"}, "stsx"),
    "unknown metric": ({"metric_for_best_model": "f1"}, "choose one of eval_embedded_dev_spearman"),
    "streaming without steps": ({"streaming": None, "max_steps": -1}, "--max_steps"),
    "nothing to resume": ({"resume_from_checkpoint": "last"}, "no run to resume"),
    "a seed twice": ({"seeds": [1, 1]}, "names a seed twice"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line_and_writes_nothing(case, bert, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "binary.txt").write_bytes(bytes(range(256)) * 20)
    (tmp_path / "table.csv").write_text("sentence,other\na b,1\nc d,2\n")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "manifest.json").write_text("{}")
    sts12 = tmp_path / "data" / "sts" / "STS12"
    sts12.mkdir(parents=True)
    (sts12 / "all.tsv").write_text(
        "score\tsentence1\tsentence2\n" + "".join(f"{i % 6}\ta {i}\tb {i}\n" for i in range(3108))
    )
    from transformers import ViTConfig, ViTModel

    ViTModel(ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, image_size=8,
                       patch_size=4)).save_pretrained("vit")  # fmt: skip
    before = sorted(str(p) for p in tmp_path.rglob("*"))
    changes, message = BAD[case]
    with pytest.raises(UserError) as error:
        train(bert, corpus, tmp_path / "run", **changes)
    assert message in str(error.value), str(error.value)
    assert sorted(str(p) for p in tmp_path.rglob("*")) == before


@pytest.mark.parametrize("case", ["missing file", "unknown option"])
def test_exit_code_is_two_and_stderr_one_line(case, bert, corpus, tmp_path):
    changes, message = BAD[case]
    command = [sys.executable, str(SCRIPT), *options(bert, corpus, tmp_path / "run", **changes)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and len(done.stderr.strip().splitlines()) == 1 and message in done.stderr


def test_an_encoder_without_dropout_is_given_some(tmp_path, corpus, capsys):
    folder = make_encoder(tmp_path / "dry", "modernbert", embedding_dropout=0.0, attention_dropout=0.0, mlp_dropout=0.0)
    train(folder, corpus, tmp_path / "a")
    assert "dropout is set to 0.1" in capsys.readouterr().out
    config = AutoConfig.from_pretrained(tmp_path / "a")
    assert config.attention_dropout == config.mlp_dropout == 0.1
    with pytest.raises(UserError, match="no signal: pass --dropout 0.1"):
        train(folder, corpus, tmp_path / "b", no_dropout_fix=None)
    train(folder, corpus, tmp_path / "c", dropout=0)
    assert "--dropout 0 makes both views" in capsys.readouterr().out
    train(folder, corpus, tmp_path / "d", method="anchor", no_dropout_fix=None)  # no pair of it comes from dropout
    assert "dropout" not in capsys.readouterr().out


def test_the_dropout_check_leaves_the_random_state(bert):
    from hf_robustcse.model import RobustCSEModel

    model = RobustCSEModel.from_encoder(bert)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    assert has_dropout(model) and torch.equal(torch.get_rng_state(), state)
    assert not has_dropout(RobustCSEModel.from_encoder(bert, dropout=0.0))


def test_seeds(bert, corpus, tmp_path):
    folder = tmp_path / "run"
    results = train(bert, corpus, folder, seeds=[0, 1, 2])
    single = [json.loads((folder / f"seed-{s}" / "results.json").read_text()) for s in (0, 1, 2)]
    values = [r["tasks"]["embedded_dev"]["spearman"] for r in single]
    mean = sum(values) / 3
    task = results["tasks"]["embedded_dev"]
    assert task["spearman"] == pytest.approx(mean)
    assert task["spearman_std"] == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5)
    assert (task["spearman_min"], task["spearman_max"], task["seeds"]) == (min(values), max(values), 3)
    assert len(set(values)) == 3
    best = results["exported_seed"]
    assert values[best] == max(values)
    a, b = load_file(folder / "model.safetensors"), load_file(folder / f"seed-{best}" / "model.safetensors")
    assert all(torch.equal(a[k], b[k]) for k in a)
    AutoModel.from_pretrained(folder)


def start(arguments):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for(path, process, seconds=240):
    end = time.time() + seconds
    while not path.exists():
        assert process.poll() is None, process.stdout.read()[-3000:]
        assert time.time() < end, f"{path} never appeared"
        time.sleep(0.02)


def kill_at(words, checkpoint):
    """Start a run, and kill it when it has written a checkpoint."""
    process = start(words)
    wait_for(checkpoint / "trainer_state.json", process)
    process.send_signal(signal.SIGKILL)
    process.wait()


def state_of(folder):
    return load_file(folder / "model.safetensors") | load_file(folder / "robustcse" / "model.safetensors")


# Whole methods, with language model and all, on an encoder that has one.
WHOLE = {
    "vadv": {"vadv_lambda": "0.1"},
    "dclr": {"dclr_complement": "self"},
    "dcl": {"dcl_augmentation": "dropout", "dcl_hidden": "32", "dcl_warmup": "3"},
    "robustsentembed": {"rse_table_start": "0.1"},
}
STACK = "gs_infonce+dclr+vadv"


def whole_options(method):
    return {key: value for part in method.split("+") for key, value in WHOLE.get(part, {}).items()}


@pytest.mark.parametrize(
    "method", [m if m == "vadv" else pytest.param(m, marks=pytest.mark.slow) for m in [*METHODS, STACK]]
)
def test_killed_in_epoch_two_and_resumed_is_bit_equal(method, masked_lm, corpus, tmp_path):
    """400 sentences in batches of 8 are 50 steps an epoch: step 70 is in the middle of the second."""
    bert = masked_lm
    common = {"method": method, "max_steps": -1, "num_train_epochs": 3, "eval_steps": 10, "save_total_limit": 20,
              "collapse_threshold": 0,
              **whole_options(method)}  # fmt: skip
    whole = start(options(bert, corpus, tmp_path / "whole", **common))
    broken = options(bert, corpus, tmp_path / "broken", **common)
    kill_at(broken, tmp_path / "broken" / "checkpoint-70")
    assert not (tmp_path / "broken" / "results.json").exists()
    steps = sorted(int(p.name.split("-")[1]) for p in (tmp_path / "broken").glob("checkpoint-*"))
    assert steps[-1] < 100
    # A checkpoint that was being written when the process died is passed over.
    (tmp_path / "broken" / "checkpoint-95").mkdir(exist_ok=True)
    resumed = start([*broken, "--resume_from_checkpoint", "last"])
    output = resumed.communicate()[0]
    assert resumed.returncode == 0, output[-3000:]
    assert f"resuming from {tmp_path / 'broken' / f'checkpoint-{steps[-1]}'}" in output
    assert whole.wait() == 0
    for folder in ("", "checkpoint-150"):
        a, b = state_of(tmp_path / "whole" / folder), state_of(tmp_path / "broken" / folder)
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)
    a, b = (json.loads((tmp_path / n / "results.json").read_text()) for n in ("whole", "broken"))
    assert a["tasks"] == b["tasks"] and a["before"] == b["before"] and a["selection"] == b["selection"]


@pytest.mark.parametrize("method", [*METHODS, STACK])
def test_every_method_resumes_bit_equal_across_an_epoch(method, masked_lm, corpus, tmp_path):
    """6 steps an epoch; the run goes on from step 4 and ends at step 10."""
    common = {
        "method": method,
        "max_steps": 10,
        "per_device_train_batch_size": 64,
        "eval_steps": 4,
        "save_total_limit": 9,
    }
    common |= whole_options(method)
    train(masked_lm, corpus, tmp_path / "whole", **common)
    shutil.copytree(tmp_path / "whole" / "checkpoint-4", tmp_path / "again" / "checkpoint-4")
    shutil.copy(tmp_path / "whole" / "manifest.json", tmp_path / "again")
    train(masked_lm, corpus, tmp_path / "again", resume_from_checkpoint="last", **common)
    a, b = (state_of(tmp_path / folder / "checkpoint-10") for folder in ("whole", "again"))
    assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_resumed_run_is_held_against_the_encoder_that_training_began_with(bert, corpus, tmp_path):
    train(bert, corpus, tmp_path / "run", max_steps=3)
    path = tmp_path / "run" / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["before"]["embedded_dev"]["embedding_std"] = 1.0
    path.write_text(json.dumps(manifest))
    with pytest.raises(TrainingStopped, match="embeddings collapsed: .*, 1 before training"):
        train(bert, corpus, tmp_path / "run", resume_from_checkpoint="last", max_steps=6, collapse_threshold=2)


def test_test_sets_are_scored_once_in_the_end(bert, corpus, tmp_path):
    folder = tmp_path / "data" / "sts" / "SICKR"
    folder.mkdir(parents=True)
    rows = [f"{1 + i % 5}\t{SENTENCES[i % 10]}\t{SENTENCES[(3 * i) % 10]} {WORDS[i % 30]}" for i in range(4927)]
    (folder / "test.tsv").write_text("score\tsentence1\tsentence2\n" + "\n".join(rows) + "\n", encoding="utf-8")
    more = {"test_tasks": "SICKR", "eval_data_dir": tmp_path / "data", "seeds": [0, 1]}
    results = train(bert, corpus, tmp_path / "run", **more)
    assert results["tasks"]["sickr"]["split"] == "test" and results["tasks"]["sickr"]["seeds"] == 2
    assert results["selection"]["metric"] == "eval_embedded_dev_spearman" and results["averages"]["sts"] is None
    one = json.loads((tmp_path / "run" / "seed-0" / "results.json").read_text())
    assert "sickr" not in one["before"] and one["training"]["resumed_at_step"] == 0
    for tasks, message in (
        (["geometry"], "takes sts"),
        (["embedded_dev"], "name it once"),
        (["STS99"], "unknown task"),
    ):
        with pytest.raises(UserError, match=message):
            train(bert, corpus, tmp_path / "other", **{**more, "test_tasks": tasks})


def test_a_part_of_the_corpus(bert, corpus, tmp_path):
    train(bert, corpus, tmp_path / "run", max_train_samples=0.25)
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["corpus"]["kept"] == 100
    for value, more in ((0, {}), (2.5, {}), (0.5, {"streaming": None})):
        with pytest.raises(UserError, match="--max_train_samples must be a number of rows"):
            train(bert, corpus, tmp_path / "other", max_train_samples=value, **more)


def test_sigterm_saves_a_checkpoint_and_exits_cleanly(bert, corpus, tmp_path):
    folder = tmp_path / "run"
    arguments = options(bert, corpus, folder, max_steps=-1, num_train_epochs=200, eval_steps=100)
    process = start(arguments)
    wait_for(folder / "checkpoint-100" / "trainer_state.json", process)
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 0, output[-3000:]
    assert "stopped by SIGTERM after step" in output and "--resume_from_checkpoint last" in output
    step = int(output.split("stopped by SIGTERM after step ")[1].split()[0])
    assert step > 100 and (folder / f"checkpoint-{step}" / "trainer_state.json").is_file()
    assert json.loads((folder / "manifest.json").read_text())["status"] == "stopped"
    assert not (folder / "results.json").exists()
    with pytest.raises(UserError, match="holds another run, with learning_rate"):
        train(
            bert,
            corpus,
            folder,
            num_train_epochs=200,
            max_steps=-1,
            resume_from_checkpoint="last",
            learning_rate="1e-4",
        )
    with pytest.raises(UserError, match="holds another run: choose"):
        train(bert, corpus, folder)


def test_the_default_output_dir_is_a_new_one_for_every_run(bert, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("simcse-bert", "simcse-bert-2"):
        train(bert, corpus, tmp_path, output_dir=False, max_steps=1)
        assert (tmp_path / "runs" / name / "results.json").is_file()


@pytest.mark.slow
def test_the_embedded_default(tmp_path):
    """The README's first command, without its installation: under five minutes and better than before."""
    started = time.time()
    command = ["accelerate", "launch", str(SCRIPT), "--method", "vadv"]
    env = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    assert time.time() - started < 300
    results = json.loads((tmp_path / "runs" / "vadv-embedded" / "results.json").read_text())
    assert results["tasks"]["embedded_dev"]["spearman"] > results["before"]["embedded_dev"]["spearman"]
    assert "A real model" in done.stdout


def test_the_summary_of_seeds_has_the_spread_of_the_average(tmp_path):
    def one(score: float) -> dict:
        names = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")
        return {
            "tasks": {name: {"spearman": score + number, "n": 3, "split": "test"} for number, name in enumerate(names)},
            "averages": {"sts": score + 3, "transfer": None}, "before": {}, "training": {}, "selection": {},
        }  # fmt: skip

    summary = runs._summarise_seeds(tmp_path, [0, 1], [one(60.0), one(64.0)], save=False)
    assert summary["averages"]["sts"] == pytest.approx(65.0)
    assert summary["averages"]["sts_std"] == pytest.approx(8**0.5)
