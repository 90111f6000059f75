"""A toy night for tests of faults: its input, its tables, and runs of the command that can be killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from tests.conftest import policy_text

from heathaze.collect.ledger import Entry, Ledger
from heathaze.collect.private import PrivateTables

DAY = "2026-11-14"
K = 3
SLICES = 4


@dataclass(frozen=True)
class Night:
    """A toy input, its policy, and the place of its tables."""

    place: Path
    """Folder of the policy and the events; they stay where they are, because their place is part of their version."""
    tables: Path
    day: str = DAY

    @property
    def keys(self) -> Path:
        return self.tables / "private" / "keys"

    def arguments(self, verb: str) -> list[str]:
        files = ["--policy", str(self.place / "policy.toml"), "--events", str(self.place / "events.parquet")]
        return [verb, *files, "--period", self.day, "--tables", str(self.tables)]

    def copied_to(self, tables: Path) -> Night:
        """The same night with a copy of its tables, or with none where it has none yet."""
        if self.tables.exists():
            shutil.copytree(self.tables, tables)
        return replace(self, tables=tables)

    def entries(self) -> list[Entry]:
        return Ledger(PrivateTables(str(self.tables)).ledger_log()).entries()

    def rows(self, table: str) -> list[dict[str, Any]]:
        return PrivateTables(str(self.tables)).load(table).to_pylist()

    def noisy(self) -> dict[int, dict[str, Any]]:
        """The committed rows by slice; no slice may be there twice."""
        rows = self.rows("noisy")
        by_slice = {row["slice"]: row for row in rows}
        assert len(by_slice) == len(rows)
        return by_slice

    def noise_files(self) -> list[Path]:
        """Complete Parquet files in the noisy table's folder, committed or not."""
        return [file for file in self.tables.glob("noisy/entry=*/part-*.parquet") if file.read_bytes()[4:].endswith(b"PAR1")]

    def is_noise_committed(self) -> bool:
        return len(list(self.tables.glob("noisy/_delta_log/*.json"))) > 1

    def contents(self) -> dict[str, bytes]:
        return {str(file.relative_to(self.tables)): file.read_bytes() for file in self.tables.rglob("*") if file.is_file()}


def make_night(place: Path, day: str = DAY) -> Night:
    """300 events of 50 users on one day, spread over the box of the toy policy."""
    drawn = random.Random(5)
    start = datetime.fromisoformat(f"{day}T00:00:00+00:00")
    times = [start + timedelta(seconds=drawn.randrange(86_400)) for _ in range(300)]
    events = {
        "user_id": [f"u{drawn.randrange(50)}" for _ in times],
        "event_time": pa.array(times, pa.timestamp("us", "UTC")),
        "lat": [40.0 + 0.1 * drawn.random() for _ in times],
        "lon": [-74.0 + 0.1 * drawn.random() for _ in times],
    }
    place.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(events), place / "events.parquet")
    (place / "policy.toml").write_text(policy_text(k=K, slices=SLICES))
    return Night(place, place / "tables", day)


def assert_collected_once(night: Night) -> None:
    """One charge, one noisy table, one sample within the bound, and no living key."""
    [entry] = night.entries()
    noisy = night.noisy()
    assert sorted(noisy) == list(range(SLICES))
    assert {row["entry"] for row in noisy.values()} == {entry.entry}
    assert [file.name for file in night.keys.iterdir()] == [entry.entry]
    assert (night.keys / entry.entry).read_bytes() == b"destroyed"
    kept = Counter(row["user_id"] for row in night.rows("sample") for _ in row["places"])
    assert max(kept.values()) == K
    assert sum(row["count"] for row in night.rows("histogram")) == sum(kept.values())


@dataclass
class Run:
    """One command in a session of its own."""

    process: subprocess.Popen[bytes]
    shown: bytearray = field(default_factory=bytearray)
    """What it has written on standard error so far."""

    def __post_init__(self) -> None:
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        while some := os.read(self.process.stderr.fileno(), 4096):
            self.shown.extend(some)

    def wait_until(self, holds: Callable[[], bool], seconds: float = 300) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            assert self.process.poll() is None and time.monotonic() < deadline, f"it did not come so far: {self.shown.decode()}"
            time.sleep(0.002)

    def wait_for_step(self, *steps: str) -> None:
        """Wait until the first of these steps begins."""
        self.wait_until(lambda: any(f"  {step}".encode() in self.shown for step in steps))

    def finish(self) -> int:
        """Wait for the end of the command and of its JVM, which ends a little later."""
        code = self.process.wait(timeout=400)
        self._wait_for_members(60)
        return code

    def said(self) -> str:
        """What a finished run has written on standard output."""
        assert self.process.stdout is not None
        return self.process.stdout.read().decode()

    def kill(self) -> None:
        """kill -9 the process group, and see to it that nothing of the session is left."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # Spark's Python workers have a group of their own and end when their JVM has.
        self._wait_for_members(20)

    def _wait_for_members(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while left := self._members():
            if time.monotonic() > deadline:
                for member in left:
                    member.kill()
                raise AssertionError(f"a process outlived its run by {seconds} seconds")
            time.sleep(0.05)

    def _members(self) -> list[psutil.Process]:
        members = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) == self.process.pid and process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return members
