"""A stand-in for the Hugging Face Hub on the loopback interface: the few requests that its clients make to read files.

A repository is a folder `ROOT/datasets/OWNER/NAME` or `ROOT/models/OWNER/NAME`, the same at every revision.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

HEAD = "0123456789abcdef0123456789abcdef01234567"  # the commit of `main`


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _reply(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        api = re.fullmatch(r"/api/(datasets|models)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?(/.+)?", path)
        file = re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
        if not api and not file:
            return self._reply(404)
        kind, name = (api[1], api[2]) if api else ("datasets" if file[1] else "models", file[2])
        revision = (api[4] if api else file[3]) or "main"
        commit = HEAD if revision == "main" else revision
        folder = self.server.root / kind / name
        if not folder.is_dir():
            return self._reply(404, X_Error_Code="RepoNotFound")
        if file:
            path = folder / file[4]
            if not path.is_file():
                return self._reply(404, X_Error_Code="EntryNotFound", X_Repo_Commit=commit)
            content = path.read_bytes()
            return self._reply(200, content, ETag=f'"{hashlib.sha1(content).hexdigest()}"', X_Repo_Commit=commit)
        files = sorted(path for path in (folder / (api[5] or "/")[1:]).rglob("*") if path.is_file())
        names = [path.relative_to(folder).as_posix() for path in files]
        if api[3] == "tree":
            sizes = [path.stat().st_size for path in files]
            listed = [
                {"type": "file", "path": name, "size": size, "oid": "0" * 40}
                for name, size in zip(names, sizes, strict=True)
            ]
            return self._reply(200, json.dumps(listed).encode(), Content_Type="application/json")
        about = {"id": name, "sha": commit, "siblings": [{"rfilename": name} for name in names], "tags": []}
        return self._reply(200, json.dumps(about).encode(), Content_Type="application/json")

    do_HEAD = do_GET


@contextmanager
def hub(root: Path) -> Iterator[ThreadingHTTPServer]:
    """Serve `root`; `requests` of what is given lists the requests, `server_port` is the port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.root, server.requests = root, []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
