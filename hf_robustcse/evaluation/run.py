"""The evaluation command without its command line: load the data, then the model, score, print, write."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_robustcse.data import VIEWS, load_corpus
from hf_robustcse.distributed import on_first, rank
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import pictures as drawing
from hf_robustcse.evaluation import sts, transfer, uncertainty
from hf_robustcse.evaluation.attacked_sets import evaluate_attacked_pairs, load_attacked_pairs
from hf_robustcse.evaluation.baselines import whiten_tasks
from hf_robustcse.evaluation.checklist import checklist_lines, evaluate_suite, load_suites
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.evaluation.geometry import evaluate_geometry
from hf_robustcse.evaluation.noise_curves import Perturb, check_rates, evaluate_noise, noise_lines, perturbations
from hf_robustcse.evaluation.probes import ProbeText, batch_sizes, evaluate_probes, probe_text
from hf_robustcse.evaluation.results import base_results, command_line, task_record
from hf_robustcse.files import write_json

GROUPS = ("sts", "transfer", "geometry", "noise", "checklist")
JUDGES = ("noise", "checklist")  # of robustness: they have sets, and a place in the results, of their own
GEOMETRY_SET = "stsb_dev"
NOISE_SETS = ("stsb",)


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
    embedding_cache: str | Path | None = None,
    strict: bool = False,
    seed: int = 0,
    sst2_train: str = "auto",
    geometry_text: str | Path | None = None,
    geometry_k: int = 4,
    geometry_batch_sizes: Sequence[int] | None = None,
    geometry_noise: float = 0.2,
    pictures: str | Path | None = None,
    bootstrap: int | None = None,
    whitening: bool = False,
    whitening_text: str | Path | None = None,
    whitening_dim: int | None = None,
    attacked_sets: Sequence[str | Path] = (),
    noise_tasks: Sequence[str] | None = None,
    noise_rates: Sequence[float] | None = None,
    noise_perturbed: str = "both",
    noise_word_list: str | None = None,
    checklist_cases: int | None = None,
    argv: Sequence[str] = (),
) -> dict[str, Any]:
    """Evaluate a model, each distinct sentence encoded once over all tasks; prints the table.

    Several processes encode together; the first scores, prints and writes, while the others wait.

    Args:
        model_name_or_path: a folder or Hub id.
        tasks: `sts` (the seven test sets) or `transfer` (the seven classification tasks), of which one that is absent
            is reported on stderr, listed under `missing`, and leaves the average empty; `geometry` (of STS-B dev);
            `noise` and `checklist` (the modules `noise_curves` and `checklist`); or names that `sts.parse_task` or
            `transfer.find_task` reads, which must be present.
        data_dir: folder of the data files, or None for the Hub.
        split: the split of a named STS task that gives none.
        output_json: where to write the result, if anywhere.
        pooling: as in `load_embedder`.
        max_seq_length: as in `load_embedder`.
        batch_size: sentences per forward pass.
        device: as in `load_embedder`.
        embedding_cache: see there.
        strict: whether an absent member of a group, or a want of synonyms for `noise`, is an error.
        seed: of whatever the geometry draws at random, of the folds of the transfer tasks, and of the bootstrap.
        sst2_train: what SST2 trains on, see `transfer.load_transfer`.
        geometry_text: a corpus file (`data.load_corpus`) whose sentences are probed in place of those of STS-B dev,
            which may be absent then.
        geometry_k: as in `probes.top_negatives`.
        geometry_batch_sizes: as in `probes.top_negatives`.
        geometry_noise: as in `probes.probe_text`.
        pictures: the folder of the pictures of geometry and noise; None puts them beside `output_json`, if that is
            given.
        bootstrap: resamples for the interval of each STS score (`uncertainty`); none with 0 or None.
        whitening: whether to whiten the embeddings, of STS tasks only, see `baselines.whiten_tasks`; the next two imply
            it.
        whitening_text: a corpus to fit the whitening on, instead of the scored sentences.
        whitening_dim: how many dimensions the whitening keeps.
        attacked_sets: folders of pairs that another model was attacked with (`attacked_sets.load_attacked_pairs`).
        noise_tasks: STS sets of the noise curves; None for STSB test.
        noise_rates: as in `noise_curves.noise_curve`; None for `noise_curves.RATES`.
        noise_perturbed: `both` sentences of a pair or the `second`, see there.
        noise_word_list: synonyms in place of WordNet's. Without either only typos are made, which is said on stderr.
        checklist_cases: as in `checklist.load_suites`.
        argv: the command's words, for the record.

    Returns:
        What `results.json` holds, on every process: `results.base_results` with `tasks`, `averages` and `missing`, a
        list of {`task`, `reason`}; and with attacked sets `attacked_sets`: name of the folder -> its scores; with
        `noise` what `noise_curves.evaluate_noise` returns under `noise` (kind -> set -> curves); with `checklist` what
        `checklist.evaluate_suite` returns under `checklist`, by the name of the suite.

    Raises:
        UserError: for an unknown task, absent or wrong data, or a model that cannot be loaded; nothing is written then.
    """
    if output_json is not None and Path(output_json).is_dir():
        raise UserError(f"--output_json {output_json} is a folder: name a file")
    bootstrap = bootstrap or 0
    uncertainty.check_samples(bootstrap)
    tasks = [name.lower() for name in tasks]
    if "geometry" not in tasks and geometry_text is not None:
        raise UserError("--geometry_text belongs to the geometry: add geometry to --tasks")
    if not {"geometry", "noise"} & {*tasks} and pictures is not None:
        raise UserError("--pictures belongs to the geometry and the noise curves: add geometry or noise to --tasks")
    check_noise_options(tasks, noise_tasks, noise_rates, noise_perturbed, noise_word_list)
    if "checklist" not in tasks and checklist_cases is not None:
        raise UserError("--checklist_cases belongs to CheckList: add checklist to --tasks")
    if pictures is not None and Path(pictures).exists() and not Path(pictures).is_dir():
        raise UserError(f"--pictures {pictures} is a file: name a folder")
    if is_whitened(whitening, whitening_text, whitening_dim):
        if other := [name for name in tasks if name in GROUPS[1:] or transfer.find_task(name)]:
            raise UserError(f"--whitening is for STS tasks only: evaluate {', '.join(other)} without it")
        if attacked_sets:
            raise UserError("--whitening is for STS tasks only: evaluate attacked sets without it")
    attacked = [load_attacked_pairs(folder) for folder in attacked_sets]
    if len({pairs.name for pairs in attacked}) < len(attacked):
        raise UserError("two attacked sets have the same name of their folder: rename one")
    classified = [name for name in tasks if name == "transfer" or transfer.find_task(name)]
    plain = [name for name in tasks if name not in (*classified, *JUDGES)]
    loaded, missing = load_tasks(plain, data_dir, split, strict)
    if classified and split != "test":
        raise UserError(f"the transfer tasks have splits of their own: leave --split {split} out")
    rows, absent = load_transfer_tasks(classified, data_dir, sst2_train, strict)
    geometry = probed = None
    if "geometry" in tasks:
        geometry, probed = _load_geometry(data_dir, geometry_text, geometry_noise, seed, strict)
        batch_sizes(len(probed.sentences), geometry_k, geometry_batch_sizes)  # refuses before the model is loaded
    noisy, kinds = [], {}
    if "noise" in tasks:
        noisy, kinds = load_noise(noise_tasks, data_dir, split, noise_word_list, strict)
    suites = []
    if "checklist" in tasks:
        suites = load_suites(data_dir, sst2_train=sst2_train, cases=checklist_cases)
    embedder = load_embedder(
        model_name_or_path, pooling=pooling, max_seq_length=max_seq_length, batch_size=batch_size, device=device,
        embedding_cache=embedding_cache,
    )  # fmt: skip
    sets = [data.sentences for data in (*loaded, *rows, *filter(None, [geometry]), *attacked, *noisy, *suites)]
    if probed is not None:
        sets += [probed.sentences, probed.perturbed]
    whitened = is_whitened(whitening, whitening_text, whitening_dim)
    embeddings = embedder if whitened else sts.Embeddings(embedder, itertools.chain.from_iterable(sets))
    by_task, protocol = embed_tasks(embeddings, loaded, whitening, whitening_text, whitening_dim)
    # Here every process encodes its share, of one set and kind at a time: there are about 50,000 texts of each.
    noise = {}
    if noisy:
        noise = evaluate_noise(
            embedder, noisy, kinds, rates=noise_rates, perturbed=noise_perturbed, originals=embeddings
        )

    def score() -> dict[str, Any]:
        scores = sts.evaluate_tasks(by_task, loaded)
        for data in loaded if bootstrap else ():
            cosines, gold = by_task[data.key].cosines(data.pairs), data.gold
            scores["tasks"][data.key] |= uncertainty.spearman_interval(
                cosines, gold, samples=bootstrap, seed=seed, name=data.key
            )
        records = {data.key: task_record(scores["tasks"][data.key], data) for data in loaded}
        if geometry is not None:
            metrics = evaluate_geometry(embeddings, geometry.pairs, seed=seed)
            records["geometry"] = task_record({**metrics, "set": geometry.key}, geometry)
        averages = scores["averages"]
        if rows:  # without any, its progress bar would show
            classification = transfer.evaluate_tasks(embeddings, rows, seed=seed)
            records |= {data.key: task_record(classification["tasks"][data.key], data) for data in rows}
            averages |= classification["averages"]
        if probed is not None:
            probes = evaluate_probes(embeddings, probed, k=geometry_k, sizes=geometry_batch_sizes, seed=seed)
            records.setdefault("geometry", {"set": None})["probes"] = probes
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
        if not all(data.subsets_known for data in loaded):
            results["protocol"]["text"] += "; the Hub's copies of STS12 to STS16 are tokenised"
        if bootstrap:
            results["protocol"]["bootstrap"] = {"samples": bootstrap, "level": uncertainty.LEVEL, "resampled": "pairs"}
        if rows:
            results["protocol"]["transfer"] = {
                "classifier": "logistic regression with an L2 penalty, scikit-learn's lbfgs",
                "folds": transfer.FOLDS,
                "penalties": list(transfer.PENALTIES),
            }
        results["tasks"] = records
        results["averages"].update(averages)
        results["missing"] = missing + absent
        if attacked:
            results["attacked_sets"] = {pairs.name: evaluate_attacked_pairs(embeddings, pairs) for pairs in attacked}
        if noise:
            results["noise"] = noise
        if suites:
            results["checklist"] = {suite.name: evaluate_suite(embeddings, suite, seed=seed) for suite in suites}
        print(format_tables(results))
        if output_json is not None:
            write_json(output_json, results)
        if (probed is not None or noise) and (output_json or pictures):
            _draw(results, output_json, pictures)
        return results

    return on_first(score)


def is_whitened(whitening: bool, text: str | Path | None, dim: int | None) -> bool:
    """Whether the options of the whitening ask for it: each of them does."""
    return whitening or text is not None or dim is not None


def embed_tasks(
    encode: sts.Encode,
    tasks: Sequence[sts.StsData],
    whitening: bool = False,
    whitening_text: str | Path | None = None,
    whitening_dim: int | None = None,
) -> tuple[dict[str, sts.Embeddings], dict[str, Any]]:
    """The unit embeddings of each task, each distinct sentence encoded once, and what the protocol says of them.

    Args:
        encode: n strings -> (n, d) array or tensor; an `Embeddings` is used as it is.
        tasks: the loaded tasks.
        whitening: as in `run_evaluation`, as the next two.
        whitening_text: see there.
        whitening_dim: see there.

    Returns:
        `StsData.key` -> embeddings, and {} or {`whitening`: ...}.

    Raises:
        UserError: as in `baselines.whiten_tasks`.
    """
    if is_whitened(whitening, whitening_text, whitening_dim):
        embeddings, about = whiten_tasks(encode, tasks, text=whitening_text, dim=whitening_dim)
        return embeddings, {"whitening": about}
    shared = sts.Embeddings.of(encode, (sentence for data in tasks for sentence in data.sentences))
    return dict.fromkeys((data.key for data in tasks), shared), {}


def _load_geometry(
    data_dir: str | Path | None, text: str | Path | None, noise: float, seed: int, strict: bool
) -> tuple[sts.StsData | None, ProbeText]:
    """STS-B dev, and the sentences to probe: its own or those of a file."""
    data = None
    try:
        data = sts.load_sts(GEOMETRY_SET, data_dir)
    except sts.MissingData as error:
        if text is None or strict:
            raise
        if rank() == 0:
            print(f"MISSING {error}", f"MISSING alignment and cosines of scored pairs: {text} is probed", sep="\n",
                  file=sys.stderr)  # fmt: skip
    if text is None:
        return data, probe_text(data.sentences, data.source, noise=noise, seed=seed)
    probed = probe_text(load_corpus(text).dataset[VIEWS[0]], str(text), noise=noise, seed=seed)
    if probed.available > len(probed.sentences):
        print(f"the probes use {len(probed.sentences)} of the {probed.available} sentences in {text}, drawn at random")
    return data, probed


def check_noise_options(
    tasks: Sequence[str],
    noise_tasks: Sequence[str] | None,
    rates: Sequence[float] | None,
    perturbed: str,
    word_list: str | None,
) -> None:
    """Refuse options of the noise curves without them, and wrong rates; the options are those of `run_evaluation`.

    Raises:
        UserError: naming the option.
    """
    chosen = {"tasks": noise_tasks, "rates": rates, "word_list": word_list}
    if perturbed != "both":
        chosen["perturbed"] = perturbed
    if "noise" not in tasks and (given := [name for name, value in chosen.items() if value is not None]):
        raise UserError(f"--noise_{given[0]} belongs to the noise curves: add noise to --tasks")
    check_rates(rates)


def load_noise(
    names: Sequence[str] | None, data_dir: str | Path | None, split: str, word_list: str | None, strict: bool
) -> tuple[list[sts.StsData], dict[str, Perturb]]:
    """The sets of the noise curves, and the kinds of noise; what is missing is said on stderr.

    Args:
        names: `noise_tasks` of `run_evaluation`.
        data_dir: see there, as the next three.
        split: see there.
        word_list: `noise_word_list` there.
        strict: see there.

    Raises:
        UserError: see there.
    """
    names = [name.lower() for name in names or NOISE_SETS]
    if other := [name for name in names if name in GROUPS[1:] or transfer.find_task(name)]:
        raise UserError(f"--noise_tasks takes sts or STS sets: leave {', '.join(other)} out")
    kinds, reason = perturbations(word_list, strict=strict)
    if reason and rank() == 0:
        print(f"MISSING the noise curves of synonyms, those of typos alone are drawn: {reason}", file=sys.stderr)
    return load_tasks(names, data_dir, split, strict)[0], kinds


def _draw(results: Mapping[str, Any], output_json: str | Path | None, folder: str | Path | None) -> None:
    """The pictures of the probes and of the noise curves, or how to get them."""
    if not drawing.has_matplotlib():
        print(f"no pictures were drawn: {drawing.HOW_TO_GET}")
        return
    model = Path(results["model"]).resolve().name
    name = Path(output_json).name.removesuffix(".json") if output_json is not None else model
    stem = Path(folder or Path(output_json).parent) / name
    files = []
    if probes := results["tasks"].get("geometry", {}).get("probes"):
        files += drawing.draw_probes({model: probes}, stem)
    if "noise" in results:
        files += drawing.draw_noise({model: results["noise"]}, stem)
    print("pictures: " + ", ".join(map(str, files)))


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
    available = (
        f"available: {', '.join((*GROUPS, *sts.TASKS, *transfer.TASKS))}, STS tasks also with _dev, _test or _train"
    )
    named: dict[tuple[str, str], None] = {}
    for name in tasks:
        if name == "transfer" or name in JUDGES or transfer.find_task(name):
            kind = "no STS" if name in JUDGES else "a transfer"
            raise UserError(f"{name} is {kind} task, which examples/run_eval.py scores: run it on the trained model")
        if name not in GROUPS:
            try:
                named[sts.parse_task(name, split)] = None
            except sts.UnknownTask:
                raise UserError(f"unknown task {name!r}; {available}") from None
    found = {wanted: sts.load_sts(wanted[0], data_dir, wanted[1]) for wanted in named}
    wanted = [name for name in sts.STS_TEST if "sts" in tasks and (name, "test") not in found]
    present, missing = _load_group("sts", wanted, len(sts.STS_TEST), lambda name: sts.load_sts(name, data_dir), strict)
    found.update({(name, "test"): data for name, data in present.items()})
    order = {task: place for place, task in enumerate(sts.TASKS)}
    return sorted(found.values(), key=lambda data: (order[data.task], data.split)), missing


def load_transfer_tasks(
    tasks: Sequence[str], data_dir: str | Path | None = None, sst2_train: str = "auto", strict: bool = False
) -> tuple[list[transfer.TransferData], list[dict[str, str]]]:
    """The rows of transfer tasks, in the order of the tables, and what is missing of the group `transfer`.

    Args:
        tasks: `transfer`, or names that `transfer.find_task` reads.
        data_dir: as in `run_evaluation`, as the next two.
        sst2_train: see there.
        strict: see there.

    Raises:
        UserError: for an unknown task, or data that are absent or wrong.
    """

    def load(name: str) -> transfer.TransferData:
        return transfer.load_transfer(name, data_dir, sst2_train=sst2_train)

    found = {transfer.find_task(name): load(name) for name in tasks if name != "transfer"}
    wanted = [name for name in transfer.TASKS if "transfer" in tasks and name not in found]
    present, missing = _load_group("transfer", wanted, len(transfer.TASKS), load, strict)
    found.update(present)
    return [found[name] for name in transfer.TASKS if name in found], missing


def _load_group(
    group: str, names: Sequence[str], size: int, load: Callable[[str], Any], strict: bool
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """The members of a group that are there, and which are not and why, which is reported on stderr.

    Raises:
        UserError: if all `size` members of the group are missing, or any and `strict`.
    """
    found, missing = {}, []
    for name in names:
        try:
            found[name] = load(name)
        except sts.MissingData as error:
            missing.append({"task": name, "reason": str(error)})
    if missing:
        listed = ", ".join(entry["task"] for entry in missing)
        if strict or len(missing) == size:
            raise UserError(f"missing of the group {group}: {listed}. {missing[0]['reason']}")
        said = [f"MISSING {entry['reason']}" for entry in missing]
        if rank() == 0:
            print(*said, f"MISSING {listed}: the average of the seven {group} tasks is not reported", sep="\n",
                  file=sys.stderr)  # fmt: skip
    return found, missing


def format_tables(results: Mapping[str, Any]) -> str:
    """The tables that the command prints: STS, one table a split, transfer, the geometry, and the judges of robustness.

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
        absent = _missing(results, sts.STS_TEST)
        if split == "test" and (results["averages"]["sts"] is not None or absent):
            lines += [_row("average", results["averages"]["sts"]), *absent]
    if scored := {name: record for name, record in results["tasks"].items() if "accuracy" in record}:
        lines += ["", "transfer: accuracy x100", _row("task", "acc", "F1", "dev", "n")]
        for name, record in scored.items():
            values = (record["accuracy"], record.get("f1", ""), record["dev_accuracy"], record["n"])
            lines.append(_row(name, *values) + (f"  trained on {record['train']}" if "train" in record else ""))
        absent = _missing(results, transfer.TASKS)
        averages = {"average": results["averages"]["transfer"], "without TREC": results["averages"]["transfer_6"]}
        if absent or any(value is not None for value in averages.values()):
            lines += [*(_row(name, value) for name, value in averages.items()), *absent]
    for name, record in results.get("attacked_sets", {}).items():
        lines += ["", f"attacked set {name}, made with {record['victim']}", _row("", "before", "after")]
        lines.append(_row("Spearman x100", record["spearman_before"], record["spearman_after"]))
        lines.append(_row("mean distance", record["distance_before"], record["distance_after"]))
        lines.append(_row("transferred %", "", record["transferred"]))
    if geometry := results["tasks"].get("geometry"):
        if geometry["set"]:
            lines += ["", f"geometry of {geometry['set']}"]
        for name, value in geometry.items():
            if name not in ("set", "split", "source", "sha256", "probes"):
                shown = "-" if value is None else f"{value:.4f}" if isinstance(value, float) else value
                lines.append(f"{name:<16}{shown:>10}")
        if probes := geometry.get("probes"):
            lines += _probe_lines(probes)
    lines += noise_lines(results.get("noise", {}))
    lines += checklist_lines(results.get("checklist", {}))
    return "\n".join(lines)


