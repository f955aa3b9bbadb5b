"""Fine-tune an encoder on a labelled task with the stock trainer, and score it on the normal and the robust set."""

from __future__ import annotations

import copy
import dataclasses
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import transformers
from transformers import AutoConfig, AutoTokenizer, Trainer, set_seed

from hf_robustcse import layout
from hf_robustcse.arguments import EMBEDDED_ENCODER
from hf_robustcse.attacks.victims import Classifier
from hf_robustcse.distributed import all_here, on_first, rank, say, world_size
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.attacked_sets import is_attacked_set, load_about, load_attacked_set, save_attacked_set
from hf_robustcse.evaluation.embedders import saved_method
from hf_robustcse.evaluation.hub import MissingData
from hf_robustcse.evaluation.known_sets import KnownRobustSet
from hf_robustcse.evaluation.operators import OPERATORS
from hf_robustcse.evaluation.results import base_results, library_versions
from hf_robustcse.evaluation.robust_sets import invariance_rate, robust_set, save_robust_set
from hf_robustcse.files import write_json
from hf_robustcse.finetune.arguments import RESOURCES, Arguments, FinetuningArguments, TaskArguments
from hf_robustcse.finetune.arguments import parse_arguments as parse_arguments
from hf_robustcse.finetune.augment import (
    Augmentation,
    as_training_rows,
    attacked,
    make_augmentation,
    substituted,
    summary,
)
from hf_robustcse.finetune.kinds import Kind, make_kind
from hf_robustcse.finetune.known import known_sets, score_known
from hf_robustcse.finetune.tasks import POOLED, SOURCES, Split, Task, find_task, load_split
from hf_robustcse.runs import resume_point, run_seeds, settle_output_dir
from hf_robustcse.synonyms import Synonyms, load_wordnet, read_word_list

_COUNT_FROM_PADDING = ("camembert", "mpnet", "roberta", "xlm-roberta")


@dataclasses.dataclass(frozen=True)
class _Data:
    """What is trained on and what is scored, by its name in `results.json`, and what was not there."""

    rows: datasets.Dataset | None
    train: datasets.Dataset | None
    trained_on: list[dict[str, Any]]
    scored: dict[str, Split]
    robust: dict[str, datasets.Dataset]
    known: list[KnownRobustSet]
    missing: list[dict[str, str]]


def run(arguments: Arguments) -> dict[str, Any]:
    """Fine-tune and score, for one seed or several.

    Args:
        arguments: of `parse_arguments`.

    Returns:
        What is written to ``results.json``.

    Raises:
        UserError: for bad input; nothing has been written then.
    """
    options, training = arguments.task, arguments.training
    _ = training.device  # joins the process group, if there is one
    transformers.utils.logging.set_verbosity_error()  # load reports: a new head is what is wanted here
    transformers.utils.logging.disable_progress_bar()
    datasets.utils.logging.disable_progress_bar()
    task = find_task(options.task)
    name = Path(options.model_name_or_path or "embedded").name
    settle_output_dir(training, Path("runs") / f"{task.name}-{name}", options.overwrite_output_dir)
    seeds = options.seeds or [training.seed]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"--seeds {' '.join(map(str, seeds))} names a seed twice")
    tokenizer, length = load_tokenizer(options, task)
    kind = make_kind(task, tokenizer, length)
    plan = _augmentation(options, task)
    data = _load(options, task, kind)
    if options.seeds is None:
        return _run_one(arguments, task, kind, data, plan)
    root = Path(training.output_dir)
    results = run_seeds(arguments, seeds, lambda one: _run_one(one, task, kind, data, plan))
    summary = {**results[0], "model": str(root), "seed": None, "seeds": seeds}
    summary["tasks"] = {
        name: _over_seeds([result["tasks"][name] for result in results]) for name in results[0]["tasks"]
    }
    summary["training"] = {"runs": [result["training"] for result in results]}
    if training.should_save:
        write_json(root / "results.json", summary)
    say("", f"over {len(seeds)} seeds", format_table(summary, task), f"results: {root / 'results.json'}")
    return summary


