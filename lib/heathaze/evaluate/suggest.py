"""suggest: how far off a release will be, from public numbers alone, and the settings that make it least.

The error of a box at a record, in one slice, has four parts, and each follows from public numbers:

- sampling: k events stand for all of a user's. Activity has a power-law tail, so the law of the scaled sample less the truth is
  known, and its mean absolute value is an integral;
- noise: what the denoiser leaves of it, by the strength of the signal, measured on synthetic cities (`suggest_table`);
- refinement: where the noise is left as it is, gamma is below N / n where cells are weak, so that all counts come out low;
- cells: a box that cuts cells gets a share of each, as if people stood evenly in them.

Records are those of the bounded sample, so that nobody places more than k boxes. Nothing is read but the arguments. Where people
stand closer together than in the synthetic cities, or activity has another tail, errors are others, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import erf, exp, log, pi, sqrt

import numpy as np
from scipy.special import pdtr

from heathaze.errors import InputError
from heathaze.evaluate.suggest_table import TABLE
from heathaze.learn.denoiser import noise_variance
from heathaze.policy import MAX_CELLS, MAX_SCALE, Shares

BOXES: tuple[tuple[str, float | None], ...] = (("a cell", None), ("100 m", 100.0), ("500 m", 500.0), ("2 km", 2_000.0))
"""Boxes whose errors are told, with their sides in metres."""

KS = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1_000)
CELLS = (25, 35, 50, 75, 100, 125, 150, 200, 250, 300, 400, 500, 750, 1_000)
CLOCKS = (24, 12, 8, 6, 4, 3, 2, 1)
"""Ks, sides of cells in metres, and slices of a day to choose from."""

JUDGED = 500.0
"""Side of the box whose relative error is made least."""
GOOD = 0.25
"""The finest slices are chosen in which such a box is expected to be off by no more than this part."""
AS_GOOD = 1.02
"""The noise is negligible where leaving it as it is costs no more than this."""
LEAST_CELLS = 16
"""Least number of cells along a side of the area."""

ACTIVE = 0.75
"""Share of users that appear on one day."""
CALM = 40
"""Rates of activity below it have Poisson counts; larger ones are as good as their mean."""
SQUARES = 3.0
"""Mean square of the crowds around records, as a multiple of their squared mean: a lognormal law."""
ALIGNED = 0.9
"""Others in the cell of an event, as a part of those in a box of that side centred at it."""
HISTOGRAM = Fraction(Shares().histogram)

SIDES = (25, 50, 100, 200, 400, 800, 1_600, 3_200)
"""The nodes of the table: sides of boxes, metres;"""
TOWNS = (2, 5, 12, 30, 80, 199)
"""sides of cities, kilometres;"""
PER_DAY = (1, 2, 4, 8, 24)
"""slices of a day;"""
CELL_SIDES = (25, 50, 100, 200, 400, 800)
"""sides of cells, metres;"""
ACROSS = (1, 3, 10, 30)
"""sides of boxes, in cells;"""
SIGNALS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""and mean counts of boxes at records, in deviations of the noise of the box."""
PARTS = ("cities", "shrink", "bayes")
"""Of the table."""
SHAPES = tuple(TABLE["cities"]["crowd"])


def _must(holds: bool, name: str, rule: str, found: object) -> None:
    if not holds:
        raise InputError(f"{name} must be {rule}, but it is {found}.")


