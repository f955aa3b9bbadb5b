"""Evaluation data on the Hugging Face Hub: pinned revisions, no loading scripts, mirrors, and what `prefetch` left.

`HF_ENDPOINT` (a mirror of the whole Hub) and `HF_HUB_OFFLINE` (only what is cached) hold as in every Hub client.
"""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hf_robustcse.errors import UserError
from hf_robustcse.files import sha256_file

T = TypeVar("T")
HubRows = list[tuple[str, list[Any]]]  # where the row is, for messages, and its values

MANIFEST = "MANIFEST.json"  # of a folder that `hf-robustcse prefetch` filled


class MissingData(UserError):
    """A data set that is not where it was looked for (as opposed to one that is there and wrong).

    Args:
        reason: what is not where.
        how: how to get it.

    Attributes:
        reason: as above.
    """

    def __init__(self, reason: str, how: str) -> None:
        super().__init__(f"{reason}: {how}")
        self.reason = reason


class _Unusable(UserError):
    """A source on the Hub that cannot be reached, or does not hold what it should."""


@dataclass(frozen=True)
class HubSet:
    """A data set that `datasets` loads.

    Attributes:
        name: its id.
        splits: our split -> its splits, in the syntax of `datasets` (`test`, `test[:4500]`), which are joined.
        revision: the commit; None for the newest.
        columns: our column -> its column, where that has another name.
        verify: whether the rows count only if their checksum is the known one.
        config: its configuration, if it has several.
    """

    name: str
    splits: Mapping[str, tuple[str, ...]]
    revision: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    verify: bool = False
    config: str | None = None

    def read(self, split: str, columns: Sequence[str]) -> tuple[str, HubRows]:
        """The source (`hub:NAME@REVISION`) and the rows of one of our splits, with our columns in their order.

        Raises:
            UserError: if it cannot be loaded, or lacks a column.
        """
        from datasets import load_dataset

        names = [self.columns.get(name, name) for name in columns]
        which = (self.name, self.config) if self.config else (self.name,)
        found, revision = [], self.revision
        for part in self.splits[split]:
            try:
                rows = load_dataset(*which, split=part, revision=self.revision)
            except Exception as error:  # the clients raise a dozen kinds: unreachable, offline, absent, no such split
                raise _failed(self.name, error) from error
            if absent := set(names) - set(rows.column_names):
                raise _Unusable(f"{self.name} has no column {', '.join(sorted(absent))}: {rows.column_names}")
            # Offline, `datasets` takes the copy that was cached last, of whatever revision; its folder says which.
            cached = {Path(file["filename"]).parent.name for file in rows.cache_files}
            if cached and re.fullmatch("[0-9a-f]{40}", commit := min(cached)):
                if self.revision not in (None, commit):
                    raise _Unusable(f"{self.name} is cached at {commit}, not at {self.revision}")
                revision = commit
            where = f"{self.name} {part}, row "
            found += [(f"{where}{number}", [row[name] for name in names]) for number, row in enumerate(rows, 1)]
        return _source(self.name, revision), found


@dataclass(frozen=True)
class HubLines:
    """Files on the Hub that hold one sentence a line, a file for each label, plain or inside a tar file.

    Attributes:
        name: the id of the data set that has the files.
        splits: our split -> the files of labels 0, 1, ...
        revision: the commit; None for the newest.
        archive: the tar file that holds them, if one does; they are found by the ends of their paths then.
    """

    name: str
    splits: Mapping[str, tuple[str, ...]]
    revision: str | None = None
    archive: str | None = None

    def read(self, split: str, columns: Sequence[str]) -> tuple[str, HubRows]:
        """The source (`hub:NAME@REVISION`) and the rows [label, sentence] of one of our splits; see `HubSet.read`."""
        found, revision = [], self.revision
        for label, file in enumerate(self.splits[split]):
            try:
                path, content = self._download(file)
            except Exception as error:  # as above
                raise _failed(f"{self.name} {self.archive or file}", error) from error
            if commit := re.search("/snapshots/([0-9a-f]{40})/", path.as_posix()):
                revision = commit[1]
            try:
                text = content.decode("utf-8")
            except UnicodeDecodeError:
                text = content.decode("latin-1")  # as SentEval reads these files
            lines = enumerate(text.split("\n"), 1)
            found += [(f"{self.name} {file}, line {number}", [label, line]) for number, line in lines if line.strip()]
        return _source(self.name, revision), found

    def _download(self, file: str) -> tuple[Path, bytes]:
        from huggingface_hub import hf_hub_download

        wanted = self.archive or file
        path = Path(hf_hub_download(self.name, wanted, repo_type="dataset", revision=self.revision))
        if self.archive is None:
            return path, path.read_bytes()
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile() and f"/{member.name}".endswith(f"/{file}"):
                    return path, archive.extractfile(member).read()
        raise FileNotFoundError(f"{file} is not in it")


def _failed(name: str, error: Exception) -> _Unusable:
    return _Unusable(f"{name} cannot be loaded ({type(error).__name__}: {' '.join(str(error).split())[:300]})")


def _source(name: str, revision: str | None) -> str:
    return f"hub:{name}" + (f"@{revision}" if revision else "")


def read_hub(
    what: str,
    sources: Iterable[HubSet | HubLines],
    split: str,
    columns: Sequence[str],
    parse: Callable[[HubSet | HubLines, str, HubRows], T],
    how: str,
) -> T:
    """Read a split from the first source that can be reached and holds it.

    Args:
        what: task and split, for messages.
        sources: where it may be, in order of preference.
        split: ours.
        columns: ours.
        parse: given the source, its name and its rows, makes what is returned; a `UserError` from it is a source that
            does not hold the split.
        how: how else to get the data, for the message.

    Raises:
        MissingData: if no source holds it.
    """
    failures = []
    for source in sources:
        if split in source.splits:
            try:
                return parse(source, *source.read(split, columns))
            except UserError as error:
                failures.append(str(error))
    raise MissingData(f"{what} cannot be had from the Hub ({'; '.join(failures) or 'it is not there'})", how)


def prefetch_line(group: str, folder: str | Path | None) -> str:
    """The command that fetches a group of data sets, and how to pass them on, for messages."""
    folder = "DIR" if folder is None else folder
    return (
        f"where there is a network, hf-robustcse prefetch --tasks {group} --to {folder} fetches it; then pass "
        f"--data_dir {folder} (when training, --eval_data_dir {folder})"
    )


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What `prefetch` recorded in a folder: {"files": {path: {"sha256", ...}}, ...}; empty if it was never there.

    Raises:
        UserError: if the file is damaged.
    """
    path = Path(folder) / MANIFEST
    if not path.exists():
        return {}
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(manifest["files"], dict):
            return manifest
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise UserError(f"{path} is damaged: delete it and run hf-robustcse prefetch again")


def check_manifest(folder: str | Path, files: Iterable[Path]) -> None:
    """Refuse files that `prefetch` wrote and that are not as it wrote them; a file it does not know is the user's own.

    Args:
        folder: the data folder.
        files: files inside it.

    Raises:
        UserError: naming the file.
    """
    known = read_manifest(folder).get("files", {})
    for file in files:
        record = known.get(file.relative_to(folder).as_posix())
        if record is not None and record.get("sha256") != sha256_file(file):
            raise UserError(
                f"{file} is not as hf-robustcse prefetch wrote it ({Path(folder) / MANIFEST} has another checksum): "
                "delete it and fetch it again"
            )
