"""The card of a method, as in ``model_cards/``: what its paper and its options say, and what was measured of it."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, get_args, get_origin, get_type_hints

from hf_robustcse.cards.about import ABOUT
from hf_robustcse.cards.limits import against_baseline, below
from hf_robustcse.cards.scores import BASELINE, attack_table, columns_of, comparable, name_of
from hf_robustcse.cards.text import Raw, block, code, mean_and_std, public_path, render, table
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import STS_TEST
from hf_robustcse.files import sha256_file
from hf_robustcse.methods import METHODS
from hf_robustcse.report.read import Collection, Column, Row, Source, Value, clean, collect, option, words_of
from hf_robustcse.report.table import BACKBONES, NAMES, figure_name, printed, shown


def method_card(method: str, results: Sequence[str | Path] = ()) -> str:
    """The card of a method, the same for the same files.

    Args:
        method: a key of `METHODS`.
        results: result files or folders in which the method was measured, and those of ``benchmarks/vadv_attack.py``
            and ``benchmarks/study.py``;
            SimCSE and the encoder before training are set beside it where the files have them.

    Returns:
        Markdown.

    Raises:
        UserError: for an unknown method, or a file that is no result.
    """
    if method not in METHODS:
        raise UserError(f"unknown --method {clean(method)!r}: choose one of {', '.join(METHODS)}")
    paper, about = METHODS[method].paper, ABOUT[method]
    strengths = {Path(path): data for path in results if (data := _strengths(Path(path)))}
    studies = {Path(path): data for path in results if (data := _study(Path(path)))}
    further = [path for path in results if Path(path) not in strengths | studies]
    found = collect(further) if further else Collection()
    rows = [row for row in found.rows if _belongs(row, method)]
    files = [(source.path, source.sha256) for source in found.sources]
    files += [(path, sha256_file(path)) for path in strengths | studies]
    command = ["hf-robustcse", "card", "--method", method]
    command += ["--results", *(_shown(path) for path in results)] if results else []
    link = f"[{paper.title}](https://arxiv.org/abs/{paper.arxiv})" if paper.arxiv else paper.title
    title = Raw("" if paper.title == about.label else f" ({link})")
    return render(
        "method.md",
        name=Raw(method),
        label=about.label,
        title=title,
        idea=Raw(about.idea),
        head=Raw(about.head),
        notes=[Raw(note) for note in about.notes],
        options=_options(method),
        reported=_reported(method),
        recipe=Raw(f"examples/recipes/{method.replace('_', '-')}-bert-base.yaml"),
        measured=[
            *_studied(method, studies),
            *_measured(method, rows, found.sources),
            *_attacks(method, rows),
            *_strength_table(method, strengths),
        ],
        limits=_limits(method, rows, studies),
        citation=block(paper.bibtex, "bibtex") if paper.bibtex else None,
        command=Raw(shlex.join(command)),
        files=[(Raw(_shown(path)), digest) for path, digest in files],
    )


def _shown(path: str | Path) -> str:
    """A path inside the folder that the command ran in as it is; of any other the name."""
    path = PurePath(path)
    return path.name if path.is_absolute() or ".." in path.parts else path.as_posix()


def _belongs(row: Row, method: str) -> bool:
    if row.method is None:
        return row.note in ("", "before training")
    return method in row.method.split("+") or row.method == BASELINE


# ---------------------------------------------------------------------------------------------------------------------
# what the paper and the options say


def _options(method: str) -> Raw | None:
    kind = METHODS[method].Options
    hints, rows = get_type_hints(kind), []
    for field in dataclasses.fields(kind):
        choices = get_args(hints[field.name]) if get_origin(hints[field.name]) is not None else ()
        choices = tuple(choice for choice in choices if isinstance(choice, str))
        name = code(f"--{field.name}")
        rows.append([
            Raw(f"{name} {', '.join(choices)}") if choices else name,
            {None: "none", True: "yes", False: "no"}.get(field.default, field.default)
            if field.default is None or isinstance(field.default, bool) else f"{field.default}",
            field.metadata["help"],
        ])  # fmt: skip
    return table(["option", "default", "what it is"], rows) if rows else None


def _reported(method: str) -> list[Raw]:
    """A table of the STS figures, a line for each backbone, and one of all others."""
    paper = METHODS[method].paper
    names = {key: BACKBONES.get(key, key) for key in paper.reported}
    columns = [key for key in (*STS_TEST, "sts_avg") if any(key in figures for figures in paper.reported.values())]
    tables = []
    if columns:
        rows = [
            [names[backbone], *(printed(figures[key]) if key in figures else None for key in columns)]
            for backbone, figures in paper.reported.items()
            if any(key in figures for key in columns)
        ]
        tables.append(table(["encoder", *(NAMES.get(key, key) for key in columns)], rows))
    others = dict.fromkeys(key for figures in paper.reported.values() for key in figures if key not in columns)
    if others:
        backbones = [backbone for backbone, figures in paper.reported.items() if others.keys() & figures.keys()]
        where = any(paper.table_of(key) for key in others)
        rows = [
            [
                figure_name(key),
                *(printed(paper.reported[b][key]) if key in paper.reported[b] else None for b in backbones),
                *([paper.table_of(key) or None] if where else []),
            ]
            for key in others
        ]
        tables.append(table(["figure", *(names[b] for b in backbones), *(["where"] if where else [])], rows))
    return tables


# ---------------------------------------------------------------------------------------------------------------------
# what was measured


def _measured(method: str, rows: Sequence[Row], sources: Sequence[Source]) -> list[tuple[Raw, Raw]]:
    """For each file its setting in words and its scores, a line for each model."""
    found = []
    untrained = [row for row in rows if row.method is None and row.note == ""]
    for number, source in enumerate(sources):
        here = [row for row in rows if number in row.sources and columns_of(row.scores)]
        if not any(row.method and method in row.method.split("+") for row in here):
            continue
        here = [dataclasses.replace(row, scores=_with(row, untrained, here)) for row in here]
        here.sort(key=lambda row: (row.method is not None, row.method == BASELINE != method))
        columns = columns_of(*(row.scores for row in here))
        lines = [
            [_label(row), *(shown(row.scores[c], c.metric) if c in row.scores else None for c in columns)]
            for row in here
        ]
        heads = ["", *(name_of(column) for column in columns)]
        found.append((_setting(source), table(heads, lines)))
    return found


def _with(row: Row, untrained: Sequence[Row], here: Sequence[Row]) -> dict[Column, Value]:
    """Of the encoder before training, what another file has of the same sets too."""
    scores = dict(row.scores)
    for other in untrained if row.note == "before training" else ():
        if (other.model, other.pooling) == (row.model, row.pooling):
            for column, value in other.scores.items():
                if column not in scores and any(comparable(value, of.scores.get(column)) for of in here):
                    scores[column] = value
    return scores


def _label(row: Row) -> Raw | str:
    if row.method is None:
        return row.note
    label = row.model.rpartition(": ")[2]
    return code(row.method) if label == row.method or row.folder is None else Raw(f"{code(row.method)}, {code(label)}")


def _setting(source: Source) -> Raw:
    """Encoder, steps, batch and corpus of a recorded command."""
    words = words_of(dict(source.facts).get("command", ""))
    encoder = option(words, "model_name_or_path")
    parts = [f"from {code(public_path(encoder))}" if encoder else "from the embedded tiny encoder"]
    steps, batch = option(words, "max_steps"), option(words, "per_device_train_batch_size")
    corpus = option(words, "train_file")
    if steps and batch:
        parts.append(f"{steps} steps of batch {batch}")
    if corpus:
        parts.append(f"on {code(public_path(corpus))}")
    parts += [f"{name} {value}" for name in ("pooler", "head") if (value := option(words, name))]
    said = ", ".join(parts)
    return Raw(f"{code(_shown(source.path))}: trained {said}; mean ± standard deviation (number of seeds).")


def _attacks(method: str, rows: Sequence[Row]) -> list[tuple[Raw, Raw]]:
    sides = [(row.method or "", row.scores) for row in rows if any(column.group == "attacks" for column in row.scores)]
    sides.sort(key=lambda side: side[0] == BASELINE != method)
    if not any(method in name.split("+") for name, _ in sides):
        return []
    scores = attack_table(sides)
    said = Raw(
        "Attacks: success rate in % and its 95 % interval, over the examples; lower is more robust. Their parameters "
        "and departures from the papers are in the result files; figures of other tools are not comparable."
    )
    return [(said, scores)] if scores else []


def _limits(method: str, rows: Sequence[Row], studies: dict[Path, dict[str, Any]]) -> list[Raw]:
    said = [line for line, _ in ABOUT[method].limits]
    own = next((row for row in rows if row.method == method and columns_of(row.scores)), None)
    if own is None:
        said += [] if _studied(method, studies) else ["It was not scored here."]
    else:
        beside = [row for row in rows if set(row.sources) & set(own.sources)]
        scored = [column for column in columns_of(own.scores) if column.group in ("sts", "transfer")]
        for row in beside:
            if row.method is None:
                untrained = [other for other in rows if other.method is None and other.note == ""]
                said += below(own.scores, _with(row, untrained, beside), scored, "the encoder before training")
            elif row.method == BASELINE != method:
                said += against_baseline(own.scores, row.scores, scored)
    reported = METHODS[method].paper.reported
    if reported and not any(row.backbone in reported for row in rows if row.method == method):
        names = ", ".join(BACKBONES.get(name, name) for name in reported)
        said.append(f"Nothing was measured here on the encoders of the paper ({names}).")
    return [Raw(line) for line in said]


_STUDIED = {
    "dev": "dev", "STS": "STS, mean", "transfer": "transfer, mean", "typos 0.2": "typos 20 %",
    "typos 0.6": "typos 60 %", "synonyms 0.2": "synonyms 20 %", "synonyms 0.6": "synonyms 60 %",
    "found": "found again", "invariance": "CheckList",
}  # fmt: skip


def _study(path: Path) -> dict[str, Any] | None:
    """The record of ``benchmarks/study.py``, None for any other file."""
    data = _read(path)
    return data if data is not None and {"study", "summary", "untrained", "trials"} <= set(data) else None


def _studied(method: str, studies: dict[Path, dict[str, Any]]) -> list[tuple[Raw, Raw]]:
    """For each study a line of the untrained encoder, of SimCSE, and of each system that has the method in it."""
    found = []
    for path, data in studies.items():
        systems = data["study"]["systems"]
        parts = {name: systems[name]["options"]["method"].split("+") for name in data["summary"]["steps"]}
        own = [name for name in parts if method in parts[name]]
        if not own:
            continue
        names = [name for name in parts if parts[name] == [BASELINE] and len(systems[name]["options"]) == 1]
        summary = data["summary"]["steps"]
        rows = {"untrained": data["untrained"]} | {name: summary[name] for name in dict.fromkeys([*names, *own])}
        columns = [key for key in _STUDIED if any(key in row for row in rows.values())]
        lines = [
            [name if name == "untrained" else code(name), *(_shown_figure(row.get(key)) for key in columns)]
            for name, row in rows.items()
        ]
        trials = len(systems[own[0]]["trials"])
        said = (
            f"{code(_shown(path))}: {data['about']}; {data['study']['steps']} steps, every system with the best of "
            f"{trials} settings on the dev set; mean ± standard deviation over {len(data['study']['seeds'])} seeds. "
            "Spearman x 100 on STS test sets, and on STS-B test with that part of the words perturbed; found again: "
            "how often the original is the nearest of all to a sentence with typos; CheckList: predictions that stay."
        )
        if on := [name for name in rows if name in data["goes_on"]]:
            said += f" {' and '.join(map(code, on))} went on from the model of `simcse` for as many steps again."
        found.append((Raw(said), table(["", *(_STUDIED[key] for key in columns)], lines)))
    return found


def _shown_figure(value: Any) -> str | None:
    return mean_and_std(value) if isinstance(value, dict) else None if value is None else f"{value:.2f}"


def _read(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds, None for what is no object."""
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def _strengths(path: Path) -> dict[str, Any] | None:
    """The record of ``benchmarks/vadv_attack.py``, None for any other file."""
    data = _read(path)
    try:
        if all({"options", "ratio"} <= set(entry) for entry in data["settings"]) and isinstance(data["defaults"], dict):
            return data
    except (KeyError, TypeError):
        pass
    return None


