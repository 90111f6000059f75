"""bayes: blind to the bit, better than what it replaces, for any shape and noise, and the better the more nights it has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from tests.conftest import policy_text

from heathaze.evaluate.learned import learned_methods
from heathaze.evaluate.meter import Meter
from heathaze.learn.bayes import Context, ContextNet, Earlier, Evidence, Lesson, lessons, turns
from heathaze.learn.bayes_training import BayesLearner, Estimate, estimate, fit
from heathaze.learn.denoiser import discrete_laplace, noise_variance
from heathaze.learn.distributed import alone
from heathaze.learn.shrink import shrink
from heathaze.learn.training import Trained, TrainSettings
from heathaze.learn.tree import settle
from heathaze.policy import BayesSettings, parse_policy
from heathaze.rho import block_sums, select_measuring, spread_evenly

SCALE = Fraction(5)
SMALL = BayesSettings(rates=24, hidden=32, cells=120_000, batch=4_096, epochs=6)
BRIEF = TrainSettings(epochs=6, steps_per_epoch=30, learning_rate=0.003, seed=0, patience=6)


def city(slices: int, rows: int, cols: int, seed: int = 0) -> np.ndarray:
    """Rates of a city of streets and squares whose hours differ."""
    random = np.random.default_rng(seed)
    heat = np.full((rows, cols), 0.02)
    heat[:: max(4, rows // 12)] += 2.0
    heat[:, :: max(4, cols // 10)] += 1.0
    heat[random.integers(0, rows, 40), random.integers(0, cols, 40)] += random.pareto(1.2, 40) * 8
    return np.minimum(heat, 300)[None] * random.uniform(0.5, 1.5, slices)[:, None, None]


def noised(counts: np.ndarray, seed: int, scale: Fraction = SCALE) -> np.ndarray:
    return (counts + discrete_laplace(np.random.default_rng(seed), float(scale), counts.shape)).astype(np.int32)


def denoised(noisy: np.ndarray, scale: Fraction = SCALE, earlier: list[Earlier] | None = None) -> Estimate:
    context = Context(noisy, scale, earlier or [])
    learner = BayesLearner(context, noisy, scale, SMALL, alone(), seed=1)
    with TemporaryDirectory() as work:
        learner.model.load_state_dict(fit(alone(), learner, BRIEF, Path(work)).weights)
    return estimate(learner.model, context, noisy, scale)


@pytest.mark.parametrize("col", [11, 12])  # one of each colour of a chessboard
@pytest.mark.parametrize("by", [12_345, 3_000_000])
def test_the_prior_of_a_cell_does_not_depend_on_the_cell_to_the_bit(col: int, by: int) -> None:
    random = np.random.default_rng(3)
    tonight, before = (random.integers(-20, 40, (15, 40, 37)) for _ in range(2))
    earlier = [Earlier(before, age) for age in (1, 7)]
    changed = tonight.copy()
    changed[4, 20, col] += by
    contexts = [Context(night, SCALE, earlier, season=5) for night in (tonight, changed)]
    network = ContextNet(len(contexts[0].names), np.array([0.0, 1.0, 10.0]), 16, contexts[0].sources)
    first, second = (network(context.features(4)) for context in contexts)
    cell = 20 * 37 + col
    assert torch.equal(first[cell], second[cell])
    assert not torch.equal(first[cell + 1], second[cell + 1]), "a neighbour must see it"
    assert not torch.equal(network(contexts[0].features(5))[cell], network(contexts[1].features(5))[cell])
    assert contexts[0].heat(4)[cell] == contexts[1].heat(4)[cell], "cells are drawn for training by a heat that is blind too"


@pytest.mark.parametrize(
    "number, turned",
    [
        (1, lambda tensor: tensor.transpose(0, 2, 1)),
        (2, lambda tensor: tensor[:, :, ::-1]),
        (3, lambda tensor: np.rot90(tensor, axes=(1, 2))),
    ],
)
def test_a_city_seen_from_another_side_is_the_same_features_in_another_order(
    number: int, turned: Callable[[np.ndarray], np.ndarray]
) -> None:
    random = np.random.default_rng(3)
    tonight, before = (random.integers(-20, 40, (15, 41, 37)) for _ in range(2))
    here, there = (
        Context(np.ascontiguousarray(way(tonight)), SCALE, [Earlier(np.ascontiguousarray(way(before)), 7)], season=5)
        for way in (lambda tensor: tensor, turned)
    )
    expected = here.features(4)[turns(here.names)[number]].reshape(-1, 41, 37).numpy()
    found = there.features(4).numpy()
    assert np.allclose(turned(expected).reshape(len(found), -1), found, atol=1e-3)
    assert not np.allclose(turned(here.features(4).reshape(-1, 41, 37).numpy()).reshape(len(found), -1), found, atol=1e-3)


@pytest.mark.parametrize("scale", [Fraction(1), Fraction(5), Fraction(1000)])
def test_evidence_is_even_under_noise_alone_in_whole_numbers_and_without_limit_of_values(scale: Fraction) -> None:
    evidence = Evidence.of(scale)
    noise = discrete_laplace(np.random.default_rng(0), float(scale), (4, 100_000)).astype(np.int32)
    found = evidence(noise)
    assert abs(found.mean()) < 4 * (evidence.variance / found.size) ** 0.5 + 0.5
    assert found.var() == pytest.approx(evidence.variance, rel=0.02)
    assert np.array_equal(found, np.rint(found)) and np.all(np.diff(evidence.table) >= 0)
    far = np.array([[-(2**31), 2**31 - 1]], dtype=np.int32)
    assert np.array_equal(evidence(far)[0], evidence.table[[0, -1]])


def test_evidence_tells_a_faint_place_from_nothing_better_than_the_mean_does() -> None:
    random = np.random.default_rng(7)
    faint, nothing = (random.poisson(rate, (24, 60_000)) for rate in (1.5, 0.0))
    noisy = [noised(counts, seed) for seed, counts in enumerate((faint, nothing))]

    def apart(reading: Callable[[np.ndarray], np.ndarray]) -> float:
        """Between the means over 24 slices of both, in standard deviations."""
        means = [reading(values).mean(0) for values in noisy]
        return float((means[0].mean() - means[1].mean()) / means[1].std())

    assert apart(Evidence.of(SCALE)) > 1.2 * apart(lambda values: values)


def test_what_is_too_much_in_the_cold_is_not_taken_from_the_crowds() -> None:
    random = np.random.default_rng(0)
    rates = city(6, 128, 128)
    truth = random.poisson(rates)
    noisy, variance = noised(truth, 1), noise_variance(SCALE)
    weight = rates / (rates + variance)
    mean = np.where(rates < 0.1, rates + 0.3, rates) + weight * (noisy - rates)
    settled, _ = settle(mean, weight * variance, noisy, variance)
    total, crowds = truth.sum(), rates > 20
    assert abs(settled.sum() - total) < 0.35 * abs(mean.sum() - total)
    assert abs(settled[crowds].sum() - mean[crowds].sum()) < 0.02 * mean[crowds].sum()


def test_it_beats_the_noise_and_shrinkage_in_cells_and_in_boxes() -> None:
    truth = np.random.default_rng(1).poisson(city(10, 96, 96))
    noisy = noised(truth, 5)
    found, classical = denoised(noisy), shrink(noisy, [], SCALE).values
    records = truth.ravel().repeat(truth.ravel()), np.repeat(np.arange(truth.size), truth.ravel())

    def at_records(answer: np.ndarray) -> float:
        return float(np.abs(answer.ravel()[records[1]] - records[0]).mean())

    assert at_records(found.settled) < 0.95 * at_records(classical)
    assert at_records(found.mean) < at_records(found.prior), "the cell's own value must help"
    ours, plain = (np.abs((answer - truth).reshape(10, 12, 8, 12, 8).sum((2, 4))).mean() for answer in (found.settled, noisy))
    assert ours < 0.8 * plain


def test_the_stated_deviation_is_of_the_size_of_the_error() -> None:
    truth = np.random.default_rng(1).poisson(city(10, 96, 96))
    found = denoised(noised(truth, 5))
    for low, high in ((0.0, 1.0), (1.0, 20.0), (20.0, 50.0)):
        chosen = (found.variance > low) & (found.variance <= high)
        ratio = float(np.mean((found.mean - truth)[chosen] ** 2) / np.mean(found.variance[chosen]))
        assert 0.5 < ratio < 2.0, (low, ratio)


@pytest.mark.parametrize(
    ("shape", "scale"),
    [
        ((1, 64, 64), Fraction(1)),
        ((1, 48, 64), Fraction(1000)),
        ((5, 33, 47), Fraction(50)),
        ((40, 16, 16), Fraction(5, 2)),
        ((200, 24, 24), Fraction(20)),
        ((1, 1024, 1024), Fraction(100)),
    ],
)
def test_any_shape_and_noise_give_finite_values(shape: tuple[int, int, int], scale: Fraction) -> None:
    noisy = noised(np.random.default_rng(0).poisson(city(*shape)), 1, scale)
    found = denoised(noisy, scale)
    assert found.settled.shape == shape
    assert np.isfinite(found.settled).all() and np.isfinite(found.variance).all() and (found.variance >= 0).all()


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_an_empty_map_stays_nearly_empty(seed: int) -> None:
    noisy = noised(np.zeros((8, 64, 64), dtype=int), seed)
    found = denoised(noisy)
    assert np.sqrt(np.mean(found.settled**2)) < 0.12 * noise_variance(SCALE) ** 0.5


def test_earlier_nights_make_tonight_better_and_an_event_is_not_dragged_back() -> None:
    rates = city(4, 64, 64, seed=4)
    random = np.random.default_rng(8)
    earlier = [Earlier(noised(random.poisson(rates), 20 + age), age) for age in range(1, 9)]
    tonight = rates.copy()
    tonight[:, 30:33, 30:33] = 60.0  # something happens where nothing ever was
    truth = random.poisson(tonight)
    noisy = noised(truth, 9)
    without, with_history = denoised(noisy), denoised(noisy, earlier=earlier)
    errors = [np.abs(found.settled - truth).mean() for found in (without, with_history)]
    assert errors[1] < 0.9 * errors[0]
    event = with_history.settled[:, 30:33, 30:33].mean() / truth[:, 30:33, 30:33].mean()
    assert event > 0.85, event


def test_settled_sums_are_no_worse_than_the_estimate_or_the_noisy_sum() -> None:
    random = np.random.default_rng(0)
    truth = random.poisson(city(6, 128, 128))
    noisy, variance = noised(truth, 1), noise_variance(SCALE)
    for bias in (0.0, 0.5):  # a prior that is right, and one that is too high everywhere
        prior = city(6, 128, 128) + bias
        weight = prior / (prior + variance)
        mean = prior + weight * (noisy - prior)
        settled, _ = settle(mean, weight * variance, noisy, variance)
        for side in (16, 64, 128):
            off = [
                np.abs(x.reshape(6, 128 // side, side, 128 // side, side).sum((2, 4))).mean()
                for x in (settled - truth, mean - truth, noisy - truth)
            ]
            assert off[0] <= 1.05 * min(off[1:]), (bias, side, off)
            assert not bias or off[0] < 0.5 * off[1], (bias, side, off)


def test_blocks_chosen_from_public_numbers_beat_cells_where_noise_drowns_them() -> None:
    policy = parse_policy(policy_text(slices=4, rows=48, cols=48, k=1))
    settings = replace(policy.denoise, bayes=BayesSettings(rates=24, hidden=16, cells=40_000, batch=4_096, epochs=6))
    policy = replace(policy, denoise=settings)
    truth = np.random.default_rng(5).poisson(city(4, 48, 48) / 20)
    answers = {
        name: [learned_methods(policy)[name](truth, Meter(Fraction(1, 20), 1, seed)) for seed in range(4)]
        for name in ("bayes", "bayes_blocks")
    }
    side = select_measuring(1000, 0.05, 1, (48, 48), 4).block
    assert side > 1
    blocks = answers["bayes_blocks"][0]
    assert np.allclose(blocks, spread_evenly(block_sums(blocks, side), side), atol=1e-4)
    errors = {name: np.mean([np.abs(block_sums(one - truth, 16)) for one in drawn]) for name, drawn in answers.items()}
    assert errors["bayes_blocks"] < errors["bayes"]


def test_earlier_nights_that_tell_the_same_as_tonight_are_learned_from_with_the_others_around_them() -> None:
    random = np.random.default_rng(4)
    tonight, *before = (random.integers(-9, 30, (4, 24, 24)).astype(np.int32) for _ in range(9))
    earlier = [Earlier(night, age) for age, night in enumerate(before, 1)]  # 8 nights: one of them a week ago
    context = Context(tonight, SCALE, earlier)
    taught = lessons(tonight, SCALE, earlier, 0, context.sources)
    # Of nine nights in a row, the first two and the last two have one a week away; tonight is one of these.
    assert [int(np.flatnonzero([lesson.noisy is night for night in before])[0]) + 1 for lesson in taught] == [1, 7, 8]
    assert all(lesson.context().names == context.names for lesson in taught)
    learner = BayesLearner(context, tonight, SCALE, SMALL, alone(), 0, taught)
    assert learner.cells == pytest.approx(4 * tonight.size * (1 + len(taught)), rel=0.01)
    assert lessons(tonight, SCALE, [], 0, ()) == []


def fitted(noisy: np.ndarray, scale: Fraction, work: Path) -> Trained:
    learner = BayesLearner(Context(noisy, scale), noisy, scale, SMALL, alone(), 0)
    return fit(alone(), learner, BRIEF, work)


def test_a_tenth_of_the_places_is_learned_from_in_no_slice_of_no_night() -> None:
    """Where another slice of a place is taught, its context tells of the values that were held back there."""
    places = 24 * 24
    tonight, before = (np.arange(start, start + 2 * places, dtype=np.int32).reshape(2, 24, 24) for start in (0, 2 * places))
    context = Context(tonight, SCALE)  # a cell is known by its value
    lesson = Lesson(before, lambda: Context(before, SCALE))
    learner = BayesLearner(context, tonight, SCALE, SMALL, alone(), 0, [lesson])
    random = np.random.default_rng(0)
    seen = np.unique(np.concatenate([learner.batch(random)[1].numpy() for _ in range(40)]))
    assert seen.max() >= 2 * places, "the earlier night is learned from, too"
    assert learner.unseen == 2 * (places // 10)
    assert len(np.unique(seen % places)) <= places - places // 10
    assert len(learner.surprise()) >= learner.unseen


def test_small_weights_are_kept_where_noise_drowns_cells_and_large_ones_where_counts_stand_above_it(tmp_path: Path) -> None:
    nothing = noised(np.zeros((4, 48, 48), dtype=int), 3, Fraction(20))
    crowds = noised(np.random.default_rng(1).poisson(50 * city(8, 48, 48)), 5)
    others = []
    for name, noisy, scale in (("nothing", nothing, Fraction(20)), ("crowds", crowds, SCALE)):
        (tmp_path / name).mkdir()
        others += fitted(noisy, scale, tmp_path / name).before
    assert others == ["large weights", "small weights"]


def test_a_learning_that_was_killed_between_small_and_large_weights_ends_at_the_same_network(tmp_path: Path) -> None:
    noisy = noised(np.random.default_rng(1).poisson(city(4, 32, 32)), 5)
    for name in ("whole", "halfway"):
        (tmp_path / name).mkdir()
    whole = fitted(noisy, SCALE, tmp_path / "whole")
    (tmp_path / "halfway" / "small-weights.pt").write_bytes((tmp_path / "whole" / "small-weights.pt").read_bytes())
    again = fitted(noisy, SCALE, tmp_path / "halfway")
    assert all(torch.equal(again.weights[name], value) for name, value in whole.weights.items())
