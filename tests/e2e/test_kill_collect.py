"""`heathaze collect` killed with -9 at its steps and at random moments, and run twice at once: one charge, one noisy table."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import deltalake
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.conftest import policy_text

from heathaze import cli
from heathaze.collect import pipeline
from heathaze.collect.entropy import KeyStore, NoiseKey
from heathaze.collect.ledger import Entry, Ledger
from heathaze.collect.private import PrivateTables

pytestmark = pytest.mark.timeout(900)

DAY = "2026-11-14"
K = 3
SLICES = 4
STEPS = ["starting Spark", "charging the ledger", "checking the bound", "drawing noise"]
"""Where the chain is cut: each leaves the tables in another state, from nothing at all to noise that is not committed."""


@dataclass(frozen=True)
class Night:
    """A toy input, its policy, and the place of its tables."""

    place: Path

    @property
    def tables(self) -> Path:
        return self.place / "tables"

    @property
    def keys(self) -> Path:
        return self.tables / "private" / "keys"

    def arguments(self, tables: Path | None = None) -> list[str]:
        files = ["--policy", str(self.place / "policy.toml"), "--events", str(self.place / "events.parquet")]
        return ["collect", *files, "--period", DAY, "--tables", str(tables or self.tables)]

    def entries(self) -> list[Entry]:
        return Ledger(PrivateTables(str(self.tables)).ledger_log()).entries()

    def rows(self, table: str) -> list[dict[str, Any]]:
        address = PrivateTables(str(self.tables)).address(table)
        return deltalake.DeltaTable(address).to_pyarrow_table().to_pylist()

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


def make_night(place: Path) -> Night:
    drawn = random.Random(5)
    start = datetime(2026, 11, 14, tzinfo=timezone.utc)
    times = [start + timedelta(seconds=drawn.randrange(86_400)) for _ in range(300)]
    events = {
        "user_id": [f"u{drawn.randrange(50)}" for _ in times],
        "event_time": pa.array(times, pa.timestamp("us", "UTC")),
        "lat": [40.0 + 0.1 * drawn.random() for _ in times],
        "lon": [-74.0 + 0.1 * drawn.random() for _ in times],
    }
    pq.write_table(pa.table(events), place / "events.parquet")
    (place / "policy.toml").write_text(policy_text(k=K, slices=SLICES))
    return Night(place)


@dataclass
class Run:
    """One `heathaze collect` in a session of its own."""

    process: subprocess.Popen[bytes]
    shown: bytearray = field(default_factory=bytearray)

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
            time.sleep(0.01)

    def wait_for_step(self, step: str) -> None:
        self.wait_until(lambda: f"  {step}".encode() in self.shown)

    def finish(self) -> int:
        return self.process.wait(timeout=400)

    def kill(self) -> None:
        """kill -9 the process group, and see to it that nothing of the session is left."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        # Spark's Python workers have a group of their own and end when their JVM has.
        deadline = time.monotonic() + 20
        while left := self._members():
            if time.monotonic() > deadline:
                for member in left:
                    member.kill()
                raise AssertionError("a process outlived its run by 20 seconds")
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


@pytest.fixture(scope="module")
def start() -> Iterator[Callable[[Night], Run]]:
    """Starts a run; whatever is still going at the end is killed."""
    runs: list[Run] = []

    def start_one(night: Night) -> Run:
        words = [sys.executable, "-m", "heathaze.cli", *night.arguments()]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        runs.append(Run(subprocess.Popen(words, start_new_session=True, **pipes)))
        return runs[-1]

    try:
        yield start_one
    finally:
        for run in runs:
            run.kill()


@pytest.fixture(scope="module")
def command(spark) -> Iterator[Callable[..., int]]:
    """`heathaze` in this process and the session that is there: the same code without the start of a JVM."""
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    yield lambda *arguments: cli.main(list(arguments))
    spark.conf.set("spark.sql.shuffle.partitions", partitions)


@dataclass(frozen=True)
class Chain:
    """A night that was killed at every step and then allowed to finish."""

    night: Night
    exit_code: int
    was_committed: bool
    """Whether the last kill came too late to find the noise uncommitted."""
    orphans: list[Path]
    """Files of noise that the last kill left behind."""
    secret: bytes
    """The noise key that the last kill left behind."""


@pytest.fixture(scope="module")
def chain(tmp_path_factory, start, command) -> Chain:
    night = make_night(tmp_path_factory.mktemp("chain"))
    for step in STEPS:
        run = start(night)
        run.wait_for_step(step)
        if step == "drawing noise":
            run.wait_until(lambda: len(night.noise_files()) > 0)
        run.kill()
        assert len(night.entries() if night.tables.exists() else []) <= 1
    [entry] = night.entries()
    secret = (night.keys / entry.entry).read_bytes()
    was_committed, orphans = night.is_noise_committed(), night.noise_files()
    return Chain(night, command(*night.arguments()), was_committed, orphans, secret)


