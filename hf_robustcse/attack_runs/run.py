"""Attacks from options to results: examples, victim, each recipe in turn; killed at any moment it goes on."""

from __future__ import annotations

import functools
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from tqdm import tqdm

from hf_robustcse.attack_runs.arguments import Options
from hf_robustcse.attack_runs.data import LOADERS, Attacked, Choice, find_task, load_attacked
from hf_robustcse.attack_runs.figure import draw_files
from hf_robustcse.attack_runs.page import write_page
from hf_robustcse.attack_runs.parts import make_recipes
from hf_robustcse.attack_runs.records import Log, Writer, record_of, summarise
from hf_robustcse.attack_runs.victims import Plan, check_device, plan_victim
from hf_robustcse.attacks import Recipe, attack_examples
from hf_robustcse.attacks.outcomes import recorded_row
from hf_robustcse.attacks.pairs import pair_metrics
from hf_robustcse.attacks.victims import Victim
from hf_robustcse.distributed import all_here, on_first, rank, world_size
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.attacked_sets import save_attacked_set
from hf_robustcse.evaluation.pictures import HOW_TO_GET, has_matplotlib
from hf_robustcse.evaluation.results import base_results, command_line, library_versions
from hf_robustcse.files import write_json
from hf_robustcse.runs import holds_run, say

_MANIFEST, _RESULTS, _VICTIM, _PICTURE = "manifest.json", "results.json", "victim", "attacks.png"


def run_attacks(options: Options) -> dict[str, Any]:
    """Attack a victim with one recipe after the other.

    Several processes share the examples; how many there are may change when a run is started again. What becomes of an
    example does not depend on them, up to the rounding of the victim's arithmetic in batches of another make-up.

    Args:
        options: of the run.

    Returns:
        What `results.json` holds: `results.base_results` with `attacks: {task: {recipe: records.summarise and what
        makes it comparable}}`.

    Raises:
        UserError: for bad input, or a folder that holds something else; nothing has been written then.
    """
    datasets.utils.logging.disable_progress_bar()
    folder = Path(options.output_dir)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output_dir {folder} is a file")
    check_device(options.device)
    task = find_task(options.task)
    choice = Choice(
        options.data_file,
        options.data_dir,
        options.num_examples,
        options.shuffle,
        options.seed,
        options.edit,
        options.distance,
        options.threshold,
    )
    attacked = load_attacked(task, choice)
    recipes, sums = make_recipes(options)
    plan = plan_victim(options, attacked)
    manifest = _manifest(options, attacked, recipes, sums, plan)
    say(f"{task}: {attacked.chosen} of {attacked.origin}")
    results = on_first(lambda: _settle(folder, manifest, options.overwrite_output_dir))
    if (training := plan.about.get("training")) is not None:
        say(f"victim: trained on {training['n']} rows of {', '.join(training['origin'])}; {training['removed']} more "
            "were taken out, because they are attacked")  # fmt: skip
    victim, trained = plan.build(folder / _VICTIM)
    if "held_out_accuracy" in trained:
        say(f"victim: accuracy {trained['held_out_accuracy']:.1f} on the part of them that chose its penalty")
    if results is None:
        results = base_results(
            model=options.model_name_or_path,
            method=plan.about["method"],
            seed=options.seed,
            command=command_line(options.argv),
            revision=plan.about["revision"],
            device=options.device,
        )
        results["protocol"] = {
            **{name: plan.about.get(name) for name in ("pooling", "max_seq_length", "dtype")},
            "victim": plan.about | trained,
            "query_budget": options.query_budget,
        }
        results["attacks"] = {}
        del results["averages"]
    for recipe in recipes:
        done = results["attacks"].get(task, {})
        if recipe.name in done and not _log(folder, task, recipe).parts():
            say(f"already finished: {recipe.name}")
            continue
        _attack(options, attacked, recipe, victim)
        all_here()
        results = on_first(functools.partial(_finish, folder, options, attacked, recipe, sums, results))
    on_first(lambda: _draw(folder))
    pages = " ".join(str(folder / f"{task}-{recipe.name}.html") for recipe in recipes)
    say("", format_table(results, task), f"results: {folder / _RESULTS}, a line for each example in the .jsonl files",
        f"texts side by side: {pages}", f"next: hf-robustcse report {folder} --output_dir report")  # fmt: skip
    return results


