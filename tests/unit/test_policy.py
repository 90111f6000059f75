from __future__ import annotations

import json
import re
from datetime import date, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest
from tests.conftest import ROOT, policy_text

from heathaze.cli import main
from heathaze.errors import PolicyError
from heathaze.policy import DENOISERS, METHODS, Budget, GridSettings, Policy, as_dict, load_policy, parse_policy
from heathaze.rho import select_measuring
from heathaze.statement import advice, promise

MEASURED = "declared_event_count = 1000", "max_counted_per_user = 50"
WITH_MAP_SHARES = "[budget]", "[privacy.shares]\nhistogram = 0.7\ntotals = 0.1\nmap = 0.2\n[budget]"
SHARES = "[privacy.shares]\nhistogram = {histogram}\ntotals = {totals}\nevent_count = {event_count}\n[budget]"


def edited(*changes: tuple[str, str]) -> str:
    """The toy policy with texts replaced; each must be there once."""
    text = policy_text()
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def with_shares(histogram: str, totals: str, event_count: str = "0") -> tuple[str, str]:
    return "[budget]", SHARES.format(histogram=histogram, totals=totals, event_count=event_count)


def refusal(text: str) -> str:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text)
    return str(caught.value)


def test_decimals_are_kept_as_written():
    policy = parse_policy(edited(("epsilon = 1.0", "epsilon = 0.1"), with_shares("0.7", "0.3")))
    assert isinstance(policy.privacy.epsilon, Decimal) and policy.privacy.epsilon == Decimal("0.1")
    assert Fraction(policy.privacy.epsilon) + Fraction(parse_policy(policy_text(epsilon="0.2")).privacy.epsilon) == Fraction(
        3, 10
    )


def test_whole_numbers_are_read_where_decimals_are_meant():
    assert parse_policy(policy_text(epsilon="2")).privacy.epsilon == Decimal(2)


def test_scales_are_exact_rationals_of_sensitivity_epsilon_and_share():
    measured = parse_policy(edited(("epsilon = 1.0", "epsilon = 0.3"), MEASURED, with_shares("0.7", "0.1", "0.2"))).privacy
    assert measured.histogram_scale == Fraction(3) / (Fraction(3, 10) * Fraction(7, 10)) == Fraction(100, 7)
    assert measured.totals_scale == Fraction(100)
    assert measured.event_count_scale == Fraction(50 * 100, 6)


def test_a_declared_event_count_has_no_noise_scale():
    assert parse_policy(policy_text()).privacy.event_count_scale is None


