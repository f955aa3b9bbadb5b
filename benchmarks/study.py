"""A study: every method tuned, trained and judged alike on one encoder, as a YAML file declares it.

    python -m benchmarks.study benchmarks/study_embedded.yaml --train_file sentences.txt.gz --data_dir data \\
        --output_dir study --jobs 2
    python -m benchmarks.study benchmarks/study_embedded.yaml --output_dir study --collect out.json

Stages, each a list of cells, each cell a command of its own process that is not started again once it is finished:

1. ``trials``: every system tries the same number of settings for a short training; the score on the dev set chooses.
2. ``steps``: every system is trained with what it chose, for the same number of steps, with every seed.
3. ``speed``: seconds a step of every system with what it chose, one after the other on an idle machine (``--dry_run``).
4. ``seconds``: as ``steps``, for as many steps as fit into the seconds that the first system needs for its own, without
   evaluations. What trained the first system's model, where another uses it, is charged to nobody.
5. ``judge``: every model, and the untrained encoder, by run_eval.py.
6. ``compare``: every system against the first one by the paired bootstrap over the pairs of the STS sets and, where the
   judges have noise, of the noisy ones.
7. ``attack``: run_attack.py on the models of `steps`.
8. ``finetune``: run_finetune.py from the models of `steps`, and from the untrained encoder.

Killed or stopped by ``--minutes``, the same command goes on; a cell that failed is tried again by the next call, and
its last line is printed. ``--collect`` writes what is finished as one JSON, with the command behind every
figure, and draws it.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import re
import shlex
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from tqdm import tqdm

from benchmarks.measuring import at_least, check_output, machine, run_logged
from hf_robustcse.cards.text import mean_and_std
from hf_robustcse.errors import Parser, TrainingStopped, UserError, command
from hf_robustcse.evaluation.pictures import HOW_TO_GET, has_matplotlib
from hf_robustcse.files import read_json, write_json

HERE = Path(__file__).parent
EXAMPLES = HERE.parent / "examples"
STAGES = ("trials", "steps", "speed", "seconds", "judge", "compare", "attack", "finetune")
BUDGETS = ("steps", "seconds")
UNTRAINED = "untrained"
TRAIN = ("run_unsup.py", "run_finetune.py")
"""Scripts that must be told to go on; run_attack.py does."""


@dataclasses.dataclass(frozen=True)
class Study:
    """What the YAML file declares.

    Attributes:
        about: one line.
        train: options of run_unsup.py that all runs share.
        trial_steps: steps of a trial.
        trial_seed: its seed, none of `seeds`.
        steps: of the budget.
        seeds: of every system and budget.
        systems: name -> its `options`, and its `trials`: more options, option -> value each. Others are compared with
            the first system, and its model is ``{first}`` in their options (a system that goes on from there names it
            as its model_name_or_path, and is left out of equal seconds). ``against``: the system that it is compared
            with in place of the first.
        dev: the dev set that chooses.
        judge: options of run_eval.py for the models of ``steps`` (the untrained encoder too) and of ``seconds``.
        attacks: name -> options of run_attack.py.
        attack_resources: options of all of them.
        finetune: name -> options of run_finetune.py.
    """

    about: str
    train: dict[str, Any]
    trial_steps: int
    trial_seed: int
    steps: int
    seeds: list[int]
    systems: dict[str, dict[str, Any]]
    dev: str
    judge: dict[str, list[str]]
    attacks: dict[str, list[str]]
    attack_resources: list[str]
    finetune: dict[str, list[str]]


def read_study(path: Path) -> Study:
    """Read and check a YAML file.

    Raises:
        UserError: naming what is wrong.
    """
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read the study {path}: {' '.join(str(error).split())}") from error
    names = {field.name for field in dataclasses.fields(Study)}
    if not isinstance(values, dict) or set(values) != names:
        raise UserError(f"the study {path} must have the entries {', '.join(sorted(names))} and no other")
    kinds = {"about": str, "dev": str, "trial_steps": int, "trial_seed": int, "steps": int, "seeds": list,
             "attack_resources": list}  # fmt: skip
    for name, value in values.items():
        if not isinstance(value, kinds.get(name, dict)) or value in ("", [], {}):
            raise UserError(f"the study {path}: {name} must be a {kinds.get(name, dict).__name__} that is not empty")
    study = Study(**values)
    if "pooler" not in study.train:
        raise UserError(f"the study {path}: train must name the pooler")
    for name, system in study.systems.items():
        if not isinstance(system, dict) or set(system) - {"against"} != {"options", "trials"} or not system["options"]:
            raise UserError(f"the study {path}: {name} must have options and trials, and nothing else but against")
        if system.get("against", name) not in study.systems:
            raise UserError(
                f"the study {path}: {name} is to be compared with {system['against']!r}, which is no system"
            )
        if not isinstance(system["trials"], list) or not all(isinstance(trial, dict) for trial in system["trials"]):
            raise UserError(f"the study {path}: the trials of {name} must be a list of options, {{}} for none")
    numbers = {len(system["trials"]) for system in study.systems.values()}
    if len(numbers) != 1 or numbers == {0}:
        raise UserError(f"the study {path}: every system must have the same number of trials, at least one")
    if set(study.judge) != set(BUDGETS):
        raise UserError(f"the study {path}: judge must have options for {' and '.join(BUDGETS)}")
    if study.trial_seed in study.seeds or len(set(study.seeds)) != len(study.seeds):
        raise UserError(f"the study {path}: name seeds, each once, and none that is the trials' own")
    return study


@dataclasses.dataclass(frozen=True)
class Cell:
    """One command: its name, and the script of examples/ with its options."""

    name: str
    words: tuple[str, ...]


class Work:
    """The cells of a study in a folder."""

    def __init__(self, study: Study, options: argparse.Namespace) -> None:
        self.study, self.options, self.folder = study, options, options.output_dir
        self.first = next(iter(study.systems))
        if options.model_name_or_path and (Path(options.model_name_or_path) / "modules.json").is_file():
            raise UserError(
                f"{options.model_name_or_path} brings a pooling of its own: name a copy of it without modules.json"
            )
        if unknown := [name for name in options.systems or () if name not in study.systems]:
            raise UserError(f"the study has no system {unknown[0]}: choose among {', '.join(study.systems)}")
        wanted = {self.first, *(options.systems or study.systems)}
        self.systems = [system for system in study.systems if system in wanted]
        self.trials = len(study.systems[self.first]["trials"])
        self.data_dir = options.data_dir or "data"

    def _train(self, name: str, folder: Path, system: str, trial: int, steps: int, seed: int) -> Cell:
        declared = self.study.systems[system]
        values = {**self.study.train, **declared["options"], **declared["trials"][trial]}
        # Evaluated before and in the end: nothing is chosen within a run, and a run costs little beside its steps.
        values |= {"max_steps": steps, "eval_steps": steps, "seed": seed, "eval_tasks": self.study.dev}
        values |= {"disable_tqdm": True, "output_dir": folder}
        for option in ("train_file", "model_name_or_path"):
            if getattr(self.options, option) and option not in declared["options"]:
                values[option] = getattr(self.options, option)
        if self.options.data_dir:
            values["eval_data_dir"] = self.options.data_dir
        first = self.trial(self.first, 0) if seed == self.study.trial_seed else self.model("steps", self.first, seed)
        words = ["run_unsup.py"]
        for option, value in values.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            words += [f"--{option}", text.replace("{first}", str(first)).replace("{data_dir}", self.data_dir)]
        return Cell(name, tuple(words))

    def model(self, budget: str, system: str, seed: int) -> Path:
        """The folder of a model."""
        if system == self.first:
            budget = "steps"  # both budgets are this one's
        return self.folder / budget / system / f"seed-{seed}"

    def trial(self, system: str, number: int) -> Path:
        """The folder of a trial."""
        return self.folder / "trials" / system / str(number)

    def goes_on(self, system: str) -> bool:
        """Whether a system is trained from the first one's model."""
        return self.study.systems[system]["options"].get("model_name_or_path") == "{first}"

    def against(self, system: str) -> str:
        """What a system is compared with."""
        return self.study.systems[system].get("against", self.first)

    def dev_scores(self, system: str) -> list[float | None]:
        """What the trials of a system reached on the dev set, None for one whose training was stopped (a collapse).

        Raises:
            UserError: if a trial is not finished.
        """
        found: list[float | None] = []
        for number in range(self.trials):
            name = f"trials-{system}-{number}"
            if not self.done(name).is_file():
                raise UserError(f"{name} is not finished: run the stage trials first")
            stopped = "stopped" in read_json(self.done(name))
            record = {} if stopped else read_json(self.trial(system, number) / "results.json")
            found.append(None if stopped else record["tasks"][self.study.dev]["spearman"])
        return found

    def chosen(self, system: str) -> int:
        """The number of the trial with the best dev score, the first of equal ones.

        Raises:
            UserError: if a trial is not finished, or none gave a score.
        """
        scores = [-1000.0 if score is None else score for score in self.dev_scores(system)]
        if max(scores) == -1000:
            raise UserError(f"training was stopped in all trials of {system}: declare milder ones")
        return scores.index(max(scores))

    def seconds_per_step(self, system: str) -> float:
        """What the stage `speed` measured.

        Raises:
            UserError: if it has not.
        """
        log = self.folder / "logs" / f"speed-{system}.log"
        found = re.search(r"time: ([\d.]+) s a step", log.read_text(encoding="utf-8")) if log.is_file() else None
        if found is None:
            raise UserError(f"seconds a step of {system} are not measured: run the stage speed first")
        return float(found[1])

    def cells(self, stage: str) -> list[list[Cell]]:
        """The cells of a stage, in lists of which each needs those before it; what is finished early is whole seeds.

        Raises:
            UserError: if an earlier stage is not finished.
        """
        if stage == "judge":
            return [self._judge()]
        if stage == "compare":
            return [self._compare()]
        if stage == "attack":
            return [self._attack()]
        if stage == "finetune":
            return [self._finetune()]
        others = [system for system in self.systems if system != self.first]
        if stage == "trials":
            return [self._trials([self.first]), self._trials(others)]
        if stage == "speed":
            return [self._speed()]
        if stage == "steps":
            return [self._runs(stage, [self.first]), self._runs(stage, others)]
        return [self._runs(stage, [system for system in others if not self.goes_on(system)])]

    def _trials(self, systems: list[str]) -> list[Cell]:
        steps, seed = self.study.trial_steps, self.study.trial_seed
        return [
            self._train(f"trials-{system}-{trial}", self.trial(system, trial), system, trial, steps, seed)
            for trial in range(self.trials)
            for system in systems
        ]

    def _speed(self) -> list[Cell]:
        steps, seed = self.study.steps, self.study.trial_seed
        cells = [
            self._train(f"speed-{system}", self.folder / "speed", system, self.chosen(system), steps, seed)
            for system in self.systems
        ]
        return [Cell(cell.name, (*cell.words, "--dry_run")) for cell in cells]

    def _runs(self, budget: str, systems: list[str]) -> list[Cell]:
        steps = dict.fromkeys(systems, self.study.steps)
        if budget == "seconds":
            seconds = self.study.steps * self.seconds_per_step(self.first)
            steps = {system: max(1, round(seconds / self.seconds_per_step(system))) for system in systems}
        chosen = {system: self.chosen(system) for system in systems}
        return [
            self._train(f"{budget}-{system}-{seed}", self.model(budget, system, seed), system, chosen[system],
                        steps[system], seed)
            for seed in self.study.seeds
            for system in systems
        ]  # fmt: skip

    def _models(self, budgets: Sequence[str]) -> list[tuple[str, Path]]:
        """Name and folder of the models that are trained."""
        found = [
            (f"{budget}-{system}-{seed}", self.model(budget, system, seed))
            for budget in budgets for seed in self.study.seeds for system in self.systems
            if budget == "steps" or system != self.first
        ]  # fmt: skip
        return [(name, folder) for name, folder in found if (folder / "results.json").is_file()]

    def _data(self) -> list[str]:
        return ["--data_dir", self.options.data_dir] if self.options.data_dir else []

    def _given(self, words: Sequence[str]) -> list[str]:
        return [word.replace("{data_dir}", self.data_dir) for word in words]

    def _base(self) -> list[str]:
        encoder = self.options.model_name_or_path or str(HERE.parent / "hf_robustcse" / "assets" / "encoder")
        return ["--model_name_or_path", os.path.relpath(encoder), "--pooling", str(self.study.train["pooler"])]

    def _judge(self) -> list[Cell]:
        models = [(UNTRAINED, self._base()), *(
            (name, ["--model_name_or_path", str(folder)]) for name, folder in self._models(BUDGETS)
        )]  # fmt: skip
        found = []
        for name, words in models:
            result = self.folder / "judged" / f"{name}.json"
            judge = self.study.judge["seconds" if name.startswith("seconds-") else "steps"]
            words = ["run_eval.py", *words, *judge, *self._data(), "--output_json", str(result)]
            found.append(Cell(f"judge-{name}", tuple(words)))
        return found

    def _compare(self) -> list[Cell]:
        found = []
        for budget in BUDGETS:
            judge = self.study.judge[budget]
            noise = ["noise", *_noise_options(judge)] if "noise" in judge else []
            for system in self.systems:
                pair = (self.against(system), system)
                there = all((self.model(budget, s, seed) / "results.json").is_file()
                            for s in pair for seed in self.study.seeds)  # fmt: skip
                if system == self.first or not there:
                    continue
                result = self.folder / "compared" / f"{budget}-{system}.json"
                sides = [str(self.model(budget, s, 0).parent) for s in pair]
                words = ["run_eval.py", "--compare", *sides, "--tasks", "sts", *noise, *self._data(), "--output_json",
                         str(result)]  # fmt: skip
                found.append(Cell(f"compare-{budget}-{system}", tuple(words)))
        return found

    def _attack(self) -> list[Cell]:
        found = []
        for attack, options in self.study.attacks.items():
            for name, folder in self._models(["steps"]):
                given = self._given([*options, *self.study.attack_resources])
                words = ["run_attack.py", "--model_name_or_path", str(folder), *given, *self._data(), "--output_dir",
                         str(self.attacked(attack, name))]  # fmt: skip
                found.append(Cell(f"attack-{attack}-{name}", tuple(words)))
        return found

    def _finetune(self) -> list[Cell]:
        encoder = self._base()[1]
        found = []
        for task, options in self.study.finetune.items():
            for name, folder in [(UNTRAINED, encoder), *self._models(["steps"])]:
                words = ["run_finetune.py", "--model_name_or_path", str(folder), *self._given(options), *self._data()]
                words += ["--output_dir", str(self.finetuned(task, name)), "--disable_tqdm", "true"]
                found.append(Cell(f"finetune-{task}-{name}", tuple(words)))
        return found

    def attacked(self, attack: str, name: str) -> Path:
        """The folder of the attacks on a model."""
        return self.folder / "attacked" / attack / name

    def finetuned(self, task: str, name: str) -> Path:
        """The folder of a fine-tuned model."""
        return self.folder / "finetuned" / task / name

    def done(self, name: str) -> Path:
        """The file that says that a cell is finished: its words, its seconds, and `stopped` if training was."""
        return self.folder / "done" / f"{name}.json"

    def _finished(self, cell: Cell) -> bool:
        path = self.done(cell.name)
        if not path.is_file():
            return False
        if read_json(path)["words"] != list(cell.words):
            raise UserError(f"{cell.name} was finished with other options: take away {path}, or name another folder")
        return True

    def finished(self, stage: str) -> set[str]:
        """The names of the finished cells of a stage.

        Raises:
            UserError: if one was finished with other options.
        """
        return {cell.name for cells in self.cells(stage) for cell in cells if self._finished(cell)}

    def run(self, stage: str, deadline: float) -> tuple[list[str], int]:
        """Run the cells of a stage that are not finished, `--jobs` at a time.

        Args:
            stage: one of `STAGES`.
            deadline: no cell is started after it, in seconds of the monotonic clock.

        Returns:
            A line for each that failed, and how many were not started.

        Raises:
            UserError: if an earlier stage is not finished, or a cell was finished with other options.
        """
        todo = [[cell for cell in cells if not self._finished(cell)] for cells in self.cells(stage)]
        with (
            tqdm(total=sum(map(len, todo)), desc=stage, unit=" cells", disable=None) as bar,
            # Seconds are measured with the machine for each alone.
            concurrent.futures.ThreadPoolExecutor(1 if stage == "speed" else self.options.jobs) as pool,
        ):

            def one(cell: Cell) -> str | bool | None:
                """None, the line of a failure, or False if it was too late."""
                if time.monotonic() > deadline:
                    return False
                failed = self._start(cell)
                bar.update()
                return f"{cell.name}: {failed}" if failed else None

            said = [line for cells in todo for line in list(pool.map(one, cells))]
        return [line for line in said if line], said.count(False)

    def _start(self, cell: Cell) -> str | None:
        """Run a cell; what went wrong, if it failed."""
        log = self.folder / "logs" / f"{cell.name}.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        threads = str(max(1, len(os.sched_getaffinity(0)) // self.options.jobs))
        alone = {"OMP_NUM_THREADS": threads} if self.options.jobs > 1 else {}
        output_dir = Path(cell.words[cell.words.index("--output_dir") + 1]) if "--output_dir" in cell.words else None
        words = [os.path.relpath(EXAMPLES / cell.words[0]), *cell.words[1:]]
        if "--output_json" in words:
            Path(words[words.index("--output_json") + 1]).parent.mkdir(parents=True, exist_ok=True)
        elif cell.words[0] in TRAIN and output_dir and (output_dir / "manifest.json").is_file():
            words += ["--resume_from_checkpoint", "last"]
        if cell.words[0] == "run_eval.py" and self.options.embedding_cache:
            words += ["--embedding_cache", str(self.options.embedding_cache)]  # changes no figure
        started = time.perf_counter()
        code, last = run_logged(words, log, **alone)
        record = {"words": list(cell.words), "seconds": round(time.perf_counter() - started, 1)}
        if code and last.startswith("stopped: "):
            record["stopped"] = last  # an outcome: the same settings would stop again
        elif code:
            return f"{last[:300]} (exit code {code}; {log})"
        elif output_dir and "--dry_run" not in words and not (output_dir / "results.json").is_file():
            return f"it was stopped from outside ({log})"
        write_json(self.done(cell.name), record)
        return None