def _manifest(
    options: Options, attacked: Attacked, recipes: list[Recipe], sums: dict[str, str], plan: Plan
) -> dict[str, Any]:
    """What was asked for; `attack`, each recipe and each resource must be equal for a run to go on."""
    manifest = {
        "attack": {
            "task": attacked.task,
            "examples": attacked.sha256,
            "victim": plan.identity,
            "seed": options.seed,
            "query_budget": options.query_budget,
        },
        "recipes": {recipe.name: recipe.describe() for recipe in recipes},
        "resources": sums,
        "origin": attacked.origin,
        "chosen": attacked.chosen,
        "model": options.model_name_or_path,
        "command": command_line(options.argv),
        "library_versions": library_versions(),
    }
    return json.loads(json.dumps(manifest))


def _settle(folder: Path, manifest: dict[str, Any], overwrite: bool) -> dict[str, Any] | None:
    """Take the folder, or go on with what is there; the results so far."""
    other = _read(folder / _MANIFEST)
    if holds_run(folder) and "attack" not in other:
        raise UserError(f"--output_dir {folder} holds a model or another kind of run: choose a new folder")
    if other and overwrite:
        _remove(folder, other)
        other = {}
    if other:
        for name, value in manifest["attack"].items():
            if other["attack"].get(name) != value:
                raise _differs(folder, name.replace("_", " "), other["attack"].get(name), value)
        for name, value in manifest["recipes"].items():
            if other["recipes"].get(name, value) != value:
                raise _differs(folder, f"recipe {name}", other["recipes"][name], value)
        for name, value in manifest["resources"].items():
            if other["resources"].get(name, value) != value:
                raise _differs(folder, Path(name).name, other["resources"][name], value)
        manifest = {**manifest, **{key: other[key] | manifest[key] for key in ("recipes", "resources")}}
    try:
        write_json(folder / _MANIFEST, manifest)
    except OSError as error:
        raise UserError(f"--output_dir {folder} cannot be written: {error}") from error
    return _read(folder / _RESULTS) or None


def _differs(folder: Path, name: str, before: Any, now: Any) -> UserError:
    """The error for another setting, which names what differs."""
    while isinstance(before, dict) and isinstance(now, dict):
        name, before, now = next(
            (f"{name} {key}", before.get(key), now.get(key))
            for key in {**before, **now}
            if before.get(key) != now.get(key)
        )
    return UserError(
        f"--output_dir {folder} holds an attack with another {name} ({str(before)[:60]}, now "
        f"{str(now)[:60]}): choose a new folder, or pass --overwrite_output_dir"
    )


def _remove(folder: Path, manifest: dict[str, Any]) -> None:
    """Remove a run. The manifest goes last: without it a kill on the way would leave parts that any run takes up."""
    for name in (_RESULTS, _PICTURE):
        (folder / name).unlink(missing_ok=True)
    for recipe in manifest["recipes"]:
        for path in folder.glob(f"{manifest['attack']['task']}-{recipe}.*"):
            path.unlink()
        shutil.rmtree(folder / f"{manifest['attack']['task']}-{recipe}", ignore_errors=True)
    shutil.rmtree(folder / _VICTIM, ignore_errors=True)
    (folder / _MANIFEST).unlink()


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    return value if isinstance(value, dict) else {}


def _log(folder: Path, task: str, recipe: Recipe) -> Log:
    return Log(folder, f"{task}-{recipe.name}")


def _attack(options: Options, attacked: Attacked, recipe: Recipe, victim: Victim) -> None:
    """Attack this process' share of the examples that are not done yet."""
    log = _log(Path(options.output_dir), attacked.task, recipe)
    done = on_first(lambda: {number: _gist(record) for number, record in log.collect().items()})
    examples = dict(attacked.examples)
    todo = [number for number in examples if number not in done][rank() :: world_size()]
    if done:
        say(f"{recipe.name}: {len(done)} of {len(examples)} examples are done already")
    share = f" (1 of {world_size()} processes)" if world_size() > 1 else ""
    tally = _Tally()
    for status, queries in done.values():
        tally.add(status, queries)
    with (
        Writer(log.part(rank())) as writer,
        tqdm(
            total=len(done) + len(todo),
            initial=len(done),
            desc=f"{attacked.task} {recipe.name}{share}",
            unit="example",
            disable=rank() != 0,
            mininterval=0.1 if sys.stderr.isatty() else 30,
        ) as bar,
    ):
        outcomes = attack_examples(
            ((number, examples[number]) for number in todo),
            recipe,
            victim,
            seed=options.seed,
            budget=options.query_budget,
            width=options.width,
        )
        for number, outcome in outcomes:
            record = record_of(number, examples[number], outcome)
            writer.write(record)
            tally.add(*_gist(record))
            bar.set_postfix_str(str(tally), refresh=False)
            bar.update()


