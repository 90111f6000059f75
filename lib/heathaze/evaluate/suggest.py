"""suggest: how far off a release will be, from public numbers alone, and the settings that make it least.

The error of a box at a record of one slice has four parts, and each follows from numbers that are public:

- sampling: users differ in how much they move, and k events stand for all of a user's. Activity has a power-law tail, so the
  law of the scaled sample less the truth is known, and the mean of its absolute value is an integral.
- noise: what the denoiser leaves of the noise, measured on synthetic cities by the strength of the signal (`suggest_table`).
- refinement: gamma is below N / n where cells are weak, so that all counts come out low.
- cells: a box that cuts cells gets a share of each, as if people stood evenly in it.

Nothing is read but the arguments. A city whose people stand closer together or further apart than in the synthetic ones, or whose
activity has another tail, has other errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from math import erf, exp, log, pi, sqrt

import numpy as np
from scipy.special import pdtr

from heathaze.errors import InputError
from heathaze.evaluate import suggest_table as table
from heathaze.evaluate.synthetic import ACTIVE_DAYS
from heathaze.learn.denoiser import noise_variance
from heathaze.policy import MAX_CELLS, MAX_SCALE, Shares

BOXES: tuple[tuple[str, float | None], ...] = (("a cell", None), ("100 m", 100.0), ("500 m", 500.0), ("2 km", 2_000.0))
"""Boxes that an error is told of, with their sides in metres."""

KS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1_000)
CELLS = (25, 35, 50, 75, 100, 125, 150, 200, 250, 300, 400, 500, 750, 1_000)
PER_DAY = (24, 12, 8, 6, 4, 3, 2, 1)

CALM = 40
"""Rates below it have Poisson counts of their own; larger ones are as good as their mean."""
JUDGED = 500.0
"""Side of the box whose relative error is made least."""
GOOD = 0.25
"""The finest slices are suggested in which such a box is expected to be off by no more than this part."""
AS_GOOD = 1.02
"""Without denoising is as good where the expected error is at most this many times larger."""
HISTOGRAM = Fraction(Shares().histogram)

ALIGNED = 0.9
"""Others in the cell of an event, as a part of those in a box of that side centred at it."""


@dataclass(frozen=True)
class Feed:
    """What is public of the events of one period."""

    users: int
    """Users that may appear in a period."""
    events_per_user: float
    """Mean number of events of one user in a period, users without events included."""
    epsilon: Decimal
    """Of the release of one period."""
    area_km2: float
    """Of the grid."""
    days: int = 1
    """Length of a period."""
    tail: float = 1.5
    """Exponent of the power law of activity, P(more than x) ~ x^-tail; smaller is heavier."""
    shape: str | None = None
    """The synthetic city that the place is like: rings, corridors or polycentric; None: the middle of them."""

    def __post_init__(self) -> None:
        _must(1 <= self.users <= 10**10, "users", "between 1 and 10000000000", self.users)
        _must(0 < self.events_per_user <= 10**6, "events per user", "above 0, at most 1000000", self.events_per_user)
        _must(self.epsilon.is_finite() and 0 < self.epsilon <= 100, "epsilon", "above 0, at most 100", self.epsilon)
        _must(1 <= self.area_km2 <= 40_000, "the area", "between 1 and 40000 square kilometres", f"{self.area_km2:g}")
        _must(1 <= self.days <= 366, "the period", "between 1 and 366 days", self.days)
        _must(1 < self.tail <= 10, "the tail of activity", "above 1, at most 10", self.tail)
        shapes = tuple(table.CROWD)
        _must(self.shape is None or self.shape in shapes, "the shape", f"one of {', '.join(shapes)}", self.shape)

    @property
    def events(self) -> float:
        return self.users * self.events_per_user


@dataclass(frozen=True)
class Setting:
    """What a policy chooses."""

    k: int
    """max_events_per_user."""
    cell_metres: float
    slices: int
    denoiser: str = "shrink"


@dataclass(frozen=True)
class Expected:
    """The expected error of boxes of one size at records, in one slice, in events."""

    box: str
    typical: float
    """Mean number of events of such a box."""
    absolute: float
    """Mean absolute error of the published count."""
    noise: float
    """What noise would leave alone, as a mean absolute error."""
    sampling: float
    """What bounding would leave alone."""

    @property
    def relative(self) -> float:
        """Of the typical count."""
        return self.absolute / self.typical


def _must(holds: bool, name: str, rule: str, found: object) -> None:
    if not holds:
        raise InputError(f"{name} must be {rule}, but it is {found}.")


@dataclass(frozen=True)
class _Activity:
    """How many events users have in a period: values and their odds, the value 0 left out."""

    events: np.ndarray
    odds: np.ndarray

    def kept(self, k: int) -> float:
        """Mean number of events of a user after bounding."""
        return float(np.sum(np.minimum(self.events, k) * self.odds))


@lru_cache(maxsize=16)
def _activity(feed: Feed) -> _Activity:
    """Lomax rates of the declared mean, up to a rate that two of the users pass, and Poisson counts of them."""
    above = np.geomspace(1, min(0.5, 2 / feed.users), 240)
    odds = -np.diff(np.append(above, 0))
    rate = np.sqrt(above * np.append(above[1:], above[-1] / 2)) ** (-1 / feed.tail) - 1
    # Over several days nearly everyone appears once.
    active = ACTIVE_DAYS if feed.days == 1 else 1.0
    rate *= feed.events_per_user / active / float(rate @ odds)
    calm = rate < CALM
    counts, steps = np.arange(1, 3 * CALM), np.arange(3 * CALM)
    chances = np.diff(pdtr(steps[:, None], rate[calm]), axis=0) @ odds[calm]
    values, chances = np.concatenate([counts, rate[~calm]]), np.concatenate([chances, odds[~calm]]) * active
    return _pooled(values, chances)


def _pooled(values: np.ndarray, chances: np.ndarray) -> _Activity:
    """The law with like values pooled at their mean: a few dozen values instead of hundreds."""
    group = np.where(values <= 12, values, 12 + np.ceil(np.log(values / 12) / log(1.12))).astype(np.int64)
    odds, total = np.bincount(group, chances), np.bincount(group, chances * values)
    some = odds > 1e-14
    return _Activity(total[some] / odds[some], odds[some])


def expect(feed: Feed, setting: Setting) -> list[Expected]:
    """The expected errors of BOXES; those that do not fit into the area are left out."""
    side = sqrt(feed.area_km2) * 1_000
    return [expect_box(feed, setting, name, box) for name, box in BOXES if box is None or box <= side]


def expect_box(feed: Feed, setting: Setting, name: str, box: float | None) -> Expected:
    """The expected error of one size of box; None: a cell."""
    activity = _activity(feed)
    share = activity.kept(setting.k) / feed.events_per_user
    deviation = _deviation(feed, setting.k)
    gamma = _faded(feed, setting, deviation, share) / share

    others, own = _around(feed, setting, box)
    all_beside, kept_beside = _beside(activity, setting.k)
    typical = 1 + own * all_beside + others * feed.events
    seen = 1 + own * kept_beside + others * feed.events * share
    across = 1.0 if box is None else box / setting.cell_metres
    blur = deviation * (1.0 if box is None else _blur(across))
    low, spread = (blur * part for part in _left(setting.denoiser, across, seen / blur))
    cut_low, cut_spread = (0.0, 0.0) if box is None else _cut(box, setting.cell_metres)

    # A box that cuts cells gets shares of what is around it, too: its sampling error is that share of a larger box's.
    wide = None if box is None else sqrt(box**2 + setting.cell_metres**2)
    part = 1.0 if box is None or wide is None else (box / wide) ** 2
    law = _Sampling(activity, setting.k, *_around(feed, setting, wide), feed.users, part)
    off = _Off(gamma * low, gamma * spread, cut_low * typical, cut_spread * typical)
    absolute = law.mean_absolute(gamma, off)
    return Expected(name, typical, absolute, _folded(low, spread) / share, law.mean_absolute(1 / share, _Off()))


def _folded(mean: float, spread: float) -> float:
    """E|X| of a normal law of that mean and mean absolute deviation."""
    if spread <= 0:
        return abs(mean)
    ratio = mean / (spread * sqrt(pi / 2))
    return spread * exp(-(ratio**2) / 2) + abs(mean) * erf(abs(ratio) / sqrt(2))


def _deviation(feed: Feed, k: int) -> float:
    """Of the noise of a cell."""
    return sqrt(noise_variance(_scale(feed, k)))


def _scale(feed: Feed, k: int) -> Fraction:
    return Fraction(k) / (Fraction(feed.epsilon) * HISTOGRAM)


def _beside(activity: _Activity, k: int) -> tuple[float, float]:
    """Other events of the user of an event that was kept: all of them, and those that were kept."""
    kept = np.minimum(activity.events, k)
    weight = activity.odds * kept
    return tuple(float(np.sum(weight * (events - 1)) / weight.sum()) for events in (activity.events, kept))  # type: ignore[return-value]


def _around(feed: Feed, setting: Setting, box: float | None) -> tuple[float, float]:
    """How likely another event of the period lies in the same slice and box: one of another user, and one of the same."""
    side = setting.cell_metres if box is None else box
    town = sqrt(feed.area_km2)
    shapes = [feed.shape] if feed.shape else list(table.CROWD)
    crowd = exp(sum(log(_look_up(table.CROWD[one], table.TOWNS, table.SIDES, town, side)) for one in shapes) / len(shapes))
    per_day = max(1.0, setting.slices / feed.days)
    hours = _look_up([table.HOURS], (1,), table.PER_DAY, 1, per_day) / _look_up([table.HOURS], (1,), table.PER_DAY, 1, 8)
    others = crowd * hours * side**2 / (feed.area_km2 * 1e6) / setting.slices
    own = _look_up(table.OWN_CELL if box is None else table.OWN_BOX, table.PER_DAY, table.SIDES, per_day, side)
    own *= per_day / setting.slices
    return min(others * (ALIGNED if box is None else 1), own, 1.0), own


def _faded(feed: Feed, setting: Setting, deviation: float, share: float) -> float:
    """gamma as a part of N / n: 1 where cells are strong, 0 where they say nothing. See `heathaze.release.refine`."""
    others, own = _around(feed, setting, None)
    sample = feed.events * share
    squares = own * _beside(_activity(feed), setting.k)[1] + others * sample
    cells = feed.area_km2 * 1e6 / setting.cell_metres**2 * setting.slices
    left = _claim(setting.denoiser, setting.slices, sample / cells / deviation) * deviation**2 * cells / sample
    return squares / (squares + left + 1)


def _claim(denoiser: str, slices: int, density: float) -> float:
    """The variance that a denoiser claims to leave, as a part of the noise's, over all cells."""
    if denoiser == "none":
        return 1.0
    return _look_up(table.CLAIMS[denoiser], table.SLICES, table.DENSITIES, slices, density)