def test_shares_that_miss_1_in_binary_but_not_in_decimal_are_accepted():
    assert 0.5 + 0.41 + 0.09 != 1
    privacy = parse_policy(edited(MEASURED, with_shares("0.5", "0.41", "0.09"))).privacy
    assert sum(map(Fraction, (privacy.shares.histogram, privacy.shares.totals, privacy.shares.event_count))) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("epsilon", "epsilom"), "unknown key 'privacy.epsilom', did you mean 'epsilon'?"),
        (("[budget]", "[buget]"), "unknown key 'buget', did you mean 'budget'?"),
        (("max_events_per_user", "max_event_per_user"), "did you mean 'max_events_per_user'?"),
        (with_shares("0.98", "0.02\ntotal = 0"), "unknown key 'privacy.shares.total', did you mean 'totals'?"),
        (("cap =", "zzz = 1\ncap ="), "unknown key 'budget.zzz'; known keys: cap, window, delta_cap."),
    ],
)
def test_an_unknown_key_is_refused_and_the_nearest_one_named(change, message):
    assert message in refusal(edited(change))


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("epsilon = 1.0\n", ""), "privacy.epsilon"),
        (("max_events_per_user = 3\n", ""), "privacy.max_events_per_user"),
        (('name = "toy"\n', ""), "dataset.name"),
        (("south = 40.0\n", ""), "grid.south"),
        (("cap = 5\n", ""), "budget.cap"),
        (('[budget]\ncap = 5\nwindow = "quarter"\n', ""), "budget"),
    ],
)
def test_a_missing_key_is_named(change, key):
    assert refusal(edited(change)) == f"the key '{key}' is missing."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("epsilon = 1.0", 'epsilon = "1.0"'), "'privacy.epsilon' must be a number, but it is '1.0'."),
        (("epsilon = 1.0", "epsilon = true"), "'privacy.epsilon' must be a number, but it is True."),
        (("epsilon = 1.0", "epsilon = [1.0]"), "'privacy.epsilon' must be a number, but it is [Decimal('1.0')]."),
        (("epsilon = 1.0", "epsilon = nan"), "'privacy.epsilon' must be a number, but it is nan."),
        (("max_events_per_user = 3", "max_events_per_user = 3.0"), "must be a whole number, but it is Decimal('3.0')."),
        (("max_events_per_user = 3", "max_events_per_user = true"), "must be a whole number, but it is True."),
        (("declared_event_count = 1000", "declared_event_count = 1e3"), "must be a whole number, but it is Decimal('1E+3')."),
        (("rows = 8", "rows = 8.0"), "'grid.rows' must be a whole number, but it is Decimal('8.0')."),
        (('name = "toy"', "name = 7"), "'dataset.name' must be a string, but it is 7."),
        (
            ('window = "quarter"', "window = 2026-11-14"),
            "'budget.window' must be a string, but it is datetime.date(2026, 11, 14).",
        ),
        (("[budget]", "[refine]\nround = 1\n[budget]"), "'refine.round' must be true or false, but it is 1."),
        (("[dataset]", "release = 3\n[dataset]"), "'release' must be a table ([release]), but it is 3."),
        (("declared_event_count = 1000", "declared_event_count = 1000\nshares = 1"), "'privacy.shares' must be a table"),
        (("epsilon = 1.0", "epsilon = "), "this is not valid TOML: "),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_and_quoted(change, message):
    assert message in refusal(edited(change))