@dataclass(frozen=True)
class Feed:
    """What is public of the events of one period."""

    users: int
    """Users that may appear."""
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
    """The synthetic city that the area is like: rings, corridors or polycentric; None: the middle of them."""

    def __post_init__(self) -> None:
        _must(1 <= self.users <= 10**10, "the number of users", "between 1 and 10000000000", self.users)
        _must(0 < self.events_per_user <= 10**5, "events per user", "above 0, at most 100000", self.events_per_user)
        _must(self.users * self.events_per_user >= 1, "users x events per user", "at least 1", self.users * self.events_per_user)
        _must(self.epsilon.is_finite() and 0 < self.epsilon <= 100, "epsilon", "above 0, at most 100", self.epsilon)
        _must(1 <= self.area_km2 <= 40_000, "the area", "between 1 and 40000 square kilometres", f"{self.area_km2:g}")
        _must(1 <= self.days <= 366, "the period", "between 1 and 366 days", self.days)
        _must(1 < self.tail <= 10, "the tail of activity", "above 1, at most 10", self.tail)
        _must(self.shape is None or self.shape in SHAPES, "the shape", f"one of {', '.join(SHAPES)}", repr(self.shape))

    @property
    def events(self) -> float:
        return self.users * self.events_per_user

    @property
    def side(self) -> float:
        """Of the area as a square, metres."""
        return sqrt(self.area_km2) * 1_000


@dataclass(frozen=True)
class Setting:
    """What a policy chooses."""

    k: int
    """max_events_per_user."""
    cell_metres: float
    slices: int
    denoiser: str = "bayes"
    """none, shrink or bayes."""

    def __post_init__(self) -> None:
        _must(self.k >= 1, "max_events_per_user", "at least 1", self.k)
        _must(self.cell_metres >= 1, "the side of a cell", "at least 1 metre", self.cell_metres)
        _must(self.slices >= 1, "the number of slices", "at least 1", self.slices)


@dataclass(frozen=True)
class Expected:
    """The expected error of boxes of one size at records, in one slice, in events."""

    box: str
    typical: float
    """Mean number of events of such a box."""
    absolute: float
    """Mean absolute error of the published count."""
    noise: float
    """The part that noise alone would make."""
    sampling: float
    """The part that bounding alone would make."""

    @property
    def relative(self) -> float:
        """The error as a part of the typical count."""
        return self.absolute / self.typical


@dataclass(frozen=True)
class Suggestion:
    """Settings, and what to expect of them."""

    setting: Setting
    expected: list[Expected]
    kept: float
    """Share of the events that bounding keeps."""
    gamma: float
    """The refinement factor, as a part of N / n."""


def suggest(feed: Feed, k: int | None = None, cell_metres: float | None = None, slices: int | None = None) -> Suggestion:
    """The finest slices in which a box of JUDGED metres is expected to be GOOD, and the k and cells that make its error least.

    What is given is taken as it is.
    """
    ks = [one for one in ([k] if k else KS) if _scale(feed, one) <= MAX_SCALE]
    smallest = float(_scale(feed, k or 1))
    _must(bool(ks), "k / epsilon", f"at most {MAX_SCALE}, beyond which a cell says nothing", f"{smallest:,.0f}")
    cells = [cell_metres] if cell_metres else _cells(feed)
    most = feed.area_km2 * 1e6 / cells[0] ** 2
    _must(most <= MAX_CELLS, "the grid", f"of at most {MAX_CELLS} cells", f"of {most:,.0f}: give larger cells")
    for number in [slices] if slices else _numbers_of_slices(feed.days):
        best = _descend(feed, ks, cells, number)
        if _judge(feed, best) <= GOOD:
            break
    plain = replace(best, denoiser="none")
    is_negligible = _judge(feed, plain) <= AS_GOOD * _judge(feed, best) and _judge(feed, best) <= GOOD
    return assess(feed, plain if is_negligible else best)


def assess(feed: Feed, setting: Setting) -> Suggestion:
    """What to expect of a setting. Boxes that do not fit into the area are left out."""
    _must(setting.cell_metres <= feed.side, "a cell", "within the area", f"{setting.cell_metres:g} metres wide")
    expected = [expect(feed, setting, name, box) for name, box in BOXES if box is None or box <= feed.side]
    kept = _kept(feed, setting.k)
    return Suggestion(setting, expected, kept, _fade(feed, setting))


def _cells(feed: Feed) -> list[float]:
    """Sides of cells that give the area neither too many nor too few."""
    fits = [one for one in CELLS if feed.area_km2 * 1e6 / one**2 <= MAX_CELLS and one * LEAST_CELLS <= feed.side]
    return [float(one) for one in fits]


