from __future__ import annotations

import importlib.util
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from tests.conftest import ROOT, policy_text

from heathaze import console
from heathaze.cli import main
from heathaze.collect.ledger import Ledger
from heathaze.collect.private import PrivateTables
from heathaze.policy import parse_policy
from heathaze.schemas import SCHEMA_VERSION
from heathaze.tables import Tables

MIDNIGHT = datetime(2026, 1, 5, tzinfo=timezone.utc)
GOOD = pa.table(
    {
        "user_id": ["u1", "u2"],
        "event_time": pa.array([MIDNIGHT, MIDNIGHT], pa.timestamp("us", "UTC")),
        "lat": [40.05, 40.06],
        "lon": [-73.95, -73.96],
    }
)
CSV = "user_id,event_time,lat,lon\nu1,2026-01-05 00:00:00,40.05,-73.95\n"


@dataclass
class Command:
    """The arguments of one `heathaze collect`, good until a case spoils one of them."""

    place: Path
    policy: str = ""
    events: str = ""
    period: str = "2026-01-05"
    tables: str = ""
    keys: str = ""

    def __post_init__(self) -> None:
        (self.place / "events").mkdir()
        self.write_policy(policy_text())
        self.events, self.tables = str(self.place / "events"), str(self.place / "tables")

    def write_policy(self, text: str | bytes) -> None:
        path = self.place / "policy.toml"
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        self.policy = str(path)

    def write_events(self, events: pa.Table | str | bytes, name: str = "part.parquet") -> None:
        path = self.place / "events" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(events, pa.Table):
            pq.write_table(events, path)
        else:
            path.write_bytes(events.encode() if isinstance(events, str) else events)

    def arguments(self, events: bool = True) -> list[str]:
        given = {"policy": self.policy, "events": self.events if events else "", "period": self.period, "tables": self.tables}
        return [
            part
            for name, value in {**given, "keys": self.keys}.items()
            if value or name == "period"
            for part in (f"--{name}", value)
        ]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    return Command(tmp_path)


