"""The study: what it runs from what is finished, and its tables, on results written by hand."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import pytest
import yaml

from hf_robustcse.arguments import parse_arguments
from hf_robustcse.errors import UserError
from hf_robustcse.files import write_json

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import study, study_pages  # noqa: E402

DECLARED = {
    "about": "a test", "train": {"pooler": "cls", "learning_rate": 1e-3}, "dev": "stsb_dev", "trial_steps": 20,
    "trial_seed": 9, "steps": 40, "seeds": [0, 1],
    "judge": {"steps": ["--tasks", "sts"], "seconds": ["--tasks", "sts"]},
    "attack_resources": ["--pos_tagger", "none"],
    "systems": {
        "simcse": {"options": {"method": "simcse"}, "trials": [{}, {"learning_rate": 2e-3}]},
        "dclr": {"options": {"method": "dclr", "dclr_complement": "{first}"}, "trials": [{}, {"dclr_k": 2.0}]},
    },
    "attacks": {"MR": ["--task", "MR"]},
    "finetune": {"ANLI": ["--task", "anli"]},
}  # fmt: skip


ONE = {"options": {"method": "simcse"}, "trials": [{}]}


@pytest.fixture
def make(tmp_path):
    def make(systems_alone=None, **changes):
        path = tmp_path / "study.yaml"
        path.write_text(yaml.safe_dump({**DECLARED, **changes}, sort_keys=False))
        options = argparse.Namespace(
            output_dir=tmp_path / "out",
            train_file="corpus.txt",
            model_name_or_path=None,
            data_dir="data",
            jobs=1,
            systems=systems_alone,
            embedding_cache=None,
        )
        return study.Work(study.read_study(path), options)

    return make


def finish(work, name, folder=None, *, dev=50.0, seconds=4.0, steps=40, **more):
    stage = name.split("-")[0]
    groups = work.cells(stage) if stage in ("trials", "steps", "seconds", "attack", "finetune") else []
    cells = {cell.name: cell for group in groups for cell in group}
    write_json(work.done(name), {"words": list(cells[name].words) if name in cells else [], "seconds": 2.0, **more})
    if folder is not None:
        record = {
            "tasks": {"stsb_dev": {"spearman": dev}},
            "training": {"seconds": seconds, "steps": steps},
            "command": "x",
        }
        write_json(folder / "results.json", record)


def finish_trials(work, scores):
    for system, devs in scores.items():
        for number, dev in enumerate(devs):
            more = {"stopped": "stopped: collapsed"} if dev is None else {}
            folder = None if dev is None else work.trial(system, number)
            finish(work, f"trials-{system}-{number}", folder, dev=dev, **more)


def value_of(cell, option):
    return cell.words[cell.words.index(f"--{option}") + 1]


def test_every_system_has_as_many_trials_and_the_first_ones_come_first(make):
    first, others = make().cells("trials")
    assert [cell.name for cell in first] == ["trials-simcse-0", "trials-simcse-1"]
    assert [cell.name for cell in others] == ["trials-dclr-0", "trials-dclr-1"]
    assert value_of(others[0], "dclr_complement").endswith("trials/simcse/0")
    assert value_of(others[1], "dclr_k") == "2.0" and value_of(others[1], "max_steps") == "20"
    assert value_of(first[1], "learning_rate") == "0.002"
    assert {value_of(cell, "seed") for cell in first + others} == {"9"}


def test_the_best_trial_is_trained_and_seconds_become_steps(make):
    work = make()
    with pytest.raises(UserError, match="trials-simcse-0 is not finished"):
        work.cells("steps")
    finish_trials(work, {"simcse": [50.0, 51.0], "dclr": [None, 40.0]})
    assert (work.chosen("simcse"), work.chosen("dclr")) == (1, 1)
    first, others = work.cells("steps")
    assert [cell.name for cell in first] == ["steps-simcse-0", "steps-simcse-1"]
    assert value_of(others[1], "dclr_complement").endswith("steps/simcse/seed-1")
    with pytest.raises(UserError, match="seconds a step of simcse are not measured"):
        work.cells("seconds")
    assert [cell.words[-1] for cell in work.cells("speed")[0]] == ["--dry_run", "--dry_run"]
    for system, seconds in (("simcse", 0.1), ("dclr", 0.25)):
        log = work.folder / "logs" / f"speed-{system}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"dry run\ntime: {seconds:.3f} s a step here, so about 1 min\n")
    (cells,) = work.cells("seconds")
    assert [(cell.name, value_of(cell, "max_steps")) for cell in cells] == [
        ("seconds-dclr-0", "16"),
        ("seconds-dclr-1", "16"),
    ]
    assert work.model("seconds", "simcse", 0) == work.model("steps", "simcse", 0)


def test_some_systems_alone(make):
    assert make(["simcse"]).cells("trials")[1] == [] and len(make(["dclr"]).cells("trials")[0]) == 2
    with pytest.raises(UserError, match="no system dlcr: choose among simcse, dclr"):
        make(["dlcr"])


def test_what_is_finished_is_not_run_and_other_options_are_refused(make):
    work = make()
    finish_trials(work, {"simcse": [50.0, 51.0], "dclr": [41.0, 40.0]})
    assert work.run("trials", float("inf")) == ([], 0)
    with pytest.raises(UserError, match="trials-simcse-0 was finished with other options"):
        make(trial_steps=30).run("trials", float("inf"))


def test_every_system_is_compared_under_the_noise_of_its_judges(make):
    noise = ["--noise_tasks", "STSB", "sickr", "--noise_rates", "0.2"]
    judge = {"steps": ["--tasks", "sts", "noise", *noise, "--seed", "1"], "seconds": ["--tasks", "sts"]}
    work = make(judge=judge)
    finish_trials(work, {"simcse": [50.0, 49.0], "dclr": [41.0, 42.0]})
    for system in ("simcse", "dclr"):
        for seed in (0, 1):
            finish(work, f"steps-{system}-{seed}", work.model("steps", system, seed), dev=50.0)
    ((cell,),) = work.cells("compare")
    assert cell.name == "compare-steps-dclr" and "1" not in cell.words
    first = cell.words.index("--tasks")
    assert list(cell.words[first : first + 8]) == ["--tasks", "sts", "noise", *noise]


def test_every_model_is_attacked_and_fine_tuned_the_untrained_encoder_too(make):
    work = make()
    finish_trials(work, {"simcse": [50.0, 49.0], "dclr": [41.0, 42.0]})
    finish(work, "steps-simcse-1", work.model("steps", "simcse", 1))
    ((attack,),) = work.cells("attack")
    assert attack.name == "attack-MR-steps-simcse-1" and {"--task", "--pos_tagger"} < set(attack.words)
    ((untrained, trained),) = work.cells("finetune")
    assert untrained.name == "finetune-ANLI-untrained" and value_of(untrained, "model_name_or_path").endswith("encoder")
    assert value_of(trained, "model_name_or_path") == str(work.model("steps", "simcse", 1))
    assert value_of(trained, "output_dir") == str(work.folder / "finetuned" / "ANLI" / "steps-simcse-1")


def test_a_system_may_go_on_from_the_first_one(make):
    after = {"options": {"method": "anchor", "model_name_or_path": "{first}"}, "trials": [{}, {}]}
    work = make(systems={**DECLARED["systems"], "after": after})
    work.options.model_name_or_path = "encoder"
    first, others = work.cells("trials")
    for cells, wanted in ((first, "encoder"), (others[-1:], str(work.trial("simcse", 0)))):
        for cell in cells:
            assert cell.words[cell.words.index("--model_name_or_path") + 1] == wanted


def test_too_late_and_failed_cells_are_told(make, monkeypatch):
    work = make(train={"pooler": "cls", "no_such_option": 1}, systems={"simcse": ONE})
    assert work.run("trials", float("-inf")) == ([], 1)
    failed, left = work.run("trials", float("inf"))
    assert (len(failed), left) == (1, 0) and "unknown argument --no_such_option" in failed[0]
    assert not list((work.folder).glob("done/*"))


def test_what_was_stopped_goes_on(make, monkeypatch):
    """Training is told to; an attack goes on by itself and has no such option."""
    work, ran = make(), []
    monkeypatch.setattr(
        study, "run_logged", lambda words, log, **more: ran.append(words) or (1, "stopped from outside")
    )
    for script, told in (("run_unsup.py", True), ("run_finetune.py", True), ("run_attack.py", False)):
        folder = work.folder / script
        write_json(folder / "manifest.json", {})
        assert work._start(study.Cell("x", (script, "--output_dir", str(folder))))
        assert (ran[-1][-2:] == ["--resume_from_checkpoint", "last"]) is told


def test_evaluations_share_embeddings(make, monkeypatch):
    """The option is no part of what was done: figures are the same with it."""
    work, ran = make(), []
    monkeypatch.setattr(study, "run_logged", lambda words, log, **more: ran.append(words) or (0, ""))
    for cache in (None, Path("kept")):
        work.options.embedding_cache = cache
        for script in ("run_eval.py", "run_unsup.py"):
            assert work._start(study.Cell("x", (script, "--device", "cpu"))) is None
    assert [words[3:] for words in ran] == [[], [], ["--embedding_cache", "kept"], []]
    assert study.read_json(work.done("x"))["words"] == ["run_unsup.py", "--device", "cpu"]


def test_figures_spread_and_tables(make):
    work = make()
    finish_trials(work, {"simcse": [50.0, 49.0], "dclr": [41.0, 42.0]})
    write_json(work.folder / "judged" / "untrained.json", {"tasks": {"STSB": {"spearman": 30.0}}})
    for system, scores in (("simcse", (50.0, 52.0)), ("dclr", (60.0, 61.0))):
        for seed, score in enumerate(scores):
            finish(work, f"steps-{system}-{seed}", work.model("steps", system, seed), dev=score + 1)
            judged = {
                "tasks": {"STSB": {"spearman": score}, "STS12": {"spearman": score - 10}, "MR": {"accuracy": 70.0}},
                "noise": {
                    "typos": {
                        "STSB": {"rates": [0.0, 0.2], "spearman": [score, score - 20], "relative": {"retrieval": 90.0}}
                    }
                },
            }
            write_json(work.folder / "judged" / f"steps-{system}-{seed}.json", judged)
            counts = {"attempted": 10, "succeeded": 5 + seed, "skipped": 1}
            place = work.folder / "attacked" / "MR" / f"steps-{system}-{seed}" / "results.json"
            write_json(place, {"attacks": {"MR": {"pwws": counts}}})
            finish(work, f"attack-MR-steps-{system}-{seed}")
            accuracy = {"ANLI_R1": {"accuracy": score - 20, "robust": {"accuracy": 30.0}}, "SNLI_CAD": {"n": 3}}
            place = work.finetuned("ANLI", f"steps-{system}-{seed}") / "results.json"
            write_json(place, {"protocol": {"metric": "accuracy"}, "tasks": accuracy})
            if (system, seed) != ("dclr", 1):  # still running
                finish(work, f"finetune-ANLI-steps-{system}-{seed}")
            finish(work, f"judge-steps-{system}-{seed}")
    mean = {"difference": 9.5, "low": 8.0, "high": 11.0, "verdict": "B is better", "a_std": 1.0, "b_std": None}
    write_json(
        work.folder / "compared" / "steps-dclr.json",
        {
            "tasks": {},
            "mean": mean,
            "noise": {"tasks": {"STSB typos": {**mean, "low": -1.0, "verdict": "cannot be told"}}},
            "command": "x",
        },
    )
    write_json(work.done("judge-untrained"), {"words": ["run_eval.py"], "seconds": 1.0})
    record = study.collect(work)
    assert record["chosen"] == {"simcse": 0, "dclr": 1}
    assert record["summary"]["steps"]["dclr"]["STS"] == pytest.approx({"mean": 55.5, "std": 0.5**0.5, "n": 2})
    assert record["attacked"]["MR"]["dclr"]["all"]["success_rate"] == pytest.approx(55.0)
    assert record["finetuned"]["ANLI"]["simcse"]["ANLI_R1"] == pytest.approx({"mean": 31.0, "std": 2**0.5, "n": 2})
    assert set(record["finetuned"]["ANLI"]["dclr"]) == {"ANLI_R1", "ANLI_R1 robust"}
    shown = study.tables(record)
    assert "| ANLI, fine-tuned | ANLI R1 | seeds |" in shown and "| `dclr` | 40.00 | 1 |" in shown
    assert (
        "| `dclr` | 61.50 ± 0.71 | 50.50 ± 0.71 | 60.50 ± 0.71 | 55.50 ± 0.71 | 70.00 ± 0.00 | "
        "+9.50 (+8.00 to +11.00), better | 40 | 2 |" in shown
    )
    assert "| robustness, equal steps | typos 20 % | found again | typos, paired | steps | seeds |" in shown
    assert "| `dclr` | 40.50 ± 0.71 | 90.00 ± 0.00 | +9.50 (-1.00 to +11.00), no difference | 40 | 2 |" in shown
    record["goes_on"], record["against"]["dclr"] = ["dclr"], "other"
    assert "against `other`: +9.50 (+8.00 to +11.00), better | 40 + 40 | 2 |" in study.tables(record)
    assert "| `dclr` | 55.0 | 55.0 | 20 | 2 |" in shown


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"extra": 1}, "must have the entries"),
        ({"judge": {"steps": []}}, "judge must have options for steps and seconds"),
        ({"trial_seed": 0}, "none that is the trials' own"),
        ({"seeds": [1, 1]}, "each once"),
        ({"seeds": 3}, "seeds must be a list"),
        ({"train": {"learning_rate": 1.0}}, "train must name the pooler"),
        ({"systems": None}, "systems must be a dict that is not empty"),
        ({"systems": {"a": {**ONE, "trials": None}}}, "the trials of a must be a list"),
        ({"systems": {"a": {**ONE, "trials": [{}]}, "b": {**ONE, "trials": []}}}, "same number of trials"),
        ({"systems": {"a": {"trials": [{}]}}}, "a must have options and trials"),
        ({"systems": {"a": {**ONE, "against": "b"}}}, "compared with 'b', which is no system"),
    ],
)  # fmt: skip
def test_a_study_that_is_none(make, changes, said):
    with pytest.raises(UserError, match=said):
        make(**changes)


@pytest.mark.parametrize("name", ["embedded", "minilm", "gpu"])
def test_the_committed_studies_are_such(name):
    declared = study.read_study(Path(study.__file__).with_name(f"study_{name}.yaml"))
    assert next(iter(declared.systems)) == "simcse" and len(declared.seeds) >= 3
    for system, options in declared.systems.items():
        shared = {**declared.train, **options["options"]}
        shared.pop("bf16", None)  # wants a GPU
        runs = []
        for trial in options["trials"]:
            words = [
                word for option, value in {**shared, **trial}.items() for word in (f"--{option}", str(value).lower())
            ]
            arguments = parse_arguments([*words, "--output_dir", "x"])
            model = {**vars(arguments.model), "method_options": arguments.method_options}
            runs.append((model, arguments.training.learning_rate))
        assert all(one not in runs[:number] for number, one in enumerate(runs)), f"{system} tries a setting twice"


def test_the_table_of_a_grid():
    def task(split, *scores):
        return {"split": split, **{name: {"values": list(scores)} for name in ("spearman", "alignment", "uniformity")}}

    row = {"seeds": [0, 1], "failed": {},
           "tasks": {"stsb_dev": task("dev", 60.0, 62.0), "sts12": task("test", 40.0, 50.0),
                     "sickr": task("test", 50.0, 80.0)}}  # fmt: skip
    better = {
        "seeds": [0, 2],
        "failed": {"1": "collapsed"},
        "tasks": row["tasks"] | {"sickr": task("test", 52.0, 81.0)},
    }
    failed = {"seeds": [], "failed": {"0": "collapsed", "1": "collapsed"}, "tasks": {}}
    record = {
        "varied": ["vadv_norm"], "before": {"stsb_dev": {}}, "reported": {"STS, BERT-base": {"l2": 77.0}},
        "cells": {"l": {**failed, "failed": {}}, "l0": failed, "l2": row, "l1": better,
                  "linf": {**row, "seeds": [3, 4]}},
    }  # fmt: skip
    heads, _, *rows = study_pages.grid(record).splitlines()
    assert heads.startswith(
        "| `vadv_norm` | stsb dev | over `l2`, by seed | test sets, mean | over `l2`, by seed | align"
    )
    assert heads.endswith("BERT-base |")
    assert rows == [
        "| `l0` |  |  |  |  |  |  | 0, 2 failed |  |",
        "| `l2` | 61.00 ± 1.41 |  | 55.00 ± 14.14 |  | 61.00 ± 1.41 | 61.00 ± 1.41 | 2 | 77 |",
        "| `l1` | 61.00 ± 1.41 | +0.00 | 55.75 ± 13.79 | +1.00 | 61.00 ± 1.41 | 61.00 ± 1.41 | 2, 1 failed |  |",
        "| `linf` | 61.00 ± 1.41 |  | 55.00 ± 14.14 |  | 61.00 ± 1.41 | 61.00 ± 1.41 | 2 |  |",
    ]
    with pytest.raises(UserError, match="the grid norms has no cell that was trained"):
        study_pages.grid({**record, "grid": "norms", "cells": {"l0": failed}})
