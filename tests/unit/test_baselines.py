"""The classical baselines: what each may look at, what it spends, and the answers that need no thought."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations, pairwise
from math import exp, log

import numpy as np
import pytest

from heathaze.evaluate.baselines import mwem, privbayes, smoothers, stholes
from heathaze.evaluate.baselines.dawa import hilbert_order
from heathaze.evaluate.baselines.hierarchy import best_fan
from heathaze.evaluate.baselines.parts import block_sums, spread_blocks
from heathaze.evaluate.baselines.privtree import BETA, SENSITIVITY
from heathaze.evaluate.baselines.tree import coarsen, consistent, pyramid, refine
from heathaze.evaluate.meter import Meter, Overspent
from heathaze.evaluate.methods import INFO, METHODS
from heathaze.learn.denoiser import noise_variance

NAMES = ["zero", "identity", "clipped", "block", "block_oracle", "gaussian", "gaussian_oracle", "ug", "ag", "hb", "hb3d"]
NAMES += ["quadtree", "dawa", "ahp", "mwem", "privbayes", "privtree", "dpcube", "stholes", "pgm", "shrink"]
LOOKING = [name for name in NAMES if name != "zero"]
PRIVATE = [name for name in NAMES if not INFO[name].is_oracle]
EPSILON, HUGE = Fraction(1, 2), Fraction(10**7)


@pytest.fixture(autouse=True)
def short_mwem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer boxes and rounds: the same method in less time."""
    for constant, value in {"BOXES": 500, "ROUNDS": 15, "SWEEPS": 5}.items():
        monkeypatch.setattr(mwem, constant, value)


def towns(seed: int, shape: tuple[int, int, int] = (2, 64, 64), events: int = 20_000, width: float = 1.5) -> np.ndarray:
    """Most events in a few small towns, most cells empty."""
    random = np.random.default_rng(seed)
    centre = random.uniform(0.1, 0.9, (12, 2)) * shape[1:]
    weight = random.pareto(1.2, 12) + 0.2
    town = random.choice(12, events, p=weight / weight.sum())
    place = np.clip(random.normal(centre[town], width), 0, np.array(shape[1:]) - 1).astype(int)
    counts = np.zeros(shape, dtype=np.int64)
    np.add.at(counts, (random.integers(0, shape[0], events), place[:, 0], place[:, 1]), 1)
    return counts


def run(name: str, counts: np.ndarray, epsilon: Fraction = EPSILON, unit: int = 1, seed: int = 0) -> np.ndarray:
    return METHODS[name](counts, Meter(epsilon, unit, seed))


def box_error(estimate: np.ndarray, counts: np.ndarray, side: int) -> float:
    """Mean absolute error of all square boxes of this side, over all slices."""
    error = np.pad((estimate - counts).astype(float), [(0, 0), (1, 0), (1, 0)]).cumsum(1).cumsum(2)
    boxes = error[:, side:, side:] - error[:, :-side, side:] - error[:, side:, :-side] + error[:, :-side, :-side]
    return float(np.abs(boxes).mean())


def test_the_registry_has_every_method_and_says_what_it_is():
    assert set(METHODS) == set(INFO) == set(NAMES)
    assert {name for name in NAMES if INFO[name].is_oracle} == {"block_oracle", "gaussian_oracle"}
    assert {name for name in NAMES if INFO[name].runs_at} == {"mwem", "privbayes"}
    assert all(INFO[name].reference and METHODS[name].__doc__ for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 7, 5), (3, 1, 11), (5, 33, 18)])
def test_every_shape_gives_a_finite_estimate_for_exactly_its_epsilon(name, shape):
    for counts in (np.zeros(shape, dtype=np.int64), np.random.default_rng(1).poisson(3, shape)):
        before = counts.copy()
        meter = Meter(Fraction(3, 7), 2, 5)
        estimate = METHODS[name](counts, meter)
        assert estimate.shape == shape and estimate.dtype == np.float32 and np.isfinite(estimate).all()
        assert meter.spent == (0 if name == "zero" else Fraction(3, 7))
        assert np.array_equal(counts, before)