@pytest.fixture(autouse=True)
def settings_of_the_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command finds the session of the tests and leaves it as it was."""
    names = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone")
    before = {name: spark.conf.get(name) for name in names}
    monkeypatch.setattr("heathaze.session._local_settings", lambda: {})
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def outcome(work: Callable[[], int]) -> int:
    """The exit code, whether it is returned or raised by the parser of arguments."""
    try:
        return work()
    except SystemExit as end:
        return int(end.code)


def charges(tables: str) -> int:
    """Charges in the ledger of a folder, whatever its schema version."""
    address = f"{tables}/ledger"
    if not deltalake.DeltaTable.is_deltatable(address):
        return 0
    return sum(number > 0 for number in deltalake.DeltaTable(address).to_pyarrow_table()["sequence"].to_pylist())


def assert_refused(command: Command, capsys: pytest.CaptureFixture[str], code: int, message: str, charged: int = 0) -> None:
    assert outcome(lambda: main(["collect", *command.arguments()])) == code
    assert re.search(message, capsys.readouterr().err), message
    assert charges(command.tables) == charged


def column(name: str, values: pa.Array) -> Callable[[Command], None]:
    """A case with Parquet events whose column `name` holds something else."""
    return lambda command: command.write_events(GOOD.set_column(GOOD.schema.get_field_index(name), name, values))


def csv(text: str) -> Callable[[Command], None]:
    return lambda command: command.write_events(text, "part.csv")


def in_delta_log(text: str | None) -> Callable[[Command], None]:
    def spoil(command: Command) -> None:
        (command.place / "events" / "_delta_log").mkdir()
        if text is not None:
            command.write_events(text, "_delta_log/00000000000000000000.json")

    return spoil


def at(address: str) -> Callable[[Command], None]:
    def spoil(command: Command) -> None:
        command.events = address

    return spoil


MIXED = "files in .* are of different kinds"
NO_COLUMN = "must have the columns user_id, event_time, lat, lon, but {} (is|are) missing. Name your columns"

BAD_EVENTS = {
    "nothing there": (at("/nowhere/at/all"), "but there is nothing at /nowhere/at/all"),
    "no such file": (at("nowhere.parquet"), "but there is nothing at nowhere.parquet"),
    "no such table": (at("nowhere.events"), "nowhere.events cannot be read as table: DELTA_MISSING_DELTA_TABLE"),
    "no such catalog": (at("nowhere.else.events"), "nowhere.else.events cannot be read as table"),
    "an empty folder": (lambda command: None, "must be a Delta table, Parquet or CSV, but the files in .* are none of these"),
    "only a marker": (lambda command: command.write_events("", "_SUCCESS"), "are none of these"),
    "other files": (lambda command: command.write_events("{}", "part.json"), "are none of these"),
    "parquet and csv": (lambda command: (command.write_events(GOOD), command.write_events(CSV, "b.csv")), MIXED),
    "parquet and json": (lambda command: (command.write_events(GOOD), command.write_events("{}", "b.json")), MIXED),
    "an empty delta log": (in_delta_log(None), "cannot be read as delta: DELTA_TABLE_NOT_FOUND"),
    "a corrupt delta log": (in_delta_log("{{{"), "cannot be read as delta"),
    "corrupt parquet": (lambda command: command.write_events(b"PAR1 and no more"), "cannot be read as parquet"),
    "parquet of no bytes": (lambda command: command.write_events(b""), "cannot be read as parquet"),
    **{
        f"no column {name}": (lambda command, name=name: command.write_events(GOOD.drop_columns(name)), NO_COLUMN.format(name))
        for name in GOOD.column_names
    },
    "text as latitude": (column("lat", pa.array(["40", "41"])), "'lat' .* must hold floating point or decimal .* holds string"),
    "whole numbers as longitude": (column("lon", pa.array([1, 2])), "'lon' .* must hold floating point .* holds bigint"),
    "whole numbers as time": (
        column("event_time", pa.array([1, 2])),
        "'event_time' .* must hold timestamps, but it holds bigint",
    ),
    "text as time": (column("event_time", pa.array(["2026-01-05"] * 2)), "must hold timestamps, but it holds string"),
    "dates as time": (column("event_time", pa.array([date(2026, 1, 5)] * 2)), "must hold timestamps, but it holds date"),
    "true and false as user": (
        column("user_id", pa.array([True, False])),
        "must hold text or whole numbers, but it holds boolean",
    ),
    "numbers with a point as user": (column("user_id", pa.array([1.5, 2.5])), "must hold text or whole numbers.* holds double"),
    "lists as user": (column("user_id", pa.array([["a"], ["b"]])), "must hold text or whole numbers.* holds array<string>"),
    "columns that differ by case": (
        lambda command: command.write_events(GOOD.append_column("LAT", GOOD["lat"])),
        "cannot be read as parquet",
    ),
    "csv of no bytes": (csv(""), NO_COLUMN.format("user_id, event_time, lat, lon")),
    "csv with half a header": (csv("user_id,event_ti"), NO_COLUMN.format("event_time, lat, lon")),
    "csv without a header": (csv(CSV.partition("\n")[2]), NO_COLUMN.format("user_id, event_time, lat, lon")),
    "csv with columns in another order": (
        lambda command: (
            command.write_events(CSV, "a.csv"),
            command.write_events("lat" + CSV.replace("lat", "user_id")[7:], "b.csv"),
        ),
        "must have the same columns in the same order, but they differ",
    ),
    "csv with semicolons": (csv(CSV.replace(",", ";")), NO_COLUMN.format("user_id, event_time, lat, lon")),
}


@pytest.mark.parametrize("case", BAD_EVENTS)
def test_events_that_are_not_what_they_must_be_end_with_1_before_anything_is_charged(spark, command, capsys, case):
    spoil, message = BAD_EVENTS[case]
    spoil(command)
    assert_refused(command, capsys, 1, f"InputError: .*{message}")


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_a_period_whose_partition_is_missing_ends_with_1_before_anything_is_charged(command, capsys, monkeypatch, kind):
    monkeypatch.setattr("heathaze.collect.pipeline._write_sample", stop)
    command.write_policy(policy_text().replace("[period]", 'partition = "day"\n[period]'))
    dated = GOOD.append_column("day", pa.array(["2026-01-04"] * 2))
    if kind == "parquet":
        command.write_events(GOOD, "day=2026-01-04/part.parquet")
    else:
        deltalake.write_deltalake(command.events, dated, partition_by=["day"])
    assert_refused(command, capsys, 1, "must have a partition day=2026-01-05, but there is none. Wait")


class Stopped(Exception):
    """The command went on to people's data."""


