"""The Theta method, the winner of the M3 competition, for many series at once.

Assimakopoulos and Nikolopoulos (2000): the mean of a straight line and of the smoothed series with its curvature doubled.
Hyndman and Billah (2003) showed it to be simple exponential smoothing with a drift of half the slope of the straight line, which
is what is done here.

A season is taken out before and put back after, as much of it as is not chance: its figures are drawn together by the share of
their spread that the rest of the series explains, as Miller and Williams (2003) do. The usual test takes a season whole or not at
all, and of three weeks of days it sees not even a strong one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heathaze.errors import InputError

SMALLEST, LARGEST = 1e-4, 0.9999
"""Weights of the newest value that are tried, at least and at most."""
ROUGH, FINE, ROUNDS = 48, 9, 6
"""Weights tried at first, and in each of so many rounds around the best."""


@dataclass(frozen=True)
class Forecasts:
    """What the Theta method says of some series."""

    values: np.ndarray
    """series x horizon."""
    seasons: tuple[str, ...]
    """For each series, whether it has a season and why."""


def theta(series: np.ndarray, period: int, horizon: int) -> Forecasts:
    """Forecast each row of `series`, `horizon` steps ahead; `period` is the length of a season in steps, 1 for none."""
    series = np.atleast_2d(np.asarray(series, dtype=np.float64))
    _check(series, period, horizon)
    length = series.shape[1]
    taken, multiplicative, figures = _seasons(series, period)
    phase = np.arange(length + horizon) % period
    factor = np.where(multiplicative[:, None], figures[:, phase], 1.0)
    offset = np.where(multiplicative[:, None], 0.0, figures[:, phase])
    adjusted = (series - offset[:, :length]) / factor[:, :length]
    base = adjusted[:, :1]  # far from 0 the squares would lose their digits, and a constant would not be forecast as itself
    weight, level = _smooth(adjusted - base)
    half_slope = _slope(adjusted - base) / 2
    lead = (1 - (1 - weight) ** length) / weight
    ahead = base + level[:, None] + half_slope[:, None] * (np.arange(horizon) + lead[:, None])
    values = ahead * factor[:, length:] + offset[:, length:]
    return Forecasts(values, tuple(_sayings(series, period, taken, multiplicative)))


def _check(series: np.ndarray, period: int, horizon: int) -> None:
    if horizon < 1:
        raise InputError(f"the horizon must be at least 1 step, but it is {horizon}.")
    if period < 1:
        raise InputError(f"the length of a season must be at least 1 step, but it is {period}.")
    if series.ndim != 2 or not series.shape[1]:
        raise InputError("a series must hold at least one value to be forecast, but it is empty.")
    if not np.isfinite(series).all():
        raise InputError("a series must hold finite numbers to be forecast, but some value is not.")


def _seasons(series: np.ndarray, period: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How much of its season each series takes (0 to 1), whether as factors, and what is taken (0s where nothing is)."""
    count, length = series.shape
    nothing = np.zeros(count)
    if period == 1 or length <= 2 * period:
        return nothing, nothing.astype(bool), np.zeros((count, period))
    trend = _trend(series, period)
    first = period // 2
    middle = series[:, first : first + trend.shape[1]]
    phase = (first + np.arange(trend.shape[1])) % period
    positive = series.min(1) > 0
    ratios = middle / np.where(positive[:, None], trend, 1.0)
    factors = _by_phase(ratios, phase, period)
    middling = np.where(positive, factors.mean(1), 1.0)[:, None]
    # A season with a figure near 0 would be divided by.
    multiplicative = positive & ((factors / middling).min(1) > 1e-6)
    seen = np.where(multiplicative[:, None], ratios / middling - 1, middle - trend)
    figures = _by_phase(seen, phase, period)
    # What is left beside the season, divided by how often each figure was seen, is how far chance puts figures apart.
    left = np.square(seen - figures[:, phase]).sum(1) / (len(phase) - period)
    chance = left * np.mean(1 / np.bincount(phase, minlength=period))
    figures -= figures.mean(1, keepdims=True)
    spread = np.square(figures).sum(1) / (period - 1)
    is_there = (spread > chance) & (np.ptp(series, axis=1) > 0)
    taken = np.where(is_there, 1 - chance / np.where(is_there, spread, 1.0), 0.0)
    figures *= taken[:, None]
    multiplicative &= is_there
    return taken, multiplicative, np.where(multiplicative[:, None], 1 + figures, figures)


