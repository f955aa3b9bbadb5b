"""What the stand-in for the Hub (`hub_server`) keeps, in memory: repositories with git's revisions, uploaded objects,
collections, and who may do what. It knows nothing of HTTP; what goes wrong is a `HubError` with the status to answer.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

HEAD = "0123456789abcdef0123456789abcdef01234567"  # the commit of `main` of a repository that is a folder
KINDS = {"model": "models", "dataset": "datasets", "space": "spaces"}
LFS_PATTERNS = "*.safetensors *.bin *.onnx *.parquet *.arrow *.npy *.h5 *.tar.gz *.zip *.png".split()
LFS_THRESHOLD = 10 * 2**20  # bytes; what is larger is an object of LFS whatever it is called

USER = "tester"
ORGANISATIONS = {"org": "write", "readers": "read"}  # of the user, and the role in it


class HubError(Exception):
    """A request that is answered with an error: the status, the line for the user and the Hub's name for it."""

    def __init__(self, status: int, message: str, code: str | None = None, **extra: Any) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.extra = status, message, code, extra


@dataclass(frozen=True)
class Token:
    """An access token: its role as `whoami` says it, and the namespaces that it may write to."""

    role: str
    writes: tuple[str, ...] = ()

    def whoami(self) -> dict[str, Any]:
        access = {"displayName": f"{self.role} token", "role": self.role, "createdAt": "2026-01-01T00:00:00.000Z"}
        if self.role == "fineGrained":
            scoped = [
                {"entity": {"_id": "0" * 24, "type": "org", "name": name}, "permissions": ["repo.write"]}
                for name in self.writes
            ]
            access["fineGrained"] = {"canReadGatedRepos": False, "global": [], "scoped": scoped}
        organisations = [{"type": "org", "name": name, "roleInOrg": role} for name, role in ORGANISATIONS.items()]
        return {
            "type": "user", "id": "0" * 24, "name": USER, "fullname": "A tester", "orgs": organisations,
            "auth": {"type": "access_token", "accessToken": access},
        }  # fmt: skip


WRITE_TOKEN, READ_TOKEN = "hf_loopback_token_that_writes", "hf_loopback_token_that_reads"
FINE_GRAINED_TOKEN = "hf_loopback_token_for_the_organisation"
TOKENS = {
    WRITE_TOKEN: Token("write", (USER, "org")),
    READ_TOKEN: Token("read"),
    FINE_GRAINED_TOKEN: Token("fineGrained", ("org",)),
}


@dataclass(frozen=True)
class Blob:
    """The content of a file, kept by git or as an object of LFS."""

    content: bytes
    lfs: bool = False

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @cached_property
    def oid(self) -> str:
        """Git's name of the content, or of the pointer to it."""
        stored = self.pointer if self.lfs else self.content
        return hashlib.sha1(b"blob %d\0" % len(stored) + stored).hexdigest()

    @property
    def etag(self) -> str:
        return self.sha256 if self.lfs else self.oid

    @property
    def size(self) -> int:
        return len(self.content)


@dataclass(frozen=True)
class Commit:
    """A commit and all files at it."""

    id: str
    files: dict[str, Blob]
    title: str = ""
    message: str = ""
    parent: Commit | None = None
    date: str = "2026-01-01T00:00:00.000Z"

    def history(self) -> Iterable[Commit]:
        """This commit and those before it, newest first."""
        commit: Commit | None = self
        while commit is not None:
            yield commit
            commit = commit.parent

    def last_change(self, path: str) -> dict[str, str]:
        """The commit that gave the file, or anything in the folder, its content."""

        def content(commit: Commit) -> dict[str, str]:
            return {name: blob.oid for name, blob in commit.files.items() if f"{name}/".startswith(f"{path}/")}

        last = next(c for c in self.history() if c.parent is None or content(c) != content(c.parent))
        return {"id": last.id, "title": last.title, "date": last.date}

    def entries(self, paths: Iterable[str], *, expand: bool = False) -> list[dict[str, Any]]:
        """Those of the paths that are files or folders, as the Hub describes them."""
        found = []
        for path in paths:
            blob = self.files.get(path)
            if blob is not None:
                entry = {"type": "file", "path": path, "size": blob.size, "oid": blob.oid}
                if blob.lfs:
                    entry["lfs"] = {"oid": blob.sha256, "size": blob.size, "pointerSize": len(blob.pointer)}
            elif any(name.startswith(f"{path}/") for name in self.files):
                entry = {"type": "directory", "path": path, "size": 0, "oid": hashlib.sha1(path.encode()).hexdigest()}
            else:
                continue
            found.append(entry | ({"lastCommit": self.last_change(path)} if expand else {}))
        return found

    def tree(self, folder: str, *, recursive: bool, expand: bool) -> list[dict[str, Any]]:
        """What is in a folder ("" is the root)."""
        prefix = f"{folder}/" if folder else ""
        inside = [name for name in self.files if name.startswith(prefix)]
        if folder and not inside:
            raise HubError(404, f"{folder} does not exist on {self.id}", "EntryNotFound")
        names = set()
        for name in inside:
            parts = name.removeprefix(prefix).split("/")
            names |= {prefix + "/".join(parts[:depth]) for depth in range(1, len(parts) + 1 if recursive else 2)}
        return self.entries(sorted(names), expand=expand)

    def card(self) -> dict[str, Any] | None:
        """The metadata of README.md."""
        readme = self.files.get("README.md")
        return front_matter(readme.content.decode("utf-8", "replace")) if readme else None