def _left(denoiser: str, across: float, signal: float) -> tuple[float, float]:
    """Mean and mean absolute deviation of what a denoiser leaves in a box, in deviations of the box's noise."""
    if denoiser == "none":
        return 0.0, sqrt(2 / pi)
    at = min(max(signal, table.SIGNALS[0]), table.SIGNALS[-1])
    low, spread = (
        _look_up([[pair[part] for pair in row] for row in table.LEAVES[denoiser]], table.ACROSS, table.SIGNALS, across, at)
        for part in (0, 1)
    )
    fade = min(1.0, signal / at)
    return low * fade, spread * fade


def _cut(side: float, cell: float) -> tuple[float, float]:
    """Mean and mean absolute deviation of what cutting cells adds to a box, as parts of its count."""
    low, spread = (
        _look_up([[pair[part] for pair in row] for row in table.CUT], table.SIDES, table.CELLS, side, cell) for part in (0, 1)
    )
    return low, spread


def _blur(across: float) -> float:
    """Deviation of the noise of a box that cuts cells, in deviations of a cell's; its side is in cells.

    Along one axis the squared shares of the cells add up to a - 1/3 on average over all offsets, or a^2 - a^3 / 3 where the box
    is smaller than a cell; the deviation is the root of the product of two such sums.
    """
    return across - 1 / 3 if across >= 1 else across**2 - across**3 / 3