def assert_released_once(night: Night) -> None:
    [entry] = night.entries()
    noisy = night.noisy()
    assert sorted(noisy) == list(range(SLICES))
    assert {row["entry"] for row in noisy.values()} == {entry.entry}
    assert [file.name for file in night.keys.iterdir()] == [entry.entry]
    assert (night.keys / entry.entry).read_bytes() == b"destroyed"
    kept = Counter(row["user_id"] for row in night.rows("sample"))
    assert max(kept.values()) == K
    assert sum(row["count"] for row in night.rows("histogram")) == sum(kept.values())


def test_a_night_killed_at_every_step_is_charged_once_and_released_once(chain):
    assert chain.exit_code == 0
    assert_released_once(chain.night)


def test_files_left_by_a_kill_hold_the_released_rows_and_nothing_else(chain):
    released = chain.night.noisy()
    committed = {Path(file).name for file in deltalake.DeltaTable(str(chain.night.tables / "noisy")).file_uris()}
    orphans = [file for file in chain.orphans if file.name not in committed]
    assert orphans or chain.was_committed
    for file in orphans:
        rows = pq.ParquetFile(file).read().drop_columns(["starts_at"]).to_pylist()
        assert rows
        for row in rows:
            assert row == {name: released[row["slice"]][name] for name in row}


def test_no_file_holds_the_key_of_a_released_night(chain):
    assert len(chain.secret) == 32
    assert not [name for name, content in chain.night.contents().items() if chain.secret in content]


def test_a_released_night_that_is_run_again_changes_no_byte(chain, command, capsys):
    before = chain.night.contents()
    assert command(*chain.night.arguments()) == 0
    assert "charged nothing" in capsys.readouterr().out
    assert chain.night.contents() == before


def test_a_run_that_another_overtakes_before_it_takes_the_key_ends_well(chain, command, monkeypatch):
    """The other run commits its noise and destroys the key after this one has looked for a release and seen none."""
    asked, is_released, key_of = [], pipeline.is_released, KeyStore.key_of

    def key_of_overtaken(store: KeyStore, entry: str) -> NoiseKey:
        asked.append(entry)
        return key_of(store, entry)

    monkeypatch.setattr(KeyStore, "key_of", key_of_overtaken)
    monkeypatch.setattr(pipeline, "is_released", lambda night, entry: bool(asked) and is_released(night, entry))
    assert command(*chain.night.arguments()) == 0
    assert asked


def test_two_runs_at_once_of_which_one_is_killed_again_and_again_make_one_release(tmp_path, start):
    night, moments = make_night(tmp_path), random.Random(7)
    steady = start(night)
    for _ in range(2):
        killed = start(night)
        killed.wait_for_step("charging the ledger")
        time.sleep(moments.uniform(0, 20))
        killed.kill()
    last = start(night)
    assert (steady.finish(), last.finish()) == (0, 0), (steady.shown.decode(), last.shown.decode())
    assert_released_once(night)


def test_counters_are_written_although_another_run_begins_their_table_at_the_same_moment(tmp_path, monkeypatch):
    """Two processes that create a table at once can leave its metadata in two commits, the second one after this run looked."""
    tables, write = PrivateTables(str(tmp_path)), deltalake.write_deltalake

    def write_overtaken(table: deltalake.DeltaTable, *rest: Any, **settings: Any) -> None:
        monkeypatch.setattr(deltalake, "write_deltalake", write)
        deltalake.DeltaTable(tables.address("counters")).alter.set_table_description("heathaze, schema version 1")
        write(table, *rest, **settings)

    monkeypatch.setattr(deltalake, "write_deltalake", write_overtaken)
    tables.append_rows_once("counters", [{"entry": "e", "name": "rows", "value": 1}], token="e:rows")
    assert tables.load("counters").num_rows == 1


@pytest.mark.parametrize("what", ["noise keys must be kept in a folder", "the ledger"])
def test_a_place_that_cannot_be_written_is_a_mistake_that_is_named(tmp_path, command, capsys, what):
    night = make_night(tmp_path)
    place = night.place / "policy.toml" / "tables"
    keys = tmp_path / "keys" if what == "the ledger" else place / "private" / "keys"
    assert command(*night.arguments(place), "--keys", str(keys)) == 1
    shown = capsys.readouterr()
    assert f"InputError: {what}" in shown.err and str(place) in shown.err
    assert "Traceback" not in shown.err and shown.out == ""


def test_a_place_that_is_a_file_is_refused_before_spark_starts(tmp_path, capsys):
    night = make_night(tmp_path)
    assert cli.main(night.arguments(night.place / "policy.toml")) == 1
    shown = capsys.readouterr().err
    assert "must name a folder or catalog.schema" in shown and "starting Spark" not in shown
