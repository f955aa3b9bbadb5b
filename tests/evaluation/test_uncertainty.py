"""The bootstrap against scipy on every resample drawn out in full, and the comparison of two models."""

from __future__ import annotations

import json
import runpy
import shutil
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from transformers import AutoModel

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import uncertainty
from hf_robustcse.evaluation.compare import run_comparison
from hf_robustcse.evaluation.run import run_evaluation
from hf_robustcse.evaluation.uncertainty import compare, interval, resampled_spearman, spearman_interval, verdict

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "run_eval.py"


@pytest.fixture(scope="module")
def scored() -> tuple[np.ndarray, np.ndarray]:
    """Similarities (2, 70), the second system rounded to many ties, and gold scores with ties (70,)."""
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 11, 70) / 2
    noise = rng.normal(size=(2, 70))
    return np.stack([gold / 5 + noise[0], (gold / 5 + noise[1]).round(0)]), gold


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The weights of every resample, as they are drawn; blocks are small, so that there are several."""
    seen: list[np.ndarray] = []
    original = uncertainty._draws

    def record(*arguments: object) -> object:
        for weights in original(*arguments):
            seen.extend(weights)
            yield weights

    monkeypatch.setattr(uncertainty, "_draws", record)
    monkeypatch.setattr(uncertainty, "_CELLS", 70 * 30)
    return seen


def test_each_resample_against_scipy(scored: tuple[np.ndarray, np.ndarray], drawn: list[np.ndarray]) -> None:
    similarities, gold = scored
    values = resampled_spearman(similarities, gold, samples=200, seed=3, name="x")
    assert values.shape == (2, 200) and len(drawn) == 200
    for column, weights in zip(values.T, drawn, strict=True):
        assert weights.sum() == 70
        pairs = [i for i, times in enumerate(weights) for _ in range(times)]
        expected = [spearmanr(row[pairs], gold[pairs])[0] for row in similarities]
        assert column == pytest.approx(expected, abs=1e-12)
    assert np.array(drawn).mean(axis=0) == pytest.approx(np.ones(70), abs=0.5)  # every pair, about once a resample


def test_resamples_depend_on_seed_and_task_only(
    scored: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    similarities, gold = scored

    def values(seed: int = 3, name: str = "x", rows: slice = slice(None)) -> np.ndarray:
        return resampled_spearman(similarities[rows], gold, samples=100, seed=seed, name=name)

    expected = values()
    assert not np.allclose(values(seed=4), expected) and not np.allclose(values(name="y"), expected)
    np.testing.assert_array_equal(values(rows=slice(1, 2)), expected[1:])
    monkeypatch.setattr(uncertainty, "_CELLS", 100)
    np.testing.assert_array_equal(values(), expected)


def test_constant_side_is_zero() -> None:
    gold = np.array([1.0, 2.0, 3.0])
    assert not resampled_spearman(np.full((1, 3), 0.25), gold, samples=100, seed=0, name="x").any()
    values = resampled_spearman(gold[None], gold, samples=400, seed=0, name="x")
    assert set(np.round(values.ravel(), 9)) == {0.0, 1.0}  # 0 where one pair was drawn three times
    assert (values == 0).mean() == pytest.approx(1 / 9, abs=0.05)


def test_interval_is_the_middle_of_the_draws(scored: tuple[np.ndarray, np.ndarray]) -> None:
    assert interval(np.arange(1001.0)) == pytest.approx((25, 975))
    similarities, gold = scored
    record = spearman_interval(similarities[0], gold, samples=500, seed=1, name="x")
    draws = sorted(100 * resampled_spearman(similarities[:1], gold, samples=500, seed=1, name="x")[0])
    assert draws[11] <= record["spearman_low"] <= draws[13] and draws[486] <= record["spearman_high"] <= draws[488]
    assert record["spearman_low"] < 100 * spearmanr(similarities[0], gold)[0] < record["spearman_high"]


def test_interval_covers_the_truth() -> None:
    """200 data sets of normal pairs, whose Spearman correlation is 6 / pi asin(rho / 2)."""
    rng, rho, hits = np.random.default_rng(5), 0.6, 0
    truth = 600 / np.pi * np.arcsin(rho / 2)
    for seed in range(200):
        x, y = rng.multivariate_normal([0, 0], [[1, rho], [rho, 1]], size=150).T
        record = spearman_interval(x, y, samples=200, seed=seed, name="x")
        hits += record["spearman_low"] <= truth <= record["spearman_high"]
    assert 180 <= hits <= 199  # 190 are expected; the percentile interval of so few pairs is a little narrow


def test_verdicts() -> None:
    assert verdict(0.1, 0.4) == "B is better" and verdict(-0.4, -0.1) == "A is better"
    assert verdict(-0.1, 0.4) == verdict(0.0, 0.4) == verdict(-0.4, 0.0) == "cannot be told"


def test_compare_against_a_loop(drawn: list[np.ndarray]) -> None:
    rng = np.random.default_rng(1)
    gold = {"x": rng.integers(0, 6, 70).astype(float), "y": rng.integers(0, 6, 70).astype(float)}
    a = {name: rng.normal(size=(2, 70)) + 0.1 * gold[name] for name in gold}
    b = {name: rng.normal(size=(3, 70)) + 0.9 * gold[name] for name in gold}
    result = compare(a, b, gold, samples=120, seed=0)
    resamples = {"x": drawn[:120], "y": drawn[120:]}

    def scores(side: dict, name: str, pairs: list[int]) -> list[float]:
        return [100 * spearmanr(row[pairs], gold[name][pairs])[0] for row in side[name]]

    differences = {}
    for name in gold:
        own = result["tasks"][name]
        score_a, score_b = scores(a, name, list(range(70))), scores(b, name, list(range(70)))
        assert own["a"] == pytest.approx(sum(score_a) / 2) and own["b"] == pytest.approx(sum(score_b) / 3)
        middle = sum(score_b) / 3
        assert own["b_std"] == pytest.approx((sum((score - middle) ** 2 for score in score_b) / 2) ** 0.5)
        assert own["difference"] == pytest.approx(own["b"] - own["a"]) and own["n"] == 70
        differences[name] = []
        for weights in resamples[name]:
            pairs = [i for i, times in enumerate(weights) for _ in range(times)]
            differences[name].append(sum(scores(b, name, pairs)) / 3 - sum(scores(a, name, pairs)) / 2)
        assert (own["low"], own["high"]) == pytest.approx(np.quantile(differences[name], [0.025, 0.975]))
        assert own["verdict"] == "B is better"
    mean = result["mean"]
    both = [(x + y) / 2 for x, y in zip(differences["x"], differences["y"], strict=True)]
    assert (mean["low"], mean["high"]) == pytest.approx(np.quantile(both, [0.025, 0.975]))
    assert mean["n"] == 2 and mean["a"] == pytest.approx((result["tasks"]["x"]["a"] + result["tasks"]["y"]["a"]) / 2)
    runs = [sum(100 * spearmanr(a[name][run], gold[name])[0] for name in gold) / 2 for run in (0, 1)]
    assert mean["a_std"] == pytest.approx(abs(runs[0] - runs[1]) / 2**0.5)


def test_a_model_against_itself_cannot_be_told(scored: tuple[np.ndarray, np.ndarray]) -> None:
    similarities, gold = scored
    own = compare({"x": similarities[:1]}, {"x": similarities[:1]}, {"x": gold}, samples=100, seed=0)["mean"]
    assert (own["difference"], own["low"], own["high"]) == (0, 0, 0) and own["verdict"] == "cannot be told"
    assert own["a_std"] is None


# --- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path, pairs: list, write_tsv: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    """STS-B dev and SICK-R dev of 60 pairs each."""
    from hf_robustcse.evaluation import sts

    scored = [(first, second, max(score, 1.0)) for first, second, score in pairs]
    for name, rows in (("STSB", scored[:60]), ("SICKR", scored[60:])):
        write_tsv(tmp_path / "data" / name / "dev.tsv", rows)
        monkeypatch.setitem(sts.TASKS, name, sts.StsTask(name, {"dev": 60, "test": 60}, lowest=sts.TASKS[name].lowest))
    return tmp_path / "data"


@pytest.fixture
def other(bert: Path, tmp_path: Path) -> Path:
    """The same encoder with other weights."""
    return reseeded(bert, tmp_path / "other", 7)


def reseeded(bert: Path, folder: Path, seed: int) -> Path:
    shutil.copytree(bert, folder)
    model = AutoModel.from_pretrained(bert)
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.5)
    model.save_pretrained(folder)
    return folder


OPTIONS = {"split": "dev", "pooling": "mean", "device": "cpu"}


def test_plain_evaluation_with_intervals(bert: Path, data: Path, capsys: pytest.CaptureFixture) -> None:
    results = run_evaluation(str(bert), ["STSB", "SICKR"], data, bootstrap=200, **OPTIONS)
    for record in results["tasks"].values():
        assert record["spearman_low"] < record["spearman"] < record["spearman_high"]
    assert results["protocol"]["bootstrap"] == {"samples": 200, "level": 0.95, "resampled": "pairs"}
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("stsb_dev"))
    own = results["tasks"]["stsb_dev"]
    assert line.split()[-2:] == [f"{own[key]:.2f}" for key in ("spearman_low", "spearman_high")]
    off = run_evaluation(str(bert), ["STSB"], data, bootstrap=0, **OPTIONS)
    assert "spearman_low" not in off["tasks"]["stsb_dev"] and "bootstrap" not in off["protocol"]
    assert off["tasks"]["stsb_dev"]["spearman"] == own["spearman"]


def test_comparison(bert: Path, other: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "out.json"
    results = run_comparison(
        str(bert),
        str(other),
        ["STSB", "SICKR"],
        data,
        bootstrap=150,
        output_json=output,
        argv=["run_eval.py"],
        **OPTIONS,
    )
    assert json.loads(output.read_text(encoding="utf-8")) == results
    models = {"a": str(bert), "b": str(other)}
    alone = {side: run_evaluation(model, ["STSB", "SICKR"], data, **OPTIONS) for side, model in models.items()}
    for name, record in results["tasks"].items():
        for side in ("a", "b"):
            assert record[side] == pytest.approx(alone[side]["tasks"][name]["spearman"], abs=1e-9)
        assert record["sha256"] == alone["a"]["tasks"][name]["sha256"] and record["n"] == 60
        assert record["verdict"] == verdict(record["low"], record["high"])
    assert [model["model"] for model in results["a"]] == [str(bert)] and results["command"] == "run_eval.py"
    printed = capsys.readouterr().out
    (line,) = (line for line in printed.splitlines() if line.startswith("mean of 2"))
    assert line.endswith(results["mean"]["verdict"]) and f"{results['mean']['difference']:+.2f}" in line


def test_seeds_of_a_run(bert: Path, other: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    root = tmp_path / "run"
    for seed in (0, 2, 10):
        reseeded(bert, root / f"seed-{seed}", seed)
    (root / "seed-3").mkdir()  # a seed that is not there yet
    shutil.copytree(root / "seed-2", root, dirs_exist_ok=True)
    results = run_comparison(str(other), str(root), ["STSB"], data, bootstrap=100, **OPTIONS)
    assert [Path(model["model"]).name for model in results["b"]] == ["seed-0", "seed-2", "seed-10"]
    scores = [
        run_evaluation(str(root / f"seed-{seed}"), ["STSB"], data, **OPTIONS)["tasks"]["stsb_dev"]["spearman"]
        for seed in (0, 2, 10)
    ]
    record = results["tasks"]["stsb_dev"]
    assert record["b"] == pytest.approx(np.mean(scores)) and record["b_std"] == pytest.approx(np.std(scores, ddof=1))
    assert record["a_std"] is None
    printed = capsys.readouterr().out
    assert f"{record['b']:.2f} ± {record['b_std']:.2f}" in printed and "3 seeds" in printed


def test_tasks_on_the_same_pairs_share_their_draw(scored: tuple[np.ndarray, np.ndarray]) -> None:
    similarities, gold = scored
    a, b = ({name: row[None] for name in ("x", "x noisy")} for row in similarities[:2])
    own = compare(a, b, dict.fromkeys(a, gold), samples=100, seed=0, draw={"x noisy": "x"})
    alone = compare(a, b, dict.fromkeys(a, gold), samples=100, seed=0)
    assert own["tasks"]["x"] == own["tasks"]["x noisy"] == own["mean"] | {"n": len(gold)}
    assert alone["mean"]["high"] - alone["mean"]["low"] < own["mean"]["high"] - own["mean"]["low"]


def test_the_score_of_a_run_is_the_mean_over_its_versions(drawn: list[np.ndarray]) -> None:
    rng = np.random.default_rng(2)
    gold = rng.integers(0, 6, 70).astype(float)
    a, b = rng.normal(size=(2, 3, 70)), rng.normal(size=(1, 3, 70)) + 0.2 * gold
    result = compare({"x": a}, {"x": b}, {"x": gold}, samples=120, seed=0)["mean"]
    runs = [np.mean([100 * spearmanr(row, gold)[0] for row in run]) for run in a]
    assert (result["a"], result["a_std"]) == pytest.approx((np.mean(runs), np.std(runs, ddof=1)))
    differences = []
    for weights in drawn[:120]:
        pairs = [i for i, times in enumerate(weights) for _ in range(times)]
        scores = [[spearmanr(row[pairs], gold[pairs])[0] for run in side for row in run] for side in (a, b)]
        differences.append(100 * (np.mean(scores[1]) - np.mean(scores[0])))
    assert (result["low"], result["high"]) == pytest.approx(np.quantile(differences, [0.025, 0.975]))


def test_comparison_under_noise(bert: Path, other: Path, data: Path, tmp_path: Path, capsys) -> None:
    words = tmp_path / "words.tsv"
    words.write_text("cat\tfeline\ndog\thound\nman\tguy\nhouse\thome\n", encoding="utf-8")
    noise = {"noise_tasks": ["STSB"], "noise_rates": [0.3, 1.0], "noise_word_list": str(words)}
    results = run_comparison(str(bert), str(other), ["SICKR", "noise"], data, bootstrap=100, **noise, **OPTIONS)
    assert list(results["tasks"]) == ["sickr_dev"] and results["mean"]["n"] == 1
    for side, model in (("a", bert), ("b", other)):
        curves = run_evaluation(str(model), ["noise"], data, **noise, **OPTIONS)["noise"]
        for kind in ("typos", "synonyms"):
            wanted = np.mean(curves[kind]["stsb_dev"]["spearman"][1:])
            assert results["noise"]["tasks"][f"stsb_dev {kind}"][side] == pytest.approx(wanted, abs=1e-6)
    scores = results["noise"]
    assert scores["mean"]["difference"] == pytest.approx(np.mean([t["difference"] for t in scores["tasks"].values()]))
    assert results["protocol"]["noise"] == {"rates": [0.3, 1.0], "perturbed": "both", "seeds": [1000, 1001, 1002]}
    printed = capsys.readouterr().out
    assert "stsb_dev typos" in printed and "mean over the rates 0.3, 1 and 3 noise seeds each" in printed
    only = run_comparison(str(bert), str(other), ["noise"], data, bootstrap=100, **noise, **OPTIONS)
    assert only["tasks"] == {} and "mean" not in only and only["noise"] == scores


@pytest.mark.parametrize(
    ("tasks", "options", "words"),
    [
        (["STSB", "geometry"], {}, "STS tasks and noise only: leave geometry out"),
        (["mr", "STSB"], {}, "STS tasks and noise only: leave mr out"),
        (["STSB"], {"noise_rates": [0.5]}, "--noise_rates belongs to the noise curves: add noise to --tasks"),
        (["noise"], {"noise_rates": [2.0]}, "--noise_rates must be between 0 and 1"),
        (["noise"], {"whitening": True}, "compare noise without it"),
        (["STSB"], {"bootstrap": 0}, "--bootstrap 0 is too few: at least 100$"),
        (["STSB"], {"bootstrap": 99}, "--bootstrap 99 is too few"),
        (["STSB"], {"output_json": "."}, "is a folder"),
    ],
)
def test_refusals(bert: Path, data: Path, tasks: list[str], options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run_comparison(str(bert), str(bert), tasks, data, **{**OPTIONS, **options})


def test_plain_evaluation_refuses_few_resamples(bert: Path, data: Path) -> None:
    with pytest.raises(UserError, match="at least 100, or 0 for none"):
        run_evaluation(str(bert), ["STSB"], data, bootstrap=5, **OPTIONS)


def test_script(
    bert: Path, other: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "out.json"
    arguments = ["--compare", bert, other, "--tasks", "embedded_dev", "--pooling", "cls", "--output_json", output]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments), "--device", "cpu"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runpy.run_path(str(SCRIPT), run_name="__main__")
    results = json.loads(output.read_text(encoding="utf-8"))
    assert results["protocol"]["bootstrap"]["samples"] == 1000 and "--compare" in results["command"]
    for option in ("--model_name_or_path", "--geometry_text"):
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--compare", "a", "b", option, "c"])
        with pytest.raises(SystemExit) as caught:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        assert caught.value.code == 2 and option in capsys.readouterr().err