def _look_up(values: Sequence[Sequence[float]], rows: Sequence[float], cols: Sequence[float], row: float, col: float) -> float:
    """The value at (row, col), between those of the table on logarithmic axes; the nearest beyond them."""
    (i, below), (j, left) = _between(rows, row), _between(cols, col)
    corners = np.array([[values[min(i + di, len(rows) - 1)][min(j + dj, len(cols) - 1)] for dj in (0, 1)] for di in (0, 1)])
    weights = np.outer((1 - below, below), (1 - left, left))
    if (corners > 0).all() or (corners < 0).all():
        # Powers of the sides, mostly.
        return float(np.sign(corners[0, 0]) * np.exp(np.sum(weights * np.log(np.abs(corners)))))
    return float(np.sum(weights * corners))


def _between(nodes: Sequence[float], at: float) -> tuple[int, float]:
    place = float(np.interp(log(at), np.log(nodes), np.arange(len(nodes))))
    below = min(int(place), max(0, len(nodes) - 2))
    return below, place - below


@dataclass(frozen=True)
class _Off:
    """Independent errors that are as good as normal: their means and mean absolute deviations."""

    noise_low: float = 0.0
    noise: float = 0.0
    cut_low: float = 0.0
    """In a box with a crowd of the mean; it grows with the crowd, as the next one."""
    cut: float = 0.0