BAD_VALUES = [
    (("epsilon = 1.0", "epsilon = 0"), "privacy.epsilon must be above 0, at most 100, but it is 0."),
    (("epsilon = 1.0", "epsilon = -0.5"), "privacy.epsilon must be above 0, at most 100, but it is -0.5."),
    (("epsilon = 1.0", "epsilon = 100.1"), "privacy.epsilon must be above 0, at most 100, but it is 100.1."),
    (("epsilon = 1.0", "epsilon = inf"), "privacy.epsilon must be above 0, at most 100, but it is Infinity."),
    (("epsilon = 1.0", "epsilon = -inf"), "privacy.epsilon must be above 0, at most 100, but it is -Infinity."),
    (("epsilon = 1.0", "epsilon = 5.1"), "privacy.epsilon must be at most budget.cap (5), or nothing can ever be released"),
    (
        ("epsilon = 1.0", "epsilon = 0.0001"),
        "max_events_per_user / (epsilon * shares.histogram) must be at most 20000, but it is",
    ),
    (("epsilon = 1.0", "epsilon = 1.0\ndelta = 1e-6"), "privacy.delta must be 0 for the method vdr, whose noise is Laplace, but"),
    (("epsilon = 1.0", 'epsilon = 1.0\nunit = "trip"'), "privacy.unit must be 'user', but it is 'trip'."),
    (("_user = 3", "_user = 0"), "privacy.max_events_per_user must be between 1 and 100000, but it is 0."),
    (("_user = 3", "_user = 100001"), "privacy.max_events_per_user must be between 1 and 100000, but it is 100001."),
    (("_count = 1000", "_count = 0"), "privacy.declared_event_count must be between 1 and 1000000000000000, but it is 0."),
    (
        (MEASURED[0], "max_counted_per_user = 2"),
        "privacy.max_counted_per_user must be between max_events_per_user and 1000000000000000, but it is 2.",
    ),
    (MEASURED, "privacy.shares.event_count must be above 0 where N is measured, but it is 0."),
    (with_shares("0.9", "0.02", "0.08"), "privacy.shares.event_count must be 0 where N is declared, but it is 0.08."),
    (with_shares("0.98", "0.03"), "privacy.shares must be exactly 1 in total, but it is 1.01."),
    (with_shares("0.9", "0.0999999999999999999"), "privacy.shares must be exactly 1 in total, but it is 0.9999999999999999999."),
    (with_shares("0", "0.5"), "privacy.shares.histogram must be above 0, but it is 0."),
    (with_shares("0.5", "0"), "privacy.shares.totals must be above 0, but it is 0."),
    (with_shares("1.02", "-0.02"), "privacy.shares.histogram must be between 0 and 1, but it is 1.02."),
    (with_shares("0.98", "-0.02"), "privacy.shares.totals must be between 0 and 1, but it is -0.02."),
    (("cap = 5", "cap = 0"), "budget.cap must be above 0 and finite, but it is 0."),
    (("cap = 5", "cap = inf"), "budget.cap must be above 0 and finite, but it is Infinity."),
    (("cap = 5", "cap = 5\ndelta_cap = 1"), "budget.delta_cap must be between 0 and 1, but it is 1."),
    (('"quarter"', '"week"'), "budget.window must be one of month, quarter, year, ever, but it is 'week'."),
    (("days = 1", "days = 0"), "period.days must be between 1 and 366, but it is 0."),
    (("days = 1", "days = 367"), "period.days must be between 1 and 366, but it is 367."),
    (("slices = 4", "slices = 0"), "period.slices must be between 1 and 8784, but it is 0."),
    (("slices = 4", "slices = 7"), "period.slices must be a divisor of the 86400 seconds of the period, but it is 7."),
    (("south = 40.0", "south = 40.1"), "grid.south < grid.north must be within -90..90, but it is"),
    (("south = 40.0", "south = -90.1"), "grid.south < grid.north must be within -90..90, but it is"),
    (("east = -73.9", "east = 180.5"), "grid.west < grid.east must be within -180..180, but it is"),
    (("west = -74.0", "west = -inf"), "grid.west < grid.east must be within -180..180, but it is"),
    (("rows = 8", "rows = 0"), "grid.rows must be at least 1, but it is 0."),
    (("cols = 8", "cols = -8"), "grid.cols must be at least 1, but it is -8."),
    (("rows = 8\n", ""), "grid must be given rows and cols, or cell_metres alone, but it is"),
    (("cols = 8", "cols = 8\ncell_metres = 35"), "grid must be given rows and cols, or cell_metres alone, but it is"),
    (("rows = 8\ncols = 8\n", ""), "grid must be given rows and cols, or cell_metres alone, but it is"),
    (("rows = 8\ncols = 8\n", "cell_metres = 0\n"), "grid.cell_metres must be between 0.01 and 1000000, but it is 0."),
    (("[budget]", '[denoise.vqvae]\ntarget = "x"\n[budget]'), "denoise.vqvae.target must be shrink or noisy, but it is 'x'."),
    (("rows = 8\ncols = 8\n", "cell_metres = 0.1\n"), "grid must be at most 268435456 cells, but it is 111195 x 85118."),
    (("rows = 8", "rows = 100000000"), "grid must be at most 268435456 cells, but it is 100000000 x 8."),
    (('"toy"', '"a b"'), "dataset.name must be 1 to 100 letters, digits, dots, dashes or underscores, but it is 'a b'."),
    (('"toy"', '"../toy"'), "dataset.name must be 1 to 100 letters, digits, dots, dashes or underscores, but it is '../toy'."),
    (('"toy"', '"toy"\ntimezone = ""'), "dataset.timezone must be a time zone such as 'Europe/Paris', but it is ''."),
    (('"toy"', '"toy"\nlat = "lon"'), "dataset columns must be four different names, but it is"),
    (("[budget]", '[release]\nmethod = "x"\n[budget]'), f"release.method must be one of {', '.join(METHODS)}, but it is 'x'."),
    (('"shrink"', '"x"'), f"denoise.method must be one of {', '.join(DENOISERS)}, but it is 'x'."),
    (("[budget]", "[refine]\nuniformity = 1.5\n[budget]"), "refine.uniformity must be above 0, at most 1, but it is 1.5."),
    (("[budget]", "[gates]\ndrift_tolerance = 0\n[budget]"), "gates.drift_tolerance must be above 0 and finite, but it is 0."),
]


