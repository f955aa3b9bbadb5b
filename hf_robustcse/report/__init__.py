"""`hf-robustcse report`: result files into one table, as Markdown, CSV and a page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hf_robustcse.errors import UserError
from hf_robustcse.files import atomic_write_text

if TYPE_CHECKING:
    from hf_robustcse.report.read import Source

LARGEST_PICTURE = 8 << 20
"""Bytes of the largest picture that a page takes in."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument(
        "results",
        nargs="+",
        metavar="DIR",
        help="folders that hold results (searched with all below them), or result files: those of run_unsup, run_eval "
        "(also with --compare), run_finetune, run_attack and run_ablation",
    )
    parser.add_argument("--output_dir", default="report", help="where report.md, .csv and .html go (default report)")
    parser.add_argument("--title", default="Results", help="heading of the report (default Results)")


def run(
    results: Sequence[str | Path],
    output_dir: str | Path = "report",
    title: str = "Results",
    argv: Sequence[str] = (),
) -> dict[str, Path]:
    """Read results, print the table and write the report; the same files give the same bytes.

    Args:
        results: files and folders, see `read.collect`.
        output_dir: made if need be; an earlier report in it is replaced.
        title: heading of the report.
        argv: the command's words, for the page.

    Returns:
        `md`, `csv` and `html` -> the file.

    Raises:
        UserError: for bad input; nothing has been written then.
    """
    # Imports here: a usage error need not load torch.
    from hf_robustcse.evaluation.pictures import HOW_TO_GET, has_matplotlib
    from hf_robustcse.evaluation.results import command_line
    from hf_robustcse.report import charts, write
    from hf_robustcse.report.read import clean, collect
    from hf_robustcse.report.table import build

    folder = Path(output_dir)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output_dir {folder} is a file: name a folder")
    found = collect(results)
    table = build(found.rows, found.comparisons)
    remarks = []
    if found.foreign or found.broken or found.parts:
        said = [f"{found.foreign} JSON files that are no results"] if found.foreign else []
        said += [f"{found.parts} seeds that a summary holds already"] if found.parts else []
        said += [f"{path}, which cannot be read ({reason})" for path, reason in found.broken]
        remarks.append(clean("left out: " + "; ".join(said)))
    pictures, refused = _pictures(found.sources)
    remarks += refused
    if has_matplotlib():
        pictures = [(caption, "png", png) for caption, png in charts.draw(table)] + pictures
    else:
        remarks.append(f"no charts were drawn: {HOW_TO_GET}")
    title = clean(title)
    texts = {
        "md": write.markdown(table, title, found.sources),
        "csv": write.csv_text(table),
        "html": write.html(table, title, found.sources, pictures, remarks, clean(command_line(argv))),
    }
    paths = {suffix: folder / f"report.{suffix}" for suffix in texts}
    try:
        for suffix, text in texts.items():
            atomic_write_text(paths[suffix], text)
    except OSError as error:
        raise UserError(f"--output_dir {folder} cannot be written: {error.strerror or error}") from error
    print(texts["md"], *remarks, sep="\n")
    print(f"{len(table.lines)} rows of {len(found.sources)} files: {', '.join(map(str, paths.values()))}")
    print(f"open {paths['html']} in a browser; it needs no network")
    return paths


def _pictures(sources: Sequence[Source]) -> tuple[list[tuple[str, str, bytes]], list[str]]:
    """The PNG and SVG files that belong to result files: (caption, kind, bytes), and what was left out and why.

    Beside a file those that begin with its name (out.json: out_negatives.png) and `picture.*` of a sweep; elsewhere in
    the folder that was searched, those that begin with its name and an underscore (`--pictures DIR`).
    """
    from hf_robustcse.report.read import clean

    found: dict[Path, tuple[str, str, bytes]] = {}
    refused = []
    for source in sources:
        stem = source.path.stem
        paths = [
            path for path in source.path.parent.iterdir()
            if path.name.startswith((f"{stem}.", f"{stem}_")) or (source.kind == "sweep" and path.stem == "picture")
        ]  # fmt: skip
        if source.folder is not None and stem != "results":
            paths += [path for path in source.folder.rglob("*") if path.name.startswith(f"{stem}_")]
        for path in sorted(paths):
            kind = path.suffix.lower().removeprefix(".")
            if kind not in ("png", "svg") or path.resolve() in found or not path.is_file():
                continue
            content = path.read_bytes()
            whole = (
                content.startswith(b"\x89PNG\r\n\x1a\n") and content.rstrip(b"\0").endswith(b"IEND\xaeB`\x82")
                if kind == "png"
                else b"<svg" in content and b"</svg>" in content
            )
            if not whole or len(content) > LARGEST_PICTURE:
                why = f"larger than {LARGEST_PICTURE >> 20} MiB" if whole else f"no whole {kind.upper()}"
                refused.append(clean(f"left out: the picture {path}, {why}"))
                continue
            found[path.resolve()] = (clean(f"{path} (with {source.path.name})"), kind, content)
    return list(found.values()), refused
