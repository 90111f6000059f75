"""`heathaze release` killed at random moments, run twice at once, on a full or read-only disk, over tables of an older version.

Ten real `kill -9` hit the whole process group, JVM included, of the real command. Six moments are drawn from the timeline of a
run that was left alone, first the step and then a moment of it, so that short steps are hit as often as long ones: four up to the
noise, where two chains of runs each go on from what the kill before left behind, and two after it, each from a copy of one night
that is collected and no more. The last four come right after the commit of each stage that follows the noise. After every kill
the same command runs to its end on a copy of what was left, in this process and its Spark session, and its result is checked.
"""

from __future__ import annotations

import json
import random
import re
import runpy
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import deltalake
import pytest
from pyspark.sql import DataFrameWriter
from tests.conftest import ROOT
from tests.e2e.nights import SLICES, Night, Run, assert_collected_once, make_night

from heathaze import console
from heathaze.collect import bound
from heathaze.collect.ledger import Entry
from heathaze.release import publish
from heathaze.schemas import SCHEMA_VERSION
from heathaze.tables import Tables

pytestmark = pytest.mark.timeout(900)

DAY_BEFORE = "2026-11-13"
NOISE = "drawing noise"
"""The last step that touches people's data."""
UNTIL_NOISE, AFTER_NOISE = 4, 2
"""Kills at random moments."""
COMMITS = {"denoised": 1, "refined": 1, "verdicts": 2, "releases": 1}
"""The version of each table after the noise with its last commit; of the two verdicts, the first is about the events' shape."""
KILLS = UNTIL_NOISE + AFTER_NOISE + len(COMMITS)


@pytest.fixture(scope="module", autouse=True)
def few_partitions() -> Iterator[None]:
    """As many partitions as cores for 300 events: what is chosen does not depend on it, and tasks cost more than their rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bound, "PARTITIONS_PER_CORE", 1)
        yield


def assert_released_once(night: Night) -> None:
    """One charge, one noisy table, one table of each stage after it, one release that verifies, and its files."""
    assert_collected_once(night)
    tables = Tables(str(night.tables))
    [entry] = night.entries()
    [release] = publish.releases(tables)
    for table in ("denoised", "refined", "releases"):
        assert sorted(row["slice"] for row in night.rows(table)) == list(range(SLICES)), table
    assert release.manifest["entry"] == entry.entry
    assert all(held for _, held in publish.verify(tables, release))
    files = night.tables / "files" / "releases" / release.release
    assert json.loads((files / "manifest.json").read_text()) == release.manifest
    assert (files / "report.html").read_text() == publish_row(night)["report"]


def publish_row(night: Night) -> dict[str, object]:
    """The row that carries the manifest and the report."""
    [row] = [row for row in night.rows("releases") if row["slice"] == 0]
    return row


# Two at once


@dataclass(frozen=True)
class Together:
    """Two runs of one night and a third of another night, all at once in the same tables."""

    night: Night
    runs: list[Run]
    codes: list[int]
    said: list[str]

    @property
    def timeline(self) -> list[tuple[str, float]]:
        """The steps with their seconds, by what stands before a comma; those that one run was spared are the other's."""
        found = [re.findall(r"^  (.+?)(?:, .*)? \.\.\. ([\d.]+) s$", run.shown.decode(), re.MULTILINE) for run in self.runs]
        merged = {step: float(seconds) for steps in sorted(found, key=len, reverse=True) for step, seconds in steps}
        return list(merged.items())


@pytest.fixture(scope="module")
def together(tmp_path_factory, start, command) -> Together:
    place = tmp_path_factory.mktemp("together")
    night = make_night(place / "night")
    other = replace(make_night(place / "other", DAY_BEFORE), tables=night.tables)
    runs = [start(*night.arguments("release")) for _ in range(2)]
    code = command(*other.arguments("release"))
    codes = [run.finish() for run in runs]
    return Together(night, runs, [*codes, code], [run.said() for run in runs])


def test_two_releases_of_one_night_at_once_are_one_and_each_says_what_it_did(together):
    assert together.codes[:2] == [0, 0], [run.shown.decode() for run in together.runs]
    for one, other in (
        ("charged epsilon 1.0;", "charged nothing, it was charged before;"),
        (": published.", ": was published before, and is the same."),
    ):
        assert sorted((one in said, other in said) for said in together.said) == [(False, True), (True, False)], together.said


