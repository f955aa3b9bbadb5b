"""What a published file must not tell: tokens, local paths, the name of the user, the name of the machine."""

from __future__ import annotations

import getpass
import os
import re
import shlex
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
from transformers import CONFIG_MAPPING

from hf_robustcse.evaluation.results import SECRET_NAME, SECRET_VALUE
from hf_robustcse.methods import METHODS

# Names that say nothing of a person or a machine, and that are words of their own.
_COMMON = {
    "root", "user", "ubuntu", "debian", "admin", "runner", "docker", "jovyan", "nobody", "app", "home", "localhost",
    "default", "vscode", "worker", *CONFIG_MAPPING, *METHODS,
}  # fmt: skip
# An address with a scheme stays as it is; behind anything else a slash, a tilde or a drive begins a local path.
_ADDRESS = r"(?P<address>(?!file:)\b[a-z][a-z0-9+.-]+://[^\s\"']+)"
_PATH = (
    r"(?P<path>(?<![\w.~/\\<-])(?:file:/{2})?(?:(?:~[\w.-]*)?/+|[A-Za-z]:[\\/]+|\\\\)[\w.@+~]"
    r"[^\s\"'`,;:()<>|*]*)"
)
_PATHS = re.compile(f"{_ADDRESS}|{_PATH}", re.IGNORECASE)
_WHOLE_PATH = re.compile(r"(?:file://)?(?:~[\w.-]*(?=/|$)|[A-Za-z]:(?=[\\/])|/(?=\w)|\\\\(?=\w))")
# In prose, such as the card, a slash has other uses: only a path of two parts or more behind a space or a quote counts.
_PROSE = re.compile(r"(?:^|[\s\"'`(=])((?:~/|/|[A-Za-z]:[\\/])[\w.@+-]+[\\/][\w.@+\\/-]+)", re.MULTILINE)


class Scrubber:
    """Takes out of texts what they must not tell, and finds it in them.

    Args:
        repo_id: where to; its owner's name is public, even if it is that of the user here too.
        tokens: secrets to look for beside the token of this machine.
        folders: local folders to look for beside the home, the working and the temporary directory.
    """

    def __init__(self, repo_id: str | None = None, tokens: tuple[str | None, ...] = (), folders: tuple[Path, ...] = ()):
        found = [huggingface_hub.get_token(), os.environ.get("HF_TOKEN"), *tokens]
        self.tokens = sorted({token for token in found if isinstance(token, str) and len(token) >= 8}, key=len)[::-1]
        places = [Path.home(), Path.cwd(), Path(tempfile.gettempdir()), *(folder.absolute() for folder in folders)]
        self.folders = sorted({str(place) for place in places if len(place.parts) > 2}, key=len)[::-1]
        owner = (repo_id or "").partition("/")[0].lower()
        self.names = [(name, "user") for name in _user_names() if name.lower() != owner]
        self.names += [(name, "host") for name in _host_names() if name.lower() != owner]

    def text(self, text: str) -> str:
        """A text without tokens, names and local paths; of a path the last part stays."""
        text = self.places(text)
        for name, word in self.names:
            text = _pattern(name).sub(word, text)
        return text

    def places(self, text: str) -> str:
        """A text without tokens and local paths; names stay, so that a word that is somebody's name stays too."""
        for token in self.tokens:
            text = text.replace(token, "***")
        text = SECRET_VALUE.sub("***", text)
        text = re.sub(r"(\w+://)[^/\s@]+@", r"\1", text)  # a user and a password in an address
        if _WHOLE_PATH.match(text):
            text = _last_part(text)
        else:
            text = _PATHS.sub(lambda found: found["address"] or _last_part(found["path"]), text)
        return text

    def command(self, line: str) -> str:
        """A shell line, its words one by one, so that a path with a space in it is one path."""
        try:
            words = shlex.split(line)
        except ValueError:
            return self.text(line)
        made = []
        for word in words:
            name, equals, value = word.partition("=")
            made.append(f"{name}={self.text(value)}" if equals and name.startswith("-") else self.text(word))
        return shlex.join(made)

    def record(self, value: Any, key: str = "") -> Any:
        """A JSON value of ours, its strings scrubbed, and those under names such as `hub_token` gone."""
        if isinstance(value, dict):
            return {self.places(name): self.record(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [self.record(part, key) for part in value]
        if not isinstance(value, str):
            return value
        if SECRET_NAME.search(key):
            return "***" if value else value
        return self.command(value) if key == "command" else self.text(value)

    def config(self, value: Any) -> Any:
        """The JSON configuration of a library: only a value that is a path loses names too.

        Its words are those of the library, and a machine may be called as one of them; its `pad_token` is no secret.
        """
        if isinstance(value, dict):
            return {name: self.config(part) for name, part in value.items()}
        if isinstance(value, list):
            return [self.config(part) for part in value]
        if not isinstance(value, str) or self.places(value) == value:
            return value
        return self.text(value)

    def find(self, text: str, *, prose: bool = False) -> str | None:
        """What a text tells that it must not, in words that do not repeat a secret; None if nothing.

        Names of people are not looked for: the words of a vocabulary and the authors of a paper have them too.

        Args:
            text: of a file.
            prose: look for any local path, not only for those of this machine.
        """
        if SECRET_VALUE.search(text) or any(token in text for token in self.tokens):
            return "an access token"
        for folder in self.folders:
            if folder in text:
                return f"the local path {folder}"
        if prose and (found := _PROSE.search(text)):
            return f"the local path {found[1]}"
        return None

    def find_in_record(self, value: Any) -> str | None:
        """As `find`, in all strings of a JSON value, and whatever local path or name `text` would take out of one."""
        return self._find_within(value, self.text)

    def find_in_config(self, value: Any) -> str | None:
        """As `find`, in all strings of a JSON value, and any local path."""
        return self._find_within(value, self.places)

    def _find_within(self, value: Any, scrubbed: Callable[[str], str]) -> str | None:
        for text, is_key in _strings(value):
            if found := self.find(text):
                return found
            if self.command(text) != text and (self.places if is_key else scrubbed)(text) != text:
                return f"a local path or name in {text[:80]!r}"
        return None


def _last_part(path: str) -> str:
    parts = [part for part in re.split(r"[/\\]+", path.removeprefix("file://")) if part]
    return parts[-1] if parts and not re.fullmatch(r"~.*|[A-Za-z]:", parts[-1]) else "."


def _pattern(name: str) -> re.Pattern[str]:
    """A name as a word; a short one only where it stands for a part of a path, or alone."""
    name = re.escape(name)
    if len(name) >= 5:
        return re.compile(f"(?<![A-Za-z0-9]){name}(?![A-Za-z0-9])", re.IGNORECASE)
    return re.compile(rf"(?:(?<=[/\\])|^){name}(?=[/\\@]|$)", re.IGNORECASE)


def _user_names() -> list[str]:
    names = {Path.home().name}
    try:
        names.add(getpass.getuser())
    except (OSError, KeyError, ImportError):  # no such user, as in some containers
        pass
    return sorted(name for name in names if len(name) > 1 and name.lower() not in _COMMON)


def _host_names() -> list[str]:
    full = socket.gethostname()
    return sorted(name for name in {full, full.split(".")[0]} if len(name) > 3 and name.lower() not in _COMMON)


def _strings(value: Any) -> Iterator[tuple[str, bool]]:
    """All strings of a JSON value, and whether each is a key."""
    if isinstance(value, dict):
        yield from ((key, True) for key in value)
        for part in value.values():
            yield from _strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _strings(part)
    elif isinstance(value, str):
        yield value, False