def _noise_options(words: Sequence[str]) -> list[str]:
    """The options of the noise among those of run_eval.py, with their values."""
    found, ours = [], False
    for word in words:
        ours = word.startswith("--noise_") if word.startswith("--") else ours
        found += [word] if ours else []
    return found


METRICS = {
    "dev": "dev",
    "STS12": "STS12",
    "STS13": "STS13",
    "STS14": "STS14",
    "STS15": "STS15",
    "STS16": "STS16",
    "STSB": "STS-B",
    "SICKR": "SICK-R",
    "STS": "mean",
    "transfer": "transfer",
    "alignment": "alignment, dev",
    "uniformity": "uniformity, dev",
}
"""A figure of a model -> its name in the table of quality."""
ROBUSTNESS = {"found": "found again", "invariance": "CheckList"}
"""The same in the table of robustness, behind the scores under noise."""


def figures(judged: dict[str, Any]) -> dict[str, float]:
    """The figures of a model from what run_eval.py wrote: every task's, and the means of the tasks at hand.

    `typos` and `synonyms` are the means of the noise curve of STS-B test over its rates above 0, `found` how often a
    sentence with typos finds itself, and `invariance` the mean over CheckList's suites.
    """
    from hf_robustcse.evaluation.sts import STS_TEST  # here: these take seconds to import, and cells need none of it
    from hf_robustcse.evaluation.transfer import AVERAGES

    tasks = judged["tasks"]
    found: dict[str, float] = {}
    for mean, names, metric in (("STS", STS_TEST, "spearman"), ("transfer", AVERAGES["transfer"], "accuracy")):
        if scores := {name: tasks[name][metric] for name in names if name in tasks}:
            found |= {**scores, mean: statistics.fmean(scores.values())}
    for kind, sets in judged.get("noise", {}).items():
        for name, curve in sets.items():
            at = "" if name == "STSB" else f" {name}"
            noisy = [score for rate, score in zip(curve["rates"], curve["spearman"], strict=True) if rate]
            found[f"{kind}{at}"] = statistics.fmean(noisy)
            for rate, score in zip(curve["rates"], curve["spearman"], strict=True):
                found[f"{kind}{at} {rate:g}"] = score
            if kind == "typos" and not at:
                found["found"] = curve["relative"]["retrieval"]
    if checks := judged.get("checklist", {}):
        found["invariance"] = statistics.fmean(suite["invariance"]["invariance"] for suite in checks.values())
        found |= {f"functionality {name}": suite["functionality"]["accuracy"] for name, suite in checks.items()}
    return found