@pytest.mark.parametrize("name", LOOKING)
def test_a_second_look_with_the_same_budget_is_refused(name):
    meter = Meter(EPSILON, 1, 0)
    METHODS[name](towns(1, (1, 20, 20), 300), meter)
    with pytest.raises(Overspent):
        METHODS[name](towns(1, (1, 20, 20), 300), meter)


@pytest.mark.parametrize("name", LOOKING)
def test_the_seed_decides_everything(name):
    counts = towns(2, (2, 24, 24), 2000)
    assert np.array_equal(run(name, counts, seed=3), run(name, counts, seed=3))
    assert not np.array_equal(run(name, counts, seed=3), run(name, counts, seed=4))


@pytest.mark.parametrize("name", LOOKING)
def test_k_events_of_a_user_cost_k_times_the_epsilon_of_one(name):
    counts = towns(3, (2, 24, 24), 3000)
    assert np.array_equal(run(name, counts, EPSILON, unit=1), run(name, counts, 6 * EPSILON, unit=6))


class Replay(Meter):
    """Writes down what a method asks; answers with what an earlier run was told, where there is one."""

    def __init__(self, epsilon: Fraction, seed: int, told: list | None = None):
        super().__init__(epsilon, 1, seed)
        self.asked: list[tuple[np.ndarray, float, str]] = []
        self.answers: list = []
        self.told = told

    def _hear(self, values: np.ndarray, sensitivity: int | Fraction, how: str, answer: object) -> object:
        self.asked.append((values.astype(float), float(sensitivity), how))
        if self.told is not None:
            answer = self.told[len(self.answers)]
        self.answers.append(answer)
        # A method may work in place on what it is told.
        return answer.copy() if isinstance(answer, np.ndarray) else answer

    def laplace(self, values, epsilon, sensitivity=1):
        return self._hear(values, sensitivity, "laplace", super().laplace(values, epsilon, sensitivity))

    def choose(self, scores, epsilon, sensitivity=1):
        return self._hear(scores, sensitivity, "choose", super().choose(scores, epsilon, sensitivity))


def neighbours(seed: int, shape: tuple[int, int, int] = (2, 21, 18)) -> tuple[np.ndarray, np.ndarray]:
    """Two data sets of which one has an event more."""
    random = np.random.default_rng(seed)
    counts = random.poisson(random.pareto(1.0, shape) * (random.random(shape) < 0.1))
    more = counts.copy()
    more[tuple(random.integers(0, shape))] += 1
    return counts, more


def replayed(name: str, counts: np.ndarray, other: np.ndarray, seed: int) -> tuple[Replay, Replay, np.ndarray, np.ndarray]:
    """A run on one data set, and one on the other that is told the same."""
    first = Replay(EPSILON, seed)
    estimate = METHODS[name](counts, first)
    second = Replay(EPSILON, seed, first.answers)
    return first, second, estimate, METHODS[name](other, second)


@pytest.mark.parametrize("name", PRIVATE)
def test_an_estimate_depends_on_the_counts_through_the_meter_only(name):
    counts = towns(4, (2, 21, 18), 4000)
    _, _, estimate, same = replayed(name, counts, np.zeros_like(counts), 1)
    assert np.array_equal(estimate, same)


@pytest.mark.parametrize("name", ["block_oracle", "gaussian_oracle"])
def test_an_oracle_is_caught_looking_past_the_meter(name):
    counts = towns(4, (2, 21, 18), 4000)
    _, _, estimate, other = replayed(name, counts, np.ones_like(counts), 1)
    assert not np.array_equal(estimate, other)


@pytest.mark.parametrize("name", [name for name in PRIVATE if name != "privtree"])
def test_one_event_moves_every_answer_by_no_more_than_the_sensitivity_that_is_charged(name):
    """privtree's theorem is about the decisions on a path, not about the values: it has a test of its own."""
    for seed in range(4):
        first, second, _, _ = replayed(name, *neighbours(seed), seed)
        assert len(first.asked) == len(second.asked)
        for (one, sensitivity, how), (other, same, _) in zip(first.asked, second.asked, strict=True):
            # Scores are bounded one by one, values in sum.
            moved = np.abs(one - other).max() if how == "choose" else np.abs(one - other).sum()
            assert moved <= sensitivity * (1 + 1e-5) and sensitivity == same


