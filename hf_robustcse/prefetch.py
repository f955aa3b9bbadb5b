"""`hf-robustcse prefetch`: evaluation data and models into a folder, so that everything afterwards needs no network.

The data are read and checked by the same code as in an evaluation, and written in the layout of `--data_dir`. What is
there already and passes its checks is kept, so the same command goes on after a failure.
"""

from __future__ import annotations

import argparse
import importlib
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.hub import MANIFEST, MissingData, read_manifest
from hf_robustcse.files import atomic_write_text, sha256_file, write_json

GROUPS = {
    "sts": "hf_robustcse.evaluation.sts",
    "transfer": "hf_robustcse.evaluation.transfer",
    "finetune": "hf_robustcse.finetune.tasks",
}
"""Group -> the module whose `prefetch_sets()` gives its data sets: name -> `load(data_dir or None for the Hub)`."""

# Weights of other frameworks; .bin goes too where the repository has safetensors.
_IGNORED = ["*.h5", "*.msgpack", "*.ot", "*.tflite", "onnx/*", "openvino/*", "coreml/*"]


class Data(Protocol):
    """What the `load` of a data set returns, and `prefetch` asks of it."""

    source: str  # `hub:NAME@REVISION`, or a folder
    sha256: str  # of the rows

    def files(self) -> dict[str, str]:
        """The text files that `load(folder)` reads back as these rows: path within the folder -> text."""


Load = Callable[[Path | None], Data]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument(
        "--tasks", nargs="+", default=[], help=f"{', '.join(GROUPS)}, or single sets: STS12, stsb_dev, MR, SNLI_train"
    )
    parser.add_argument("--all", action="store_true", help="every data set")
    parser.add_argument(
        "--model", nargs="+", default=[], metavar="ID", help="Hub models, each ID or ID@COMMIT, into DIR/models/ID"
    )
    parser.add_argument("--to", required=True, metavar="DIR", help="the folder, which is then the --data_dir")


def run(tasks: Sequence[str], all: bool, model: Sequence[str], to: str, argv: Sequence[str] = ()) -> None:
    """Fetch what is not there yet, say what was done, and what to run next.

    Args:
        tasks: names of groups or of data sets, in any case.
        all: whether every data set is meant.
        model: ids of models on the Hub, each with `@` and a commit if it is not to be the newest.
        to: the folder.
        argv: the command's words, which the last line repeats if something could not be fetched.

    Raises:
        UserError: for an unknown name, or a folder that cannot be used.
        SystemExit: with code 1 if anything could not be fetched; the rest was.
    """
    folder = Path(to).expanduser()
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--to {to} is a file: name a folder")
    chosen = _chosen(list(GROUPS) if all else tasks)
    if not chosen and not model:
        raise UserError(f"nothing to fetch: add --tasks {' '.join(GROUPS)}, --all or --model ID")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--to {to} cannot be made: {error.strerror}") from None
    manifest = {"files": {}, "models": {}, **read_manifest(folder)}
    jobs: list[tuple[str, Callable[[], str]]] = []
    jobs += [(name, lambda name=name, load=load: _fetch(name, load, folder, manifest)) for name, load in chosen.items()]
    jobs += [(name, lambda name=name: _fetch_model(name, folder, manifest)) for name in dict.fromkeys(model)]
    failed = []
    for number, (name, job) in enumerate(jobs, 1):
        print(f"[{number}/{len(jobs)}] {name}: ", end="", flush=True)
        try:
            print(job(), flush=True)
        except MissingData as error:
            failed.append(name)
            print(f"FAILED: {error.reason}", flush=True)
        except (UserError, OSError) as error:
            failed.append(name)
            print(f"FAILED: {error}", flush=True)
    if failed:
        print(
            f"error: {len(failed)} of {len(jobs)} not fetched: {', '.join(failed)}; the reasons are above. To go on: "
            f"{shlex.join(argv)}",
            file=sys.stderr,
        )
        raise SystemExit(1)
    print(_next_steps(folder, list(GROUPS) if all else tasks, [_split(name)[0] for name in model]))


def _chosen(names: Iterable[str]) -> dict[str, Load]:
    """The data sets of groups or single names, in the order of the groups."""
    sets = {group: importlib.import_module(module).prefetch_sets() for group, module in GROUPS.items()}
    wanted, known = [name.lower() for name in names], {*sets}
    chosen = {}
    for group, members in sets.items():
        for name, load in members.items():
            known.add(name.lower())
            if group in wanted or name.lower() in wanted:
                chosen[name] = load
    if unknown := [name for name in wanted if name not in known]:
        listed = "; ".join(f"{group} ({', '.join(members)})" for group, members in sets.items())
        raise UserError(f"unknown task {unknown[0]!r}; known: {listed}")
    return chosen