def test_two_nights_at_once_are_both_charged_and_published(together):
    night, tables = together.night, Tables(str(together.night.tables))
    assert together.codes[2] == 0
    assert sorted(entry.period for entry in night.entries()) == [DAY_BEFORE, night.day]
    released = publish.releases(tables)
    assert [one.period for one in released] == [DAY_BEFORE, night.day]
    assert all(held for one in released for _, held in publish.verify(tables, one))
    assert sorted(row["slice"] for row in night.rows("noisy")) == sorted([*range(SLICES)] * 2)


def test_a_run_that_another_overtakes_at_publish_says_that_it_published_nothing(released, command, monkeypatch, capsys, tmp_path):
    """The other run commits its release after this one has looked for it and seen none."""
    night = released.copied_to(tmp_path / "tables")
    before = night.rows("releases")
    asked = []
    monkeypatch.setattr(publish, "is_published", lambda *arguments: bool(asked.append(arguments)))
    assert command(*night.arguments("release")) == 0
    assert asked
    assert "was published before, and is the same" in capsys.readouterr().out
    assert night.rows("releases") == before


def test_rows_appended_to_a_catalog_twice_are_there_once_and_the_second_call_says_so(spark):
    schema = f"hz{uuid.uuid4().hex[:8]}"
    tables = Tables(f"spark_catalog.{schema}")
    row = dict.fromkeys(tables.schemas["verdicts"].column_names, "x") | {"passed": True}
    try:
        assert tables.append_rows_once("verdicts", [row], "token", spark) is True
        assert tables.append_rows_once("verdicts", [row], "token", spark) is False
        assert tables.is_committed("verdicts", "token", spark) and not tables.is_committed("verdicts", "tok", spark)
        assert spark.table(tables.address("verdicts")).count() == 1
    finally:
        spark.sql(f"DROP SCHEMA IF EXISTS {schema} CASCADE")


# Killed at random moments


@dataclass(frozen=True)
class Moment:
    """A moment of a run, told by its progress and not by the clock: the machine may be slower the next time."""

    step: str = ""
    seconds: float = 0.0
    """Since the step began."""
    commit: str = ""
    """Instead of a step: the file of a commit."""


def draw_moments(timeline: list[tuple[str, float]], count: int, chance: random.Random) -> list[Moment]:
    """Moments of steps, in the order of the timeline."""
    drawn = sorted((chance.randrange(len(timeline)), chance.random()) for _ in range(count))
    return [Moment(timeline[i][0], part * timeline[i][1]) for i, part in drawn]


@dataclass(frozen=True)
class Killed:
    """What one kill left behind."""

    moment: Moment
    night: Night
    """With the tables as the kill left them; nothing writes there any more."""
    entries: list[Entry]
    noisy: dict[int, bytes]
    """Committed noisy values by slice."""
    releases: list[dict[str, object]]
    secret: bytes
    """The living noise key; empty where there is none."""


def kill(before: Night, moment: Moment, steps: list[str], tables: Path, start: Callable[..., Run]) -> Killed:
    """Start the command on a copy of the tables and kill it at the moment; earlier where it ended before it could be killed."""
    seconds = moment.seconds
    while True:
        night = before.copied_to(tables)
        run = start(*night.arguments("release"))
        if moment.commit:
            run.wait_until((tables / moment.commit).exists)
        else:
            run.wait_for_step(*steps[steps.index(moment.step) :])
            time.sleep(seconds)
        run.kill()
        if run.process.returncode == -signal.SIGKILL:
            return look(moment, night)
        shutil.rmtree(tables)
        seconds /= 2


def look(moment: Moment, night: Night) -> Killed:
    entries = night.entries()
    keys = [file.read_bytes() for file in night.keys.glob("[!.]*")]
    secrets = [key for key in keys if key != b"destroyed"]
    return Killed(moment, night, entries, noise_of(night), night.rows("releases"), b"".join(secrets))


def noise_of(night: Night) -> dict[int, bytes]:
    return {number: row["values"] for number, row in night.noisy().items()}


@pytest.fixture(scope="module")
def collected(tmp_path_factory, together, command) -> Night:
    """A night with its noisy table and nothing after it."""
    night = make_night(tmp_path_factory.mktemp("collected"))
    assert command(*night.arguments("collect")) == 0
    return night