def _numbers_of_slices(days: int) -> list[int]:
    """Finest first: parts of days, days, and the whole period."""
    return list(dict.fromkeys([days * per_day for per_day in CLOCKS] + [1]))


def _descend(feed: Feed, ks: Sequence[int], cells: Sequence[float], slices: int) -> Setting:
    """The best k and cell: from the best of a few, a step at a time to the best neighbour, while there is a better one."""

    def best_of(ks: Sequence[int], cells: Sequence[float]) -> Setting:
        return min((Setting(k, cell, slices) for k, cell in product(ks, cells)), key=lambda one: _judge(feed, one))

    best = best_of(ks[::3], cells[::3])
    while True:
        i, j = ks.index(best.k), cells.index(best.cell_metres)
        step = best_of(ks[max(0, i - 1) : i + 2], cells[max(0, j - 1) : j + 2])
        if _judge(feed, step) >= _judge(feed, best):
            return best
        best = step


@lru_cache(maxsize=4096)
def _judge(feed: Feed, setting: Setting) -> float:
    """The expected relative error that is made least."""
    return expect(feed, setting, "", min(JUDGED, feed.side / 2), is_whole=False).relative


def expect(feed: Feed, setting: Setting, name: str, box: float | None, is_whole: bool = True) -> Expected:
    """The expected error of boxes of that side, None: of cells; and its parts, but where the whole is not wanted."""
    activity, kept = _activity(feed), _kept(feed, setting.k)
    gamma = _fade(feed, setting) / kept
    others, own = _odds(feed, setting, box)
    all_beside, kept_beside = activity.beside(setting.k)
    typical = 1 + own * all_beside + others * feed.events
    seen = 1 + own * kept_beside + others * feed.events * kept

    across = 1.0 if box is None else box / setting.cell_metres
    noise = _deviation(feed, setting.k) * (1.0 if box is None else blur(across))
    low, spread = (noise * part for part in _left(setting.denoiser, across, seen / noise))
    off = _Off(gamma * low, gamma * spread)
    wide, part = box, 1.0
    if box is not None:
        cut_low, cut_spread = (typical * _look_up("cities", name, SIDES, CELL_SIDES, box, setting.cell_metres) for name in CUT)
        off = replace(off, cut_low=cut_low, cut=cut_spread)
        # A box that cuts cells also gets shares of what is around it: its sampling error is a part of a larger box's.
        wide = sqrt(box**2 + setting.cell_metres**2)
        part = (box / wide) ** 2
    law = _Sampling(activity, setting.k, *_odds(feed, setting, wide), feed.users, part)
    alone = law.mean_absolute(1 / kept, _Off()) if is_whole else 0.0
    return Expected(name, typical, law.mean_absolute(gamma, off), _folded(low, spread) / kept, alone)


CUT = ("cut_mean", "cut_spread")


def _scale(feed: Feed, k: int) -> Fraction:
    """Of the noise of a cell."""
    return Fraction(k) / (Fraction(feed.epsilon) * HISTOGRAM)


def _deviation(feed: Feed, k: int) -> float:
    """Of the noise of a cell."""
    return sqrt(noise_variance(_scale(feed, k)))


@dataclass(frozen=True)
class _Activity:
    """How many events users have in a period: numbers and their odds; those with none are left out."""

    events: np.ndarray
    odds: np.ndarray

    def beside(self, k: int) -> tuple[float, float]:
        """Other events of the user of an event that was kept: all of them, and those that were kept."""
        kept = np.minimum(self.events, k)
        weight = self.odds * kept / float(self.odds @ kept)
        return float(weight @ (self.events - 1)), float(weight @ (kept - 1))


