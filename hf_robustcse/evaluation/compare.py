"""Two models, or two sets of runs, on the same STS pairs, as they are or with noise: which is better, if any is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_robustcse.distributed import on_first
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import transfer, uncertainty
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.evaluation.noise_curves import SEEDS, check_rates, noisy_pairs
from hf_robustcse.evaluation.results import base_results, command_line, task_record
from hf_robustcse.evaluation.run import (
    GROUPS,
    check_noise_options,
    embed_tasks,
    is_whitened,
    load_noise,
    load_tasks,
)
from hf_robustcse.evaluation.sts import Embeddings, Pair, StsData
from hf_robustcse.files import write_json

SAMPLES = 1000


def run_comparison(
    a: str,
    b: str,
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
    bootstrap: int | None = None,
    whitening: bool = False,
    whitening_text: str | Path | None = None,
    whitening_dim: int | None = None,
    noise_tasks: Sequence[str] | None = None,
    noise_rates: Sequence[float] | None = None,
    noise_perturbed: str = "both",
    noise_word_list: str | None = None,
    argv: Sequence[str] = (),
) -> dict[str, Any]:
    """Evaluate A and B on the same pairs and bootstrap the difference; prints the table.

    Several processes encode together, as in `run_evaluation`.

    Args:
        a: a model as in `run_evaluation`, or the folder of a run of several seeds, of which every seed is evaluated.
        b: the other.
        tasks: STS tasks, as in `run_evaluation`, and `noise`: the pairs of its curves, at all rates above 0 together.
        data_dir: see there, as for the options not named here; those of the model hold for A and B.
        split: see there.
        output_json: see there.
        pooling: see there.
        max_seq_length: see there.
        batch_size: see there.
        device: see there.
        embedding_cache: see there; A and B may have the same.
        strict: see there.
        seed: of the bootstrap.
        bootstrap: resamples; None for 1000.
        whitening: see there.
        whitening_text: see there.
        whitening_dim: see there.
        noise_tasks: see there, as the next three.
        noise_rates: see there.
        noise_perturbed: see there.
        noise_word_list: see there.
        argv: see there.

    Returns:
        What the JSON holds: `a` and `b`, each the list of its models with `model`, `revision`, `method`, `pooling`,
        `max_seq_length`; `tasks` and `mean` of `uncertainty.compare` (a task also with the split, source and checksum
        of its pairs); with `noise` the same under `noise`, where a task is a set and a kind of noise, and a score the
        mean over rates and noise seeds; and as in `run_evaluation` `missing`, `protocol`, `seed`, `command`,
        `library_versions`, `device`.

    Raises:
        UserError: for another task, too few resamples, and as in `run_evaluation`.
    """
    if output_json is not None and Path(output_json).is_dir():
        raise UserError(f"--output_json {output_json} is a folder: name a file")
    samples = SAMPLES if bootstrap is None else bootstrap
    uncertainty.check_samples(samples, off=False)
    tasks = [name.lower() for name in tasks]
    plain = [name for name in tasks if name != "noise"]
    if other := [name for name in plain if name in GROUPS[1:] or transfer.find_task(name)]:
        raise UserError(f"--compare knows STS tasks and noise only: leave {', '.join(other)} out")
    check_noise_options(tasks, noise_tasks, noise_rates, noise_perturbed, noise_word_list)
    loaded, missing = load_tasks(plain, data_dir, split, strict)
    noisy: dict[str, tuple[StsData, list[list[Pair]]]] = {}
    if "noise" in tasks:
        if is_whitened(whitening, whitening_text, whitening_dim):
            raise UserError("--whitening is for STS tasks only: compare noise without it")
        sets, kinds = load_noise(noise_tasks, data_dir, split, noise_word_list, strict)
        noisy = {
            f"{data.key} {kind}": (data, noisy_pairs(data, perturb, rates=noise_rates, perturbed=noise_perturbed))
            for kind, perturb in kinds.items()
            for data in sets
        }
    models: dict[str, list[dict[str, Any]]] = {}
    cosines: dict[str, dict[str, np.ndarray]] = {}
    for side, name in (("a", a), ("b", b)):
        models[side], rows = [], []
        for run in _runs(name):
            embedder = load_embedder(
                run, pooling=pooling, max_seq_length=max_seq_length, batch_size=batch_size, device=device,
                embedding_cache=embedding_cache,
            )  # fmt: skip
            embeddings, protocol = embed_tasks(embedder, loaded, whitening, whitening_text, whitening_dim)
            rows.append({data.key: embeddings[data.key].cosines(data.pairs) for data in loaded})
            for name, (_, versions) in noisy.items():
                texts = (text for pairs in versions for pair in pairs for text in pair[:2])
                encoded = Embeddings(embedder, texts)
                rows[-1][name] = np.stack([encoded.cosines(pairs) for pairs in versions])
            about = ("model", "revision", "method", "pooling", "max_seq_length", "dtype")
            models[side].append({key: embedder.description[key] for key in about} | protocol)
            used = embedder.description["device"]
        cosines[side] = {name: np.stack([row[name] for row in rows]) for name in rows[0]}

    def scored(sets: Mapping[str, StsData]) -> dict[str, Any]:
        # A set and its noisy versions are resampled alike: their pairs are the same.
        gold, draw = {name: data.gold for name, data in sets.items()}, {name: data.key for name, data in sets.items()}
        scores = uncertainty.compare(cosines["a"], cosines["b"], gold, samples=samples, seed=seed, draw=draw)
        return scores | {"tasks": {name: task_record(scores["tasks"][name], data) for name, data in sets.items()}}

    def score() -> dict[str, Any]:
        base = base_results(model="", method=None, seed=seed, command=command_line(argv), device=used)
        kept = ("library_versions", "device", "seed", "command", "protocol")
        results = {**models, **{key: base[key] for key in kept}}
        results["protocol"]["bootstrap"] = {"samples": samples, "level": uncertainty.LEVEL, "resampled": "pairs"}
        results["tasks"] = {}
        if loaded:
            results |= scored({data.key: data for data in loaded})
        results["missing"] = missing
        if noisy:
            results["noise"] = scored({name: data for name, (data, _) in noisy.items()})
            rates = check_rates(noise_rates)[1:]
            results["protocol"]["noise"] = {"rates": rates, "perturbed": noise_perturbed, "seeds": list(SEEDS)}
        print(format_comparison(results))
        if output_json is not None:
            write_json(output_json, results)
        return results

    return on_first(score)


def _runs(name: str) -> list[str]:
    """The models of one side: those of the `seed-*` folders of a run of several seeds, or `name` itself."""
    found = [path for path in Path(name).glob("seed-*") if re.fullmatch(r"seed-\d+", path.name) and _is_model(path)]
    if len(found) > 1 or (found and not _is_model(Path(name))):
        return [str(path) for path in sorted(found, key=lambda path: int(path.name.removeprefix("seed-")))]
    return [name]


def _is_model(folder: Path) -> bool:
    return any((folder / file).is_file() for file in ("config.json", "modules.json"))


def format_comparison(results: Mapping[str, Any]) -> str:
    """The table that the command prints.

    Args:
        results: the object that `run_comparison` returns.

    Returns:
        Lines of text.
    """
    lines = []
    for side in ("a", "b"):
        models = results[side]
        name = models[0]["model"] if len(models) == 1 else f"{Path(models[0]['model']).parent}, {len(models)} seeds"
        lines.append(f"{side.upper()}  {name}, pooling {models[0]['pooling']}")
        if whitening := models[0].get("whitening"):
            lines[-1] += f", whitened, fitted on {whitening['fitted_on']}"
    bootstrap = results["protocol"]["bootstrap"]
    lines += [
        "",
        f"Spearman x100, all; B-A with its {100 * bootstrap['level']:.0f} % interval "
        f"over {bootstrap['samples']} resamples of the pairs",
        _row("task", "A", "B", "B-A", "low", "high", ""),
    ]
    rows = []
    for scores in (results, results.get("noise", {"tasks": {}})):
        rows += scores["tasks"].items()
        if len(scores["tasks"]) > 1:
            rows.append((f"mean of {len(scores['tasks'])}", scores["mean"]))
    for name, record in rows:
        sides = (_score(record[side], record[f"{side}_std"]) for side in ("a", "b"))
        numbers = (f"{record[key]:+.2f}" for key in ("difference", "low", "high"))
        lines.append(_row(name, *sides, *numbers, record["verdict"]))
    if noise := results["protocol"].get("noise"):
        rates = ", ".join(f"{rate:g}" for rate in noise["rates"])
        lines.append(f"under noise: mean over the rates {rates} and {len(noise['seeds'])} noise seeds each")
    if any(len(results[side]) > 1 for side in ("a", "b")):
        lines.append("± is the standard deviation over seeds; the interval is over pairs only")
    return "\n".join(lines)


def _score(mean: float, std: float | None) -> str:
    return f"{mean:.2f}" if std is None else f"{mean:.2f} ± {std:.2f}"


def _row(name: str, a: str, b: str, *rest: str) -> str:
    numbers = "".join(f"{cell:>8}" for cell in rest[:-1])
    return f"{name:<14}{a:>15}{b:>15}{numbers}  {rest[-1]}".rstrip()