def _fetch(name: str, load: Load, folder: Path, manifest: dict[str, Any]) -> str:
    """One data set: kept if the folder holds it, else from the Hub; what happened, in words."""
    try:
        load(folder)
        return "is there, passes its checks"
    except MissingData:
        pass
    except UserError as error:
        # What was fetched before and is broken now is fetched again; a file that someone put there stays.
        if not (own := [path for path, record in manifest["files"].items() if record["set"] == name]):
            raise UserError(f"{error} (it was not fetched by this command: move it away to have it fetched)") from None
        for path in own:
            (folder / path).unlink(missing_ok=True)
            del manifest["files"][path]
    data = load(None)
    for path, text in data.files().items():
        atomic_write_text(folder / path, text)
        rows = {"rows": text.count("\n") - path.endswith(".tsv")} if path.endswith((".tsv", ".jsonl")) else {}
        record = {"set": name, "source": data.source, **rows, "sha256": sha256_file(folder / path)}
        manifest["files"][path] = record
    write_json(folder / MANIFEST, manifest)
    if load(folder).sha256 != data.sha256:
        raise UserError(f"{folder} holds other rows of {name} than the Hub: remove what is there beside {path}")
    return f"from {data.source}"


def _split(model: str) -> tuple[str, str | None]:
    """Id and revision."""
    name, _, revision = model.partition("@")
    return name, revision or None


def _fetch_model(model: str, folder: Path, manifest: dict[str, Any]) -> str:
    """One model: kept if all its files are there, else from the Hub."""
    from huggingface_hub import HfApi, snapshot_download

    name, revision = _split(model)
    target = folder / "models" / name
    known = manifest["models"].get(name)
    if known and revision in (None, known["revision"]):
        if all((target / path).is_file() and sha256_file(target / path) == sum for path, sum in known["files"].items()):
            return f"is there, {len(known['files'])} files of {known['revision']}"
    try:
        info = HfApi().model_info(name, revision=revision)
        names = {file.rfilename for file in info.siblings or ()}
        ignored = _IGNORED + (["*.bin"] if any(file.endswith(".safetensors") for file in names) else [])
        snapshot_download(name, revision=info.sha, local_dir=target, ignore_patterns=ignored)
    except Exception as error:  # the Hub client raises a dozen kinds
        raise UserError(
            f"the model {name} cannot be had from the Hub ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:300]})"
        ) from error
    paths = (path for path in sorted(target.rglob("*")) if path.is_file())
    files = {path.relative_to(target).as_posix(): path for path in paths if ".cache" not in path.parts}
    manifest["models"][name] = {
        "revision": info.sha,
        "files": {path: sha256_file(file) for path, file in files.items()},
    }
    write_json(folder / MANIFEST, manifest)
    return f"{len(files)} files of {info.sha}, in {target}"


def _next_steps(folder: Path, names: Sequence[str], models: Sequence[str]) -> str:
    """The commands that need no network now."""
    where = shlex.quote(str(folder))
    model = shlex.quote(str(folder / "models" / models[0])) if models else "MODEL"
    sets = {group: importlib.import_module(module).prefetch_sets() for group, module in GROUPS.items()}
    scored = {name.lower() for group in ("sts", "transfer") for name in (group, *sets[group])}
    tuned = {name.lower() for name in ("finetune", *sets["finetune"])}
    names = [name.lower() for name in names]
    tasks = [name for name in names if name in scored]
    tasks += ["geometry"] if "sts" in tasks else []
    evaluate = f"examples/run_eval.py --model_name_or_path {model} --tasks {' '.join(tasks or ['sts'])}"
    train = f"examples/run_unsup.py --method vadv --model_name_or_path {model} --train_file FILE --output_dir OUT"
    tune = f"examples/run_finetune.py --task snli --model_name_or_path {model}"
    lines = [
        f"done: {folder}; {MANIFEST} in it has sources and checksums. From here on, without a network:",
        f"  HF_HUB_OFFLINE=1 python {evaluate} --data_dir {where}",
        f"  HF_HUB_OFFLINE=1 accelerate launch {train} --eval_data_dir {where}",
    ]
    if tuned.intersection(names):
        lines.append(f"  HF_HUB_OFFLINE=1 accelerate launch {tune} --data_dir {where}")
    return "\n".join(lines)