@pytest.mark.parametrize(("change", "message"), BAD_VALUES)
def test_a_promise_that_cannot_be_kept_is_refused_with_the_rule_and_what_was_found(change, message):
    found = refusal(edited(change))
    assert message in found
    assert re.search(r" must be .+, but it is .+\.$", found)


@pytest.mark.parametrize("lines", ["", "declared_event_count = 1000\nmax_counted_per_user = 50"])
def test_neither_and_both_of_a_declared_and_a_measured_event_count_are_refused(lines):
    message = refusal(edited(("declared_event_count = 1000", lines)))
    assert message.startswith("privacy must be given exactly one of declared_event_count (N is public) and max_counted_per_user")
    assert message.endswith("but it is both or neither.")


# Each of these is a promise the rules above refuse, in a form that slips through the check or breaks it.
UNREFUSED = {
    "an unknown time zone": ('"toy"', '"toy"\ntimezone = "Europe/Pariss"'),
    "an epsilon too small for a float": ("epsilon = 1.0", "epsilon = 1e-400"),
    "a cell too small for a float": ("rows = 8\ncols = 8\n", "cell_metres = 1e-400\n"),
    "a cell so small that the number of cells is infinite": ("rows = 8\ncols = 8\n", "cell_metres = 1e-310\n"),
    "an infinite cell": ("rows = 8\ncols = 8\n", "cell_metres = inf\n"),
    "a box without height once its edges are floats": ("north = 40.1", "north = 40.00000000000000000000001"),
    "a gate that is never shut": ("[budget]", "[gates]\ntotal_tolerance = inf\n[budget]"),
    "an event count beyond 64 bits": ("_count = 1000", "_count = 100000000000000000000"),
    "shares above 1 in the 33rd digit": with_shares("0.98", f"0.02{'0' * 30}1"),
}


@pytest.mark.parametrize("change", UNREFUSED.values(), ids=UNREFUSED.keys())
def test_a_promise_at_the_limits_of_arithmetic_is_refused(change):
    refusal(edited(change))


def test_a_grid_is_given_by_rows_and_cols_or_by_the_side_of_a_cell():
    box = {"south": Decimal("40.0"), "west": Decimal("-74.0"), "north": Decimal("40.1"), "east": Decimal("-73.9")}
    by_count = GridSettings(**box, rows=111, cols=85).build()
    by_side = GridSettings(**box, cell_metres=Decimal(100)).build()
    assert by_side == by_count
    assert by_side.height_metres / by_side.rows == pytest.approx(100, rel=0.01)
    assert by_side.width_metres / by_side.cols == pytest.approx(100, rel=0.01)
    assert GridSettings(**box, cell_metres=Decimal(10**6)).build().cells == 1


def test_the_nightly_policy_promises_576_by_576_cells_8_slices_and_20_events():
    policy = load_policy(ROOT / "conf" / "nightly.toml")
    grid = policy.grid.build()
    assert (grid.rows, grid.cols, policy.period.slices, policy.privacy.max_events_per_user) == (576, 576, 8, 20)
    assert grid.height_metres / grid.rows == pytest.approx(35, abs=0.5) and grid.width_metres / grid.cols == pytest.approx(
        35, abs=0.5
    )
    assert policy.privacy.histogram_scale == Fraction(1000, 47)
    assert policy.privacy.event_count_scale == Fraction(1000 * 100, 4)
    longest_quarter = max((date(2026, m + 3, 1) if m < 10 else date(2027, 1, 1)) - date(2026, m, 1) for m in (1, 4, 7, 10))
    assert policy.budget.cap / policy.privacy.epsilon == longest_quarter.days == 92


