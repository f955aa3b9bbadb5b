"""A stand-in for the Hugging Face Hub on the loopback interface, for the real clients to read from and publish to.

    with hub_server.hub(tmp_path / "hub") as server:
        env = server.env(tmp_path / "home", token=hub_server.WRITE_TOKEN)
        subprocess.run([sys.executable, "-c", "...push..."], env=env, check=True)
        assert "model.safetensors" in server.store.files("models", "org/name", "v1.0")

The clients read HF_ENDPOINT when they are imported, so they run in processes of their own with `Hub.env`. It sets
HF_HUB_DISABLE_XET: with `hf_xet` installed huggingface_hub uploads to the Hub's own storage or not at all, without it
by LFS. In the test's own process `HfApi(endpoint=server.url, token=...)` works too, after a monkeypatch of
`huggingface_hub.constants`: HF_HUB_OFFLINE to False and HF_HUB_DISABLE_XET to True.

- A repository is created by a client, or is a folder `ROOT/datasets/OWNER/NAME` or `ROOT/models/OWNER/NAME`, which is
  the same at every revision and cannot be written.
- WRITE_TOKEN may write to the namespaces `tester` (the user) and `org`, FINE_GRAINED_TOKEN to `org` only, READ_TOKEN to
  none (403); every other token is refused (401).
- `server.fail("POST", "/commit/", status=500)` makes the next such request fail, see `Hub.fail`.
- `server.requests` lists what was asked: method, path, whether a token came with it, and the range.
- An error in the server itself fails the test when the `with` ends.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from hub_api import ROUTES, Answer, Asked
from hub_store import FINE_GRAINED_TOKEN, HEAD, READ_TOKEN, TOKENS, WRITE_TOKEN, HubError, Store

__all__ = ["FINE_GRAINED_TOKEN", "HEAD", "READ_TOKEN", "WRITE_TOKEN", "Hub", "hub"]


class Request(NamedTuple):
    """What is remembered of a request."""

    method: str
    path: str
    with_token: bool
    range: str | None  # of bytes


@dataclass
class Fault:
    """What is done to requests instead of answering them, see `Hub.fail`."""

    method: str
    path: str
    times: int
    status: int | None
    retry_after: int | None
    cut: bool
    short: bool


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        pass

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _hang_up(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _send(self, answer: Answer, fault: Fault | None) -> None:
        body, headers = answer.body, {**answer.headers}
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json; charset=utf-8"
        if fault and fault.short:
            body = body[: len(body) // 2]
        self.send_response(answer.status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value.replace("\n", " "))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault and fault.cut:
            self.wfile.write(body[: len(body) // 2])
            self._hang_up()
        else:
            self.wfile.write(body)

    def _answer(self, path: str, body: bytes) -> Answer:
        """Route the request; whoever comes with a token that is none is refused whatever the route."""
        given = re.fullmatch("Bearer (.+)", self.headers.get("Authorization") or "")
        if given and given[1] not in TOKENS:
            raise HubError(401, "Invalid credentials in Authorization header")
        method = "GET" if self.command == "HEAD" else self.command
        for wanted, pattern, function in ROUTES:
            match = pattern.fullmatch(path) if wanted == method else None
            if match:
                groups = {name: value and unquote(value) for name, value in match.groupdict().items()}
                hub, query = self.server, parse_qs(urlsplit(self.path).query)
                token = TOKENS[given[1]] if given else None
                with hub.lock:
                    return function(
                        Asked(hub.store, hub.url, hub.key, hub.part_size, token, query, self.headers, body, groups)
                    )
        raise HubError(404, f"{path} is not an address of this Hub")

    def _serve(self) -> None:
        path = urlsplit(self.path).path
        request = Request(self.command, unquote(path), "Authorization" in self.headers, self.headers.get("Range"))
        fault = self.server.note(request)
        if fault and fault.cut and self.command not in ("GET", "HEAD"):
            self.rfile.read(min(int(self.headers.get("Content-Length") or 2) // 2, 2**20))
            return self._hang_up()
        body = self._read()
        try:
            if fault and fault.status:
                raise HubError(fault.status, "This error was ordered by the test")
            answer = self._answer(path, body)
        except HubError as error:
            answer = Answer({"error": error.message, **error.extra}, error.status, {"X-Error-Message": error.message})
            if error.code:
                answer.headers["X-Error-Code"] = error.code
            if fault and fault.retry_after is not None:
                answer.headers["Retry-After"] = str(fault.retry_after)
        except Exception:
            self.server.errors.append(traceback.format_exc())
            answer = Answer({"error": "an error in tests/hub_server.py"}, 500)
        self._send(answer, fault)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _serve


class Hub(ThreadingHTTPServer):
    """The server.

    Attributes:
        store: what was published (`Store.files`).
        requests: the requests so far; a test may clear the list.
        part_size: bytes; larger objects of LFS are uploaded in parts of this size.
        errors: tracebacks of errors of the server itself.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root, self.store, self.key, self.lock = (
            Path(root),
            Store(Path(root)),
            secrets.token_hex(8),
            threading.Lock(),
        )
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.part_size = 32 * 2**20
        self.requests: list[Request] = []
        self.errors: list[str] = []
        self._faults: list[Fault] = []

    def fail(
        self,
        method: str,
        path: str,
        *,
        times: int = 1,
        status: int | None = None,
        retry_after: int | None = None,
        cut: bool = False,
        short: bool = False,
    ) -> None:
        """Let the next requests that match go wrong.

        Args:
            method: "GET", "HEAD", "POST", "PUT", "PATCH" or "DELETE".
            path: a regular expression that is searched for in the path (unquoted, without the query).
            times: how many requests.
            status: answer with this status, such as 429, 500 or 503, and do nothing.
            retry_after: seconds; sent along with the status.
            cut: close the connection in the middle of the body, of the answer (GET) or of the request (all others).
            short: answer with half of the body and a Content-Length that says so.
        """
        self._faults.append(Fault(method, path, times, status, retry_after, cut, short))

    def note(self, request: Request) -> Fault | None:
        """Remember a request; what is to go wrong with it."""
        with self.lock:
            self.requests.append(request)
            for fault in self._faults:
                if fault.times > 0 and fault.method == request.method and re.search(fault.path, request.path):
                    fault.times -= 1
                    return fault
        return None

    def asked(self, method: str, path: str) -> list[str]:
        """Paths of the requests with that method whose path holds the regular expression."""
        return [r.path for r in self.requests if r.method == method and re.search(path, r.path)]

    def env(self, home: Path, token: str | None = None) -> dict[str, str]:
        """The environment of a process whose Hub this is, with its caches in `home` and nothing of the user's own."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("HF_", "HUGGINGFACE", "TRANSFORMERS_")) and not name.lower().endswith("_proxy")
        }
        kept |= {"HF_ENDPOINT": self.url, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
        kept |= {"HF_HUB_DISABLE_TELEMETRY": "1", "TOKENIZERS_PARALLELISM": "false"}
        return kept | ({"HF_TOKEN": token} if token else {})

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client that went away is none of ours
            self.errors.append(traceback.format_exc())


@contextmanager
def hub(root: Path) -> Iterator[Hub]:
    """Serve `root` and what clients publish, on a free port of the loopback interface."""
    server = Hub(root)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert not server.errors, "\n".join(server.errors)
