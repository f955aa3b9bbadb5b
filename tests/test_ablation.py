"""Sweeps: grids, mistakes in them, a sweep that is interrupted and goes on, its table and its picture."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tiny import SENTENCES

from hf_robustcse.ablation import parse_sweep, read_grids, run_sweep, summarise, table
from hf_robustcse.errors import UserError
from hf_robustcse.methods import METHODS

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "run_ablation.py"
GRIDS = ROOT / "examples" / "ablations.yaml"


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(f"{a} {b}" for a in SENTENCES for b in SENTENCES), encoding="utf-8")
    return path


def command(grid, bert, corpus, folder, *more):
    return [
        grid, *map(str, more), "--model_name_or_path", str(bert), "--train_file", str(corpus), "--eval_tasks",
        "embedded_dev", "--max_steps", "4", "--eval_steps", "2", "--per_device_train_batch_size", "8", "--use_cpu",
        "--disable_tqdm", "true", "--output_dir", str(folder),
    ]  # fmt: skip


def test_every_declared_grid_parses(bert, corpus, tmp_path):
    """Each of its cells is a run that the parser of runs accepts, and varies what the grid says."""
    needs = {"dclr-parts": ["--dclr_complement", str(bert)]}
    for name, grid in read_grids(GRIDS).items():
        sweep = parse_sweep(command(name, bert, corpus, tmp_path / name, *needs.get(name, [])), GRIDS)
        found = [sweep.arguments(cell, 0) for cell in grid.cells]
        assert len({json.dumps([a.method_options, a.data.max_train_samples, a.model.augmentation, a.model.method,
                                a.model.head], sort_keys=True) for a in found}) == len(found), name  # fmt: skip
        assert grid.about and all(set(values) <= set(grid.cells) for values in grid.reported.values()), name
    assert {"simcse", *METHODS} <= set(read_grids(GRIDS)["methods"].cells)


def test_a_sweep_makes_a_table_a_picture_and_goes_on(bert, corpus, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    folder = tmp_path / "sweep"
    argv = command("gs-multiple", bert, corpus, folder, "--seeds", 0, 1, "--cells", 0, 2)
    record = run_sweep(parse_sweep(argv, GRIDS))
    saved = json.loads((folder / "results.json").read_text())
    assert saved == json.loads(json.dumps(record))
    cell = saved["cells"]["2"]
    values = [json.loads((folder / "2" / f"seed-{s}" / "results.json").read_text()) for s in (0, 1)]
    scores = [v["tasks"]["embedded_dev"]["spearman"] for v in values]
    assert cell["seeds"] == [0, 1] and cell["tasks"]["embedded_dev"]["spearman"]["values"] == scores
    assert cell["tasks"]["embedded_dev"]["spearman"]["mean"] == statistics.fmean(scores)
    assert values[0]["command"].count("--gs_multiple 2 ") == 1
    assert saved["cells"]["1"]["seeds"] == []
    assert (folder / "picture.png").read_bytes().startswith(b"\x89PNG") and not list(folder.rglob("checkpoint-*"))
    shown = (folder / "table.md").read_text()
    assert f"{statistics.fmean(scores):.2f} ± {statistics.stdev(scores):.2f}" in shown
    assert "| reported: STS average, BERT-base |" in shown.replace("\n", " ") and "| 77.11 |" in shown

    capsys.readouterr()
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("model.safetensors")}
    run_sweep(parse_sweep([*argv[:-2], "--output_dir", str(folder), "--cells", "0", "2", "3"], GRIDS))
    printed = capsys.readouterr().out
    assert "6 runs, 4 of them finished before" in printed
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_cells_can_use_models_of_other_cells_and_options_go_where_they_belong(bert, corpus, tmp_path):
    more = ["--seeds", 3, "--cells", "simcse", "dclr", "--rse_lambda2", "0", "--dcl_augmentation", "dropout",
            "--dcl_mlm_weight", "0", "--dclr_threshold", "0.5"]  # fmt: skip
    sweep = parse_sweep(command("methods", bert, corpus, tmp_path / "m", *more), GRIDS)
    complement = str(tmp_path / "m" / "simcse" / "seed-3")
    assert sweep.arguments("dclr", 3).method_options["dclr_complement"] == complement
    assert sweep.arguments("dclr+vadv", 3).method_options["dclr_threshold"] == 0.5
    assert sweep.arguments("dcl", 3).method_options["dcl_mlm_weight"] == 0
    assert sweep.arguments("simcse", 3).method_options == {}
    record = run_sweep(sweep)
    assert [len(record["cells"][cell]["seeds"]) for cell in ("simcse", "dclr", "vadv")] == [1, 1, 0]


def test_a_failed_cell_is_reported_and_the_rest_is_trained(bert, corpus, tmp_path):
    grids = tmp_path / "grids.yaml"
    grids.write_text("lr:\n  vary: {learning_rate: [1.0e-3, 1.0e+30]}\n  axis: log\n  method: gs_infonce\n")
    folder = tmp_path / "sweep"
    done = subprocess.run(
        [sys.executable, SCRIPT, *command("lr", bert, corpus, folder, "--seeds", 0, "--grids", grids)],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "is not finite" in done.stdout and "| `1e+30` | 0 (1 failed) |" in done.stdout
    record = json.loads((folder / "results.json").read_text())
    assert record["cells"]["0.001"]["seeds"] == [0] and "not finite" in record["cells"]["1e+30"]["failed"]["0"]

    argv = command("lr", bert, corpus, folder, "--seeds", 0, "--grids", grids)
    record = run_sweep(parse_sweep([*argv, "--cells", "0.001"], GRIDS))
    assert "not finite" in record["cells"]["1e+30"]["failed"]["0"]  # another call does not forget it
    assert "--overwrite_output_dir" in parse_sweep(argv, GRIDS).arguments("1e+30", 0).command
    grids.write_text(grids.read_text().replace("gs_infonce", "dclr"))
    with pytest.raises(UserError, match="holds another sweep, with methods"):
        run_sweep(parse_sweep(argv, GRIDS))


def test_input_that_is_wrong_for_some_cells_or_for_all(bert, corpus, tmp_path):
    argv = command("dclr-data", bert, corpus, tmp_path / "some", "--seeds", 0, "--cells", 0.01, 1)
    record = run_sweep(parse_sweep(argv, GRIDS))
    assert "fewer than one batch of 8" in record["cells"]["0.01"]["failed"]["0"]
    assert record["cells"]["1"]["seeds"] == [0] and record["cells"]["1"]["selection"][0]["on_test_set"] is False
    with pytest.raises(UserError, match="no run could be trained: .*nowhere.txt"):
        run_sweep(parse_sweep(command("vadv-norm", bert, "/nowhere.txt", tmp_path / "all", "--seeds", 0), GRIDS))
    corpus.write_text(corpus.read_text() + "one more line\n", encoding="utf-8")
    with pytest.raises(UserError, match="different corpora"):
        run_sweep(parse_sweep([*argv[:-2], *argv[-2:], "--cells", "0.3"], GRIDS))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "results.json").write_text("{}")
    with pytest.raises(UserError, match="holds a run that is no sweep"):
        run_sweep(parse_sweep(command("vadv-norm", bert, corpus, tmp_path / "run", "--seeds", 0), GRIDS))
    assert (tmp_path / "run" / "results.json").read_text() == "{}"


def test_a_recipe_holds_for_all_cells_and_no_token_is_written(bert, corpus, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("temperature: 0.2\nrse_rho: 1.0\nlearning_rate: 1.0e-5\n")
    argv = command("methods", bert, corpus, tmp_path / "m", "--rse_lambda2", 0, "--learning_rate", "1e-3")
    sweep = parse_sweep([argv[0], str(recipe), *argv[1:], "--hub_token", "hf_" + "a" * 30, "--cells", "vadv"], GRIDS)
    for cell in ("simcse", "vadv", "robustsentembed"):
        arguments = sweep.arguments(cell, 0)
        assert arguments.model.temperature == 0.2 and arguments.training.learning_rate == 1e-3
    assert sweep.arguments("robustsentembed", 0).method_options["rse_rho"] == 1.0
    run_sweep(dataclasses.replace(sweep, seeds=[0]))
    for path in (tmp_path / "m").rglob("*.json"):
        assert "hf_aaa" not in path.read_text(), path
    recipe.write_text("seeds: [4, 5]\n")
    with pytest.raises(UserError, match="--seeds is set by the sweep"):
        parse_sweep(["vadv-norm", str(recipe)], GRIDS)


def test_a_killed_sweep_goes_on_within_the_run(bert, corpus, tmp_path):
    folder = tmp_path / "sweep"
    argv = command("vadv-norm", bert, corpus, folder, "--seeds", 0, "--save_steps", 2, "--logging_steps", 1)
    argv[argv.index("--max_steps") + 1] = "40"
    process = subprocess.Popen([sys.executable, SCRIPT, *argv], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                               env={**os.environ, "PYTHONPATH": str(ROOT)})  # fmt: skip
    marker = folder / "l2" / "seed-0"
    deadline = time.monotonic() + 600
    while not list(marker.glob("checkpoint-*/trainer_state.json")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (marker / "results.json").exists()
    done = subprocess.run([sys.executable, SCRIPT, *argv], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "resuming from" in done.stdout and "| `linf` | 1 |" in done.stdout
    with pytest.raises(UserError, match="holds another sweep, with shared"):
        run_sweep(parse_sweep([*argv, "--learning_rate", "1"], GRIDS))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name a grid first: one of vadv-lambda"),
        (["vadv-lamda"], "did you mean vadv-lambda"),
        (["vadv-norm", "--seed", "1"], "--seed is set by the sweep vadv-norm"),
        (["vadv-norm", "--vadv_norm", "l2"], "--vadv_norm is set by the sweep"),
        (["methods", "--method", "vadv"], "--method is set by the sweep"),
        (["methods", "--dclr_complement", "self"], "--dclr_complement is set by the sweep"),
        (["methods", "--cells", "dclr", "--output_dir", "/nowhere"], "uses the model of simcse, which is not trained"),
        (["vadv-norm", "--bf16", "false", "r.yaml"], "cannot read the recipe r.yaml|right after the name of the grid"),
        (["vadv-norm", "/nowhere.yaml"], "cannot read the recipe /nowhere.yaml"),
        (["vadv-norm", "--seeds", "1", "1"], "names a seed twice"),
        (["vadv-norm", "--seeds", "x"], "invalid int value"),
        (["vadv-norm", "--cells", "l3"], "no cell 'l3': choose among l2, linf"),
        (["vadv-norm", "--gs_lambda", "1"], "--gs_lambda belongs to a method that no cell"),
        (["vadv-norm", "--learning_rat", "1"], "did you mean --learning_rate"),
        (["vadv-norm", "--grids", "/nowhere.yaml"], "cannot read the grids /nowhere.yaml"),
        (["dclr-parts"], "need --dclr_complement"),
    ],
)  # fmt: skip
def test_mistakes(argv, message):
    with pytest.raises(UserError, match=message):
        parse_sweep(argv, GRIDS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "entries of the form"),
        ("a: {vary: {x: [1]}, colour: red}", "unknown key colour"),
        ("a: {method: vadv}", "either vary or cells"),
        ("a: {vary: {x: 1}}", "must list the values of x"),
        ("a: {vary: {x: [1], y: [2]}}", "with a single entry"),
        ("a: {cells: [1]}", "label: {option: value}"),
        ("a: {cells: {}}", "has no cell"),
        ("a: {vary: {x: [1]}, axis: polar}", "axis must be one of"),
        ("a: {vary: {x: [b]}, axis: log}", "needs cells that are numbers"),
        ("a: {vary: {x: [1]}, plot: [loss]}", "not loss"),
        ("a: {vary: {x: [1]}, reported: [1]}", "reported must be of the form"),
        ("a: {vary: {x: [1]}, reported: {y: {1: z}}}", "reported must be of the form"),
        ("a: {vary: {x: [a b.txt, a-b.txt]}}", "two cells whose names look the same"),
        ("a: {vary: {x: [1, 1]}}", "two cells whose names look the same"),
        ("a: {vary: {seeds: [1]}}", "seeds is not for a grid to set"),
    ],
)
def test_malformed_grids(text, message, tmp_path):
    path = tmp_path / "grids.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_grids(path)


def test_the_norms_of_dcl_are_compared_by_their_cosines(masked_lm, corpus, tmp_path):
    """DCL Figure 3: mean cosine of positive and of random pairs."""
    argv = command("dcl-norm", masked_lm, corpus, tmp_path / "sweep", "--seeds", 0, "--dcl_augmentation", "dropout")
    sweep = parse_sweep(argv, GRIDS)
    record = run_sweep(sweep)
    assert list(record["cells"]) == ["none", "batch", "power"]
    shown = table(summarise(sweep))
    assert "positive_cosine (embedded_dev)" in shown and "random_cosine (embedded_dev)" in shown
    assert "0.9842" in shown