@dataclass
class Repository:
    """A repository: commits, and the branches and tags that point at them."""

    kind: str  # "models", "datasets", "spaces"
    name: str
    private: bool = False
    gated: bool | str = False
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)

    def resolve(self, revision: str) -> Commit:
        """The commit of a branch, a tag or a commit id, of which the first seven digits are enough."""
        name = revision.removeprefix("refs/heads/").removeprefix("refs/tags/")
        known = self.branches.get(name) or self.tags.get(name)
        if known is None and re.fullmatch("[0-9a-f]{7,40}", revision):
            known = next((id for id in self.commits if id.startswith(revision)), None)
        if known is None:
            raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        return self.commits[known]

    def commit(self, branch: str, files: dict[str, Blob], title: str, message: str = "") -> Commit:
        """Put a new commit with these files on a branch."""
        parent = self.commits[self.branches[branch]] if branch in self.branches else None
        number = f"{self.kind}/{self.name}/{len(self.commits)}"
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
        commit = Commit(
            hashlib.sha1(f"{number} {date} {title}".encode()).hexdigest(), files, title, message, parent, date
        )
        self.commits[commit.id] = commit
        self.branches[branch] = commit.id
        return commit

    def wants_lfs(self, commit: Commit, path: str, size: int) -> bool:
        """Whether a file of that name and size (bytes) is to be an object of LFS: `.gitattributes` says it."""
        attributes = commit.files.get(".gitattributes", Blob(b"")).content.decode().splitlines()
        patterns = [line.split()[0] for line in attributes if "filter=lfs" in line]
        return size > LFS_THRESHOLD or any(fnmatch.fnmatch(path.rsplit("/", 1)[-1], pattern) for pattern in patterns)

    def about(self, commit: Commit) -> dict[str, Any]:
        """The repository at a commit, as `model_info` and `dataset_info` read it."""
        card = commit.card() or {}
        siblings = [
            {
                "rfilename": name, "size": blob.size, "blobId": blob.oid,
                **({"lfs": {"sha256": blob.sha256, "size": blob.size, "pointerSize": len(blob.pointer)}}
                   if blob.lfs else {}),
            }
            for name, blob in sorted(commit.files.items())
        ]  # fmt: skip
        first = list(commit.history())[-1]
        return {
            "id": self.name, "author": self.name.split("/")[0], "sha": commit.id, "private": self.private,
            "gated": self.gated, "disabled": False, "siblings": siblings, "cardData": card, "downloads": 0, "likes": 0,
            "tags": list(card.get("tags") or []), "lastModified": commit.date, "createdAt": first.date,
            **{key: card[key] for key in ("library_name", "pipeline_tag") if key in card},
        }  # fmt: skip


class Folder(Repository):
    """A folder of files served as a repository: the same at every revision, read afresh each time, never written."""

    def __init__(self, kind: str, name: str, path: Path) -> None:
        super().__init__(kind, name, branches={"main": HEAD})
        self.path = path

    def resolve(self, revision: str) -> Commit:
        files = {p.relative_to(self.path).as_posix(): Blob(p.read_bytes()) for p in self.path.rglob("*") if p.is_file()}
        return Commit(HEAD if revision == "main" else revision, files)


