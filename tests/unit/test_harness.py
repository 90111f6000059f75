"""The yardstick, checked against itself: a method that knows the truth, closed forms, and what no method may do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from tests.conftest import policy_text

from heathaze.errors import InputError
from heathaze.evaluate import harness, page
from heathaze.evaluate.events import Events, bounded, counts_of, read_events
from heathaze.evaluate.harness import AS_RELEASED, SAMPLING, Row, evaluate
from heathaze.evaluate.meter import Meter, Overspent
from heathaze.evaluate.methods import INFO, MethodInfo
from heathaze.evaluate.synthetic import City, batches
from heathaze.evaluate.workloads import draw_workload, score
from heathaze.policy import Policy, parse_policy
from heathaze.release.forecast import theta
from heathaze.release.sums import prefix_sum
from heathaze.rho import block_sums, select_measuring, spread_evenly

EPSILON = Decimal("0.5")
SHAPE = (8, 48, 48)
K = 3
Method = Callable[[np.ndarray, Meter], np.ndarray]


@pytest.fixture(scope="module")
def policy() -> Policy:
    """An eight-slice day over about 11 x 8 km."""
    return parse_policy(policy_text(slices=SHAPE[0], rows=SHAPE[1], cols=SHAPE[2], k=K))


@pytest.fixture(scope="module")
def seasonal() -> Policy:
    """Four days of eight slices: days repeat."""
    text = policy_text(slices=32, rows=32, cols=32, k=K).replace("days = 1", "days = 4")
    return parse_policy(text)


def city_of(policy: Policy, users: int = 600, days: int = 1) -> Events:
    """The events of a synthetic city in the policy's box, as a file of them would be read."""
    box = {edge: float(getattr(policy.grid, edge)) for edge in ("south", "west", "north", "east")}
    city = City(users=users, first_day=date(2026, 11, 14), days=days, seed=3, **box)
    table = pa.concat_tables(batches(city))
    edges = [edge.timestamp() * 1e6 for edge in policy.period_of("2026-11-14").edges]
    number = np.searchsorted(edges, pc.cast(table["event_time"], "int64").to_numpy(), side="right") - 1
    cell = policy.grid.build().cells_of(table["lat"].to_numpy(), table["lon"].to_numpy())
    user = pc.rank(table["user_id"], tiebreaker="dense").to_numpy()
    return Events(user[cell >= 0], number[cell >= 0], cell[cell >= 0])