def test_the_demo_policy_promises_144_by_144_cells_8_slices_and_10_events():
    policy = load_policy(ROOT / "conf" / "demo.toml")
    grid = policy.grid.build()
    assert (grid.rows, grid.cols, policy.period.slices, policy.privacy.max_events_per_user) == (144, 144, 8, 10)
    assert grid.height_metres == pytest.approx(20_000, rel=0.01) and grid.width_metres == pytest.approx(20_000, rel=0.01)
    assert policy.privacy.declared_event_count == 600_000


def test_both_policies_of_the_repository_stand_for_the_same_box():
    nightly, demo = (load_policy(ROOT / "conf" / name).grid.build() for name in ("nightly.toml", "demo.toml"))
    assert (nightly.south, nightly.west, nightly.north, nightly.east) == (demo.south, demo.west, demo.north, demo.east)


@pytest.mark.parametrize(
    "change",
    [
        ('"shrink"', '"none"'),
        ("[budget]", "[refine]\nuniformity = 0.5\n[budget]"),
        ("[budget]", "[refine]\nround = true\nnon_negative = false\n[budget]"),
        ("[budget]", "[gates]\ntotal_tolerance = 0.2\ndrift_tolerance = 0.9\n[budget]"),
        ("cap = 5", "cap = 4"),
        ('window = "quarter"', 'window = "year"'),
    ],
)
def test_a_change_right_of_the_noise_or_of_the_budget_is_no_new_measurement(change):
    before, after = parse_policy(policy_text()), parse_policy(edited(change))
    assert after.measurement_hash == before.measurement_hash
    assert after.hash != before.hash


@pytest.mark.parametrize(
    "change",
    [
        ("epsilon = 1.0", "epsilon = 1.0000000000000000001"),
        ("max_events_per_user = 3", "max_events_per_user = 4"),
        ("declared_event_count = 1000", "declared_event_count = 1001"),
        with_shares("0.97", "0.03"),
        ("rows = 8", "rows = 9"),
        ("cols = 8", "cols = 7"),
        ("north = 40.1", "north = 40.10000000000000000001"),
        ("slices = 4", "slices = 8"),
        ("days = 1", "days = 2"),
        ('name = "toy"', 'name = "toys"'),
        ('name = "toy"', 'name = "toy"\ntimezone = "Europe/Paris"'),
        ('name = "toy"', 'name = "toy"\nuser = "device_id"'),
        ('name = "toy"', 'name = "toy"\npartition = "day"'),
    ],
)
def test_a_change_of_what_the_private_side_reads_is_a_new_measurement(change):
    assert parse_policy(edited(change)).measurement_hash != parse_policy(policy_text()).measurement_hash


def test_the_same_number_written_differently_is_the_same_measurement():
    hashes = {parse_policy(policy_text(epsilon=text)).measurement_hash for text in ("1", "1.0", "1.00", "1e0")}
    assert len(hashes) == 1


def test_policies_that_differ_in_the_thirtieth_digit_are_different_measurements():
    one, other = (parse_policy(policy_text(epsilon=text)) for text in ("1.0", f"1.{'0' * 30}1"))
    assert one.measurement_hash != other.measurement_hash


def test_a_hash_does_not_depend_on_the_order_of_the_file():
    shuffled = edited(("rows = 8\ncols = 8\n", "cols = 8\nrows = 8\n"))
    assert parse_policy(shuffled).hash == parse_policy(policy_text()).hash


