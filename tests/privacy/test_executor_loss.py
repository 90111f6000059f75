"""The bound while executors die: what Spark computes again must be what it computed before."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.privacy.executor_loss_drill import WRITERS, K, kept

pytestmark = pytest.mark.timeout(500)

USERS, EVENTS_PER_USER, FILES = 300, 40, 6
PROGRAM = Path(__file__).with_name("executor_loss_drill.py")


@dataclass(frozen=True)
class Drills:
    """What the drills wrote, and what each reported."""

    folder: Path
    reports: dict[str, dict[str, Any]]

    @property
    def controls(self) -> list[str]:
        return [name for name in self.reports if name.startswith("rand")]

    def rows(self, name: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in pq.read_table(self.folder / name).to_pylist())


def write_events(folder: Path) -> None:
    """Several files, so that several tasks read them and the order of what they shuffle is left to chance."""
    drawn = random.Random(3)
    start = datetime(2026, 11, 14, tzinfo=timezone.utc)
    users = [f"u{user}" for user in range(USERS) for _ in range(EVENTS_PER_USER)]
    times = [start + timedelta(seconds=drawn.randrange(86_400)) for _ in users]
    events = pa.table(
        {
            "user_id": users,
            "event_time": pa.array(times, pa.timestamp("us", "UTC")),
            "lat": [40.0 + 0.1 * drawn.random() for _ in users],
            "lon": [-74.0 + 0.1 * drawn.random() for _ in users],
        }
    )
    folder.mkdir()
    rows = len(users) // FILES
    for i in range(FILES):
        pq.write_table(events.slice(i * rows, rows), folder / f"{i}.parquet")


def end_session(leader: int) -> None:
    """Kill what is left of a session: driver, executors and Python workers have groups of their own."""
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == leader:
                process.kill()


@pytest.fixture(scope="module")
def drills(tmp_path_factory) -> Drills:
    folder = tmp_path_factory.mktemp("drills")
    write_events(folder / "events")
    program = subprocess.Popen(
        [sys.executable, str(PROGRAM), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        shown, errors = program.communicate(timeout=400)
    finally:
        end_session(program.pid)
        program.wait()
    assert program.returncode == 0, errors
    reports = [json.loads(line) for line in shown.splitlines()]
    return Drills(folder, {report["name"]: report for report in reports})


def test_executors_died_half_way_and_spark_ran_tasks_again(drills):
    assert drills.reports["undisturbed"]["attempts"] == 1
    for name in ["bound", *drills.controls]:
        report = drills.reports[name]
        assert 0 < report["killed_after"] < WRITERS
        assert report["attempts"] > 1


def test_a_lost_executor_changes_no_row_of_the_bounded_sample(drills):
    assert drills.rows("bound") == drills.rows("undisturbed")


def test_every_user_keeps_exactly_k_events_when_an_executor_is_lost(drills):
    assert set(kept(drills.folder / "bound").values()) == {K}
    assert len(kept(drills.folder / "bound")) == USERS


def test_a_sample_ordered_by_rand_breaks_the_bound_when_an_executor_is_lost(drills):
    """The control: the drill can tell a sample that is drawn again from one that is not."""
    assert max(max(kept(drills.folder / name).values()) for name in drills.controls) > K