def test_the_score_of_an_edge_moves_by_more_than_one_and_no_more_than_two():
    random = np.random.default_rng(17)
    moved = []
    for _ in range(400):
        pair = random.poisson(random.pareto(0.7), (1, *random.integers(2, 12, 2))) * (random.random() < 0.9)
        pair[0, 0] = random.poisson(random.pareto(0.7), pair.shape[2])
        more = pair.copy()
        more[0, random.integers(2), random.integers(2)] += 1
        moved.append(abs(privbayes._dependence(more, (1, 2)) - privbayes._dependence(pair, (1, 2))))
    assert 1 < max(moved) <= privbayes.SENSITIVITY == 2


@pytest.mark.parametrize(("events", "choices", "measured"), [(200, 0, 3), (60_000, 2, 2), (6_000_000, 0, 1)])
def test_privbayes_takes_the_degree_that_its_events_allow(events, choices, measured):
    meter = Replay(EPSILON, 2)
    METHODS["privbayes"](towns(18, (8, 40, 40), 200) * (events // 200), meter)
    assert [how for _, _, how in meter.asked] == ["laplace"] + ["choose"] * choices + ["laplace"] * measured


def test_the_check_of_sensitivity_sees_a_value_that_moves_too_far():
    counts, more = neighbours(0)
    first, second = Replay(EPSILON, 0), Replay(EPSILON, 0)
    first.laplace(2 * counts, EPSILON)
    second.laplace(2 * more, EPSILON)
    assert np.abs(first.asked[0][0] - second.asked[0][0]).sum() > first.asked[0][1]


@pytest.mark.parametrize("scale_of_noise", [1.0, 0.4])
def test_the_splits_of_privtree_on_a_path_leak_at_most_their_epsilon(scale_of_noise):
    """The log-ratio of "all nodes of a path split" for counts c and c + 1 is below epsilon; with too little noise it is not."""
    epsilon = 0.3
    scale = scale_of_noise * float(SENSITIVITY) / epsilon
    delta = scale * log(BETA)

    def log_split(count: np.ndarray, depth: np.ndarray) -> np.ndarray:
        biased = np.maximum(count - depth * delta, -delta)
        return np.log(np.where(biased > 0, 1 - np.exp(-np.abs(biased) / scale) / 2, np.exp(-np.abs(biased) / scale) / 2))

    depth = np.arange(60)
    count = np.arange(0, 3000)[:, None]
    worst = (log_split(count + 1, depth) - log_split(count, depth)).cumsum(1).max()
    assert (worst <= epsilon) == (scale_of_noise == 1.0)


LOSSLESS = [name for name in LOOKING if name not in ("mwem", "stholes", "shrink")]
"""With epsilon without end these cut down to the cells (pgm up to 32, privbayes up to 64 blocks per side)."""


@pytest.mark.parametrize("name", LOSSLESS)
def test_without_noise_the_truth_comes_back(name):
    counts = towns(5, (3, 30, 23), 3000)
    assert np.allclose(run(name, counts, HUGE), counts, atol=2e-3)


@pytest.mark.parametrize("name", ["privbayes", "pgm"])
def test_without_noise_a_coarse_method_returns_the_means_of_its_blocks(name):
    counts = towns(6, (2, 130, 70), 30_000)
    estimate = run(name, counts, HUGE)
    most = privbayes.MOST if name == "privbayes" else (2, 32, 32)
    assert np.allclose(block_sums(estimate, most), block_sums(counts, most), rtol=1e-3, atol=1e-2)
    if name == "privbayes":
        assert np.allclose(estimate, spread_blocks(block_sums(counts, most), counts.shape), rtol=1e-3, atol=1e-3)


def test_pgm_without_noise_finds_a_product_of_rows_and_columns():
    counts = np.outer(np.arange(1, 71), np.arange(80) % 7 + 1)[None]
    assert np.allclose(run("pgm", counts, HUGE), counts, rtol=1e-3)


def test_stholes_without_noise_returns_the_means_of_its_regions():
    counts = np.random.default_rng(7).integers(0, 1000, (1, 50, 40))
    estimate = run("stholes", counts, HUGE)
    regions, label = np.unique(estimate, return_inverse=True)
    means = np.bincount(label.ravel(), counts.ravel()) / np.bincount(label.ravel())
    assert 50 < len(regions) < counts.size and np.allclose(means, regions, rtol=1e-4)


def test_holes_lie_within_their_buckets_and_apart_from_each_other():
    root = stholes._Bucket((0, 0, 50, 40))
    for query in stholes._workload(50, 40, Meter(EPSILON, 1, 4)):
        stholes._drill(root, query)
    labels = np.zeros((50, 40), dtype=np.int64)
    stholes._paint(root, labels, 0)
    buckets = [root]
    for number, bucket in enumerate(buckets):
        boxes = [hole.box for hole in bucket.holes]
        assert all(stholes._overlap(bucket.box, box) == box for box in boxes)
        assert all(stholes._is_empty(stholes._overlap(*two)) for two in combinations(boxes, 2))
        buckets[number + 1 : number + 1] = bucket.holes
        assert (labels == number).sum() == stholes._area(bucket.box) - sum(map(stholes._area, boxes))
    assert len(buckets) > 50 and any(bucket.holes for bucket in root.holes)


def test_mwem_without_noise_is_far_closer_than_an_even_spread():
    counts = towns(8, (1, 16, 16), 5000)
    even = np.full(counts.shape, counts.mean())
    assert np.abs(run("mwem", counts, HUGE) - counts).sum() < 0.5 * np.abs(even - counts).sum()


@pytest.mark.parametrize(("unit", "epsilon"), [(1, Fraction(1, 5)), (4, Fraction(2))])
def test_the_error_of_identity_is_that_of_the_law(unit, epsilon):
    counts = towns(9, (4, 128, 128))
    error = np.abs(run("identity", counts, epsilon, unit) - counts)
    a = exp(-float(epsilon) / unit)
    expected = 2 * a / (1 - a * a)
    assert abs(error.mean() - expected) < 5 * error.std() / np.sqrt(error.size)
    assert (np.abs(run("clipped", counts, epsilon, unit) - counts) <= error).all()


@pytest.mark.parametrize(("name", "constant", "one"), [("block", "SIDES", 1), ("gaussian", "WIDTHS", 0.0)])
def test_smoothers_work_on_the_draw_of_identity(name, constant, one, monkeypatch):
    monkeypatch.setattr(smoothers, constant, (one,))
    counts = towns(10, (2, 20, 20), 500)
    assert np.array_equal(run(name, counts), run("identity", counts))


@pytest.mark.parametrize(
    ("smooth", "trace", "width"),
    [(smoothers._block_means, smoothers._block_trace, 3), (smoothers._gaussian_filter, smoothers._gaussian_trace, 1.4)],
)
def test_the_estimated_risk_is_the_squared_error_on_average(smooth, trace, width):
    counts = towns(11, (1, 40, 37), 4000)
    noise = noise_variance(1 / EPSILON)
    estimated, real = [], []
    for seed in range(150):
        noisy = run("identity", counts, seed=seed)
        smoothed = smooth(noisy, width)
        estimated.append(((smoothed - noisy) ** 2).sum() + 2 * noise * trace(counts.shape, width) - noise * counts.size)
        real.append(((smoothed - counts) ** 2).sum())
    gap = np.array(estimated) - real
    assert abs(gap.mean()) < 4 * gap.std() / np.sqrt(len(gap))
    assert 2 * noise * trace(counts.shape, width) > 10 * gap.std() / np.sqrt(len(gap)), "the test could not see a wrong trace"


@pytest.mark.parametrize("name", ["block", "gaussian"])
def test_smoothers_smooth_what_is_smooth_and_leave_what_is_not(name):
    smooth = np.full((2, 60, 60), 8)
    assert np.abs(run(name, smooth) - smooth).mean() < 0.1 * np.abs(run("identity", smooth) - smooth).mean()
    rough = np.random.default_rng(12).integers(0, 2, (2, 60, 60)) * 1000
    assert np.array_equal(run(name, rough), run("identity", rough))


@pytest.mark.parametrize("name", ["block", "gaussian"])
def test_an_oracle_is_at_least_as_good_at_records_as_the_honest_width(name):
    counts = towns(13)
    honest, oracle = (np.abs(run(kind, counts) - counts) * counts for kind in (name, f"{name}_oracle"))
    assert oracle.sum() <= honest.sum()


def dense_least_squares(measured: list[np.ndarray], variances: list[float], fan: tuple[int, ...]) -> np.ndarray:
    """The consistent cells by a matrix with a row per node: slow, and without a thought about trees."""
    shape = measured[0].shape
    cells = np.eye(int(np.prod(shape))).reshape(-1, *shape)
    rows, values = [], []
    for level, variance in zip(measured, variances, strict=True):
        rows.append(cells.reshape(len(cells), -1).T / np.sqrt(variance))
        values.append(level.ravel() / np.sqrt(variance))
        cells = coarsen(cells, (1, *fan))
    return np.linalg.lstsq(np.concatenate(rows), np.concatenate(values), rcond=None)[0].reshape(shape)


@pytest.mark.parametrize(
    ("shape", "fan", "keep"),
    [
        ((2, 4, 4), (1, 2, 2), 3),
        ((2, 7, 5), (1, 2, 2), 4),
        ((2, 7, 5), (1, 3, 3), 2),
        ((5, 6, 4), (2, 2, 2), 3),
        ((1, 1, 9), (1, 4, 4), 3),
    ],
)
def test_consistency_is_least_squares_over_the_tree(shape, fan, keep):
    random = np.random.default_rng(14)
    measured = pyramid(random.poisson(5, shape), fan)[:keep]
    measured = [level + random.laplace(0, 3, level.shape) for level in measured]
    variances = [float(v) for v in random.uniform(0.5, 4, keep)]
    found = consistent(measured, variances, fan)
    assert np.allclose(found, dense_least_squares(measured, variances, fan), atol=1e-6)
    assert not np.allclose(coarsen(found, fan), coarsen(measured[0], fan)), "the level above had no say"


def test_children_add_up_to_parents_and_parents_come_back_at_children():
    cells = np.random.default_rng(15).integers(0, 9, (2, 7, 11))
    levels = pyramid(cells, (1, 2, 2))
    assert [level.shape for level in levels] == [(2, 7, 11), (2, 4, 6), (2, 2, 3), (2, 1, 2), (2, 1, 1)]
    assert np.array_equal(levels[-1].ravel(), cells.sum((1, 2)))
    for below, above in pairwise(levels):
        assert np.array_equal(coarsen(refine(above, (1, 2, 2), below.shape) * below, (1, 2, 2)), above**2)


def test_both_levels_of_the_adaptive_grid_add_up_to_one():
    """On an empty map no block is cut again, both levels have the same variance, and their mean is the answer."""
    meter = Replay(EPSILON, 3)
    estimate = METHODS["ag"](np.zeros((1, 20, 20), dtype=np.int64), meter)
    _, coarse, fine = meter.answers
    assert len(coarse) == len(fine) == 100
    assert np.allclose(block_sums(estimate, (1, 10, 10)).ravel(), (coarse + fine) / 2, atol=1e-4)


def test_the_fan_of_hb_weighs_siblings_against_levels():
    assert {side: best_fan(side) for side in (1, 2, 64, 576)} == {1: 2, 2: 2, 64: 8, 576: 5}


def test_the_hilbert_curve_takes_steps_of_one_cell():
    order = hilbert_order(16, 16)
    row, col = np.divmod(order, 16)
    assert (np.abs(np.diff(row)) + np.abs(np.diff(col)) == 1).all()
    assert np.array_equal(np.sort(hilbert_order(5, 9)), np.arange(45))


@pytest.mark.parametrize("name", ["ug", "ag", "hb", "quadtree", "dawa", "ahp", "privtree"])
def test_on_a_skewed_map_large_boxes_are_better_than_with_noise_on_every_cell(name):
    counts = towns(16, (6, 128, 128), 120_000, width=0.4)
    ours, identity = (
        np.mean([box_error(run(method, counts, Fraction(1, 20), seed=seed), counts, 90) for seed in range(3)])
        for method in (name, "identity")
    )
    assert ours < 0.9 * identity


@pytest.mark.parametrize("name", LOOKING)
def test_twice_the_epsilon_gives_a_smaller_error(name):
    def error(epsilon: Fraction) -> float:
        return float(np.mean([box_error(run(name, towns(s), epsilon, seed=s), towns(s), 4) for s in range(6)]))

    assert error(Fraction(1, 5)) < error(Fraction(1, 10))