def _on_dev(scores: dict[str, float]) -> dict[str, float]:
    """The figures of a model on the dev set."""
    names = {"spearman": "dev", "alignment": "alignment", "uniformity": "uniformity"}
    return {names[name]: scores[name] for name in names if name in scores}


def spread_over_seeds(rows: Sequence[dict[str, float]]) -> dict[str, dict[str, float | None]]:
    """Mean, sample standard deviation (None for one) and number of each figure that all rows have."""
    names = [name for name in rows[0] if all(name in row for row in rows)]
    return {
        name: {
            "mean": statistics.fmean(row[name] for row in rows),
            "std": statistics.stdev(row[name] for row in rows) if len(rows) > 1 else None,
            "n": len(rows),
        }
        for name in names
    }


def collect(work: Work) -> dict[str, Any]:
    """What is finished of a study: trials, models, figures of every seed, their spread, verdicts, attacks, hours.

    Raises:
        UserError: if nothing is judged yet.
    """
    study, folder = work.study, work.folder
    done = {path.stem: read_json(path) for path in sorted((folder / "done").glob("*.json"))}
    trials = {
        system: [
            {"options": declared["trials"][number], "dev": score,
             "seconds": done[f"trials-{system}-{number}"]["seconds"],
             "command": shlex.join(done[f"trials-{system}-{number}"]["words"]),
             "stopped": done[f"trials-{system}-{number}"].get("stopped")}
            for number, score in enumerate(work.dev_scores(system))
        ]
        for system in work.systems
        for declared in [study.systems[system]]
    }  # fmt: skip
    models: dict[str, dict[str, dict[str, Any]]] = {budget: {} for budget in BUDGETS}
    before: dict[str, float] = {}  # training looks at the dev set before its first step
    for budget in BUDGETS:
        for system in work.systems:
            for seed in study.seeds:
                of = "steps" if system == work.first else budget
                path = folder / "judged" / f"{of}-{system}-{seed}.json"
                if not path.is_file():
                    continue
                trained = read_json(work.model(budget, system, seed) / "results.json")
                row = {**_on_dev(trained["tasks"][study.dev]), **figures(read_json(path))}
                if system == work.first:
                    before = _on_dev(trained.get("before", {}).get(study.dev, {}))
                models[budget].setdefault(system, {})[str(seed)] = {
                    "figures": row, "steps": trained["training"]["steps"], "seconds": trained["training"]["seconds"],
                    "command": trained["command"],
                    "judged_by": shlex.join(done[f"judge-{of}-{system}-{seed}"]["words"]),
                }  # fmt: skip
    untrained = folder / "judged" / f"{UNTRAINED}.json"
    if not untrained.is_file():
        raise UserError(f"nothing is judged in {folder}: run the stage judge first")
    compared = {
        budget: {
            system: {key: record[key] for key in ("tasks", "mean", "noise", "command") if key in record}
            for system in work.systems
            if (path := folder / "compared" / f"{budget}-{system}.json").is_file()
            for record in [read_json(path)]
        }
        for budget in BUDGETS
    }
    return {
        "about": study.about,
        "study": dataclasses.asdict(study),
        "command": shlex.join(["python", "-m", "benchmarks.study", *sys.argv[1:]]),
        **{key: value for key, value in machine().items() if key != "command"},
        "hours": round(sum(record["seconds"] for record in done.values()) / 3600, 2),
        "trials": trials,
        "chosen": {system: work.chosen(system) for system in work.systems},
        "goes_on": [system for system in work.systems if work.goes_on(system)],
        "against": {system: work.against(system) for system in work.systems if system != work.first},
        "untrained": before | figures(read_json(untrained)),
        "untrained_command": shlex.join(done[f"judge-{UNTRAINED}"]["words"]),
        "stopped": {name: record["stopped"] for name, record in done.items() if "stopped" in record},
        "seconds_per_step": {
            system: work.seconds_per_step(system) for system in work.systems if f"speed-{system}" in done
        },
        "models": models,
        "summary": {
            budget: {
                system: spread_over_seeds([row["figures"] for row in rows.values()]) for system, rows in found.items()
            }
            for budget, found in models.items()
        },
        "compared": compared,
        "attacked": attacked(work),
        "attacked_by": [shlex.join(record["words"]) for name, record in done.items() if name.startswith("attack-")],
        "finetuned": finetuned(work),
        "finetuned_by": [shlex.join(record["words"]) for name, record in done.items() if name.startswith("finetune-")],
    }