def stop(*arguments: object) -> None:
    raise Stopped


def changed(old: str, new: str) -> str:
    text = policy_text()
    assert old in text
    return text.replace(old, new)


BAD_POLICIES = {
    "not TOML": ("[dataset\nname =", "not valid TOML"),
    "not UTF-8": (b'name = "caf\xe9"', "cannot be read"),
    "empty": ("", "'dataset' is missing"),
    "misspelt key": (changed("epsilon", "epsilom"), "unknown key 'privacy.epsilom', did you mean 'epsilon'?"),
    "unknown section": (policy_text() + "[extra]\na = 1\n", "unknown key 'extra'"),
    "no epsilon": (changed("epsilon = 1.0\n", ""), "'privacy.epsilon' is missing"),
    "epsilon 0": (changed("epsilon = 1.0", "epsilon = 0"), "privacy.epsilon must be above 0"),
    "epsilon infinite": (changed("epsilon = 1.0", "epsilon = inf"), "privacy.epsilon must be above 0, at most 100"),
    "epsilon nan": (changed("epsilon = 1.0", "epsilon = nan"), "'privacy.epsilon' must be a number, but it is nan"),
    "epsilon as text": (changed("epsilon = 1.0", 'epsilon = "1"'), "'privacy.epsilon' must be a number"),
    "epsilon above the cap": (changed("epsilon = 1.0", "epsilon = 6"), "must be at most budget.cap"),
    "k 0": (changed("max_events_per_user = 3", "max_events_per_user = 0"), "max_events_per_user must be between 1 and 100000"),
    "k with a point": (changed("max_events_per_user = 3", "max_events_per_user = 3.0"), "must be a whole number"),
    "neither way to N": (changed("declared_event_count = 1000\n", ""), "exactly one of declared_event_count"),
    "both ways to N": (changed("[budget]", "max_counted_per_user = 9\n[budget]"), "exactly one of declared_event_count"),
    "unknown zone": (changed("[period]", 'timezone = "Mars/Base"\n[period]'), "must be a time zone such as 'Europe/Paris'"),
    "north below south": (changed("north = 40.1", "north = 39.0"), "grid.south < grid.north"),
    "a grid past the poles": (changed("north = 40.1", "north = 91"), "within -90..90"),
    "rows without cols": (changed("cols = 8\n", ""), "rows and cols, or cell_metres alone"),
    "too many cells": (changed("rows = 8", "rows = 99999999"), "at most 268435456 cells"),
    "slices that do not fit": (changed("slices = 4", "slices = 7"), "a divisor of the 86400 seconds"),
    "a window of a week": (changed('"quarter"', '"week"'), "one of month, quarter, year, ever"),
    "one column for two": (changed("[period]", 'lat = "lon"\n[period]'), "four different names"),
    "a name with a slash": (changed('"toy"', '"../toy"'), "dataset.name must be 1 to 100 letters"),
    "an unknown method": (policy_text() + '[release]\nmethod = "magic"\n', "release.method must be one of"),
}


@pytest.mark.parametrize("case", BAD_POLICIES)
def test_a_policy_that_cannot_be_promised_ends_with_1_and_names_the_key(command, capsys, case):
    text, message = BAD_POLICIES[case]
    command.write_events(GOOD)
    command.write_policy(text)
    assert_refused(command, capsys, 1, "PolicyError: .*policy.toml.*" + re.escape(message))
    assert not Path(command.tables).exists()


def folder_as_policy(command: Command) -> None:
    command.policy = str(command.place)


def no_policy(command: Command) -> None:
    command.policy = str(command.place / "none.toml")


def period(text: str) -> Callable[[Command], None]:
    def spoil(command: Command) -> None:
        command.period = text

    return spoil


def file_as_tables(command: Command) -> None:
    command.tables = command.policy


def file_above_tables(command: Command) -> None:
    command.tables = f"{command.policy}/tables"


def file_as_keys(command: Command) -> None:
    command.keys = command.policy


TOMORROW = (datetime.now(timezone.utc) + timedelta(days=1)).date().isoformat()
BY_FIRST_DAY = "a period is named by its first day, as 2026-11-14, .* but {} was given"