@pytest.fixture(scope="module")
def kills(tmp_path_factory, together, collected, start) -> Iterator[list[Future[Killed]]]:
    """The kills, two runs at a time, while the tests complete what is left behind."""
    chance, place = random.Random(2026), tmp_path_factory.mktemp("kills")
    timeline = together.timeline
    steps = [step for step, _ in timeline]
    [noise] = [i for i, step in enumerate(steps) if step.startswith(NOISE)]
    private = draw_moments(timeline[: noise + 1], UNTIL_NOISE, chance)
    public = draw_moments(timeline[noise + 1 :], AFTER_NOISE, chance)
    public += [Moment(commit=f"{table}/_delta_log/{version:020}.json") for table, version in COMMITS.items()]
    fresh = [make_night(place / f"chain-{i}") for i in range(2)]
    with ThreadPoolExecutor(2) as threads:
        futures: list[Future[Killed]] = []

        def left_by(number: int) -> Night:
            return futures[number].result().night if number >= 0 else fresh[number]

        for i, moment in enumerate(private):
            tables = place / f"killed-{i}"
            futures.append(threads.submit(lambda i=i, m=moment, t=tables: kill(left_by(i - 2), m, steps, t, start)))
        for i, moment in enumerate(public, start=len(private)):
            futures.append(threads.submit(kill, collected, moment, steps, place / f"killed-{i}", start))
        yield futures
        threads.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def outcomes() -> dict[bytes, tuple[dict[int, bytes], list[str]]]:
    """Noisy values and checksums of what was released with each noise key, or of the night that was collected before."""
    return {}


@pytest.mark.parametrize("number", range(KILLS))
def test_after_a_kill_the_next_run_ends_with_one_charge_one_noisy_table_and_one_release(
    number, kills, collected, outcomes, command, capsys, tmp_path
):
    killed = kills[number].result()
    assert len(killed.entries) <= 1
    assert len(killed.releases) in (0, SLICES), "readers see all of a release or none of it"
    night = killed.night.copied_to(tmp_path / "tables")
    capsys.readouterr()
    assert command(*night.arguments("release"), "--json") == 0, killed.moment
    report = json.loads(capsys.readouterr().out)
    assert_released_once(night)

    assert [entry.entry for entry in killed.entries] in ([], [report["entry"]])
    assert report["epsilon"] == ("0" if killed.entries else "1.0")
    assert report["is_new"] is (not killed.releases)
    noise, [release] = noise_of(night), publish.releases(Tables(str(night.tables)))
    assert killed.noisy in ({}, noise)
    assert killed.releases in ([], night.rows("releases"))
    if number >= UNTIL_NOISE:
        assert noise == noise_of(collected)
    if killed.secret or killed.noisy:
        outcome = (noise, release.manifest["checksums"])
        assert outcomes.setdefault(killed.secret or killed.entries[0].entry.encode(), outcome) == outcome


# A disk that is full, or read-only


@dataclass(frozen=True)
class Disk:
    """A small disk of its own."""

    place: Path

    def fill(self) -> None:
        """Leave not a byte."""
        with (self.place / "ballast").open("ab", buffering=0) as ballast:
            size = 1 << 20
            while size:
                try:
                    ballast.write(bytes(size))
                except OSError:
                    size //= 2

    def free(self) -> None:
        (self.place / "ballast").unlink()

    def make_read_only(self) -> None:
        subprocess.run(["mount", "-o", "remount,ro", str(self.place)], check=True)


@pytest.fixture
def disk(tmp_path) -> Iterator[Disk]:
    place = tmp_path / "disk"
    place.mkdir()
    try:
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)], capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount to make a small disk with")
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr.strip()}")
    yield Disk(place)
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@dataclass
class Filling:
    """Fills the disk at the moments of a run that can be named."""

    disk: Disk
    patch: pytest.MonkeyPatch

    def at_step(self, step: str) -> None:
        say = console.Progress.__call__

        def say_and_fill(progress: console.Progress, text: str) -> None:
            say(progress, text)
            if text.startswith(step):
                self.disk.fill()

        self.patch.setattr(console.Progress, "__call__", say_and_fill)

    def when_spark_writes(self, table: str) -> None:
        save = DataFrameWriter.save

        def fill_and_save(writer: DataFrameWriter, path: str) -> None:
            if path.endswith(table):
                self.disk.fill()
            save(writer, path)

        self.patch.setattr(DataFrameWriter, "save", fill_and_save)

    def when_files_for_people_are_written(self, _: str) -> None:
        export = publish.export

        def fill_and_export(*arguments: object) -> object:
            self.disk.fill()
            return export(*arguments)

        self.patch.setattr(publish, "export", fill_and_export)


FULL = [
    (Filling.at_step, "judging the shape of the events", 0, False),
    (Filling.at_step, "charging the ledger", 0, False),
    (Filling.at_step, "keeping at most", 1, False),
    (Filling.when_spark_writes, "noisy", 1, False),
    (Filling.at_step, "refining", 1, False),
    (Filling.at_step, "judging the release", 1, False),
    (Filling.at_step, "publishing", 1, False),
    (Filling.when_files_for_people_are_written, "", 1, True),
]
"""When the disk fills up, and the charges and whether there is a release afterwards."""