def _missing(results: Mapping[str, Any], group: Collection[str]) -> list[str]:
    names = [entry["task"] for entry in results["missing"] if entry["task"] in group]
    return ["missing: " + ", ".join(names)] if names else []


def _probe_lines(probes: Mapping[str, Any]) -> list[str]:
    top, negatives, perturbed = probes["top_negatives"], probes["negatives"], probes["perturbed"]
    columns = zip(top["batch_sizes"], top["mean"], strict=True)
    return [
        "",
        f"probes of {probes['n']} sentences, {probes['source']}",
        f"cosine to the {top['k']} most similar in-batch negatives, by batch size",
        *(f"{size:<16}{mean:>10.4f}" for size, mean in columns),
        f"cosine to {negatives['negatives']} in-batch negatives: {negatives['mean']:.4f} ± {negatives['std']:.4f}",
        f"typos (rate {perturbed['noise']:g}): cosine {perturbed['cosine']:.4f}, found again "
        f"{perturbed['accuracy']:.2f}% of {perturbed['queries']}, uniformity {perturbed['uniformity']:.4f}",
    ]


def _row(name: str, *values: float | int | str | None) -> str:
    cells = ("-" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value) for value in values)
    return f"{name:<14}" + "".join(f"{cell:>8}" for cell in cells)