def _gist(record: dict[str, Any]) -> tuple[str, int]:
    return record["status"], record["queries"]


@dataclass
class _Tally:
    """How it goes so far: the success rate and the mean queries."""

    skipped: int = 0
    attempted: int = 0
    succeeded: int = 0
    queries: int = 0

    def add(self, status: str, queries: int) -> None:
        """Count one more example."""
        if status == "skipped":
            self.skipped += 1
            return
        self.attempted += 1
        self.succeeded += status == "succeeded"
        self.queries += queries

    def __str__(self) -> str:
        if not self.attempted:
            return f"{self.skipped} skipped"
        rate = 100 * self.succeeded / self.attempted
        return f"success {rate:.1f} %, {self.queries / self.attempted:.0f} queries"


def _finish(
    folder: Path,
    options: Options,
    attacked: Attacked,
    recipe: Recipe,
    sums: dict[str, str],
    results: dict[str, Any],
) -> dict[str, Any]:
    """Merge the parts, sum them up, write the results; a kill on the way leaves the parts, and this is done again."""
    log = _log(folder, attacked.task, recipe)
    collected = log.collect()
    records = [collected[number] for number, _ in attacked.examples]
    log.finish(records)
    summary = summarise(records, classes=attacked.classification is not None)
    summary |= {
        "split": attacked.split,
        "source": attacked.origin,
        "examples": attacked.chosen,
        "sha256": attacked.sha256,
        "query_budget": options.query_budget,
        "seed": options.seed,
        "recipe": recipe.describe(),
        "resources": sums,
        "file": log.path.name,
    }
    if attacked.classification is None:
        rows = _rows(options, attacked, recipe, records)
        summary |= {key: value for key, value in pair_metrics(rows).items() if key.startswith(("spearman", "distance"))}
    _save_set(folder / log.path.stem, options, attacked, recipe, records, summary)
    results["attacks"].setdefault(attacked.task, {})[recipe.name] = summary
    title = f"{recipe.name} on {attacked.task}"
    write_page(folder / f"{log.path.stem}.html", log.records(), summary, title=title, model=options.model_name_or_path)
    write_json(folder / _RESULTS, results)
    log.clear()
    return results


def _rows(options: Options, attacked: Attacked, recipe: Recipe, records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records as rows of an attacked set."""
    about = {"recipe": recipe.name, "victim": options.model_name_or_path}
    return [
        {**recorded_row(example, record), **attacked.more.get(number, {}), **about}
        for (number, example), record in zip(attacked.examples, records, strict=True)
    ]


def _save_set(
    folder: Path,
    options: Options,
    attacked: Attacked,
    recipe: Recipe,
    records: list[dict[str, Any]],
    summary: dict[str, Any],
) -> None:
    """The attacked set, which `datasets.load_dataset` loads."""
    metrics = {key: value for key, value in summary.items() if key not in ("seconds", "queries_to_success")}
    title = f"Adv{attacked.task}: {attacked.task} under {recipe.name}, against {Path(options.model_name_or_path).name}"
    rows = _rows(options, attacked, recipe, records)
    save_attacked_set(rows, folder, about={"title": title, "victim": options.model_name_or_path, **metrics})


def _draw(folder: Path) -> None:
    if has_matplotlib():
        draw_files([folder / _RESULTS], folder / _PICTURE)
    else:
        print(f"no picture is drawn: {HOW_TO_GET}")


def format_table(results: dict[str, Any], task: str) -> str:
    """The table that the command prints."""
    heads = ["attack", "success %", "(95 %)", "before", "after", "queries", "words %", "attempted", "skipped"]
    lines = [heads]
    for name, record in results["attacks"].get(task, {}).items():
        interval = "-"
        if record["success_rate"] is not None:
            interval = f"{record['success_rate_low']:.1f}-{record['success_rate_high']:.1f}"
        measure = "spearman" if "spearman_before" in record else "accuracy"
        keys = (f"{measure}_before", f"{measure}_after", "queries_per_example", "words_changed")
        values = (record.get(key) for key in ("success_rate", *keys))
        rate, *rest = ("-" if value is None else f"{value:.1f}" for value in values)
        lines.append([name, rate, interval, *rest, str(record["attempted"]), str(record["skipped"])])
    widths = [max(len(line[i]) for line in lines) for i in range(len(heads))]
    rows = ["  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
            for line in lines]  # fmt: skip
    what = "Spearman" if task in LOADERS else "accuracy"
    return "\n".join([f"{task}: {what} before and after", *rows])