def assert_says_what_to_do(said: str, *words: str) -> None:
    assert "StorageError: " in said and "run the same command again" in said, said
    assert all(word in said for word in words), said
    assert "an error that heathaze does not know" not in said


def test_a_disk_that_fills_up_at_any_stage_is_named_and_the_night_goes_on_when_there_is_room(disk, command, capsys, tmp_path):
    night = replace(make_night(tmp_path), tables=disk.place / "tables")
    for fill, what, charges, is_published in FULL:
        with pytest.MonkeyPatch.context() as patch:
            fill(Filling(disk, patch), what)
            assert command(*night.arguments("release")) == 1, what
        assert_says_what_to_do(capsys.readouterr().err, "it is full. Free some space")
        assert len(night.entries()) == charges, what
        assert len(publish.releases(Tables(str(night.tables)))) == is_published, what
        disk.free()
    assert command(*night.arguments("release")) == 0
    assert_released_once(night)

    other = replace(make_night(tmp_path / "other", DAY_BEFORE), tables=night.tables)
    with pytest.MonkeyPatch.context() as patch:
        Filling(disk, patch).at_step("charging the ledger")
        assert command(*other.arguments("release")) == 1
    assert_says_what_to_do(capsys.readouterr().err, f"the ledger {night.tables}/ledger must", "nothing was charged")
    assert [entry.period for entry in night.entries()] == [night.day]


def test_a_read_only_place_is_named_before_anything_is_charged_and_can_be_read(released, disk, command, capsys, tmp_path):
    night = released.copied_to(disk.place / "tables")
    other = replace(make_night(tmp_path / "other", DAY_BEFORE), tables=night.tables)
    fresh = replace(other, tables=disk.place / "fresh")
    disk.make_read_only()
    before = night.contents()
    for one in (other, fresh):
        assert command(*one.arguments("release")) == 1
        assert_says_what_to_do(capsys.readouterr().err, str(one.tables), "it is read-only. Make it writable, or name another")
    assert night.contents() == before and not fresh.tables.exists()
    for words in (["releases"], ["explain", "latest"], ["verify", "latest"], ["budget"]):
        assert command(*words, "--tables", str(night.tables)) == 0, words


# Tables of an older version


@pytest.fixture(scope="module")
def released(tmp_path_factory, collected, command) -> Night:
    """The collected night, released."""
    night = collected.copied_to(tmp_path_factory.mktemp("released") / "tables")
    assert command(*night.arguments("release")) == 0
    return night


def made_older(night: Night, table: str, tables: Path) -> Night:
    """A copy of the night in which one table is of schema version 0."""
    older = night.copied_to(tables)
    deltalake.DeltaTable(str(tables / table)).alter.set_table_description("heathaze, schema version 0")
    return older


def assert_refused(code: int, said: str, table: str) -> None:
    assert code == 1
    assert f"InputError: the table '{table}' must have schema version {SCHEMA_VERSION}, but it has 0." in said
    assert "Point --tables at a new place, or use the version of heathaze that wrote it." in said


@pytest.mark.parametrize("table", ["ledger", "noisy", "denoised", "refined", "verdicts", "releases", "private/sample"])
def test_release_refuses_a_table_of_an_older_version_before_it_does_anything(released, command, capsys, tmp_path, table):
    night = made_older(released, table, tmp_path / "tables")
    before = night.contents()
    assert_refused(command(*night.arguments("release")), capsys.readouterr().err, table.removeprefix("private/"))
    assert night.contents() == before


@pytest.mark.parametrize("words", [["releases"], ["explain", "latest"], ["verify", "latest"]])
def test_releases_of_an_older_version_are_refused_by_those_who_read_them(released, command, capsys, tmp_path, words):
    night = made_older(released, "releases", tmp_path / "tables")
    assert_refused(command(*words, "--tables", str(night.tables)), capsys.readouterr().err, "releases")


@pytest.mark.parametrize(
    ("job", "table"), [("denoise", "denoised"), ("refine", "refined"), ("gate_release", "verdicts"), ("publish", "releases")]
)
def test_each_job_after_the_noise_refuses_the_table_that_it_writes_where_it_is_older(released, capsys, tmp_path, job, table):
    night = made_older(released, table, tmp_path / "tables")
    arguments = ["--policy", str(night.place / "policy.toml"), "--period", night.day, "--tables", str(night.tables)]
    work = runpy.run_path(str(ROOT / "jobs" / f"{job}.py"))["main"]
    assert_refused(console.run(work, arguments), capsys.readouterr().err, table)
