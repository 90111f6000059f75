from __future__ import annotations

import json
import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest
from tests.conftest import policy_text

from heathaze.cli import main
from heathaze.collect import ledger as ledger_module
from heathaze.collect.ledger import Entry, Ledger
from heathaze.errors import BudgetExhausted, HeathazeError, InputError, LedgerMismatch
from heathaze.policy import Policy, parse_policy
from heathaze.schemas import LEDGER, SCHEMA_VERSION
from heathaze.tables import Tables

PROCESSES = 8
PRELOADED = [
    "heathaze.cli",
    "heathaze.collect.entropy",
    "heathaze.collect.ledger",
    "pyarrow.dataset",
    "deltalake.fs",
    "pyspark.sql",
    "pytest",
]
"""What the server of processes imports once, for all tests of a run that start processes."""
DAY = "2026-11-14"


class MemoryLog:
    """The log without a table, for rules that do not depend on where it is kept."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        return list(self.rows)

    def add(self, row: dict[str, Any]) -> bool:
        self.rows.append(row)
        return True


def open_ledger(place: Path | str) -> Ledger:
    return Ledger(Tables(str(place)).ledger_log())


def days(first: str, count: int) -> list[str]:
    return [(date.fromisoformat(first) + timedelta(days=i)).isoformat() for i in range(count)]


def policy_with(window: str = "quarter", **settings: Any) -> Policy:
    return parse_policy(policy_text(**settings).replace('"quarter"', f'"{window}"'))


def begun(place: Path) -> str:
    """A place whose ledger table is there, without a charge."""
    Tables(str(place)).ledger_log().add(dict.fromkeys(LEDGER.column_names, ""))
    return str(place)


@pytest.fixture
def ledger() -> Ledger:
    return Ledger(MemoryLog())


# The cap


def test_ten_charges_of_a_tenth_fit_into_a_cap_of_one_and_the_eleventh_does_not(tmp_path):
    ledger, policy = open_ledger(tmp_path), policy_with(epsilon="0.1", cap="1")
    *fitting, last = days(DAY, 11)
    for day in fitting:
        assert ledger.charge(policy, day, "v1")[1]
    with pytest.raises(BudgetExhausted):
        ledger.charge(policy, last, "v1")
    assert len(ledger.entries()) == 10
    assert sum(0.1 for _ in range(11)) > 1 > sum(0.1 for _ in range(10))  # binary fractions would have gone wrong here


@pytest.mark.parametrize(("epsilon", "cap", "granted"), [("0.1", "0.3", 3), ("0.7", "2.1", 3), ("0.3", "1", 3), ("1", "1.00", 1)])
def test_a_cap_is_used_up_exactly(ledger, epsilon, cap, granted):
    policy = policy_with(epsilon=epsilon, cap=cap)
    for day in days(DAY, granted):
        ledger.charge(policy, day, "v1")
    with pytest.raises(BudgetExhausted):
        ledger.charge(policy, "2026-12-31", "v1")
    assert len(ledger.entries()) == granted


def test_a_charge_that_passes_the_cap_in_the_fortieth_digit_is_refused(ledger):
    ledger.charge(policy_with(epsilon=f"0.5{'0' * 38}1", cap="1"), DAY, "v1")
    with pytest.raises(BudgetExhausted):
        ledger.charge(policy_with(epsilon="0.5", cap="1"), "2026-11-15", "v1")


def test_the_refusal_says_what_is_needed_what_is_left_and_what_to_do(ledger):
    for day in days("2026-11-10", 3):
        ledger.charge(policy_with(name="checkins", epsilon="0.60", cap="2.00"), day, "v1")
    with pytest.raises(BudgetExhausted) as refused:
        ledger.charge(policy_with(name="checkins", epsilon="0.50", cap="2.00"), DAY, "v1")
    error = refused.value
    assert str(error) == (
        "releasing checkins/2026-11-14 needs epsilon 0.50, but 0.2 of 2.00 is left for 2026-Q4. "
        "Lower privacy.epsilon or wait for 2027-01-01."
    )
    assert (error.dataset, error.period, error.window) == ("checkins", DAY, "2026-Q4")
    assert (error.needed, error.left, error.cap) == (Decimal("0.50"), Decimal("0.20"), Decimal("2.00"))
    assert error.exit_code == 2


def test_the_refusal_survives_the_way_between_processes():
    error = BudgetExhausted("checkins", DAY, "2026-Q4", Decimal("0.5"), Decimal("0.2"), Decimal(2), "2027-01-01")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_a_refused_charge_leaves_no_trace(ledger):
    ledger.charge(policy_with(epsilon="1", cap="1.5"), DAY, "v1")
    before = ledger.entries()
    with pytest.raises(BudgetExhausted):
        ledger.charge(policy_with(epsilon="1", cap="1.5"), "2026-11-15", "v1")
    assert ledger.entries() == before


def test_a_smaller_release_still_fits_where_a_larger_one_was_refused(ledger):
    ledger.charge(policy_with(epsilon="1", cap="1.5"), DAY, "v1")
    with pytest.raises(BudgetExhausted):
        ledger.charge(policy_with(epsilon="0.6", cap="1.5"), "2026-11-15", "v1")
    assert ledger.charge(policy_with(epsilon="0.5", cap="1.5"), "2026-11-15", "v1")[1]


def test_each_window_and_each_dataset_has_a_cap_of_its_own(ledger):
    policy = policy_with(epsilon="1", cap="1")
    for day in ("2026-12-31", "2027-01-01", "2026-09-30"):
        assert ledger.charge(policy, day, "v1")[1]
    assert ledger.charge(policy_with(name="other", epsilon="1", cap="1"), "2026-12-31", "v1")[1]
    with pytest.raises(BudgetExhausted, match="left for 2026-Q4"):
        ledger.charge(policy, "2026-10-01", "v1")


def test_a_cap_for_ever_is_never_renewed(ledger):
    policy = policy_with("ever", epsilon="1", cap="2")
    ledger.charge(policy, "2026-11-14", "v1")
    ledger.charge(policy, "2031-11-14", "v1")
    with pytest.raises(BudgetExhausted, match="wait for a new dataset"):
        ledger.charge(policy, "2040-01-01", "v1")


# The same release is charged once


def test_the_same_release_returns_its_first_entry_and_charges_nothing(tmp_path):
    policy = policy_with()
    first, is_new = open_ledger(tmp_path).charge(policy, DAY, "v1")
    again, is_new_again = open_ledger(tmp_path).charge(policy, DAY, "v1")
    assert (is_new, is_new_again) == (True, False)
    assert again == first
    assert open_ledger(tmp_path).buckets()[0].spent == 1


def test_the_same_release_is_returned_even_when_nothing_is_left(ledger):
    policy = policy_with(epsilon="1", cap="1")
    first, _ = ledger.charge(policy, DAY, "v1")
    assert ledger.charge(policy, DAY, "v1") == (first, False)


@pytest.mark.parametrize(
    ("settings", "version"),
    [({}, "v2"), ({"epsilon": "0.9"}, "v1"), ({"k": 4}, "v1"), ({"rows": 9}, "v1"), ({"slices": 8}, "v1")],
)
def test_a_changed_input_or_measurement_is_a_new_charge(ledger, settings, version):
    first, _ = ledger.charge(policy_with(), DAY, "v1")
    second, is_new = ledger.charge(policy_with(**settings), DAY, version)
    assert is_new and second.entry != first.entry and second.idempotency_key != first.idempotency_key
    assert ledger.buckets()[0].spent == 1 + Decimal(settings.get("epsilon", "1"))


def test_a_change_right_of_the_noise_is_no_new_charge(ledger):
    first, _ = ledger.charge(policy_with(), DAY, "v1")
    other = parse_policy(policy_text() + "[refine]\nround = true\n[gates]\ndrift_tolerance = 0.9\n")
    assert other.hash != policy_with().hash
    assert ledger.charge(other, DAY, "v1") == (first, False)


def test_an_entry_says_what_was_charged_under_which_rules(ledger):
    policy = policy_with(name="checkins", epsilon="0.50", cap="2.00")
    entry, _ = ledger.charge(policy, DAY, "table:7")
    assert (entry.dataset, entry.period, entry.time_window, entry.window_kind) == ("checkins", DAY, "2026-Q4", "quarter")
    assert (entry.unit, entry.epsilon, entry.delta, entry.cap, entry.delta_cap) == ("user", "0.50", "0", "2.00", "0")
    assert (entry.measurement, entry.input_version) == (policy.measurement_hash, "table:7")


def test_entries_come_back_from_the_table_as_they_were_charged_oldest_first(tmp_path):
    policy = policy_with(epsilon="0.30")
    charged = [open_ledger(tmp_path).charge(policy, day, "v1")[0] for day in ("2026-11-14", "2026-11-12", "2026-11-13")]
    assert open_ledger(tmp_path).entries() == charged


def test_find_returns_the_newest_charge_of_this_measurement_and_period(ledger):
    policy = policy_with()
    ledger.charge(policy, DAY, "v1")
    newest, _ = ledger.charge(policy, DAY, "v2")
    ledger.charge(policy_with(k=4), DAY, "v3")
    ledger.charge(policy, "2026-11-15", "v1")
    assert ledger.find(policy, DAY) == newest
    assert ledger.find(policy, "2026-11-16") is None
    assert ledger.find(policy_with(name="other"), DAY) is None


# Rules that were promised before


def test_another_window_for_a_charged_dataset_is_refused(ledger):
    ledger.charge(policy_with("quarter"), DAY, "v1")
    with pytest.raises(LedgerMismatch, match=r"a new window would forget what was spent\. Keep quarter") as refused:
        ledger.charge(policy_with("month"), "2027-02-01", "v1")
    assert refused.value.exit_code == 2
    assert ledger.charge(policy_with("month", name="other"), DAY, "v1")[1]


def test_a_raised_cap_is_refused_within_its_window_and_allowed_from_the_next(ledger):
    ledger.charge(policy_with(cap="2"), DAY, "v1")
    with pytest.raises(LedgerMismatch, match=r"toy for 2026-Q4 was promised to be 2, but the policy says 2\.1"):
        ledger.charge(policy_with(cap="2.1"), "2026-11-15", "v1")
    assert ledger.charge(policy_with(cap="2.1"), "2027-01-01", "v1")[1]


def test_a_cap_can_be_lowered_and_then_holds(ledger):
    ledger.charge(policy_with(cap="5"), DAY, "v1")
    assert ledger.charge(policy_with(cap="2"), "2026-11-15", "v1")[1]
    with pytest.raises(BudgetExhausted, match="0 of 2 is left"):
        ledger.charge(policy_with(cap="2"), "2026-11-16", "v1")
    with pytest.raises(LedgerMismatch, match="promised to be 2, but the policy says 5"):
        ledger.charge(policy_with(cap="5"), "2026-11-16", "v1")


def test_a_cap_lowered_below_what_is_spent_leaves_nothing(ledger):
    for day in days(DAY, 3):
        ledger.charge(policy_with(cap="5"), day, "v1")
    with pytest.raises(BudgetExhausted, match=r"needs epsilon 1\.0, but 0 of 2 is left"):
        ledger.charge(policy_with(cap="2"), "2026-11-20", "v1")


def test_the_same_cap_written_differently_is_the_same_cap(ledger):
    ledger.charge(policy_with(cap="5"), DAY, "v1")
    assert ledger.charge(policy_with(cap="5.00"), "2026-11-15", "v1")[1]


def test_a_delta_that_passes_its_cap_is_refused():
    log = MemoryLog()
    ledger = Ledger(log)
    entry, _ = ledger.charge(policy_with(), DAY, "v1")
    log.rows = [asdict(replace(entry, delta="0.000001", delta_cap="0.000001"))]
    with pytest.raises(LedgerMismatch, match="would pass the delta cap 0 of 2026-Q4"):
        ledger.charge(policy_with(), "2026-11-15", "v1")
    enough = parse_policy(policy_text() + "delta_cap = 0.000001\n")
    assert ledger.charge(enough, "2026-11-15", "v1")[1]
    assert ledger.buckets()[0].delta_spent == Decimal("0.000001")


# What is left


def test_buckets_add_up_each_window_of_each_dataset_exactly(ledger):
    policy = policy_with(epsilon="0.1", cap="0.7")
    for day in [*days("2026-12-29", 6)]:
        ledger.charge(policy, day, "v1")
    ledger.charge(policy_with(name="other", epsilon="0.25", cap="3"), DAY, "v1")
    found = {(b.dataset, b.time_window): (b.spent, b.left, b.cap, len(b.entries)) for b in ledger.buckets()}
    assert found == {
        ("toy", "2026-Q4"): (Decimal("0.3"), Decimal("0.4"), Decimal("0.7"), 3),
        ("toy", "2027-Q1"): (Decimal("0.3"), Decimal("0.4"), Decimal("0.7"), 3),
        ("other", "2026-Q4"): (Decimal("0.25"), Decimal("2.75"), Decimal(3), 1),
    }


def test_the_cap_of_a_bucket_is_the_lowest_that_was_promised(ledger):
    ledger.charge(policy_with(cap="5"), DAY, "v1")
    ledger.charge(policy_with(cap="2"), "2026-11-15", "v1")
    assert (ledger.buckets()[0].cap, ledger.buckets()[0].left) == (2, 0)


def test_what_is_left_is_exact_to_the_last_digit(ledger):
    ledger.charge(policy_with(epsilon=f"0.5{'0' * 38}1", cap="1"), DAY, "v1")
    bucket = ledger.buckets()[0]
    assert Fraction(bucket.spent) + Fraction(bucket.left) == 1
    assert Fraction(bucket.spent) > Fraction(1, 2)


def test_an_empty_place_has_no_entries_and_is_not_written_by_a_look(tmp_path):
    place = tmp_path / "tables"
    assert open_ledger(place).entries() == [] and open_ledger(place).buckets() == []
    assert not place.exists()


def test_a_charge_that_always_comes_too_late_gives_up_and_says_that_nothing_was_charged(monkeypatch):
    class Contested(MemoryLog):
        def add(self, row: dict[str, Any]) -> bool:
            return False

    monkeypatch.setattr(ledger_module, "ATTEMPTS", 3)
    with pytest.raises(HeathazeError, match="changed by others 3 times in a row: nothing was charged; run again"):
        Ledger(Contested()).charge(policy_with(), DAY, "v1")


def test_a_charge_that_comes_too_late_checks_the_cap_again():
    class Overtaken(MemoryLog):
        def add(self, row: dict[str, Any]) -> bool:
            rival = {**row, "entry": "rival", "idempotency_key": "rival"}
            self.rows.append(rival)
            return False

    log = Overtaken()
    with pytest.raises(BudgetExhausted):
        Ledger(log).charge(policy_with(epsilon="1", cap="1"), DAY, "v1")
    assert [row["entry"] for row in log.rows] == ["rival"]


def test_a_row_is_added_only_to_the_table_that_was_read(tmp_path):
    one, other = Tables(str(tmp_path)).ledger_log(), Tables(str(tmp_path)).ledger_log()
    row = dict.fromkeys(LEDGER.column_names, "x")
    assert one.add(row) is False  # it only begins the table
    assert one.read() == other.read() == []
    assert one.add({**row, "entry": "one"}) is True
    assert other.add({**row, "entry": "other"}) is False
    assert [found["entry"] for found in other.read()] == ["one"]
    assert other.add({**row, "entry": "other"}) is True
    assert [(found["sequence"], found["entry"]) for found in one.read()] == [(1, "one"), (2, "other")]


def test_a_ledger_that_was_begun_twice_reads_as_one_without_charges(tmp_path):
    """What two processes leave that begin the same ledger at once."""
    begun(tmp_path)
    table = deltalake.DeltaTable(str(tmp_path / "ledger"))
    deltalake.write_deltalake(table, table.to_pyarrow_table(), mode="append")
    assert open_ledger(tmp_path).entries() == []
    open_ledger(tmp_path).charge(policy_with(), DAY, "v1")
    assert [bucket.spent for bucket in open_ledger(tmp_path).buckets()] == [1]


# Many processes at once


@pytest.fixture(scope="module")
def crowd() -> Iterator[Callable[..., list[Any]]]:
    """Run a function in 8 processes at once, with a gate that opens when all have come, and return what each returned."""
    context = multiprocessing.get_context("forkserver")  # fresh processes as with spawn, but what they import is imported once
    context.set_forkserver_preload(PRELOADED)
    with context.Pool(PROCESSES, initializer=_keep_gate, initargs=(context.Barrier(PROCESSES),)) as pool:
        yield lambda work, *arguments: pool.starmap(_through_gate, [(work, i, *arguments) for i in range(PROCESSES)], chunksize=1)


def _keep_gate(gate: threading.Barrier) -> None:
    global GATE
    GATE = gate


def _through_gate(work: Callable[..., Any], *arguments: Any) -> Any:
    GATE.wait(120)  # no process takes two turns, because none returns before all have begun
    return work(*arguments)


def charge_ten(number: int, place: str, text: str) -> int:
    """Ask for ten different releases; the number granted."""
    ledger, policy, granted = open_ledger(place), parse_policy(text), 0
    for i in range(10):
        with suppress(BudgetExhausted):
            granted += ledger.charge(policy, DAY, f"version {number}.{i}")[1]
    return granted


def charge_one(number: int, place: str, text: str) -> tuple[str, bool]:
    entry, is_new = open_ledger(place).charge(parse_policy(text), DAY, "v1")
    return entry.entry, is_new


def charge_without_condition(number: int, place: str, text: str) -> bool:
    """The obvious ledger: read the total, compare, append."""
    policy, table = parse_policy(text), deltalake.DeltaTable(f"{place}/ledger")
    rows = table.to_pyarrow_table().to_pylist()
    spent = sum((Fraction(row["epsilon"]) for row in rows if row["sequence"] > 0), Fraction(0))
    GATE.wait(120)  # all have read before any writes: the race, every time
    if spent + Fraction(policy.privacy.epsilon) > Fraction(policy.budget.cap):
        return False
    row = {**dict.fromkeys(LEDGER.column_names, ""), "epsilon": str(policy.privacy.epsilon), "sequence": number + 1}
    deltalake.write_deltalake(table, pa.Table.from_pylist([row], schema=table.to_pyarrow_table().schema), mode="append")
    return True


def charge_with_condition(number: int, place: str, text: str) -> bool:
    """The same race through the ledger: all have read before any writes."""

    class Raced:
        def __init__(self) -> None:
            self.log, self.waited = Tables(place).ledger_log(), False

        def read(self) -> list[dict[str, Any]]:
            return self.log.read()

        def add(self, row: dict[str, Any]) -> bool:
            if not self.waited:
                self.waited = True
                GATE.wait(120)
            return self.log.add(row)

    try:
        return Ledger(Raced()).charge(parse_policy(text), DAY, f"version {number}")[1]
    except BudgetExhausted:
        return False


def test_eight_processes_are_granted_exactly_the_cap(tmp_path, crowd):
    granted = crowd(charge_ten, begun(tmp_path), policy_text(epsilon="0.1", cap="3"))
    entries = open_ledger(tmp_path).entries()
    assert sum(granted) == 30 == len(entries)
    assert len({entry.entry for entry in entries}) == len({entry.idempotency_key for entry in entries}) == 30
    assert open_ledger(tmp_path).buckets()[0].left == 0
    assert sum(count > 0 for count in granted) > 1  # else there was no race


def test_eight_processes_that_all_read_before_any_writes_are_granted_the_cap_by_the_ledger(tmp_path, crowd):
    granted = crowd(charge_with_condition, begun(tmp_path), policy_text(epsilon="1", cap="2"))
    assert sum(granted) == 2 == len(open_ledger(tmp_path).entries())


def test_eight_processes_overspend_a_ledger_that_reads_and_then_appends(tmp_path, crowd):
    """The control: the same race passes the cap where the write is not conditional on the read."""
    granted = crowd(charge_without_condition, begun(tmp_path), policy_text(epsilon="1", cap="2"))
    assert sum(granted) == PROCESSES > 2
    rows = deltalake.DeltaTable(str(tmp_path / "ledger")).to_pyarrow_table().to_pylist()
    assert sum(Fraction(row["epsilon"]) for row in rows if row["sequence"] > 0) == PROCESSES


def test_eight_processes_with_the_same_release_share_one_entry(tmp_path, crowd):
    found = crowd(charge_one, begun(tmp_path), policy_text())
    assert len({entry for entry, _ in found}) == 1
    assert sum(is_new for _, is_new in found) == 1
    assert len(open_ledger(tmp_path).entries()) == 1


def begin_many(number: int, places: list[str]) -> None:
    for place in places:
        GATE.wait(120)
        begun(Path(place))


def test_eight_processes_that_begin_a_ledger_at_once_leave_it_without_a_charge(tmp_path, crowd):
    places = [str(tmp_path / str(i)) for i in range(15)]
    crowd(begin_many, places)
    assert [open_ledger(place).entries() for place in places] == [[]] * 15


def create_many(number: int, places: list[str]) -> int:
    """Create the same table as the others in every place; the number of times that went wrong."""
    failures = 0
    for place in places:
        GATE.wait(120)
        try:
            Tables(place).create("noisy")
        except Exception:
            failures += 1
    return failures


def test_eight_processes_that_create_a_table_at_once_all_succeed(tmp_path, crowd):
    assert crowd(create_many, [str(tmp_path / str(i)) for i in range(15)]) == [0] * PROCESSES


# Tables that cannot be used


@pytest.mark.parametrize(
    "description", ["heathaze, schema version 0", "heathaze, schema version 11", "someone else's table", None]
)
def test_a_ledger_of_another_schema_version_is_refused_and_left_alone(tmp_path, description):
    place = Path(begun(tmp_path / "new"))
    rows = deltalake.DeltaTable(str(place / "ledger")).to_pyarrow_table()
    deltalake.write_deltalake(str(tmp_path / "old" / "ledger"), rows, description=description)
    with pytest.raises(InputError, match=f"the table 'ledger' must have schema version {SCHEMA_VERSION}, but it has"):
        open_ledger(tmp_path / "old").charge(policy_with(), DAY, "v1")
    with pytest.raises(InputError, match="schema version"):
        open_ledger(tmp_path / "old").buckets()
    assert deltalake.DeltaTable(str(tmp_path / "old" / "ledger")).version() == 0


def test_a_place_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"must name a folder or catalog\.schema, but .*file is a file"):
        open_ledger(tmp_path / "file")


def test_a_place_that_cannot_be_written_is_an_error_that_names_it(tmp_path):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "tables"
    with pytest.raises(InputError, match=f"the ledger {place}/ledger cannot be written"):
        open_ledger(place).charge(policy_with(), DAY, "v1")


# heathaze budget


@pytest.fixture
def spent(tmp_path) -> tuple[str, list[Entry]]:
    policy = policy_with(name="checkins", epsilon="0.50", cap="2.00")
    return str(tmp_path), [open_ledger(tmp_path).charge(policy, day, "v1")[0] for day in days(DAY, 3)]


def test_budget_says_what_is_spent_and_left_and_lists_every_charge(spent, capsys):
    place, entries = spent
    assert main(["budget", "--tables", place]) == 0
    heading, columns, *lines = capsys.readouterr().out.splitlines()
    assert heading == "checkins, 2026-Q4: epsilon 1.5 of 2.00 spent, 0.5 left (per user)"
    assert columns.split() == ["period", "epsilon", "delta", "charged", "at", "entry"]
    assert [line.split() for line in lines] == [[e.period, "0.50", "0", e.charged_at, e.entry] for e in entries]


def test_budget_as_json_is_exact(spent, capsys):
    place, entries = spent
    assert main(["budget", "--tables", place, "--json"]) == 0
    [bucket] = json.loads(capsys.readouterr().out)
    assert (bucket["dataset"], bucket["time_window"], bucket["unit"]) == ("checkins", "2026-Q4", "user")
    assert (bucket["cap"], bucket["spent"], bucket["left"], bucket["delta_spent"]) == ("2.00", "1.5", "0.5", "0")
    assert bucket["entries"] == [asdict(entry) for entry in entries]


def test_budget_of_an_empty_place_says_so(tmp_path, capsys):
    assert main(["budget", "--tables", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "nothing has been charged here yet.\n"
    assert main(["budget", "--tables", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_budget_of_a_file_ends_with_1(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["budget", "--tables", str(tmp_path / "file")]) == 1
    assert "InputError: --tables must name a folder" in capsys.readouterr().err