@pytest.fixture(scope="module")
def events(policy: Policy) -> Events:
    return city_of(policy)


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Puts a method into the registry for one test."""

    def put(name: str, method: Method, **info: bool) -> str:
        monkeypatch.setitem(INFO, name, MethodInfo(method, "made up", **info))
        return name

    return put


def run(events: Events, policy: Policy, *methods: str, levels: tuple[str, ...] = ("event",), **more: int) -> dict[str, Row]:
    """One seed, by the name of the method."""
    rows = evaluate(events, policy, [EPSILON], methods, seeds=1, levels=levels, queries=more.get("queries", 500))
    return {row.method: row for row in rows}


# The truth, and what is known of noise


def test_a_method_that_knows_the_truth_has_no_error(events, policy, add):
    oracle = add("knows", lambda counts, meter: counts.astype(np.float32), is_oracle=True)
    errors = run(events, policy, oracle)[oracle].errors
    assert len(errors) >= 18
    assert set(errors.values()) == {0.0}


def test_a_forecast_from_the_truth_is_only_as_far_off_as_the_future(seasonal, add):
    events = city_of(seasonal, days=4)
    oracle = add("knows", lambda counts, meter: counts.astype(np.float32), is_oracle=True)
    errors = run(events, seasonal, oracle, "identity")
    exact = errors[oracle].errors
    assert {name for name, value in exact.items() if value} == {"forecasts: sMAPE", "forecasts: absolute"}
    assert errors["identity"].errors["forecasts: off those on the truth"] > 0

    truth = counts_of(events, (32, 32, 32))
    workload = draw_workload(truth, seasonal.grid.build(), 8, 500, 0)
    assert workload.horizon == workload.season == 8
    series = [
        truth[:, low[1] : high[1], low[2] : high[2]].sum((1, 2))
        for low, high in zip(workload.series.low, workload.series.high, strict=True)
    ]
    made = theta(np.array(series)[:, :24], 8, 8).values
    later = np.array(series)[:, 24:]
    assert exact["forecasts: absolute"] == pytest.approx(np.abs(made - later).mean())
    assert exact["forecasts: sMAPE"] == pytest.approx(np.mean(2 * np.abs(made - later) / (np.abs(made) + later)), rel=1e-6)


def mean_absolute_sum(scale: float, draws: int) -> float:
    """E|X1 + ... + Xm| of discrete Laplace noise, from the law itself."""
    reach = int(40 * scale)
    a = np.exp(-1 / scale)
    one = (1 - a) / (1 + a) * a ** np.abs(np.arange(-reach, reach + 1))
    size = 2 * reach * draws + 1
    law = np.fft.irfft(np.fft.rfft(one, size) ** draws, size)
    return float(law @ np.abs(np.arange(size) - reach * draws))


def test_the_closed_form_is_that_of_the_noise_that_is_drawn():
    a = np.exp(-0.5)
    assert mean_absolute_sum(2.0, 1) == pytest.approx(2 * a / (1 - a * a))  # the sum of the series, by hand
    assert mean_absolute_sum(2.0, 100) == pytest.approx((100 * 2 * a / (1 - a) ** 2 * 2 / np.pi) ** 0.5, rel=0.01)  # normal


def test_identity_is_off_by_the_closed_form_on_cells_and_boxes(policy):
    """Small boxes are of one cell here; a second set is of 7 x 7. Boxes overlap, so the mean is over many draws."""
    quiet = Events(np.arange(40), np.arange(40) % 8, np.arange(40) * 57)
    found = {side: [] for side in (1, 7)}
    for seed in range(12):
        truth = counts_of(quiet, SHAPE)
        meter = Meter(Fraction(EPSILON), 1, seed)
        answer = INFO["identity"].method(truth, meter)
        workload = draw_workload(truth, policy.grid.build(), 0, 2_000, seed)
        found[1].append(score(answer, truth, workload)["small anywhere: absolute"])
        assert (workload.boxes["small anywhere"].high - workload.boxes["small anywhere"].low == 1).all()
        low = np.random.default_rng(seed).integers(0, np.array(SHAPE) - [0, 6, 6], (2_000, 3))
        boxes = dataclasses.replace(workload.boxes["small anywhere"], low=low, high=low + np.array([1, 7, 7]))
        found[7].append(score(answer, truth, dataclasses.replace(workload, boxes={"seven": boxes}))["seven: absolute"])
    for side, errors in found.items():
        expected = mean_absolute_sum(2.0, side * side)
        deviation = np.std(errors, ddof=1) / len(errors) ** 0.5
        assert abs(np.mean(errors) - expected) < 4 * deviation < 0.1 * expected
        assert abs(np.mean(errors) - 1.15 * expected) > 4 * deviation  # a scale that is 15 % off would be seen


def test_twice_the_epsilon_is_better(events, policy):
    methods = ("identity", "clipped", "gaussian", "shrink", "ug", "hb", "quadtree", "ahp")
    epsilons = [EPSILON, 2 * EPSILON]
    rows = evaluate(events, policy, epsilons, methods, seeds=4, levels=["event"], queries=500)
    for method in methods:
        for kind in ("cell at records", "middle at records", "middle anywhere"):
            means = [
                np.mean([row.errors[f"{kind}: absolute"] for row in rows if (row.method, row.epsilon) == (method, str(epsilon))])
                for epsilon in epsilons
            ]
            assert means[1] < means[0], (method, kind)


def test_the_same_seeds_give_the_same_errors_to_the_bit(events, policy):
    methods = ("identity", "gaussian", "dawa", "shrink")
    both = [evaluate(events, policy, [EPSILON], methods, 2, ["event", "user"], queries=200) for _ in range(2)]
    assert [dataclasses.replace(row, seconds=0, megabytes=0) for row in both[0]] == [
        dataclasses.replace(row, seconds=0, megabytes=0) for row in both[1]
    ]
    by_seed = {row.seed: row.errors for row in both[0] if (row.level, row.method) == ("event", "identity")}
    assert by_seed[0] != by_seed[1]


def test_all_methods_see_the_same_noisy_draw(events, policy):
    answers: dict[tuple[str, str], np.ndarray] = {}

    def keep(row: Row, answer: np.ndarray) -> None:
        answers[row.level, row.method] = answer

    evaluate(events, policy, [EPSILON], ["identity", "clipped"], 1, ["event", "user"], 50, show=keep)
    for level in ("event", "user"):
        identity, clipped = answers[level, "identity"], answers[level, "clipped"]
        assert (identity < 0).any()
        assert np.array_equal(clipped, np.maximum(identity, 0))
    truth = counts_of(events, SHAPE)
    noise = answers["event", "identity"] - truth
    assert np.array_equal(noise, np.rint(noise)) and abs(noise.std() - (2 * np.exp(-0.5)) ** 0.5 / (1 - np.exp(-0.5))) < 0.1


# What no method may do


@pytest.mark.parametrize("level", ["event", "user"])
def test_a_method_that_overspends_is_refused(events, policy, add, level):
    def twice(counts: np.ndarray, meter: Meter) -> np.ndarray:
        return (meter.laplace(counts, meter.epsilon) + meter.laplace(counts, meter.epsilon / 1000)) / 2

    with pytest.raises(Overspent, match="was given epsilon 1/2"):
        run(events, policy, add("twice", twice), levels=(level,))


@pytest.mark.parametrize("wrong", [lambda counts, meter: counts[:1] * 1.0, lambda counts, meter: counts * np.nan])
def test_an_answer_of_another_shape_or_without_numbers_is_refused(events, policy, add, wrong):
    with pytest.raises(InputError, match="finite numbers"):
        run(events, policy, add("wrong", wrong))


def test_at_user_level_noise_is_for_k_events(events, policy):
    rows = run(events, policy, "identity", levels=("event", "user"), queries=2_000)
    user = next(row for row in rows.values() if row.method == "identity")
    assert user.level == "user"
    truth, sample = counts_of(events, SHAPE), counts_of(bounded(events, K, 0), SHAPE)
    up = truth.sum() / sample.sum()
    expected = up * mean_absolute_sum(K / float(EPSILON), 1)
    assert user.errors_after_sampling["small anywhere: absolute"] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"methods": ["identity", "idenity"]}, "'idenity' is none of them"),
        ({"methods": []}, "none was given"),
        ({"levels": ["person"]}, "levels must be of event, user"),
        ({"epsilons": [Decimal(0)]}, "above 0"),
        ({"epsilons": [Decimal("NaN")]}, "but it is NaN"),
        ({"epsilons": [Decimal("1e-9")]}, "at least 5e-05"),
        ({"epsilons": [Decimal("0.0001")], "levels": ["user"]}, "at least 0.00015"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_the_first_draw(events, policy, change, words):
    arguments = {"epsilons": [EPSILON], "methods": ["identity"], "seeds": 1, "levels": ["event"]} | change
    with pytest.raises(InputError, match=words):
        evaluate(events, policy, **arguments, say=lambda text: pytest.fail(text))


# User level


def test_at_most_k_events_of_a_user_are_kept_and_all_of_those_with_fewer(events):
    kept = bounded(events, K, seed=1)
    users, before = np.unique(events.user, return_counts=True)
    after = dict(zip(*np.unique(kept.user, return_counts=True), strict=True))
    assert before.max() > 10 * K
    assert [after[user] for user in users] == np.minimum(before, K).tolist()
    known = set(zip(events.user, events.slice, events.cell, strict=True))
    assert set(zip(kept.user, kept.slice, kept.cell, strict=True)) <= known


def test_each_event_of_a_heavy_user_is_kept_equally_often():
    heavy = Events(np.r_[np.zeros(20, int), np.ones(2, int)], np.zeros(22, int), np.arange(22))
    draws = 4_000
    often = sum(np.bincount(bounded(heavy, 5, seed).cell, minlength=22) for seed in range(draws))
    assert (often[20:] == draws).all()
    share = 5 / 20
    # Chi-square of 20 counts; sampling without replacement makes it narrower, by 19 / 15 of the binomial variance.
    statistic = float(np.sum((often[:20] - draws * share) ** 2) / (draws * share * (1 - share)) * 19 / 20)
    assert 7 < statistic < 44  # between the 0.5 % and the 99.9 % quantiles of 19 degrees of freedom
    first = sum(np.bincount(np.arange(5), minlength=20) for _ in range(draws))  # keeping the first five would be seen
    assert np.sum((first - draws * share) ** 2) / (draws * share * (1 - share)) > 1e4


def test_an_empty_sample_can_be_bounded():
    nothing = np.zeros(0, dtype=np.int64)
    assert len(bounded(Events(nothing, nothing, nothing), K, 0).user) == 0


def test_errors_at_user_level_are_split_into_those_of_sampling_and_the_rest(events, policy, add):
    sample_knower = add("knows", lambda counts, meter: counts.astype(np.float32), is_oracle=True)
    rows = run(events, policy, sample_knower, "identity", "shrink", levels=("user",))
    sampling, knows = rows[SAMPLING], rows[sample_knower]
    name = "middle at records: absolute"
    assert sampling.errors[name] > 0 and max(sampling.errors_after_sampling.values()) == 0
    # Who knows the sample is left with the error of sampling, whatever it is.
    assert knows.errors[name] == pytest.approx(sampling.errors[name], rel=1e-5)
    assert knows.errors_after_sampling[name] == pytest.approx(0, abs=1e-3)
    for method in ("identity", "shrink"):
        assert rows[method].errors_after_sampling[name] > 0
        # The triangle: neither part can be more than the whole and the other part.
        assert rows[method].errors[name] <= rows[method].errors_after_sampling[name] + sampling.errors[name] + 1e-6
        assert rows[method].errors_after_sampling[name] <= rows[method].errors[name] + sampling.errors[name] + 1e-6
    assert run(events, policy, "identity")["identity"].errors_after_sampling == {}


def test_a_denoiser_is_scaled_like_the_others_and_also_as_a_release_would(events, policy):
    answers: dict[str, np.ndarray] = {}
    evaluate(
        events, policy, [Decimal(20)], ["identity", "shrink"], 1, ["user"], 50,
        show=lambda row, answer: answers.__setitem__(row.method, answer),
    )  # fmt: skip
    assert set(answers) == {SAMPLING, "identity", "shrink", f"shrink{AS_RELEASED}"}
    total = counts_of(events, SHAPE).sum()
    assert answers[SAMPLING].sum() == pytest.approx(total)
    assert answers["shrink"].sum() == pytest.approx(total, rel=0.05)
    ratio = answers[f"shrink{AS_RELEASED}"].sum() / answers["shrink"].sum()
    assert 0 < ratio < 1  # gamma gives way to what is left of the noise and to sampling, so it is below N / n


def test_blocks_are_the_coarser_the_weaker_the_signal_and_divide_the_grid():
    for unit in (1, 20):
        chosen = [select_measuring(n, 1.0, unit, (576, 576), 8) for n in (10**9, 10**6, 10**5, 10**4, 1)]
        sides = [(one.block, one.slice_block) for one in chosen]
        assert sides == sorted(sides) and sides[0] == (1, 0) and sides[-1] == (32, 192)
        assert all(one.histogram + one.totals + one.map == 1 and (one.map > 0) == (one.slice_block > 0) for one in chosen)
        assert all(576 % one.slice_block == one.slice_block % one.block == 0 for one in chosen if one.slice_block)
    odd = select_measuring(1, 1.0, 20, (45, 60), 8)
    assert (odd.block, odd.slice_block) == (1, 0)
    assert select_measuring(10**5, 1.0, 20, (576, 576), 1).slice_block == 0, "one slice is its own map"
    days, hours = (select_measuring(10**6, 0.2, 1, (576, 576), 24, days) for days in (24, 1))
    assert days.slice_block > hours.slice_block > 1, "from day to day places change less than from hour to hour"
    cells = [select_measuring(10**9, 1.0, unit, (576, 576), 8) for unit in (1, 20)]
    assert [str(one.totals) for one in cells] == ["0.01", "0.02"] and all(one.block == 1 and not one.map for one in cells)
    counts = np.random.default_rng(0).integers(0, 9, (2, 12, 8))
    assert (block_sums(counts, 4).sum((1, 2)) == counts.sum((1, 2))).all()
    assert spread_evenly(block_sums(counts, 4), 4)[0, 5, 6] == counts[0, 4:8, 4:8].sum() / 16


# The table


def row_of(method: str, error: float, epsilon: str = "0.5", level: str = "event", seed: int = 0, **more: dict[str, float]) -> Row:
    return Row(level, epsilon, method, seed, 1.0, 2.0, "", {"cell at records: absolute": error}, **more)


def test_the_best_private_method_is_bold_and_nothing_else():
    after = {"errors_after_sampling": {"small at records: absolute": 1.0}}
    rows = [
        row_of(SAMPLING, 0.1, epsilon="", level="user", **after),
        row_of("gaussian_oracle", 0.2, level="user", **after),
        row_of("shrink", 2.0, level="user", **after),
        row_of("identity", 3.0, level="user", **after),
    ]
    first, second = page.tables(rows)
    assert first.title == "user level, epsilon 0.5"
    assert [line[:2] for line in first.lines] == [
        ["sampling alone (not private)", "0.1"],
        ["gaussian_oracle (not private)", "0.2"],
        ["shrink", "**2**"],
        ["identity", "3"],
    ]
    assert "against the sample scaled up" in second.title
    assert [line[0] for line in second.lines] == ["gaussian_oracle (not private)", "shrink", "identity"]
    assert "<b>2</b>" in first.as_html() and first.as_html().count("<b>") == 1


def test_a_table_of_oracles_alone_has_nothing_bold():
    (table,) = page.tables([row_of("gaussian_oracle", 1.0)])
    assert "**" not in table.as_markdown()


def test_the_table_has_mean_and_spread_over_the_seeds():
    rows = [row_of("shrink", 1.0), row_of("shrink", 3.0, seed=1), row_of("identity", 4.0), row_of("identity", 4.0, seed=1)]
    (table,) = page.tables(rows)
    assert [line[1] for line in table.lines] == ["**2 ± 1**", "4 ± 0"]


def test_errors_that_a_seed_does_not_have_are_left_out():
    rows = [row_of("shrink", 1.0), dataclasses.replace(row_of("shrink", 3.0, seed=1), errors={"forecasts: sMAPE": 1.0})]
    assert page.summary(rows)[0]["errors"] == {}
    assert page.tables(rows)[0].head == ["method", "seconds", "MB"]


# Events


def write(path: Path, **columns: list[object]) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def test_events_are_read_as_a_release_reads_them(policy, tmp_path):
    times = [datetime(2026, 11, 14, 23, 59, tzinfo=ZoneInfo("UTC"))] * 5
    times[4] = datetime(2026, 11, 15, tzinfo=ZoneInfo("UTC"))
    file = write(
        tmp_path / "events.parquet",
        user_id=["a", "b", None, "", "a"],
        event_time=times,
        lat=[40.051, 41.0, 40.051, 40.051, 40.051],
        lon=[-73.949] * 5,
    )
    events, period = read_events(file, policy)
    assert period.name == "2026-11-14"
    assert events.slice.tolist() == [7] and events.cell.tolist() == [24 * 48 + 24]
    later, period = read_events(file, policy, date(2026, 11, 15))
    assert period.name == "2026-11-15" and later.slice.tolist() == [0]


def test_csv_and_parquet_are_read_alike(policy, tmp_path):
    table = pa.concat_tables(batches(City(users=40, south=40.0, north=40.1, west=-74.0, east=-73.9)))
    pq.write_table(table, tmp_path / "a.parquet")
    (tmp_path / "folder").mkdir()
    pyarrow.csv.write_csv(table, tmp_path / "folder" / "b.csv")
    found = [counts_of(read_events(str(tmp_path / name), policy)[0], SHAPE) for name in ("a.parquet", "folder")]
    assert found[0].sum() > 100 and np.array_equal(*found)


def test_the_first_day_and_times_without_offset_are_of_the_policy_s_zone(tmp_path):
    local = policy_text().replace('name = "toy"', 'name = "toy"\ntimezone = "America/New_York"')
    place = {"user_id": ["a"], "lat": [40.05], "lon": [-73.95]}
    bare = write(tmp_path / "bare.parquet", event_time=[datetime(2026, 11, 14, 1, 0)], **place)
    zoned = write(tmp_path / "zoned.parquet", event_time=[datetime(2026, 11, 14, 1, 0, tzinfo=ZoneInfo("UTC"))], **place)
    assert read_events(bare, parse_policy(local))[1].name == "2026-11-14"
    assert read_events(zoned, parse_policy(local))[1].name == "2026-11-13"  # eight in the evening there
    assert read_events(zoned, parse_policy(local))[0].slice.tolist() == [3]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"lat": [41.0]}, "none of"),
        ({"event_time": [None]}, "no row has all of them|timestamps"),
        ({"user_id": [None]}, "no row has all of them"),
        ({"event_time": ["yesterday"]}, "must hold timestamps, but it holds string"),
        ({"lat": ["north"]}, "with numbers as latitudes"),
    ],
)
def test_events_that_cannot_be_used_are_refused_in_words(policy, tmp_path, columns, words):
    whole = {"user_id": ["a"], "event_time": [datetime(2026, 11, 14)], "lat": [40.05], "lon": [-73.95]} | columns
    with pytest.raises(InputError, match=words):
        read_events(write(tmp_path / "events.parquet", **whole), policy)


def test_a_delta_table_is_refused_rather_than_read_with_what_was_deleted(policy, tmp_path):
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    with pytest.raises(InputError, match="is a Delta table"):
        read_events(str(tmp_path / "table"), policy)


# Questions


def test_questions_lie_in_the_grid_and_half_of_them_where_people_are(events, policy):
    truth = counts_of(events, SHAPE)
    grid = policy.grid.build()
    cell = (grid.height_metres * grid.width_metres / grid.cells) ** 0.5
    workload = draw_workload(truth, grid, 0, 1_000, 0)
    prefix = prefix_sum(truth)
    for name, boxes in workload.boxes.items():
        assert (boxes.low >= 0).all() and (boxes.high <= SHAPE).all()
        size = boxes.high - boxes.low
        assert (size[:, 0] == 1).all() and (size[:, 1] == size[:, 2]).all()
        if name.endswith("at records"):
            assert (boxes.sums(prefix) >= 1).all()
        if name.startswith("middle"):
            assert (size[:, 1] * cell >= 300).all() and ((size[:, 1] - 1) * cell <= 2_000).all()
    assert (workload.boxes["middle anywhere"].sums(prefix) == 0).any()


def test_a_box_is_asked_for_its_own_cells(events, policy):
    truth = counts_of(events, SHAPE)
    boxes = draw_workload(truth, policy.grid.build(), 0, 50, 0).boxes["large at records"]
    slow = [truth[a:d, b:e, c:f].sum() for (a, b, c), (d, e, f) in zip(boxes.low, boxes.high, strict=True)]
    assert boxes.sums(prefix_sum(truth)).tolist() == slow


def test_hotspots_are_told_by_distance_and_by_what_they_fall_short():
    truth = np.zeros((2, 60, 60), dtype=np.int64)
    truth[0, 30, 30] = 50
    policy = parse_policy(policy_text(slices=2, rows=60, cols=60))
    workload = draw_workload(truth, policy.grid.build(), 0, 10, 0)
    moved = np.zeros(truth.shape)
    moved[0, 30, 34] = 50
    height, width = workload.metres
    here = (workload.points - [30.5, 30.5]) * [height, width]
    there = (workload.points - [30.5, 34.5]) * [height, width]
    off = np.abs(np.hypot(*there.T) - np.hypot(*here.T)).mean()
    errors = score(moved, truth, workload)
    assert errors["hotspots: distance, metres"] == pytest.approx(off)
    assert errors["hotspots: regret"] == 20  # nobody is there
    nothing = score(np.zeros(truth.shape), truth, workload)
    assert nothing["hotspots: regret"] == 0
    assert nothing["hotspots: distance, metres"] == pytest.approx(2_500 * 2**0.5 - np.hypot(*here.T).mean())


def test_every_method_of_the_registry_can_be_asked_for(policy):
    assert set(INFO) | {"vqvae", "bayes", "bayes_blocks"} == set(harness.available(policy))
