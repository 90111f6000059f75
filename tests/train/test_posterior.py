"""The posterior arithmetic against sums over the law, term by term."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
import torch
from scipy.stats import poisson

from heathaze.learn.posterior import deconvolve, ladder, log_evidence, make_tables, posterior
from heathaze.release.uncertainty import chance_of

RATES = ladder(3.0, 60.0, 12)


def joint(noisy: int, rate: float, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """P(count, noisy) for every count that matters."""
    count, a = np.arange(400), exp(-1 / scale)
    return count, poisson.pmf(count, rate) * (1 - a) / (1 + a) * a ** np.abs(noisy - count)


@pytest.mark.parametrize("scale", [1.0, 3.0, 20.0])
@pytest.mark.parametrize("noisy", [-40, -3, 0, 1, 17, 70])
def test_likelihood_and_moments_are_the_sums_over_the_law(scale: float, noisy: int) -> None:
    tables = make_tables(scale, RATES)
    row = int(tables.rows(torch.tensor([noisy]))[0])
    for j, rate in enumerate(RATES):
        count, both = joint(noisy, rate, scale)
        assert tables.log_likelihood[row, j].item() == pytest.approx(np.log(both.sum()), rel=1e-4, abs=1e-4)
        assert tables.mean[row, j].item() == pytest.approx(both @ count / both.sum(), rel=1e-4, abs=1e-6)
        assert tables.square[row, j].item() == pytest.approx(both @ count**2 / both.sum(), rel=1e-4, abs=1e-6)


def test_the_posterior_of_a_mixture_is_bayes_rule() -> None:
    scale, noisy = 3.0, 9
    prior = np.random.default_rng(1).dirichlet(np.ones(len(RATES)))
    found = posterior(torch.from_numpy(np.log(prior))[None].float(), torch.tensor([noisy]), make_tables(scale, RATES))
    total = sum(share * joint(noisy, rate, scale)[1] for share, rate in zip(prior, RATES, strict=True))
    count = np.arange(len(total))
    assert found.mean.item() == pytest.approx(total @ count / total.sum(), rel=1e-4)
    assert found.square.item() == pytest.approx(total @ count**2 / total.sum(), rel=1e-4)
    assert found.prior_mean.item() == pytest.approx(prior @ RATES, rel=1e-4)
    log_prior = torch.from_numpy(np.log(prior))[None].float()
    tables = make_tables(scale, RATES)
    assert log_evidence(log_prior, torch.tensor([noisy]), tables).item() == pytest.approx(np.log(total.sum()), rel=1e-4)


@pytest.mark.parametrize("noisy", [0, 9, 25, 60])
def test_the_chance_of_many_events_by_mean_and_deviation_is_near_that_of_the_whole_posterior(noisy: int) -> None:
    scale, rates = 3.0, np.geomspace(0.5, 80, 12)
    prior = np.full(len(rates), 1 / len(rates))
    total = sum(share * joint(noisy, rate, scale)[1] for share, rate in zip(prior, rates, strict=True))
    law, count = total / total.sum(), np.arange(len(total))
    mean = law @ count
    deviation = np.sqrt(law @ count**2 - mean**2)
    for least in (1, max(1, round(mean - deviation)), round(mean) + 1, round(mean + 2 * deviation) + 1):
        [found] = chance_of(np.array([mean]), np.array([deviation]), np.array([float(least)]))
        assert found == pytest.approx(law[count >= least].sum(), abs=0.12)


def test_a_value_far_above_the_noise_is_taken_as_it_is() -> None:
    tables = make_tables(2.0, ladder(2.0, 1e5, 12))
    flat = torch.zeros(1, len(tables.rates))
    found = posterior(flat, torch.tensor([50_000]), tables)
    assert found.mean.item() == 50_000
    assert (found.square - found.mean**2).item() >= 0


def test_a_large_scale_is_looked_up_in_steps_far_below_the_noise() -> None:
    tables = make_tables(1000.0, ladder(1000.0, 5000.0, 8))
    assert 1 < tables.step <= 1000 / 100
    flat = torch.zeros(2, len(tables.rates))
    near = posterior(flat, torch.tensor([700, 700 + tables.step]), tables).mean
    assert abs(near[0] - near[1]).item() < 10


def test_deconvolution_finds_the_mixture_behind_the_noise() -> None:
    random, scale = np.random.default_rng(0), 3.0
    rates = np.where(random.random(400_000) < 0.9, 0.0, 20.0)
    stop = 1 - exp(-1 / scale)
    noisy = random.poisson(rates) + random.geometric(stop, rates.size) - random.geometric(stop, rates.size)
    tables = make_tables(scale, np.array([0.0, 1.0, 5.0, 20.0, 60.0]))
    mixture = deconvolve(*np.unique(noisy, return_counts=True), tables)
    assert mixture[0] == pytest.approx(0.9, abs=0.02)
    assert mixture[3] == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("scale", [5.0, 30.0, 300.0])
def test_a_count_between_two_rungs_is_not_drawn_to_the_nearer_one(scale: float) -> None:
    """Of counts far above the noise nothing is known beforehand, so that a noisy value is the best answer there is."""
    rates = ladder(scale, 120 * scale, 40)
    tables = make_tables(scale, rates)
    noisy = torch.arange(int(10 * scale), int(60 * scale), max(1, int(scale) // 8))
    # A prior that is even over counts: each rung weighs as much as the gap that it stands for.
    gaps = torch.from_numpy(np.gradient(rates)).log().float()
    found = posterior(gaps.expand(len(noisy), -1), noisy, tables).mean
    assert float((found - noisy).abs().max()) < 0.1 * 2**0.5 * scale