@dataclass(frozen=True)
class _Sampling:
    """The law of gamma x sample - truth in a box at a record.

    A user has something to do with the box or not; each event of one who has lies in it with the same odds. So the number of
    such users is Poisson, and the characteristic function of the sum is known in closed form.
    """

    activity: _Activity
    k: int
    others: float
    """How likely an event of any other user lies in the box."""
    own: float
    """How likely an event of a user who has something to do with the box does."""
    users: int
    part: float
    """Of the sum that counts."""

    def mean_absolute(self, gamma: float, off: _Off) -> float:
        """E|X|, where X is the sum and what is off besides.

        E|X| = 2 / pi x the integral of (1 - Re phi(t)) / t^2 over t > 0.
        """
        largest = float(self.activity.events[-1]) + 50 * self.users * self.others * float(self.activity.events @ self.activity.odds)
        t = np.geomspace(1e-3 / (largest + abs(off.noise_low) + off.noise), 60 / max(0.3, 0.05 * off.noise), 200)
        events, odds = self.activity.events, self.activity.odds
        kept = np.minimum(events, self.k)
        up, down = np.exp(1j * self.part * t * (gamma - 1))[:, None], np.exp(-1j * self.part * t)[:, None]
        one = 1 + self.own * (kept / events * (up - 1) + (1 - kept / events) * (down - 1))
        power = np.exp(events * np.log(one))
        company = self.users * self.others / self.own * ((power - 1) @ odds)
        record = up[:, 0] * ((power / one) @ (odds * kept)) / np.sum(odds * kept)
        still = record * np.exp(1j * t * off.noise_low - (t * off.noise) ** 2 * pi / 4)
        found = 0.0
        for weight, crowd in zip(*_uneven(), strict=True):
            more = np.exp(crowd * company + 1j * t * off.cut_low * crowd - (t * off.cut * crowd) ** 2 * pi / 4)
            found += weight * (float(np.trapezoid((1 - np.real(still * more)) / t, np.log(t))) + 1 / float(t[-1]))
        return 2 / pi * found


@lru_cache(maxsize=1)
def _uneven() -> tuple[np.ndarray, np.ndarray]:
    """Weights and multiples of the mean: five kinds of box of a lognormal law whose square is 3 times its mean's."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    sigma = sqrt(log(3))
    return weights / weights.sum(), np.exp(sigma * nodes - sigma**2 / 2)
