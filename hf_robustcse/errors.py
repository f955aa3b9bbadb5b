"""The one exception a user meets for bad input, how a command line raises it and how a command reports it."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable
from typing import Any, NoReturn


class UserError(ValueError):
    """Bad input: the message is one line that says what is wrong and what to do."""


class TrainingStopped(RuntimeError):
    """Training cannot go on (a non-finite loss term, collapsed embeddings); the message names term and step."""


class PushFailed(RuntimeError):
    """What was made is whole on the disk, but not on the Hub; the message names the folder and the command to retry."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints become a `UserError`: one line, exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would print with its usage."""
        raise UserError(f"{message} (see {self.prog} --help)")


def command(main: Callable[..., Any]) -> Callable[..., Any]:
    """Run `main` as a command: one line and exit code 2 for a `UserError`, 1 for `TrainingStopped` and `PushFailed`."""

    @functools.wraps(main)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return main(*args, **kwargs)
        except UserError as error:
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
            raise SystemExit(2) from None
        except TrainingStopped as error:
            print(f"stopped: {' '.join(str(error).split())}", file=sys.stderr)
            raise SystemExit(1) from None
        except PushFailed as error:
            print(f"not pushed: {' '.join(str(error).split())}", file=sys.stderr)
            raise SystemExit(1) from None

    return run