def _strength_table(method: str, strengths: dict[Path, dict[str, Any]]) -> list[tuple[Raw, Raw]]:
    """How many times further the attack moves the divergence than random noise on the same ball does."""
    if not strengths:
        return []
    defaults = {field.name: field.default for field in dataclasses.fields(METHODS[method].Options)}
    lines: dict[str, dict[Path, float]] = {}
    for path, data in strengths.items():
        for entry in data["settings"]:
            name = ", ".join(f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}"
                             for key, value in entry["options"].items())  # fmt: skip
            lines.setdefault(name, {})[path] = entry["ratio"]
    old = {key: value for data in strengths.values() for key, value in data["defaults"].items()}
    old = {key: value for key, value in old.items() if defaults.get(key) != value}
    said = (
        "Strength of the perturbation: the divergence under the attack over that under random noise on the same ball."
    )
    if old:
        named = ", ".join(code(f"--{key} {value}") for key, value in old.items())
        said += f" Measured with {named} where not named, which is not the default of today."
    rows = [[Raw(code(name)) if name else "(none)", *(_ratio(values.get(path)) for path in strengths)]
            for name, values in lines.items()]  # fmt: skip
    return [(Raw(said), table(["options", *(path.stem for path in strengths)], rows))]


def _ratio(value: Any) -> str | None:
    return f"{value:.3g}" if isinstance(value, (int, float)) else None