@lru_cache(maxsize=64)
def _activity(feed: Feed) -> _Activity:
    """Lomax rates of the declared mean, up to one that two users pass, and Poisson counts of them."""
    above = np.geomspace(1, min(0.5, 2 / feed.users), 240)
    odds = -np.diff(np.append(above, 0))
    rate = np.sqrt(above * np.append(above[1:], above[-1] / 2)) ** (-1 / feed.tail) - 1
    # Over several days nearly everyone appears once.
    active = ACTIVE if feed.days == 1 else 1.0
    rate *= feed.events_per_user / active / float(rate @ odds)
    calm, steps = rate < CALM, np.arange(3 * CALM)
    chances = np.diff(pdtr(steps[:, None], rate[calm]), axis=0) @ odds[calm]
    events, chances = np.concatenate([steps[1:], rate[~calm]]), np.concatenate([chances, odds[~calm]]) * active
    # Like numbers are pooled at their mean: a few dozen instead of hundreds.
    group = np.where(events <= 12, events, 12 + np.ceil(np.log(events / 12) / log(1.12))).astype(np.int64)
    pooled, total = np.bincount(group, chances), np.bincount(group, chances * events)
    some = pooled > 1e-14
    return _Activity(total[some] / pooled[some], pooled[some])


def _kept(feed: Feed, k: int) -> float:
    """Share of the events that bounding keeps."""
    activity = _activity(feed)
    return float(activity.odds @ np.minimum(activity.events, k)) / float(activity.odds @ activity.events)


def _odds(feed: Feed, setting: Setting, box: float | None) -> tuple[float, float]:
    """How likely another event of the period lies in the slice and box of a record: one of another user, one of the same."""
    side = setting.cell_metres if box is None else box
    shapes = [feed.shape] if feed.shape else SHAPES
    crowds = [_look_up("cities", ("crowd", shape), TOWNS, SIDES, sqrt(feed.area_km2), side) for shape in shapes]
    per_day = max(1.0, setting.slices / feed.days)
    hours = float(np.interp(log(per_day), np.log(PER_DAY), TABLE["cities"]["hours"])) / TABLE["cities"]["hours"][PER_DAY.index(8)]
    evenly = min(1.0, side**2 / (feed.area_km2 * 1e6)) / setting.slices
    others = exp(float(np.log(crowds).mean())) * hours * evenly * (ALIGNED if box is None else 1)
    own = _look_up("cities", "own_cell" if box is None else "own_box", PER_DAY, SIDES, per_day, side) * per_day / setting.slices
    return min(others, own), own


def _fade(feed: Feed, setting: Setting) -> float:
    """gamma as a part of N / n, see `heathaze.release.refine`: of plain noise 1 where cells are strong, 0 where they are weak."""
    if setting.denoiser != "none":
        return 1.0
    others, own = _odds(feed, setting, None)
    sample, deviation = feed.events * _kept(feed, setting.k), _deviation(feed, setting.k)
    squares = own * _activity(feed).beside(setting.k)[1] + others * sample
    cells = feed.area_km2 * 1e6 / setting.cell_metres**2 * setting.slices
    return squares / (squares + deviation**2 * cells / sample + 1)


def _left(denoiser: str, across: float, signal: float) -> tuple[float, float]:
    """Mean and mean absolute deviation of what a denoiser leaves in a box, in deviations of the noise of the box."""
    if denoiser == "none":
        return 0.0, sqrt(2 / pi)
    low, spread = (_look_up(denoiser, part, ACROSS, SIGNALS, across, signal) for part in ("mean", "spread"))
    # A signal that is weaker than all that were measured is lost: what is left is the signal itself.
    fades = min(1.0, signal / SIGNALS[0])
    return low * fades, spread * fades


def blur(across: float) -> float:
    """Deviation of the noise of a box that cuts cells, in deviations of a cell's; its side is in cells.

    Along one axis the squared shares of the cells add up to a - 1/3 on average over all offsets, or to a^2 - a^3 / 3 where the
    box is smaller than a cell. The deviation is the root of the product of two such sums.
    """
    return across - 1 / 3 if across >= 1 else across**2 - across**3 / 3