def attacked(work: Work) -> dict[str, Any]:
    """Success of the attacks: attack set -> system -> recipe -> counts over the seeds, and the rate of their sums."""
    found: dict[str, Any] = {}
    finished = work.finished("attack")
    for name in work.study.attacks:
        for system in work.systems:
            for seed in work.study.seeds:
                path = work.attacked(name, f"steps-{system}-{seed}") / "results.json"
                if f"attack-{name}-steps-{system}-{seed}" not in finished:
                    continue
                for recipes in read_json(path)["attacks"].values():
                    for recipe, counts in recipes.items():
                        sums = found.setdefault(name, {}).setdefault(system, {}).setdefault(recipe, Counter())
                        sums.update({key: counts[key] for key in ("attempted", "succeeded", "skipped")}, seeds=1)
    for systems in found.values():
        for recipes in systems.values():
            for recipe, sums in recipes.items():
                recipes[recipe] = {**sums, "success_rate": 100 * sums["succeeded"] / max(1, sums["attempted"])}
            recipes["all"] = {key: sum(r[key] for r in recipes.values()) for key in ("attempted", "succeeded")}
            recipes["all"]["success_rate"] = 100 * recipes["all"]["succeeded"] / max(1, recipes["all"]["attempted"])
    return found


def finetuned(work: Work) -> dict[str, Any]:
    """Figures after fine-tuning: task -> system -> set -> mean, standard deviation and number of the models.

    A set is scored by the metric of the task; ``SET robust`` is its score under perturbations, where there is one.
    """
    found: dict[str, Any] = {}
    finished = work.finished("finetune")
    for task in work.study.finetune:
        for system in (UNTRAINED, *work.systems):
            names = [UNTRAINED] if system == UNTRAINED else [f"steps-{system}-{seed}" for seed in work.study.seeds]
            rows = []
            for name in names:
                if f"finetune-{task}-{name}" not in finished:
                    continue
                record = read_json(work.finetuned(task, name) / "results.json")
                metric, row = record["protocol"]["metric"], {}
                for of, scores in record["tasks"].items():
                    if metric in scores:
                        row[of] = scores[metric]
                    if metric in scores.get("robust", {}):
                        row[f"{of} robust"] = scores["robust"][metric]
                rows.append(row)
            if rows:
                found.setdefault(task, {})[system] = spread_over_seeds(rows)
    return found


