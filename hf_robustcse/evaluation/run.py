"""The evaluation command without its command line: load the data, then the model, score, print, write."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import sts, uncertainty
from hf_robustcse.evaluation.baselines import whiten_tasks
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.evaluation.geometry import evaluate_geometry
from hf_robustcse.evaluation.results import base_results, command_line, task_record
from hf_robustcse.files import write_json

GROUPS = ("sts", "geometry")
GEOMETRY_SET = "stsb_dev"


def run_evaluation(
    model_name_or_path: str,
    tasks: Sequence[str],
    data_dir: str | Path | None = None,
    *,
    split: str = "test",
    output_json: str | Path | None = None,
    pooling: str | None = None,
    max_seq_length: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    strict: bool = False,
    seed: int = 0,
    bootstrap: int | None = None,
    whitening: bool = False,
    whitening_text: str | Path | None = None,
    whitening_dim: int | None = None,
    argv: Sequence[str] = (),
) -> dict[str, Any]:
    """Evaluate a model, each distinct sentence encoded once over all tasks; prints the table.

    Args:
        model_name_or_path: a folder or Hub id.
        tasks: `sts` (the seven test sets; one that is absent is reported on stderr, listed under `missing`, and leaves
            the average empty), `geometry` (of STS-B dev), or names that `sts.parse_task` reads, which must be present.
        data_dir: folder of the data files, or None for the Hub.
        split: the split of a named task that gives none.
        output_json: where to write the result, if anywhere.
        pooling: as in `load_embedder`.
        max_seq_length: as in `load_embedder`.
        batch_size: sentences per forward pass.
        device: as in `load_embedder`.
        strict: whether an absent member of a group is an error.
        seed: of the random pairs of the geometry and of the bootstrap.
        bootstrap: resamples for the interval of each STS score (`uncertainty`); none with 0 or None.
        whitening: whether to whiten the embeddings, see `baselines.whiten_tasks`; the next two imply it.
        whitening_text: a corpus to fit the whitening on, instead of the scored sentences.
        whitening_dim: how many dimensions the whitening keeps.
        argv: the command's words, for the record.

    Returns:
        What `results.json` holds: `results.base_results` with `tasks`, `averages` and `missing`, a list of {`task`,
        `reason`}.

    Raises:
        UserError: for an unknown task, absent or wrong data, or a model that cannot be loaded; nothing is written then.
    """
    if output_json is not None and Path(output_json).is_dir():
        raise UserError(f"--output_json {output_json} is a folder: name a file")
    bootstrap = bootstrap or 0
    uncertainty.check_samples(bootstrap)
    tasks = [name.lower() for name in tasks]
    if "transfer" in tasks and (whitening or whitening_text is not None or whitening_dim is not None):
        raise UserError("--whitening is for sts and geometry: evaluate transfer without it")
    loaded, missing = load_tasks(tasks, data_dir, split, strict)
    geometry = sts.load_sts(GEOMETRY_SET, data_dir) if "geometry" in tasks else None
    embedder = load_embedder(
        model_name_or_path, pooling=pooling, max_seq_length=max_seq_length, batch_size=batch_size, device=device
    )
    embeddings, protocol = embed_tasks(
        embedder, [*loaded, *filter(None, [geometry])], whitening, whitening_text, whitening_dim
    )
    scores = sts.evaluate_tasks(embeddings, loaded)
    for data in loaded if bootstrap else ():
        cosines, gold = embeddings[data.key].cosines(data.pairs), data.gold
        scores["tasks"][data.key] |= uncertainty.spearman_interval(
            cosines, gold, samples=bootstrap, seed=seed, name=data.key
        )
    records = {data.key: task_record(scores["tasks"][data.key], data) for data in loaded}
    if geometry is not None:
        metrics = evaluate_geometry(embeddings[geometry.key], geometry.pairs, seed=seed)
        records["geometry"] = task_record({**metrics, "set": geometry.key}, geometry)
    about = embedder.description
    results = base_results(
        model=about["model"],
        method=about["method"],
        seed=seed,
        command=command_line(argv),
        revision=about["revision"],
        device=about["device"],
    )
    results["protocol"].update({name: about[name] for name in ("pooling", "max_seq_length", "dtype")} | protocol)
    if bootstrap:
        results["protocol"]["bootstrap"] = {"samples": bootstrap, "level": uncertainty.LEVEL, "resampled": "pairs"}
    results["tasks"] = records
    results["averages"].update(scores["averages"])
    results["missing"] = missing
    print(format_tables(results))
    if output_json is not None:
        write_json(output_json, results)
    return results


def embed_tasks(
    encode: sts.Encode,
    tasks: Sequence[sts.StsData],
    whitening: bool = False,
    whitening_text: str | Path | None = None,
    whitening_dim: int | None = None,
) -> tuple[dict[str, sts.Embeddings], dict[str, Any]]:
    """The unit embeddings of each task, each distinct sentence encoded once, and what the protocol says of them.

    Args:
        encode: n strings -> (n, d) array or tensor.
        tasks: the loaded tasks.
        whitening: as in `run_evaluation`, as the next two.
        whitening_text: see there.
        whitening_dim: see there.

    Returns:
        `StsData.key` -> embeddings, and {} or {`whitening`: ...}.

    Raises:
        UserError: as in `baselines.whiten_tasks`.
    """
    if whitening or whitening_text is not None or whitening_dim is not None:
        embeddings, about = whiten_tasks(encode, tasks, text=whitening_text, dim=whitening_dim)
        return embeddings, {"whitening": about}
    shared = sts.Embeddings(encode, (sentence for data in tasks for sentence in data.sentences))
    return dict.fromkeys((data.key for data in tasks), shared), {}


def load_tasks(
    tasks: Sequence[str], data_dir: str | Path | None = None, split: str = "test", strict: bool = False
) -> tuple[list[sts.StsData], list[dict[str, str]]]:
    """The STS data of tasks, in the order of the tables, and what is missing of the group `sts`.

    Args:
        tasks: as in `run_evaluation`; `geometry` is left out.
        data_dir: see there, as the next two.
        split: see there.
        strict: see there.

    Raises:
        UserError: for an unknown task, or data that are absent or wrong.
    """
    if "sts" in tasks and split != "test":
        raise UserError(f"the group sts is the seven test sets: name STSB and SICKR for --split {split}")
    available = f"available: {', '.join((*GROUPS, *sts.TASKS))}, single tasks also with _dev, _test or _train"
    if "transfer" in tasks:
        raise UserError(f"the task transfer is not implemented yet; {available}")
    named: dict[tuple[str, str], None] = {}
    for name in tasks:
        if name not in GROUPS:
            try:
                named[sts.parse_task(name, split)] = None
            except sts.UnknownTask:
                raise UserError(f"unknown task {name!r}; {available}") from None
    found = {wanted: sts.load_sts(wanted[0], data_dir, wanted[1]) for wanted in named}
    missing: list[dict[str, str]] = []
    for name in sts.STS_TEST if "sts" in tasks else ():
        if (name, "test") in found:
            continue
        try:
            found[name, "test"] = sts.load_sts(name, data_dir)
        except sts.MissingData as error:
            missing.append({"task": name, "reason": str(error)})
    if missing:
        names = ", ".join(entry["task"] for entry in missing)
        if strict or len(missing) == len(sts.STS_TEST):
            raise UserError(f"missing of the group sts: {names}. {missing[0]['reason']}")
        for entry in missing:
            print(f"MISSING {entry['reason']}", file=sys.stderr)
        print(f"MISSING {names}: the average of the seven STS tasks is not reported", file=sys.stderr)
    order = {task: place for place, task in enumerate(sts.TASKS)}
    return sorted(found.values(), key=lambda data: (order[data.task], data.split)), missing


def format_tables(results: Mapping[str, Any]) -> str:
    """The tables that the command prints: STS scores, one table a split, and the geometry.

    Args:
        results: the object that `run_evaluation` returns.

    Returns:
        Lines of text.
    """
    lines = [f"model {results['model']}, pooling {results['protocol']['pooling']}"]
    if whitening := results["protocol"].get("whitening"):
        lines[0] += f", whitened, fitted on {whitening['fitted_on']}"
    scored = {name: record for name, record in results["tasks"].items() if "spearman" in record}
    ends = ("low", "high") if "bootstrap" in results["protocol"] else ()
    for split in dict.fromkeys(record["split"] for record in scored.values()):
        lines += ["", f"Spearman x100, all; split: {split}", _row("task", "all", "mean", "wmean", "n", *ends)]
        for name, record in scored.items():
            if record["split"] == split:
                values = (record["spearman"], record["spearman_mean"], record["spearman_wmean"], record["n"])
                lines.append(_row(name, *values, *(record[f"spearman_{end}"] for end in ends)))
        if split == "test" and (results["averages"]["sts"] is not None or results["missing"]):
            lines.append(_row("average", results["averages"]["sts"]))
            if results["missing"]:
                lines.append("missing: " + ", ".join(entry["task"] for entry in results["missing"]))
    if geometry := results["tasks"].get("geometry"):
        lines += ["", f"geometry of {geometry['set']}"]
        for name, value in geometry.items():
            if not isinstance(value, str):
                shown = "-" if value is None else f"{value:.4f}" if isinstance(value, float) else value
                lines.append(f"{name:<16}{shown:>10}")
    return "\n".join(lines)


def _row(name: str, *values: float | int | str | None) -> str:
    cells = ("-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value) for value in values)
    return f"{name:<14}" + "".join(f"{cell:>8}" for cell in cells)