def _over_seeds(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Every number of the records as its mean, with its standard deviation beside it where it differs."""
    merged: dict[str, Any] = {}
    for key, value in records[0].items():
        values = [record[key] for record in records]
        if isinstance(value, dict):
            merged[key] = _over_seeds(values)
        elif isinstance(value, float) and None not in values:
            merged[key] = statistics.fmean(values)
            merged[f"{key}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
        else:
            merged[key] = value
    return merged | {"seeds": len(records)}


def load_tokenizer(options: TaskArguments, task: Task) -> tuple[Any, int]:
    """The tokenizer, and the length of an input that the encoder takes."""
    name = options.model_name_or_path or str(EMBEDDED_ENCODER)
    layout.check(name, revision=options.model_revision)
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, revision=options.model_revision)
        config = AutoConfig.from_pretrained(name, revision=options.model_revision)
    except Exception as error:  # the Hub client and the file readers have a dozen kinds
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"the model {name} cannot be loaded: a folder or a Hub id is needed. {reason[:300]}") from error
    if tokenizer.pad_token is None:
        raise UserError(f"the tokenizer of {name} has no padding token")
    # RoBERTa counts positions from the padding index + 1, so two of its 514 rows are no token's.
    unused = config.pad_token_id + 1 if config.model_type in _COUNT_FROM_PADDING else 0
    limit = min((getattr(config, "max_position_embeddings", None) or 10**6) - unused, tokenizer.model_max_length)
    if options.max_seq_length is not None and not 8 <= options.max_seq_length <= limit:
        raise UserError(f"--max_seq_length must be between 8 and the model's {limit}, not {options.max_seq_length}")
    length = options.max_seq_length or min(task.max_seq_length, limit)
    if options.max_seq_length is None and length < task.max_seq_length:
        say(f"inputs are cut at the model's {length} tokens; {task.name} is usually given {task.max_seq_length}")
    return tokenizer, int(length)


def _load(options: TaskArguments, task: Task, kind: Kind) -> _Data:
    """All data before anything is trained, with the robust sets."""
    missing: list[dict[str, str]] = []

    def load(source: str, split: str, name: str) -> Split | None:
        try:
            return load_split(SOURCES[source], split, options.data_dir)
        except MissingData as error:
            missing.append({"task": name, "reason": str(error)})
            return None

    parts = []
    if not options.evaluate_only:
        parts = [load(source, split, f"{source} {split}") for source, split in task.train]
        parts = [part for part in parts if part is not None]
        if not parts:
            raise UserError(missing[0]["reason"])
    scored = {name: load(source, split, name) for source, split, name in task.scored}
    scored = {name: part for name, part in scored.items() if part is not None}
    if not scored:
        raise UserError(missing[-1]["reason"])
    if missing and rank() == 0:
        print(*(f"MISSING {entry['reason']}" for entry in missing), sep="\n", file=sys.stderr)
    rows, train, trained_on = None, None, []
    if parts:
        rows = datasets.concatenate_datasets([part.rows for part in parts])
        if options.max_train_samples is not None and options.max_train_samples < len(rows):
            rows = rows.shuffle(seed=0).select(range(options.max_train_samples))
        train = kind.train_features(rows)
        trained_on = [
            {"source": part.source, "split": part.split, "n": part.n, "complete": part.complete, "origin": part.origin,
             "sha256": part.sha256} for part in parts
        ]  # fmt: skip
        for part in parts:
            whole = "" if part.complete else f", a part of {SOURCES[part.source].rows[part.split]}"
            say(f"train: {part.source} {part.split}, {part.n} rows{whole}")
        if len(rows) < sum(part.n for part in parts):
            say(f"train: a random sample of {len(rows)} of them")
    if options.max_eval_samples is not None:
        scored = {name: _sample(part, options.max_eval_samples) for name, part in scored.items()}
    robust = {}
    operators, synonyms = _operators(options, task)
    for name, part in scored.items():
        say(f"score: {name}, {part.n} rows{'' if part.complete else ' (a part of the set)'}")
        if operators:
            columns = kind.perturbed or kind.source.columns
            robust[name] = robust_set(
                part.rows,
                columns,
                operators=operators,
                seed=options.robust_seed,
                protect=kind.protected,
                fixed=[column for column in kind.source.columns if column not in columns],
                neutral_in=None if task.neutral_in is None else columns[task.neutral_in],
                synonyms=synonyms,
            )
    known = known_sets(task, options.data_dir, options.robust_sets)
    for one in known:
        say(f"score: {one.name} {one.split}, {len(one.dataset)} rows")
    return _Data(rows, train, trained_on, scored, robust, known, missing)


def _augmentation(options: TaskArguments, task: Task) -> Augmentation | None:
    """How training rows are added, with all that the attacks need; None for not at all."""
    if options.augment == "none":
        return None
    return make_augmentation(
        task,
        options.augment,
        options.augment_attack or ["pwws"],
        {name: getattr(options, f"augment_{name}") for name in RESOURCES},
        samples=options.augment_samples,
        share=options.augment_share,
    )


def _sample(part: Split, size: int) -> Split:
    if size >= part.n:
        return part
    return dataclasses.replace(part, rows=part.rows.shuffle(seed=0).select(range(size)), complete=False)


def _operators(options: TaskArguments, task: Task) -> tuple[list[str], Synonyms | None]:
    """The perturbations of the robust set (none for no set), and the synonyms if they are among them."""
    asked = options.robust_operators
    if asked == ["none"]:
        return [], None
    unsafe = {*task.unsafe, *(["neutral"] if task.neutral_in is None else [])}
    if asked is not None and (wrong := [name for name in asked if name in unsafe]):
        raise UserError(f"--robust_operators {' '.join(wrong)} may change the labels of {task.name}: leave it out")
    chosen = [name for name in OPERATORS if name not in unsafe] if asked is None else asked
    if options.robust_word_list is not None:
        return chosen, read_word_list(options.robust_word_list)
    if "synonyms" not in chosen:
        return chosen, None
    try:
        return chosen, load_wordnet(exact=True)
    except UserError as error:
        if asked is not None:
            raise
        say(f"the robust sets have no synonyms: {error}, or pass --robust_word_list FILE")
        return [name for name in chosen if name != "synonyms"], None


def load_model(options: TaskArguments, kind: Kind, seed: int) -> Any:
    """The encoder under a new head drawn from the seed, or with `evaluate_only` the fine-tuned model.

    Raises:
        UserError: if it cannot be loaded.
    """
    name = options.model_name_or_path or str(EMBEDDED_ENCODER)
    set_seed(seed)  # the head is new
    wanted = kind.config()
    try:
        model, loaded = kind.auto.from_pretrained(
            name, revision=options.model_revision, output_loading_info=True, dtype="float32",
            **({} if options.evaluate_only else wanted),
        )  # fmt: skip
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{name} cannot be loaded with {kind.auto.__name__}: {reason[:300]}") from error
    if options.evaluate_only:
        if absent := sorted(loaded["missing_keys"]):
            raise UserError(f"{name} was not fine-tuned, it has no {absent[0]}: leave --evaluate_only out")
        for key, value in wanted.items():
            own = getattr(model.config, key, None)
            if key in ("num_labels", "id2label") and own != value:
                raise UserError(f"{name} was fine-tuned on something else: its {key} is {own}, the task's {value}")
    model.config.output_hidden_states = (
        False  # encoders with a pooling over layers have it: only logits are wanted here
    )
    return model


def _manifest(arguments: Arguments, task: Task, kind: Kind, data: _Data, plan: Augmentation | None) -> dict[str, Any]:
    options, training = arguments.task, arguments.training
    return {
        # What must be equal for a resumed run to be the same run.
        "identity": {
            "task": task.name,
            "model_name_or_path": options.model_name_or_path or "embedded",
            "trained_on": [[part["source"], part["sha256"]] for part in data.trained_on],
            "max_train_samples": options.max_train_samples,
            "max_seq_length": kind.max_length,
            "batch": training.per_device_train_batch_size * world_size() * training.gradient_accumulation_steps,
            "learning_rate": training.learning_rate,
            "num_train_epochs": training.num_train_epochs,
            "max_steps": training.max_steps,
            "seed": training.seed,
            "augment": None if plan is None else plan.identity,
        },
        "command": arguments.command,
        "arguments": {"task": dataclasses.asdict(options), "training": training.to_dict()},
        "library_versions": library_versions(),
    }


def _augment(
    plan: Augmentation,
    kind: Kind,
    rows: datasets.Dataset,
    training: FinetuningArguments,
    first_stage: Callable[[], Any],
) -> tuple[datasets.Dataset, dict[str, Any]]:
    """The training rows to add, and what the results say of them; they are saved beside the run, and made once.

    Args:
        plan: what is done.
        kind: of the task.
        rows: the training set.
        training: of the run.
        first_stage: the model that is attacked, trained without the added rows.
    """
    saved = Path(training.output_dir) / "augmented"
    if not on_first(lambda: is_attacked_set(saved)):
        numbers = plan.draw(len(rows), training.seed)
        attacks = ", ".join(recipe.name for recipe in plan.recipes)
        if plan.kind == "da":
            found = added = substituted(plan, rows, numbers, training.seed)
        else:
            victim = Classifier(first_stage(), kind.tokenizer, max_length=kind.max_length)
            say(f"attacking {len(numbers)} training rows: {attacks}")
            found = attacked(plan, rows, numbers, training.seed, victim, Path(training.output_dir) / "first-stage")
            added = [row for row in found if row["status"] == "succeeded"]
        if not added:
            raise UserError(
                f"--augment {plan.kind}: none of {len(numbers)} rows could be rewritten by {attacks}: draw more rows "
                "(--augment_samples), or name another attack (--augment_attack)"
            )
        if training.should_save:
            about = {"title": f"Training rows of {kind.task.name}, rewritten", **summary(plan, found, len(numbers))}
            save_attacked_set(added, saved, about={**about, "seed": training.seed}, split="train")
        all_here()
    added = load_attacked_set(saved)
    say(f"train: {len(added)} rewritten rows on top: {saved}")
    about = {**load_about(saved), "rows": len(added), "set": str(saved)}
    return as_training_rows(plan, added.to_list(), rows), about


def _run_one(arguments: Arguments, task: Task, kind: Kind, data: _Data, plan: Augmentation | None) -> dict[str, Any]:
    options, training = arguments.task, arguments.training
    folder = Path(training.output_dir)
    model = load_model(options, kind, training.seed)
    dev = next((name for name, part in data.scored.items() if part.split.startswith("dev")), None)
    if training.eval_strategy != "no" and dev is None:
        raise UserError(f"--eval_strategy {training.eval_strategy}: {task.name} has no dev set here; leave it out")
    features = {name: kind.features(part.rows) for name, part in data.scored.items()}

    def compute_metrics(output: Any) -> dict[str, float]:
        rows = data.scored[dev].rows
        return kind.scores(kind.predictions(output.predictions, features[dev], rows), rows)

    def trainer_of(model: Any, training: FinetuningArguments, train: datasets.Dataset | None) -> Trainer:
        return Trainer(
            model,
            training,
            train_dataset=train,
            eval_dataset=features[dev] if dev else None,
            data_collator=kind.collator(),
            processing_class=kind.tokenizer,
            compute_metrics=compute_metrics,
        )

    def first_stage() -> Any:
        """The model that is trained on the data as they are; it is kept, with its checkpoints, beside the run."""
        own = folder / "first-stage"
        begun, finished = on_first(lambda: [(own / name).is_file() for name in ("manifest.json", "training.json")])
        if not finished:
            mine = copy.deepcopy(training)
            mine.output_dir, mine.resume_from_checkpoint = str(own), "last" if begun else None
            say("first stage: the model that is attacked")
            start, _ = resume_point(mine, manifest)
            if mine.should_save:
                write_json(own / "manifest.json", manifest)
            first = trainer_of(load_model(options, kind, training.seed), mine, data.train)
            output = first.train(resume_from_checkpoint=start)
            first.save_model(str(own))
            if mine.should_save:
                (own / "training_args.bin").unlink(missing_ok=True)  # a pickle
                write_json(own / "training.json", {"steps": first.state.global_step, "loss": output.training_loss})
            all_here()
        return kind.auto.from_pretrained(own, dtype="float32").to(training.device)

    train, augmented, record = data.train, None, _earlier_training(options)
    if not options.evaluate_only:
        manifest = _manifest(arguments, task, kind, data, plan)
        checkpoint, _ = resume_point(training, manifest)
        if training.should_save:
            write_json(folder / "manifest.json", manifest)
        if plan is not None:
            rows, augmented = _augment(plan, kind, data.rows, training, first_stage)
            train = datasets.concatenate_datasets([data.train, kind.train_features(rows)])
    trainer = trainer_of(model, training, train)
    if not options.evaluate_only:
        started = time.perf_counter()
        output = trainer.train(resume_from_checkpoint=checkpoint)
        record = {
            "status": "finished",
            "steps": trainer.state.global_step,
            "epochs": trainer.state.epoch,
            "seconds": round(time.perf_counter() - started, 1),
            "loss": output.training_loss,
            "on": data.trained_on,
            "rows": len(train),
        }
        if augmented is not None:
            record["augmented"] = augmented
        trainer.save_model(str(folder))
        if training.should_save:
            (folder / "training_args.bin").unlink(missing_ok=True)  # a pickle; the manifest has the arguments
    trainer.compute_metrics = None  # the sets below are not all the one that it knows

    def predict(rows: datasets.Dataset) -> list[Any]:
        inputs = kind.features(rows)
        return kind.predictions(trainer.predict(inputs).predictions, inputs, rows)

    outputs = {name: trainer.predict(inputs).predictions for name, inputs in features.items()}
    if dev is not None:
        kind.calibrate(outputs[dev], data.scored[dev].rows)
    tasks, said = {}, {}
    for name, part in data.scored.items():
        said[name] = [kind.predictions(outputs[name], features[name], part.rows)]
        if len({str(prediction) for prediction in said[name][0]}) == 1:
            say(f"note: all predictions on {name} are {said[name][0][0]!r}: nothing was learnt, train for longer")
        tasks[name] = {**kind.scores(said[name][0], part.rows), "n": part.n, "split": part.split, "source": part.origin,
                       "sha256": part.sha256, "complete": part.complete}  # fmt: skip
        if name in data.robust:
            perturbed = data.robust[name]
            said[name].append(predict(perturbed))
            tasks[name] |= _robustness(kind, said[name], [perturbed])
            if training.should_save:
                save_robust_set(part.rows, perturbed, folder / "robust_sets" / name)
    for name, members in POOLED.get(task.name, {}).items():
        if all(member in tasks for member in members):
            tasks[name] = _pool(kind, data, said, members)
    for one in data.known:
        tasks[one.name] = score_known(kind, one, predict)
    results = base_results(
        model=options.model_name_or_path or "embedded",
        method=saved_method(options.model_name_or_path) if options.model_name_or_path else None,
        seed=training.seed,
        command=arguments.command,
        device=training.device,
    )
    results["protocol"] = {"task": task.name, "max_seq_length": kind.max_length, "metric": task.metrics[0]}
    if data.robust:
        results["protocol"]["robust_set"] = {
            "operators": sorted({name for rows in data.robust.values() for row in rows["operators"] for name in row}),
            "seed": options.robust_seed,
        }
    if isinstance(threshold := getattr(kind, "threshold", None), float):
        results["protocol"]["threshold"] = threshold
    results |= {"tasks": tasks, "missing": data.missing, "training": record}
    del results["averages"]
    if training.should_save:
        write_json(folder / "results.json", results)
    say("", format_table(results, task), f"results: {folder / 'results.json'}")
    if data.robust:
        say(f"perturbed sets, original beside perturbed: datasets.load_from_disk('{folder / 'robust_sets'}/...')")
    if not options.evaluate_only:
        say(f"model: {folder} -- {kind.auto.__name__}.from_pretrained('{folder}') loads it")
    return results


def _earlier_training(options: TaskArguments) -> dict[str, Any]:
    """What the results beside a fine-tuned model say of its training."""
    try:
        text = (Path(options.model_name_or_path or "") / "results.json").read_text(encoding="utf-8")
        return {**json.loads(text)["training"], "status": "earlier"} if options.evaluate_only else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {"status": "not trained"}


def _robustness(kind: Kind, said: Sequence[list[Any]], perturbed: Sequence[datasets.Dataset]) -> dict[str, Any]:
    """The scores on perturbed rows, how many were changed at all, and how many predictions of those stayed."""
    rows = datasets.concatenate_datasets(list(perturbed))
    changed = [bool(names) for names in rows["operators"]]
    same = [kind.same(before, after) for before, after in zip(*said, strict=True)]
    unmoved = [True] * len(same)
    return {
        "robust": {**kind.scores(said[1], rows), "n": len(rows), "changed": sum(changed)},
        "invariance": invariance_rate(unmoved, same, changed) if any(changed) else None,
    }


def _pool(kind: Kind, data: _Data, said: dict[str, list[list[Any]]], members: Sequence[str]) -> dict[str, Any]:
    """The scores over the rows of several sets."""
    rows = datasets.concatenate_datasets([data.scored[member].rows for member in members])
    together = [sum((said[member][i] for member in members), []) for i in range(len(said[members[0]]))]
    parts = [data.scored[member] for member in members]
    record = {**kind.scores(together[0], rows), "n": len(rows), "split": parts[0].split, "pooled": list(members),
              "complete": all(part.complete for part in parts)}  # fmt: skip
    if len(together) > 1:
        record |= _robustness(kind, together, [data.robust[member] for member in members])
    return record


def format_table(results: dict[str, Any], task: Task) -> str:
    """The table that the command prints: normal and robust figures, and the invariance."""
    names = task.metrics
    header = ["set", *names, *(f"robust {name}" for name in names), "invariance", "n"]
    lines = [header]
    for name, record in results["tasks"].items():
        robust = record.get("robust", {})
        cells = [_cell(record, key) for key in names] + [_cell(robust, key) for key in names]
        lines.append([name, *cells, _cell(record, "invariance"), str(record["n"])])
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    rows = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return "\n".join("  ".join([line[0].ljust(widths[0]), *row[1:]]) for line, row in zip(lines, rows, strict=True))


def _cell(record: dict[str, Any], key: str) -> str:
    value, std = record.get(key), record.get(f"{key}_std")
    if value is None:
        return "-"
    return f"{value:.2f}" if std is None else f"{value:.2f} ± {std:.2f}"