BAD_ARGUMENTS = {
    "a folder as policy": (folder_as_policy, "PolicyError: the policy file .* cannot be read: .*directory"),
    "no such policy": (no_policy, "PolicyError: the policy file .*none.toml cannot be read"),
    "no thirteenth month": (period("2026-13-01"), BY_FIRST_DAY.format("'2026-13-01'")),
    "no date": (period("yesterday"), BY_FIRST_DAY.format("'yesterday'")),
    "an empty period": (period(""), BY_FIRST_DAY.format("''")),
    "a time": (period("2026-01-05T00:00"), BY_FIRST_DAY.format("'2026-01-05T00:00'")),
    "before no date": (period("before:yesterday"), BY_FIRST_DAY.format("'before:yesterday'")),
    "before 1970": (period("1969-12-31"), "must lie between 1970 and 2260"),
    "the last day of all": (period("9999-12-31"), BY_FIRST_DAY.format("'9999-12-31'")),
    "tomorrow": (period(TOMORROW), f"must be over before it is released, but {TOMORROW} ends at"),
    "far ahead": (period("2199-01-01"), "must be over before it is released, but 2199-01-01 ends at"),
    "a file as tables": (file_as_tables, "--tables must name a folder or catalog.schema, but .* is a file"),
    "tables below a file": (file_above_tables, "but .*policy.toml/tables/.* cannot be one: .*Not a directory"),
    "a file as keys": (file_as_keys, "noise keys must be kept in a folder, but .* cannot be one"),
}