def _folded(mean: float, spread: float) -> float:
    """E|X| of a normal law of that mean and mean absolute deviation."""
    ratio = abs(mean) / (spread * sqrt(pi / 2))
    return spread * exp(-(ratio**2) / 2) + abs(mean) * erf(ratio / sqrt(2))


def _look_up(
    part: str, name: str | tuple[str, str], rows: Sequence[float], cols: Sequence[float], row: float, col: float
) -> float:
    """The value of the table at (row, col): between the nodes on logarithmic axes, the nearest beyond them."""
    values = TABLE[part][name[0]][name[1]] if isinstance(name, tuple) else TABLE[part][name]
    (i, down), (j, right) = _between(rows, row), _between(cols, col)
    corners = np.array([values[i][j : j + 2], values[i + 1][j : j + 2]])
    weights = np.outer((1 - down, down), (1 - right, right))
    if (corners > 0).all() or (corners < 0).all():
        # Most of the table follows powers.
        return float(np.sign(corners[0, 0]) * np.exp(np.sum(weights * np.log(np.abs(corners)))))
    return float(np.sum(weights * corners))


def _between(nodes: Sequence[float], at: float) -> tuple[int, float]:
    """The node below, and how far beyond it."""
    place = float(np.interp(log(at), np.log(nodes), np.arange(len(nodes))))
    below = min(int(place), len(nodes) - 2)
    return below, place - below


@dataclass(frozen=True)
class _Off:
    """Errors besides sampling that are as good as normal: means and mean absolute deviations."""

    noise_low: float = 0.0
    noise: float = 0.0
    cut_low: float = 0.0
    """Where the crowd is the mean one: these two grow with it."""
    cut: float = 0.0


@dataclass(frozen=True)
class _Sampling:
    """The law of gamma x sample - truth in a box at a record.

    A user has something to do with the box or not, and each event of one who has lies in it with the same odds. So the number of
    such users is Poisson, and the characteristic function of the sum is known.
    """

    activity: _Activity
    k: int
    others: float
    """How likely an event of any other user lies in the box."""
    own: float
    """How likely an event of a user who has something to do with it does."""
    users: int
    part: float
    """Of the sum that counts."""

    def mean_absolute(self, gamma: float, off: _Off) -> float:
        """E|X|, where X is the sum and what is off besides: 2 / pi x the integral of (1 - Re phi(t)) / t^2 over t > 0."""
        events, odds = self.activity.events, self.activity.odds
        kept = np.minimum(events, self.k)
        largest = float(events[-1]) + 50 * self.users * self.others * float(events @ odds) + abs(off.noise_low) + off.noise
        t = np.geomspace(1e-3 / largest, 60 / max(0.3, 0.05 * off.noise), 200)
        up, down = np.exp(1j * self.part * t * (gamma - 1))[:, None], np.exp(-1j * self.part * t)[:, None]
        one = 1 + self.own * (kept / events * (up - 1) + (1 - kept / events) * (down - 1))
        power = np.exp(events * np.log(one))
        company = self.users * self.others / self.own * ((power - 1) @ odds)
        record = up[:, 0] * ((power / one) @ (odds * kept)) / float(odds @ kept)
        still = record * np.exp(1j * t * off.noise_low - (t * off.noise) ** 2 * pi / 4)
        found = 0.0
        for weight, crowd in _CROWDS:
            phi = still * np.exp(crowd * company + 1j * t * off.cut_low * crowd - (t * off.cut * crowd) ** 2 * pi / 4)
            found += weight * (float(np.trapezoid((1 - phi.real) / t, np.log(t))) + 1 / float(t[-1]))
        return 2 / pi * found


def _lognormal(squares: float) -> list[tuple[float, float]]:
    """Weights and values of a lognormal law of mean 1, at five nodes."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(5)
    sigma = sqrt(log(squares))
    return list(zip(weights / weights.sum(), np.exp(sigma * nodes - sigma**2 / 2), strict=True))


_CROWDS = _lognormal(SQUARES)
