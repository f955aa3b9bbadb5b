"""Atomic writes, checksums and versions."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hf_robustcse.errors import UserError


def atomic_write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` so that a reader, or a crash, sees the old file or the new one, never half of either."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp makes the file private; a result is as readable as any other
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def atomic_write_text(path: str | Path, text: str) -> None:
    """`atomic_write_bytes` of `text` in UTF-8."""
    atomic_write_bytes(path, text.encode("utf-8"))


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented UTF-8 JSON, atomically.

    Raises:
        ValueError: if `value` holds a NaN or an infinity, which JSON has no word for.
    """
    atomic_write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path, limit: int = 8 << 20) -> Any:
    """The JSON in a file that someone else may have written.

    Args:
        path: the file.
        limit: the most bytes that it may have.

    Raises:
        UserError: if it is larger, no UTF-8, no JSON (NaN is none), or nested beyond the parser's depth.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(limit + 1)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    if len(raw) > limit:
        raise UserError(f"{path} is larger than {limit >> 20} MB, which no configuration is")
    try:
        return json.loads(raw.decode("utf-8-sig"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        raise UserError(f"{path} is not UTF-8 text") from None
    except ValueError as error:  # json's own, and numbers of thousands of digits
        raise UserError(f"{path} is not JSON ({error})") from None
    except RecursionError:
        raise UserError(f"{path} is nested too deeply") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """Write a folder so that it is there as a whole or not at all; one that is there already is replaced.

    Args:
        folder: where to.

    Yields:
        The folder to make, which takes its place when the block ends without an error.

    Raises:
        UserError: if nothing can be written there.
    """
    folder = Path(folder).absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error}") from error
    new = temporary / "new" / folder.name  # what is made in it may look at its name
    try:
        new.parent.mkdir()
        yield new
        if folder.exists():
            folder.rename(temporary / "old")  # a folder cannot be put in the place of another that holds files
        new.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256_file(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def version_of(package: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
