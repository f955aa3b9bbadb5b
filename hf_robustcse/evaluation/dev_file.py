"""A dev set of the user's own: scored pairs in any language, on any scale."""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path

from hf_robustcse.data import table_records
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import HEADER, OWN, Pair, StsData


def load_dev_file(path: str | Path) -> StsData:
    """Read pairs from a `.tsv` file (no quoting) or a `.csv` file, each also `.gz`, in UTF-8.

    The first line names the columns `score`, `sentence1` and `sentence2`, in any order; others are ignored, and so are
    blank lines. Scores are any finite numbers, higher for more similar sentences. Runs of white space become one space.

    Args:
        path: the file.

    Returns:
        The pairs, under the name `dev_file`.

    Raises:
        UserError: if the file cannot be read, a row is malformed (file and line named), there are fewer than two pairs,
            or all have the same score.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise UserError(f"--dev_file {path} does not exist or is no file")
    if not path.name.lower().removesuffix(".gz").endswith((".tsv", ".csv")):
        raise UserError(f"--dev_file {path}: unknown extension; name it .tsv or .csv (or .tsv.gz, .csv.gz)")
    records = table_records(path)
    _, names = next(records, (0, []))
    names = [name.strip() for name in names]
    if any(names.count(column) != 1 for column in HEADER):
        raise UserError(f"{path}, line 1: the header must name the columns {', '.join(HEADER)}, each once, not {names}")
    pairs = []
    for number, fields in records:
        if not "".join(fields).strip():
            continue
        where = f"{path}, line {number}"
        if len(fields) != len(names):
            raise UserError(f"{where}: {len(fields)} fields, the header has {len(names)}")
        pairs.append(_pair(dict(zip(names, fields, strict=True)), where))
    if len(pairs) < 2:
        raise UserError(f"{path} has {len(pairs)} pairs; a correlation needs at least two")
    if len({score for *_, score in pairs}) == 1:
        raise UserError(
            f"{path}: all {len(pairs)} pairs have the score {pairs[0][2]:g}; a correlation needs two scores"
        )
    lines = sorted(f"{score!r}\t{first}\t{second}" for first, second, score in pairs)
    digest = hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()
    return StsData(OWN, "dev", {"dev": pairs}, str(path), digest)


def _pair(row: dict[str, str], where: str) -> Pair:
    text = row["score"].strip()
    try:
        score = float(text)
    except ValueError:
        hint = f"; write {text.replace(',', '.')}" if re.fullmatch(r"[+-]?\d+,\d+", text) else ""
        raise UserError(f"{where}: the score {text!r} is not a number{hint}") from None
    if not math.isfinite(score):
        raise UserError(f"{where}: the score {text!r} is not finite")
    first, second = (" ".join(row[column].split()) for column in HEADER[1:])
    if not first or not second:
        raise UserError(f"{where}: an empty sentence")
    return first, second, score