def tables(record: dict[str, Any]) -> str:
    """The tables of docs/results.md, as Markdown, from what `collect` found."""
    lines = []
    for budget, title in (("steps", "equal steps"), ("seconds", "equal seconds")):
        summary = record["summary"][budget]
        if not summary or (budget == "seconds" and len(summary) < 2):
            continue
        noise = {
            name: f"{kind} {100 * float(rate):.0f} %"
            for name in next(iter(summary.values()))
            for kind, _, rate in [name.partition(" ")]
            if kind in ("typos", "synonyms") and re.fullmatch(r"[\d.]+", rate) and float(rate)
        }
        verdicts = {f"against `{next(iter(summary))}`, paired": lambda said: said.get("mean")}
        under = {
            f"{kind}, paired": lambda said, kind=kind: said.get("noise", {}).get("tasks", {}).get(f"STSB {kind}")
            for kind in dict.fromkeys(name.partition(" ")[0] for name in noise)
        }
        for shown, about, paired in (
            (METRICS, title, verdicts),
            (noise | ROBUSTNESS, f"robustness, {title}", under),
        ):
            names = [name for name in shown if sum(name in row for row in summary.values()) > (len(summary) > 1)]
            if not names:
                continue
            heads = [about, *(shown[name] for name in names), *paired, "steps", "seeds"]
            lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
            if budget == "steps":
                cells = [f"{record['untrained'][name]:.2f}" if name in record["untrained"] else "" for name in names]
                lines.append(f"| {UNTRAINED} | {' | '.join([*cells, *('' for _ in paired)])} | 0 | |")
            for system, row in summary.items():
                said, other = record["compared"][budget].get(system, {}), record["against"].get(system)
                beside = f"against `{other}`: " if said and other != next(iter(summary)) else ""
                seeds = record["models"][budget][system]
                steps = next(iter(seeds.values()))["steps"]
                before = f"{record['study']['steps']} + " if system in record["goes_on"] else ""
                cells = [*(mean_and_std(row.get(name)) for name in names)]
                cells += [_verdict(get(said), beside) for get in paired.values()]
                lines.append(f"| `{system}` | {' | '.join(cells)} | {before}{steps} | {len(seeds)} |")
            lines.append("")
    for attack, systems in record["attacked"].items():
        recipes = list(next(iter(systems.values())))
        lines += [f"| {attack} | " + " | ".join(recipes) + " | attempted | seeds |", "|---" * (len(recipes) + 3) + "|"]
        for system, row in systems.items():
            rates = [f"{row[recipe]['success_rate']:.1f}" for recipe in recipes]
            seeds = max(value.get("seeds", 0) for value in row.values())
            lines.append(f"| `{system}` | {' | '.join(rates)} | {row['all']['attempted']} | {seeds} |")
        lines.append("")
    for task, systems in record["finetuned"].items():
        names = [name for name in next(iter(systems.values())) if not name.endswith(" robust")]  # these: in the JSON
        heads = [f"{task}, fine-tuned", *(name.replace("_", " ") for name in names), "seeds"]
        lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
        for system, row in systems.items():
            cells = [mean_and_std(row.get(name)) for name in names]
            seeds = max(value["n"] for value in row.values())
            about = system if system == UNTRAINED else f"`{system}`"
            lines.append(f"| {about} | {' | '.join(cells)} | {seeds} |")
        lines.append("")
    return "\n".join(lines)


