"""Shows how training goes while the ranks work elsewhere: they write a line per epoch, this reads it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def watch(path: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Call `note` with each new line of progress until the block ends."""
    ended = threading.Event()
    thread = threading.Thread(target=_follow, args=(path, note, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5)


def _follow(path: Path, note: Callable[[str], None], ended: threading.Event) -> None:
    read = path.stat().st_size if path.exists() else 0
    began, first, last = time.monotonic(), None, 0
    seen = began
    while True:
        last_look = ended.is_set()
        if path.exists() and path.stat().st_size > read:
            with path.open() as file:
                file.seek(read)
                lines = file.read().splitlines()
                read = file.tell()
            point = json.loads(lines[-1])
            if last and point["epoch"] <= last:  # the next step of a learning in several
                began, first = seen, None
            first = max(0, point["epoch"] - len(lines)) if first is None else first
            last, seen = point["epoch"], time.monotonic()
            left = (seen - began) / (point["epoch"] - first) * (point["epochs"] - point["epoch"])
            note(
                f"epoch {point['epoch']} of {point['epochs']}, loss {point['loss']:.4f}, estimated error {point['score']:.4f} "
                f"of the noise variance, at most {left / 60:.1f} minutes left"
            )
        if last_look:
            return
        ended.wait(0.5)