@dataclass
class Store:
    """All repositories, objects and collections of a Hub."""

    root: Path
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)  # sha256 -> content
    announced: dict[str, int] = field(default_factory=dict)  # sha256 -> bytes that an upload is to bring
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)  # sha256 -> number -> content
    collections: dict[str, dict[str, Any]] = field(default_factory=dict)  # slug -> as the Hub describes it

    def authorise(self, token: Token | None, namespace: str, what: str) -> None:
        """Refuse to write without a token, or with one that may not write there."""
        if token is None:
            raise HubError(401, "Invalid username or password.")
        if token.role == "read":
            raise HubError(403, f"You must use a write token to {what}")
        if namespace not in token.writes:
            raise HubError(403, f"You don't have the rights to {what} under the namespace {namespace!r}")

    def repository(self, kind: str, name: str, token: Token | None, *, write: bool = False) -> Repository:
        """The repository, if the token may read it, or write it with `write`."""
        repository = self.repositories.get((kind, name))
        if repository is None and "/" in name and (self.root / kind / name).is_dir():
            repository = Folder(kind, name, self.root / kind / name)
        member = token is not None and name.split("/")[0] in (USER, *ORGANISATIONS)
        if repository is None or (repository.private and not member):
            status = 404 if token is not None or repository is None else 401
            raise HubError(status, "Repository not found", "RepoNotFound")
        if write:
            self.authorise(token, name.split("/")[0], "change this repository")
            if isinstance(repository, Folder):
                raise HubError(403, "This repository is a folder of the test and cannot be written")
        return repository

    def create(self, kind: str, name: str, *, private: bool) -> Repository:
        """A new repository with the first commit that the Hub makes."""
        if not re.fullmatch(r"[\w.-]+/[\w.-]{1,96}", name) or "--" in name or ".." in name:
            raise HubError(400, f"Invalid repository name {name!r}")
        if (kind, name) in self.repositories:
            raise HubError(409, f"You already created this {kind.removesuffix('s')} repo")
        repository = self.repositories[kind, name] = Repository(kind, name, private)
        attributes = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LFS_PATTERNS)
        repository.commit("main", {".gitattributes": Blob(attributes.encode())}, "initial commit")
        return repository

    def files(self, kind: str, name: str, revision: str = "main") -> dict[str, bytes]:
        """For a test: path -> content of what was published."""
        commit = self.repositories[kind, name].resolve(revision)
        return {path: blob.content for path, blob in commit.files.items()}

    def upload(self, sha256: str, content: bytes) -> None:
        """Keep an object that was announced, if it is the one."""
        if self.announced.get(sha256) != len(content) or hashlib.sha256(content).hexdigest() != sha256:
            raise HubError(400, f"{len(content)} bytes that are not the object {sha256}")
        self.objects[sha256] = content


def front_matter(text: str) -> dict[str, Any] | None:
    """The YAML between the two `---` at the top of a card, None without.

    Raises:
        yaml.YAMLError: if it is none.
    """
    match = re.match(r"\s*---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|$)", text, re.DOTALL)
    return yaml.safe_load(match[1]) if match else None


def card_errors(text: str, kind: str) -> list[str]:
    """What the Hub has against the metadata of a card: types of the fields, and the form of `model-index`."""
    try:
        card = front_matter(text)
    except yaml.YAMLError as error:
        return [f"YAML: {error}"]
    if card is None:
        return []
    if not isinstance(card, dict):
        return ["the metadata must be a mapping"]
    strings = ("license", "base_model", "datasets", "language", "metrics")
    errors = [
        f'"{key}" must be a string or a list of strings'
        for key in strings
        if key in card
        and not all(isinstance(v, str) for v in (card[key] if isinstance(card[key], list) else [card[key]]))
    ]
    errors += [
        f'"{key}" must be a string'
        for key in ("library_name", "pipeline_tag", "license_name", "license_link")
        if not isinstance(card.get(key, ""), str)
    ]
    tags = card.get("tags", [])
    if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
        errors.append('"tags" must be a list of strings')
    if kind == "model" and "model-index" in card:
        errors += _index_errors(card["model-index"])
    return errors


def _index_errors(index: Any) -> list[str]:
    """Every model has a name and results; every result a task, a data set and metrics with values."""
    errors = []
    try:
        for i, model in enumerate(index):
            if not isinstance(model["name"], str):
                errors.append(f'"model-index[{i}].name" must be a string')
            for j, result in enumerate(model["results"]):
                where = f"model-index[{i}].results[{j}]"
                wanted = [("task", "type"), ("dataset", "name"), ("dataset", "type")]
                errors += [f'"{where}.{a}.{b}" is required' for a, b in wanted if not isinstance(result[a].get(b), str)]
                if not result["metrics"]:
                    errors.append(f'"{where}.metrics" must not be empty')
                for metric in result["metrics"]:
                    if not isinstance(metric.get("type"), str) or metric.get("value") is None:
                        errors.append(f'"{where}.metrics" need a type and a value')
    except (AttributeError, KeyError, TypeError) as error:
        errors.append(f'"model-index" is not as the Hub wants it: {type(error).__name__} {error}')
    return errors