def picture(record: dict[str, Any], path: Path) -> None:
    """Draw the noise curves of all systems, and each seed's STS score against its score under typos."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.8, 4.8), layout="constrained")
    curves, scatter = figure.subplots(1, 2)
    systems = {UNTRAINED: [record["untrained"]]}
    systems |= {
        system: [row["figures"] for row in seeds.values()] for system, seeds in record["models"]["steps"].items()
    }
    for number, (system, rows) in enumerate(systems.items()):
        color = colormaps["tab20"](number % 20)
        spreads = spread_over_seeds(rows)
        points = {float(name.split()[1]): value for name, value in spreads.items() if name.startswith("typos 0")
                  or name == "typos 1"}  # fmt: skip
        if points:
            means, stds = ([value[key] or 0.0 for value in points.values()] for key in ("mean", "std"))
            marker = "osD^v"[number % 5]
            curves.errorbar(list(points), means, stds, label=system, marker=marker, capsize=3, color=color)
            scatter.scatter([row["STS"] for row in rows], [row["typos"] for row in rows], color=color, marker=marker)
    curves.set_xlabel("rate of words with typos")
    curves.set_ylabel("Spearman x 100, STS-B test")
    scatter.set_xlabel("STS, mean of the tasks, x 100")
    scatter.set_ylabel("STS-B test with typos, mean over the rates, x 100")
    for axes in (curves, scatter):
        axes.grid(alpha=0.3)
    figure.suptitle(record["about"], fontsize="medium")
    figure.legend(loc="outside lower center", ncols=5, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def _verdict(mean: dict[str, Any] | None, beside: str) -> str:
    if mean is None:
        return ""
    said = {"B is better": "better", "A is better": "worse"}.get(mean["verdict"], "no difference")
    if said != "no difference" and abs(mean["difference"]) <= max(mean["a_std"] or 0.0, mean["b_std"] or 0.0):
        said = "within the spread of the seeds"
    return f"{beside}{mean['difference']:+.2f} ({mean['low']:+.2f} to {mean['high']:+.2f}), {said}"


@command
def main() -> None:
    parser = Parser(prog="python -m benchmarks.study", description=__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("study", type=Path, help="YAML file, see benchmarks/study_embedded.yaml")
    parser.add_argument("--output_dir", type=Path, required=True, help="where everything goes")
    parser.add_argument("--model_name_or_path", help="encoder (default: the embedded one)")
    parser.add_argument("--train_file", help="corpus (default: the embedded one)")
    parser.add_argument("--data_dir", help="folder with sts/, transfer/, attack/ and so on (default: the Hub)")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="these alone")
    parser.add_argument("--systems", nargs="+", metavar="NAME", help="these alone, beside the first one")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time (default %(default)s)")
    parser.add_argument(
        "--embedding_cache", type=Path, metavar="DIR", help="of run_eval.py: `compare` encodes nothing after `judge`"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no cell after so many")
    parser.add_argument(
        "--collect",
        type=Path,
        metavar="FILE",
        help="write what is finished, FILE.png beside it, print tables, and stop",
    )
    options = parser.parse_args()
    at_least(1, options, "jobs")
    check_output(options, "collect")
    work = Work(read_study(options.study), options)
    if options.collect:
        record = collect(work)
        write_json(options.collect, record)
        print(tables(record))
        if has_matplotlib():
            picture(record, options.collect.with_suffix(".png"))
        else:
            print(f"no picture: {HOW_TO_GET}")
        return
    deadline = time.monotonic() + 60 * options.minutes
    for stage in options.stages:
        failed, left = work.run(stage, deadline)
        for line in failed:
            print(line, file=sys.stderr)
        if failed:
            raise TrainingStopped(f"{len(failed)} cells of {stage} failed, {left} are left: the same command goes on")
        if left:
            print(f"out of time: {left} cells of {stage} are left; the same command goes on")
            return
    print("finished; for the figures add --collect FILE.json to the command")


if __name__ == "__main__":
    main()