def test_a_policy_as_plain_values_reads_back_to_the_same_decimals():
    text = as_dict(load_policy(ROOT / "conf" / "nightly.toml"))
    json.dumps(text)
    assert Decimal(text["budget"]["cap"]) == 92 and Decimal(text["privacy"]["shares"]["histogram"]) == Decimal("0.94")


@pytest.mark.parametrize(
    ("window", "day", "name", "next_begins"),
    [
        ("month", "2026-11-14", "2026-11", "2026-12-01"),
        ("month", "2026-12-31", "2026-12", "2027-01-01"),
        ("month", "2027-01-01", "2027-01", "2027-02-01"),
        ("month", "2024-02-29", "2024-02", "2024-03-01"),
        ("quarter", "2026-03-31", "2026-Q1", "2026-04-01"),
        ("quarter", "2026-04-01", "2026-Q2", "2026-07-01"),
        ("quarter", "2026-09-30", "2026-Q3", "2026-10-01"),
        ("quarter", "2026-11-14", "2026-Q4", "2027-01-01"),
        ("quarter", "2026-12-31", "2026-Q4", "2027-01-01"),
        ("year", "2026-01-01", "2026", "2027-01-01"),
        ("year", "2026-12-31", "2026", "2027-01-01"),
        ("ever", "2026-12-31", "ever", "a new dataset"),
    ],
)
def test_a_day_belongs_to_the_window_that_holds_it(window, day, name, next_begins):
    assert Budget(cap=Decimal(1), window=window).window_of(date.fromisoformat(day)) == (name, next_begins)


@pytest.mark.parametrize(("window", "windows"), [("month", 24), ("quarter", 8), ("year", 2), ("ever", 1)])
def test_windows_follow_one_another_and_each_begins_where_the_last_said(window, windows):
    budget = Budget(cap=Decimal(1), window=window)
    days = [date(2026, 1, 1) + timedelta(days=i) for i in range(730)]
    seen = [budget.window_of(day) for day in days]
    changes = [(days[i], seen[i - 1][1]) for i in range(1, len(days)) if seen[i] != seen[i - 1]]
    assert len(set(seen)) == windows == len(changes) + 1
    assert all(first.isoformat() == announced for first, announced in changes)


@pytest.mark.parametrize("text", ["2026-13-01", "tomorrow", "", "2026-02-29", "9999-12-31", "1969-12-31", "2261-06-01"])
def test_a_period_that_is_no_day_between_1970_and_2260_is_refused(toy_policy, text):
    with pytest.raises(PolicyError, match=re.escape(repr(text))):
        toy_policy().period_of(text)


def test_a_period_has_the_length_and_zone_of_the_policy():
    policy = parse_policy(edited(("days = 1", "days = 7"), ('"toy"', '"toy"\ntimezone = "Asia/Tokyo"')))
    period = policy.period_of("2026-11-14")
    assert (period.name, period.days, period.slices, period.zone) == ("2026-11-14", 7, 4, "Asia/Tokyo")


def nights_promised(policy: Policy) -> int:
    return int(re.search(r"enough for (\d+) releases", " ".join(promise(policy))).group(1))


@pytest.mark.parametrize(("cap", "epsilon", "nights"), [("1", "0.1", 10), ("1", "0.3", 3), ("0.3", "0.1", 3), ("92", "1.0", 92)])
def test_the_promised_number_of_releases_is_what_the_cap_holds(toy_policy, cap, epsilon, nights):
    assert nights_promised(toy_policy(cap=cap, epsilon=epsilon)) == nights


def test_the_promised_number_of_releases_is_never_more_than_the_cap_holds(toy_policy):
    assert nights_promised(toy_policy(cap="1", epsilon=f"0.{'3' * 31}4")) == 2


