"""What every command and job does around its work: say what goes on, end with the right exit code, give nothing away."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import NoReturn

from heathaze.errors import BROKEN, DONE, MISTAKE, HeathazeError, storage_error


class Progress:
    """One line per step on standard error, with the time the step before it took."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._noted = float("-inf")

    def __call__(self, step: str) -> None:
        self.finish()
        print(f"  {step} ...", end="", file=sys.stderr, flush=True)
        self._since = time.monotonic()

    def note(self, text: str) -> None:
        """Progress within a step: the same line again on a terminal, one plain line a minute elsewhere."""
        if sys.stderr.isatty():
            print(f"\r\033[K    {text}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._noted >= 60:
            print(f"\n    {text}", end="", file=sys.stderr, flush=True)
            self._noted = time.monotonic()

    def finish(self) -> None:
        """End the line of the last step."""
        if self._since is not None:
            print(f" {time.monotonic() - self._since:.1f} s", file=sys.stderr, flush=True)
        self._since = None


class Parser(argparse.ArgumentParser):
    """Mistakes in arguments exit with 1, as the user's other mistakes do."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(MISTAKE, f"{self.prog}: {message}\n")


def run(work: Callable[[Sequence[str] | None], None], arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    An error of heathaze shows its message, and storage that is full or closed is named in heathaze's words. Any other error shows
    its type and the places it came through, but not its message: what numpy, Arrow or Spark say may quote a record.
    """
    try:
        work(arguments)
    except KeyboardInterrupt:
        print("\ninterrupted: run the same command again to go on where it stopped.", file=sys.stderr)
        return 130
    except Exception as error:
        known = error if isinstance(error, HeathazeError) else storage_error(error)
        if known is not None:
            print(f"\n{type(known).__name__}: {known}", file=sys.stderr)
            return known.exit_code
        if isinstance(error, OSError):
            said = f"{error.strerror or 'failed'}: {error.filename or 'no file named'}"
            print(f"\n{type(error).__name__}: {said}.", file=sys.stderr)
            return BROKEN
        places = [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
        print("\n" + "\n".join(places), file=sys.stderr)
        print(
            f"{type(error).__name__}: an error that heathaze does not know. Its message is not shown, because it may quote data. "
            "What was committed stays; run the same command again to go on from there.",
            file=sys.stderr,
        )
        return BROKEN
    return DONE


def leave(code: int) -> None:
    """End the process with an exit code.

    At once, without the interpreter's shutdown: threads of delta-rs, Arrow and torch that still wind down may abort it, and a
    night that was published would end with an error. Databricks runs jobs inside a process of its own, which must live on.
    """
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        if code:
            sys.exit(code)
        return
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def show(value: object, as_json: bool, text: str) -> None:
    """Print a report: as JSON for programs, as text for people."""
    print(json.dumps(value, indent=2, default=_plain) if as_json else text)


def _plain(value: object) -> str:
    if isinstance(value, Decimal | date):
        return str(value)
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")
