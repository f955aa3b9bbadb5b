"""A headless Chromium, driven by the WebDriver protocol over plain HTTP."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
QUIET = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def free_port() -> int:
    """A port of this machine that nothing listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Page:
    """One window of the browser."""

    def __init__(self, server: str, session: str) -> None:
        self.server = server
        self.session = session

    def send(self, path: str, **body: Any) -> Any:
        """A command of the protocol."""
        request = urllib.request.Request(f"{self.server}{self.session}{path}", json.dumps(body).encode(), method="POST")
        try:
            with OPENER.open(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path} {body}: {error.read().decode()[:600]}") from None

    def go(self, url: str) -> None:
        """Open a page."""
        self.send("/url", url=url)

    def ask(self, script: str) -> Any:
        """The value of an expression of JavaScript."""
        return self.send("/execute/sync", script=f"return {script}", args=[])

    def find(self, css: str) -> str:
        """The path of the first element that a selector names."""
        element = self.send("/element", using="css selector", value=css)
        return f"/element/{next(iter(element.values()))}"

    def click(self, css: str) -> None:
        """Click at an element."""
        self.send(f"{self.find(css)}/click")

    def type(self, css: str, text: str) -> None:
        """Put text into a field in place of what is in it."""
        element = self.find(css)
        self.send(f"{element}/value", text="\ue009a\ue000\ue017")  # Ctrl+A, let go, Delete
        if text:
            self.send(f"{element}/value", text=text)

    def fill(self, css: str, text: str) -> None:
        """Put a long text into a field at once, as if it was pasted."""
        self.ask(
            f"(e => (e.value = {json.dumps(text)}, e.dispatchEvent(new Event('input', {{bubbles: true}}))))"
            f"(document.querySelector({json.dumps(css)}))"
        )

    def wait(self, script: str, seconds: float = 60) -> Any:
        """The value of an expression, once it is true."""
        end = time.monotonic() + seconds
        while not (value := self.ask(script)):
            assert time.monotonic() < end, f"{script} never came true"
            time.sleep(0.05)
        return value

    def console(self) -> list[dict[str, Any]]:
        """What the console was told since it was asked last."""
        return self.send("/se/log", type="browser")

    def picture(self, path: Path) -> None:
        """Save what is seen."""
        request = urllib.request.Request(f"{self.server}{self.session}/screenshot")
        with OPENER.open(request, timeout=60) as answer:
            path.write_bytes(base64.b64decode(json.load(answer)["value"]))


@contextmanager
def opened(profile: Path, *arguments: str) -> Iterator[Page]:
    """A window that is closed in the end.

    Args:
        profile: a new folder.
        *arguments: of the browser, such as `--window-size=500,900`.
    """
    port = free_port()
    driver = subprocess.Popen([DRIVER, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        server = f"http://127.0.0.1:{port}"
        wait_for(lambda: OPENER.open(f"{server}/status", timeout=5).close())
        options = {"binary": BROWSER, "args": [*QUIET, f"--user-data-dir={profile}", *arguments]}
        capabilities = {"alwaysMatch": {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}}
        page = Page(server, "/session")
        page.session = f"/session/{page.send('', capabilities=capabilities)['sessionId']}"
        yield page
        OPENER.open(urllib.request.Request(f"{server}{page.session}", method="DELETE"), timeout=30).close()
    finally:
        driver.terminate()
        driver.wait(30)


def wait_for(attempt: Callable[[], Any], seconds: float = 180) -> None:
    """Try until no OSError comes."""
    end = time.monotonic() + seconds
    while True:
        try:
            attempt()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