def test_policy_check_says_what_is_promised(capsys):
    assert main(["policy", "check", str(ROOT / "conf" / "nightly.toml")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for promised in (
        "from midnight America/Los_Angeles, in 8 slices of 3 hours",
        "576 x 576 cells of 35 x 35 m, from 37.7, -122.52 to 37.88, -122.292; points outside are dropped",
        "epsilon 1.0 differentially private (delta 0) for adding or removing ALL records of one user id within that day",
        "At most 20 events of a user",
        "scale 21.28 (standard deviation 30.1)",
        "Of epsilon, 0.94 goes to the cells and 0.02 to the number of events used",
        "is measured with 0.04, counting at most 1,000 events of a user",
        "may spend epsilon 92 per quarter, enough for 92 releases",
        "Not covered:",
    ):
        assert promised in out


def test_policy_check_says_that_a_declared_event_count_is_public(capsys):
    assert main(["policy", "check", str(ROOT / "conf" / "demo.toml")]) == 0
    assert "is declared: 600,000, a public constant" in capsys.readouterr().out


def test_policy_check_as_json_carries_the_policy_its_hash_and_the_promise(capsys):
    path = ROOT / "conf" / "nightly.toml"
    assert main(["policy", "check", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    policy = load_policy(path)
    assert report == {"policy": as_dict(policy), "hash": policy.hash, "promise": promise(policy), "advice": []}


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_policy_check_of_a_bad_file_ends_with_1_and_names_file_and_rule(tmp_path: Path, capsys, options):
    path = tmp_path / "bad.toml"
    path.write_text(edited(("epsilon = 1.0", "epsilom = 1.0")))
    assert main(["policy", "check", str(path), *options]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.strip() == f"PolicyError: {path}: unknown key 'privacy.epsilom', did you mean 'epsilon'?"


def test_policy_check_of_a_file_that_is_not_there_or_no_text_ends_with_1(tmp_path: Path, capsys):
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path / "absent.toml", tmp_path, binary):
        assert main(["policy", "check", str(path)]) == 1
        assert f"PolicyError: the policy file {path} cannot be read" in capsys.readouterr().err


def test_blocks_make_the_measured_grid_coarser_and_the_promise_says_so():
    policy = parse_policy(edited(("cols = 8", "cols = 8\nblock = 4")))
    assert (policy.grid.build().rows, policy.grid.build().cols) == (2, 2)
    assert (policy.grid.fine().rows, policy.grid.fine().cols) == (8, 8)
    assert any("measures 4 x 4 of the 8 x 8 cells as one" in sentence for sentence in promise(policy))
    assert policy.measurement_hash != parse_policy(policy_text()).measurement_hash


def test_the_side_of_blocks_is_chosen_from_public_numbers():
    rows = ("rows = 8", "rows = 64"), ("cols = 8", 'cols = 64\nblock = "auto"')
    policy, chosen = parse_policy(edited(*rows)), select_measuring(1000, 1.0, 3, (64, 64), 4)
    assert (policy.grid.block, policy.grid.slice_block) == (chosen.block, chosen.slice_block)
    assert policy.grid.slice_block > policy.grid.block > 1
    shares = policy.privacy.shares
    assert (shares.histogram, shares.totals, shares.map) == (chosen.histogram, chosen.totals, chosen.map)
    assert "declared_event_count" in refusal(edited(*rows, MEASURED))
    assert advice(policy) == []
    assert advice(parse_policy(edited(MEASURED, with_shares("0.9", "0.02", "0.08")))) == []
    finer = parse_policy(edited(rows[0], ("cols = 8", "cols = 64")))
    assert (
        f"blocks of {chosen.block} x {chosen.block} cells in a map of the whole period and of {chosen.slice_block}"
        in advice(finer)[0]
    )


def test_what_a_policy_says_of_shares_or_slices_is_not_chosen_for_it():
    rows = ("rows = 8", "rows = 64"), ("cols = 8", 'cols = 64\nblock = "auto"')
    for policy in (
        parse_policy(edited(*rows, with_shares("0.9", "0.1"))),
        parse_policy(edited(rows[0], (rows[1][0], rows[1][1] + "\nslice_block = 0"))),
        parse_policy(edited(*rows, ('method = "shrink"', 'method = "vqvae"'))),
    ):
        assert policy.grid.block > 1 and policy.grid.slice_block == policy.privacy.shares.map == 0


def test_a_map_of_the_whole_period_is_measured_beside_larger_blocks_and_the_promise_says_so():
    policy = parse_policy(edited(("cols = 8", "cols = 8\nblock = 2\nslice_block = 4"), WITH_MAP_SHARES))
    grid, slices = policy.grid.build(), policy.grid.of_slices()
    assert (grid.rows, slices.rows, policy.grid.coarser) == (4, 2, 2)
    told = " ".join(promise(policy))
    assert "in a single slice, 4 x 4 cells are measured as one" in told
    assert (
        "A map of the whole period on the public grid is measured apart with 0.2: every cell of it gets noise of scale 15" in told
    )
    privacy = policy.privacy
    assert privacy.map_scale == Fraction(3) / (Fraction(privacy.epsilon) * Fraction(1, 5))
    k = Fraction(privacy.max_events_per_user)
    assert k / privacy.histogram_scale + k / privacy.totals_scale + k / privacy.map_scale == Fraction(privacy.epsilon)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("cols = 8", "cols = 8\nblock = 3"), "grid.block must be a divisor of the 8 rows"),
        (("cols = 8", "cols = 8\nblock = 0"), "grid.block must be at least 1"),
        (("cols = 8", 'cols = 8\nblock = "fine"'), "'grid.block' must be a whole number"),
        (("rows = 8\ncols = 8", 'cell_metres = 500\nblock = "auto"'), "needs rows and cols in [grid]"),
        (("cols = 8", "cols = 8\nslice_block = 3"), "grid.slice_block must be 0, or a divisor of the 8 rows"),
        (
            ("cols = 8", "cols = 8\nblock = 4\nslice_block = 4"),
            "grid.slice_block must be 0, or a multiple of grid.block and larger",
        ),
        (("cols = 8", "cols = 8\nslice_block = -2"), "grid.slice_block must be 0, or a multiple"),
        (("cols = 8", "cols = 8\nslice_block = 2"), "privacy.shares.map must be above 0 where grid.slice_block is given"),
        (WITH_MAP_SHARES, "privacy.shares.map must be above 0 where grid.slice_block is given, and only there"),
    ],
)
def test_blocks_that_cannot_be_are_refused(change, words):
    assert words in refusal(edited(change))


def test_a_denoiser_that_knows_no_maps_is_refused_beside_one():
    changes = ("cols = 8", "cols = 8\nslice_block = 2"), WITH_MAP_SHARES, ('method = "shrink"', 'method = "vqvae"')
    assert "denoise.method must be one of none, shrink, bayes" in refusal(edited(*changes))


def test_blocks_leave_at_least_sixteen_along_a_side_and_of_slices_three():
    found = select_measuring(1, 0.001, 1000, (576, 576), 24)
    assert (found.block, found.slice_block) == (32, 192)
    assert select_measuring(1, 0.001, 1000, (16, 1024), 24).block == 1


def test_the_noise_of_cells_totals_and_N_together_costs_exactly_epsilon():
    privacy = parse_policy(edited(("epsilon = 1.0", "epsilon = 0.3"), MEASURED, with_shares("0.83", "0.1", "0.07"))).privacy
    assert privacy.event_count_scale is not None and privacy.max_counted_per_user is not None
    k, cap = Fraction(privacy.max_events_per_user), Fraction(privacy.max_counted_per_user)
    assert k / privacy.histogram_scale + k / privacy.totals_scale + cap / privacy.event_count_scale == Fraction("0.3")


def test_a_mistake_in_the_arguments_ends_with_1(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["policy", "chek", "x.toml"])
    assert ended.value.code == 1
    assert "invalid choice: 'chek'" in capsys.readouterr().err
