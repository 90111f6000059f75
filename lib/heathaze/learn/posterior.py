"""The arithmetic of a count under exactly known noise: likelihoods, posterior moments, and the prior of many cells at once.

A cell's count is Poisson with an unknown rate, and its noisy value is the count plus discrete Laplace noise of known scale. The
prior of the rate is a mixture over a fixed ladder of rates, so everything that is ever needed of a noisy value y and a rate r
is a number in a table, computed once per scale:

    P(y | r)          the likelihood: Poisson(r) convolved with the law of the noise
    E[x | y, r]       the mean of the count, and likewise of its square

A mixture with weights p_r then has the posterior weights p_r P(y | r) / sum, and its mean is their sum with E[x | y, r].
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
import torch
from scipy.signal import lfilter
from scipy.special import gammaln

REACH = 45
"""Scales of noise beyond which a draw does not happen: exp(-45)."""

WELL_KNOWN = 60
"""A noisy value of so many scales is taken as it is: the prior has nothing to add, and the table ends there."""

STEP = 1.0
"""How far apart rungs of the ladder may be, in units of what a noisy value can tell; see `ladder`."""

FINEST = 128
"""Noisy values are looked up in steps of scale / FINEST where the scale is larger than that."""


@dataclass(frozen=True)
class Tables:
    """Likelihood and moments of every noisy value in reach, for each rate of the ladder."""

    scale: float
    rates: np.ndarray
    """The ladder: 0, then evenly spaced in the logarithm."""
    first: int
    """The noisy value of the first row."""
    step: int
    """Noisy values per row."""
    log_likelihood: torch.Tensor
    """(noisy value, rate), float32."""
    mean: torch.Tensor
    """E[x | y, r]."""
    square: torch.Tensor
    """E[x^2 | y, r]."""
    weighted: torch.Tensor
    """(noisy value, 3, rate): P(y | r) over its largest value for that y, and its products with the two moments: sums need no
    exponentials."""

    def rows(self, noisy: torch.Tensor) -> torch.Tensor:
        """The row of each noisy value, the last one for values beyond the table."""
        row = torch.div(noisy.long() - self.first + self.step // 2, self.step, rounding_mode="floor")
        return row.clamp(0, len(self.mean) - 1)

    def is_beyond(self, noisy: torch.Tensor) -> torch.Tensor:
        """Whether a noisy value is so high above the noise that it is taken as it is."""
        return noisy > self.first + self.step * (len(self.mean) - 1) - REACH * self.scale


def ladder(scale: float, highest: float, count: int) -> np.ndarray:
    """Rates from nothing to the highest plausible count; below a few thousandths of the noise nobody can tell rates apart.

    So many are evenly spaced in the logarithm. Counts between two of them are drawn to the nearer one, the more the less they
    vary by themselves: by noise / (noise + rate), in variances. Where that would be seen beside the noise, more are put between,
    up to where noisy values are taken as they are.
    """
    lowest = min(max(0.005, 0.002 * scale), highest / 10)
    rates = np.geomspace(lowest, highest, count - 1)
    noise = sqrt(2) * scale
    widest = STEP * (rates[:-1] + noise**2) / noise
    parts = np.where(rates[:-1] < last_known(scale), np.ceil(np.diff(rates) / widest), 1).astype(int)
    between = [np.linspace(low, high, number, endpoint=False) for low, high, number in zip(rates, rates[1:], parts, strict=False)]
    return np.concatenate([[0.0], *between, [highest]])


def last_known(scale: float) -> float:
    """The noisy value above which values are taken as they are."""
    return WELL_KNOWN * scale + 2_000


def make_tables(scale: float, rates: np.ndarray) -> Tables:
    """The tables of one scale.

    The convolution with a^|x| is one recursion forwards and one backwards, whose terms are all positive: exact to the last
    digits also far out in the tails.
    """
    a, reach = exp(-1 / scale), int(REACH * scale) + 2
    highest = float(rates[-1])
    most = int(highest + 8 * sqrt(highest) + 20)
    last = int(min(most, last_known(scale))) + reach
    step = max(1, int(scale) // FINEST)
    count = np.arange(most + 1)
    kept = slice(0, last + reach + 1, step)
    columns: list[list[np.ndarray]] = [[], [], []]
    for rate in rates:
        chance = np.exp(count * np.log(rate) - rate - gammaln(count + 1)) if rate > 0 else (count == 0).astype(float)
        for column, weighted in zip(columns, (chance, chance * count, chance * count**2), strict=True):
            padded = np.zeros(most + 2 * reach + 1)
            padded[reach : reach + most + 1] = weighted
            forwards = lfilter([1.0], [1.0, -a], padded)
            backwards = lfilter([1.0], [1.0, -a], padded[::-1])[::-1]
            column.append(((forwards + backwards - padded) * (1 - a) / (1 + a))[kept])
    likelihood, first, second = (np.stack(column, axis=1) for column in columns)
    floor = np.maximum(likelihood, 1e-300)
    part = floor / floor.max(1, keepdims=True)
    moments = first / floor, second / floor
    return Tables(
        scale=scale,
        rates=rates,
        first=-reach,
        step=step,
        log_likelihood=_single(np.log(floor)),
        mean=_single(moments[0]),
        square=_single(moments[1]),
        weighted=torch.stack([_single(part), *(_single(part * moment) for moment in moments)], dim=1),
    )


def _single(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.float32))


@dataclass(frozen=True)
class Posterior:
    """What is known of many cells once their own noisy values are seen."""

    prior_mean: torch.Tensor
    mean: torch.Tensor
    square: torch.Tensor
    """E[x^2]."""


SURPRISE = 1e-30
"""A noisy value that the prior thinks rarer than this, beside the likeliest rate, is beyond what float32 can divide by."""


def posterior(logits: torch.Tensor, noisy: torch.Tensor, tables: Tables) -> Posterior:
    """Posterior moments of cells; `logits` of the prior are (cell, rate), `noisy` has one whole number per cell."""
    row = tables.rows(noisy)
    prior = torch.softmax(logits, 1)
    evidence, mean, square = torch.bmm(tables.weighted.index_select(0, row), prior[:, :, None])[:, :, 0].unbind(1)
    # What the prior holds to be impossible is decided by the likelihood alone.
    is_unknown = evidence < SURPRISE
    likelihood, *moments = tables.weighted.index_select(0, row[is_unknown]).sum(2).unbind(1)
    evidence = evidence.clamp(min=SURPRISE)
    mean, square = mean / evidence, square / evidence
    for found, moment in zip((mean, square), moments, strict=True):
        found[is_unknown] = moment / likelihood
    beyond = tables.is_beyond(noisy)
    value = noisy.to(mean.dtype)
    mean = torch.where(beyond, value, mean)
    square = torch.where(beyond, value * value + 2 * tables.scale**2, square)
    rates = torch.from_numpy(tables.rates).to(mean.dtype)
    return Posterior(prior @ rates, mean, square)


def log_evidence(logits: torch.Tensor, noisy: torch.Tensor, tables: Tables) -> torch.Tensor:
    """log P(y) of each cell: what training maximises. `logits` of the prior are (cell, rate)."""
    return torch.logsumexp(torch.log_softmax(logits, 1) + tables.log_likelihood[tables.rows(noisy)], 1)


def deconvolve(values: np.ndarray, counts: np.ndarray, tables: Tables, rounds: int = 2_000) -> np.ndarray:
    """The mixture of rates that makes a histogram of noisy values likeliest (NPMLE, by expectation maximisation)."""
    likelihood = np.exp(tables.log_likelihood[tables.rows(torch.from_numpy(values))].numpy().astype(np.float64)).T
    share = counts / counts.sum()
    mixture = np.full(len(tables.rates), 0.5 / len(tables.rates))
    mixture[0] += 0.5
    for _ in range(rounds):
        weighted = mixture[:, None] * likelihood
        mixture = (weighted / weighted.sum(0)) @ share
    return mixture