@pytest.mark.parametrize("case", BAD_ARGUMENTS)
def test_arguments_that_make_no_sense_end_with_1_before_anything_is_charged(spark, command, capsys, case):
    spoil, message = BAD_ARGUMENTS[case]
    command.write_events(GOOD)
    spoil(command)
    assert_refused(command, capsys, 1, message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["colect"], "invalid choice: 'colect'"),
        (["collect"], "required: --policy, --period, --tables, --events"),
        (["collect", "--polcy", "x"], "required: --policy"),
        (["budget"], "required: --tables"),
        (["budget", "--tables", "none", "--epsilon", "1"], "unrecognized arguments: --epsilon 1"),
        (["policy"], "required: ACTION"),
        (["policy", "check"], "required: file"),
        (["policy", "check", "/nowhere.toml"], "the policy file /nowhere.toml cannot be read"),
        (["synthesize"], "required: --out"),
        (["synthesize", "--out", "OUT", "--users", "many"], "argument --users: invalid int value: 'many'"),
        (["synthesize", "--out", "OUT", "--users", "1e6"], "invalid int value: '1e6'"),
        (["synthesize", "--out", "OUT", "--users", "0"], "must be"),
        (["synthesize", "--out", "OUT", "--users", "-5"], "must be"),
        (["synthesize", "--out", "OUT", "--events-per-user", "nan"], "must be"),
        (["synthesize", "--out", "OUT", "--first-day", "monday"], "invalid fromisoformat value: 'monday'"),
        (["synthesize", "--out", "OUT", "--shape", "star"], "invalid choice: 'star'"),
        (["synthesize", "--out", "OUT", "--format", "csv"], "invalid choice: 'csv'"),
        (["synthesize", "--out", "TAKEN"], "Remove it or name another"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_is_not_understood_ends_with_1_and_says_what_is_wrong(tmp_path, capsys, arguments, message):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine.txt").write_text("mine")
    places = {"OUT": str(tmp_path / "out"), "TAKEN": str(tmp_path / "taken")}
    assert outcome(lambda: main([places.get(argument, argument) for argument in arguments])) == 1
    assert re.search(re.escape(message), capsys.readouterr().err)
    assert not (tmp_path / "out").exists() and (tmp_path / "taken" / "mine.txt").read_text() == "mine"


def job(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"job_{name}", ROOT / "jobs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["count", "noise"])
def test_a_stage_before_bound_ends_with_1_and_says_to_run_bound(spark, command, capsys, name):
    assert outcome(lambda: console.run(job(name).main, command.arguments(events=False))) == 1
    assert "toy/2026-01-05 has not been charged yet: run bound first" in capsys.readouterr().err
    assert charges(command.tables) == 0


@pytest.mark.parametrize(
    ("name", "message"), [("count", "are not bounded yet: run bound"), ("noise", "not counted yet: run count")]
)
def test_a_stage_before_the_one_before_it_ends_with_1_and_says_what_to_run(spark, command, capsys, name, message):
    Ledger(Tables(command.tables).ledger_log()).charge(parse_policy(policy_text()), "2026-01-05", "files:1:1")
    assert outcome(lambda: console.run(job(name).main, command.arguments(events=False))) == 1
    assert message in capsys.readouterr().err
    assert charges(command.tables) == 1


@pytest.mark.parametrize("name", ["bound", "count", "noise"])
def test_a_job_with_an_unknown_argument_ends_with_1(capsys, name):
    assert outcome(lambda: console.run(job(name).main, ["--polcy", "x"])) == 1


CHANGED_RULES = {
    "budget exhausted": (
        policy_text(cap="1"),
        policy_text(cap="1"),
        r"BudgetExhausted: releasing toy/2026-01-05 needs epsilon 1.0, but 0(\.0)? of 1",
    ),
    "cap raised": (
        policy_text(),
        policy_text(cap="50"),
        "LedgerMismatch: the cap of toy for 2026-Q1 was promised to be 5, but the policy says 50",
    ),
    "window changed": (
        policy_text(),
        changed('"quarter"', '"month"'),
        "LedgerMismatch: dataset toy has been charged per user and quarter",
    ),
    "cap lowered below what is spent": (policy_text(cap="1.5"), policy_text(cap="1"), "BudgetExhausted: .* 0.* of 1 is left"),
}


@pytest.mark.parametrize("case", CHANGED_RULES)
def test_what_the_ledger_does_not_allow_ends_with_2_and_is_not_charged(spark, command, capsys, monkeypatch, case):
    before, now, message = CHANGED_RULES[case]
    monkeypatch.setattr("heathaze.collect.pipeline._write_sample", stop)
    Ledger(Tables(command.tables).ledger_log()).charge(parse_policy(before), "2026-01-04", "files:1:1")
    command.write_events(GOOD)
    command.write_policy(now)
    assert_refused(command, capsys, 2, message, charged=1)
    private = Path(command.tables) / "private"
    assert [path for path in private.rglob("*") if path != private / "keys"] == [], "no key is drawn and no event kept"


def older(command: Command, name: str) -> None:
    """Leave a table of another schema version where `name` is kept."""
    tables = PrivateTables(command.tables)
    tables.create(name)
    described = deltalake.DeltaTable(tables.address(name))
    described.alter.set_table_description("heathaze, schema version 0")


@pytest.mark.parametrize("name", ["ledger", "noisy", "sample", "histogram", "counters"])
def test_a_table_of_another_schema_version_ends_with_1_before_anything_is_charged(spark, command, capsys, monkeypatch, name):
    older(command, name)
    command.write_events(GOOD)
    monkeypatch.setattr("heathaze.collect.pipeline._write_sample", stop)
    assert_refused(
        command,
        capsys,
        1,
        f"InputError: the table '{name}' must have schema version {SCHEMA_VERSION}, but it has 0. Point --tables at a new place",
    )


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    name = f"toy{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE SCHEMA {name}")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


@pytest.mark.parametrize("kind", ["parquet", "view"])
def test_a_catalog_table_that_is_not_delta_ends_with_1(spark, command, capsys, schema, kind):
    if kind == "parquet":
        spark.createDataFrame(GOOD).write.format("parquet").saveAsTable(f"{schema}.events")
    else:
        spark.sql(f"CREATE VIEW {schema}.events AS SELECT 'u1' AS user_id")
    command.events = f"{schema}.events"
    assert_refused(
        command, capsys, 1, f"InputError: the events at {schema}.events cannot be read as table: DELTA_MISSING_DELTA_TABLE"
    )


def test_a_good_command_gets_past_every_check_and_is_charged(spark, command, capsys, monkeypatch):
    """The control: nothing but the spoilt part is wrong in the cases above."""
    command.write_events(GOOD)
    monkeypatch.setattr("heathaze.collect.pipeline._write_sample", stop)
    assert_refused(command, capsys, 3, "Stopped: an error that heathaze does not know", charged=1)
    shutil.rmtree(command.tables)
    command.write_policy(policy_text())
    command.events = str(Path(command.events) / "part.parquet")
    assert_refused(command, capsys, 3, "Stopped: an error that heathaze does not know", charged=1)