def _trend(series: np.ndarray, period: int) -> np.ndarray:
    """The centred moving average over one season; for an even one, over a season and a step with half weights at the ends."""
    kernel = np.ones(period + 1 - period % 2)
    if period % 2 == 0:
        kernel[[0, -1]] = 0.5
    windows = np.lib.stride_tricks.sliding_window_view(series, len(kernel), axis=1)
    return windows @ (kernel / period)


def _by_phase(values: np.ndarray, phase: np.ndarray, period: int) -> np.ndarray:
    return np.stack([values[:, phase == number].mean(1) for number in range(period)], axis=1)


def _smooth(series: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Simple exponential smoothing of each series: the weight of the newest value and the level after the last one.

    Both the weight and the first level are those of the least squared one-step errors: the level in closed form for each weight,
    the weight by a grid that is made finer around its best.
    """
    count = len(series)
    weights = np.broadcast_to(np.linspace(SMALLEST, LARGEST, ROUGH), (count, ROUGH))
    for round in range(ROUNDS + 1):
        errors, _ = _errors(series, weights)
        best = np.argmin(errors, axis=1)
        rows = np.arange(count)
        if round == ROUNDS:
            break
        lower = weights[rows, np.maximum(best - 1, 0)]
        upper = weights[rows, np.minimum(best + 1, weights.shape[1] - 1)]
        weights = lower[:, None] + (upper - lower)[:, None] * np.linspace(0, 1, FINE)
    chosen = weights[rows, best][:, None]
    return chosen[:, 0], _errors(series, chosen)[1][:, 0]


def _errors(series: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Summed squared one-step errors at the best first level, and the last level, for each series and each of its weights.

    From the first level 0 the errors are some a, and each unit of the first level takes off b = (1 - weight)^step, so the best
    one is sum(ab) / sum(bb).
    """
    level, power = np.zeros(weights.shape), np.ones(weights.shape)
    aa, ab, bb = np.zeros(weights.shape), np.zeros(weights.shape), np.zeros(weights.shape)
    for value in series.T:
        off = value[:, None] - level
        aa += off**2
        ab += off * power
        bb += power**2
        level += weights * off
        power *= 1 - weights
    first = ab / bb
    return aa - ab * first, level + power * first


def _slope(series: np.ndarray) -> np.ndarray:
    """Of the straight line through each series."""
    steps = np.arange(series.shape[1]) - (series.shape[1] - 1) / 2
    return series @ steps / float(steps @ steps) if len(steps) > 1 else np.zeros(len(series))


def _sayings(series: np.ndarray, period: int, taken: np.ndarray, multiplicative: np.ndarray) -> list[str]:
    said = []
    for row, share, by_factor in zip(series, taken, multiplicative, strict=True):
        if share > 0:
            kind = "multiplicative" if by_factor else "additive"
            said.append(f"season of {period} steps, {kind}, {100 * share:.0f} % of it beyond chance")
        elif np.ptp(row) == 0:
            said.append("no season: the series is constant")
        elif period == 1:
            said.append("no season was asked for")
        elif len(row) <= 2 * period:
            said.append(f"no season: {len(row)} steps are too few to see one of {period}, more than {2 * period} are needed")
        else:
            said.append(f"no season of {period} steps: nothing of it is beyond chance")
    return said
