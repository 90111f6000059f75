"""How sure an answer is: the exact law of a sum of noise, and an error model that was learnt in rehearsals.

A rehearsal is a run of the denoiser on counts that are public, made noisy by the same law. There the error of every box is
known, so it can be learnt how far answers are off, by the size of the box and by what the denoiser claims of it. Nothing here is
private.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, copysign, exp, log2, sqrt
from typing import Any, NamedTuple

import numpy as np

from heathaze.errors import InputError
from heathaze.learn.denoiser import noise_fourth_moment, noise_variance
from heathaze.release.sums import prefix_sum, whole_sums

COVERAGE = 0.9
"""Share of answers whose interval shall hold the truth; half of the rest lies on either side."""
TAIL = (1 - COVERAGE) / 2
NORMAL = 1.6448536269514722
"""Quantile of the normal law at 1 - TAIL."""

EXACT = 64
"""Up to so many draws the law of their sum is computed; the sum of more is as good as normal."""
FINEST = 500
"""Scales above it are computed on a coarser lattice: a step of it is 1/500 of the scale."""

BINS = 6
"""Levels of claimed deviation that are told apart for one size of box, at most."""
MIXED, COUNTED = 10, 40
"""Places apart from which on estimate and noisy sum are mixed, and from which on quantiles are counted rather than Student's."""
LEVELS = 4
"""Levels of claimed deviation that are told apart where reality is compared with rehearsals."""
OVERLAP = 2
"""Boxes of tiles side by side overlap by up to half, so that so many of them know what one alone would."""
TAILS = np.linspace(TAIL, 0.12, 29)
"""Shares of a kind of boxes that may lie beyond one end of an interval."""
MISSED = 8
"""A kind that is held too seldom counts so many times as much as one that is held too often."""
NARROW = 1e-3
"""What an interval e times as wide must gain: as much as a kind that is held in 93 instead of 90 % loses."""
FLOOR = 1e-6
"""Least variance of a cell that is taken as claimed, as a part of the noise's: no spread is 0."""
DIGITS = 4
"""Significant digits in JSON."""
VERSION = 1


@dataclass(frozen=True)
class NoiseLaw:
    """Weighted sums of independent discrete Laplace noise."""

    scale: Fraction
    """Of one draw."""

    @property
    def variance(self) -> float:
        return noise_variance(self.scale)

    def half_width(self, squares: np.ndarray, fourths: np.ndarray) -> np.ndarray:
        """Half the 90 % interval of sum(w X), from sum(w^2) and sum(w^4).

        For m whole weights it is exact: the smallest whole number that holds at least 90 %. Otherwise it is that of
        m = sum(w^2)^2 / sum(w^4) equal weights of the same variance, which has the same kurtosis.
        """
        draws = np.square(squares) / np.maximum(fourths, 1e-300)
        return np.sqrt(squares * self.variance) * self.quantile(draws)

    def quantile(self, draws: np.ndarray) -> np.ndarray:
        """The 95 % quantile of the sum of so many draws, in its standard deviations; beyond EXACT by Cornish and Fisher."""
        exact = np.interp(draws, np.arange(1, EXACT + 1), _exact_quantiles(self.scale))
        kurtosis = (noise_fourth_moment(self.scale) / self.variance**2 - 3) / np.maximum(draws, EXACT)
        return np.where(draws <= EXACT, exact, NORMAL + kurtosis * (NORMAL**3 - 3 * NORMAL) / 24)


@lru_cache(maxsize=64)
def _exact_quantiles(scale: Fraction) -> np.ndarray:
    """The 95 % quantiles of sums of 1 to EXACT draws, in their standard deviations.

    The characteristic function of one draw is (1 - a)^2 / ((1 - a)^2 + 4 a sin^2(x / 2)); its powers, transformed back on a
    circle far wider than the law, are the laws of the sums.
    """
    lattice = min(scale, Fraction(FINEST))
    a = exp(-1 / float(lattice))
    size = 2 ** ceil(log2(256 * float(lattice) + 256))
    one = (1 - a) ** 2 / ((1 - a) ** 2 + 4 * a * np.sin(np.pi * np.arange(size // 2 + 1) / size) ** 2)
    quantiles, power = np.empty(EXACT), np.ones_like(one)
    for number in range(EXACT):
        power = power * one
        law = np.fft.irfft(power, size)[: size // 2]
        below = (1 + law[0]) / 2 + np.concatenate([[0], np.cumsum(law[1:])])
        reached = int(np.argmax(below >= 1 - TAIL - 1e-12))
        quantiles[number] = reached / sqrt((number + 1) * noise_variance(lattice))
    return quantiles


def chance_of(mean: np.ndarray, deviation: np.ndarray, least: np.ndarray) -> np.ndarray:
    """Chances that counts of these means and deviations are at least `least`.

    The law is that of a plausible truth in a rehearsal: Poisson with a rate that varies by a gamma law where the deviation is
    above Poisson's, and normal for large counts that are known better than that. Two moments are not a whole posterior: chances
    near a half may be off by a tenth.
    """
    from scipy.special import betainc, ndtr, pdtrc

    mean, variance, wanted = np.maximum(mean, 1e-9), np.square(deviation), np.maximum(np.ceil(least - 1e-9), 1)
    varies = variance > mean * (1 + 1e-6)
    wider = np.where(varies, variance, 2 * mean)
    mixed = betainc(wanted, mean**2 / (wider - mean), 1 - mean / wider)
    near = ndtr((mean - wanted + 0.5) / np.maximum(deviation, 1e-9))
    return np.asarray(np.where(varies, mixed, np.where(mean > 20, near, pdtrc(wanted - 1, mean))))


class Rehearsal(NamedTuple):
    """One run of the denoiser on public counts. Tensors are slices x rows x cols, in units of the bounded sample."""

    truth: np.ndarray
    noisy: np.ndarray
    """The truth with noise of the law of the release."""
    estimate: np.ndarray
    """After everything that published values go through, but for the factor gamma."""
    deviation: np.ndarray | None
    """What the denoiser claims of each cell; None where it claims nothing."""


class Judged(NamedTuple):
    """Answers of an error model, one per box."""

    answer: np.ndarray
    low: np.ndarray
    high: np.ndarray
    weight: np.ndarray
    """Of the estimate; the rest is the noisy sum's."""


@dataclass(frozen=True)
class ErrorModel:
    """How estimate and noisy sum of a box are best mixed, and where the truth then lies.

    For each rung, an area in cells by a length in slices, and each bin of the claimed level (variance that is claimed per
    cell): the weight of the estimate, and between which multiples of the spread the truth lies off the answer in 90 % of
    boxes. With weight w, the spread is sqrt(w^2 (c^2 + floor) + (1 - w)^2 noise), where c is the claim for the box, floor the
    variance that claims of this bin miss on average, and noise the known variance of the noisy sum. Between rungs, all of it
    is interpolated in log area and log length.
    """

    variance: float
    """Of the noise of one cell."""
    areas: np.ndarray
    lengths: np.ndarray
    edges: np.ndarray
    """areas x lengths x (BINS - 1): levels between the bins, infinite beyond the last bin."""
    weights: np.ndarray
    """areas x lengths x BINS, as are the next three."""
    lows: np.ndarray
    highs: np.ndarray
    floors: np.ndarray
    """Per cell."""

    @classmethod
    def fit(
        cls,
        rehearsals: Iterable[tuple[Any, ...]],
        variance: float,
        tonight: tuple[np.ndarray, np.ndarray, np.ndarray | None] | None = None,
        boxes: int = 4000,
        seed: int = 0,
    ) -> ErrorModel:
        """Learn from rehearsals, of which one at a time is held; `boxes` are drawn per rung and rehearsal, half anywhere and half
        around records of the truth.

        A box anywhere is mostly cold and a box at a record is mostly hot: the interval shall hold both kinds in 90 %.

        `tonight` is (noisy, estimate, deviation) of the night that will be asked, in the same units. Where its estimate lies
        further off its noisy sums than in the rehearsals, the rehearsals were too easy, and the errors of their estimates are
        made larger: the law of the noise is the same in both, so noise does not explain it.
        """
        random = np.random.default_rng(seed)
        ladder: list[tuple[int, int, int]] = []
        rehearsed: list[list[_Errors]] = []
        comparable: list[list[_Errors]] = []
        for one in rehearsals:
            run = Rehearsal(*one)
            ladder = ladder or _ladder(run.truth.shape)
            rehearsed.append(_errors_in(run, len(rehearsed), ladder, boxes, random, run.truth))
            if tonight is not None:
                # Both around what was estimated: a box around a record of a known truth holds more than it seems to.
                comparable.append(_errors_in(run, len(comparable), ladder, 4 * boxes, random, run.estimate))
            del one, run
        if not rehearsed:
            raise InputError("an error model is learnt from at least one rehearsal, but there is none.")
        drawn = _joined(rehearsed)
        areas, lengths = sorted({size[1] * size[2] for size in ladder}), sorted({size[0] for size in ladder})
        model = cls(variance, np.array(areas), np.array(lengths), *_empty(len(areas), len(lengths)))
        harder, pairs = np.ones(len(areas)), None
        if tonight is not None:
            # Only how far the estimate lies off its noisy sums is compared, in which the truth cancels: any will do.
            real = _errors_in(Rehearsal(tonight[1], *tonight), 0, ladder, 4 * boxes, random, tonight[1])
            alike = _joined(comparable)
            harder, pairs = _harder(alike, real, ladder), list(zip(alike, real, strict=True))
        for number, (length, rows, cols) in enumerate(ladder):
            area = areas.index(rows * cols)
            errors = drawn[number]._replace(estimate=drawn[number].estimate * sqrt(harder[area]))
            model._learn((area, lengths.index(length)), errors, None if pairs is None else pairs[number], length * rows * cols)
        return model

    def answer(
        self, estimate: np.ndarray, noisy_sum: np.ndarray, claimed: np.ndarray | None, area: np.ndarray, length: np.ndarray
    ) -> Judged:
        """The best answer for each box, and its 90 % interval, all in units of the bounded sample.

        `claimed` is sqrt(sum of squared deviations) of a box; None where there are none: then it is the root of the estimate.
        """
        cells = np.asarray(area * length, dtype=np.float64)
        claim = _claim(estimate, claimed)
        weight, low, high, floor = self._look_up(claim / cells, area, length)
        claim = claim + floor * cells
        spread = np.sqrt(weight**2 * claim + (1 - weight) ** 2 * self.variance * cells)
        answer = weight * estimate + (1 - weight) * noisy_sum
        # The interval of a biased estimate may lie beside it; one that does not hold its own answer would be read as a mistake.
        return Judged(answer, answer + np.minimum(low * spread, 0), answer + np.maximum(high * spread, 0), weight)

    def to_json(self) -> dict[str, Any]:
        """The model as JSON values, a few kilobytes."""
        bins = np.isfinite(self.edges).sum(2) + 1
        rungs = [
            [[_short(values[place][: bins[place] - less]) for values, less in self._learnt] for place in row]
            for row in [[(i, j) for j in range(len(self.lengths))] for i in range(len(self.areas))]
        ]
        sizes = {"areas": self.areas.tolist(), "lengths": self.lengths.tolist()}
        return {"version": VERSION, "variance": self.variance, **sizes, "rungs": rungs}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> ErrorModel:
        """The model that `to_json` wrote."""
        if found.get("version") != VERSION:
            raise InputError(
                f"the error model of this release must have version {VERSION}, but it has {found.get('version')}. "
                "Use the version of heathaze that wrote it."
            )
        areas, lengths = np.array(found["areas"]), np.array(found["lengths"])
        model = cls(found["variance"], areas, lengths, *_empty(len(areas), len(lengths)))
        for i, row in enumerate(found["rungs"]):
            for j, rung in enumerate(row):
                for (values, _), numbers in zip(model._learnt, rung, strict=True):
                    values[i, j, : len(numbers)] = numbers
        return model

    @property
    def _learnt(self) -> list[tuple[np.ndarray, int]]:
        """What is learnt of each rung, and by how much it is shorter than the number of bins."""
        return [(self.edges, 1), (self.weights, 0), (self.lows, 0), (self.highs, 0), (self.floors, 0)]

    def _learn(self, rung: tuple[int, int], errors: _Errors, pair: tuple[_Errors, _Errors] | None, cells: int) -> None:
        """Fill in one rung from the errors of its boxes; `pair` are boxes of rehearsals and of tonight that can be compared."""
        levels = errors.claim / cells
        places, tiles = len(np.unique(errors.place)), len(np.unique(errors.tile))
        bins = int(np.clip(min(places // MIXED, tiles // COUNTED), 1, BINS))
        # Levels that there are, so that no bin is empty.
        edges = np.unique(np.quantile(levels, np.arange(1, bins) / bins, method="higher"))
        edges = edges[(edges > levels.min()) & (edges <= levels.max())]
        self.edges[rung][: len(edges)] = edges
        for number in range(len(edges) + 1):
            here = errors.within(edges, number, cells)
            floor = max(float(np.mean(here.estimate**2 - here.claim)), FLOOR * self.variance * cells)
            weight, low, high = _judge(here, here.claim + floor, self.variance * cells)
            if pair is not None:
                alike, real = (one.within(edges, number, cells) for one in pair)
                bias = weight * _bias(alike, real)
                spread = sqrt(weight**2 * float(np.mean(here.claim) + floor) + (1 - weight) ** 2 * self.variance * cells)
                low, high = low - max(bias, 0) / spread, high + max(-bias, 0) / spread
            found = weight, low, high
            for (values, _), value in zip(self._learnt[1:], (*found, floor / cells), strict=True):
                values[rung][number] = value

    def _look_up(self, level: np.ndarray, area: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Weight, low, high and floor (4 x n) of each box, from the four rungs around it."""
        tall, across = len(self.areas), len(self.lengths)
        sizes = np.interp(np.log(area), np.log(self.areas), np.arange(tall))
        spans = np.interp(np.log(length), np.log(self.lengths), np.arange(across))
        learnt = np.stack([values for values, _ in self._learnt[1:]], axis=-1).reshape(-1, 4)
        edges = self.edges.reshape(tall * across, -1)
        found = np.zeros((len(level), 4))
        for i, part_i in _around(sizes, tall):
            for j, part_j in _around(spans, across):
                rung = i * across + j
                group = np.zeros(len(level), dtype=np.int64)
                for number in range(edges.shape[1]):
                    group += level >= edges[rung, number]
                found += (part_i * part_j)[:, None] * learnt[rung * BINS + group]
        return found.T


class _Errors(NamedTuple):
    """Boxes of one size."""

    estimate: np.ndarray
    """Estimate less truth."""
    noisy: np.ndarray
    """Noisy sum less truth."""
    claim: np.ndarray
    """Claimed variance."""
    at_record: np.ndarray
    """Whether the box was placed around a record."""
    place: np.ndarray
    """Number of the place: boxes of different numbers hardly overlap in space, or are of different rehearsals."""
    tile: np.ndarray
    """Number of the place and time: boxes of different numbers hardly share noise."""

    def within(self, edges: np.ndarray, number: int, cells: int) -> _Errors:
        """The boxes whose claim lies in one bin."""
        here = np.searchsorted(edges, self.claim / cells, side="right") == number
        return _Errors(*(values[here] for values in self))


def _claim(estimate: np.ndarray, claimed: np.ndarray | None) -> np.ndarray:
    """Claimed variance of a box: counts that nobody knows more of vary like Poisson's."""
    return np.maximum(estimate, 0) if claimed is None else np.square(claimed)


def _ladder(shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """Sizes of boxes, slices x rows x cols: sides and lengths double up to the whole grid and all slices."""
    slices, rows, cols = shape
    lengths = [2**n for n in range(slices.bit_length()) if 2**n < slices] + [slices]
    longest = max(rows, cols)
    sides = [2**n for n in range(longest.bit_length()) if 2**n < longest] + [longest]
    areas = {(min(side, rows), min(side, cols)) for side in sides}
    return [(length, *area) for area in sorted(areas) for length in lengths]


def _errors_in(
    run: Rehearsal, number: int, ladder: list[tuple[int, int, int]], boxes: int, random: np.random.Generator, counts: np.ndarray
) -> list[_Errors]:
    """The errors of boxes of every size in one rehearsal, half of them anywhere and half around records of `counts`."""
    shape = np.array(run.truth.shape)
    records = _draw_records(counts, boxes // 2 * len(ladder), random).reshape(len(ladder), -1, 3)
    sizes = np.array(ladder)[:, None, :]
    anywhere = random.integers(0, shape - sizes + 1, (len(ladder), boxes - records.shape[1], 3))
    around = np.clip(records - random.integers(0, sizes, records.shape), 0, shape - sizes)
    low = np.concatenate([anywhere, around], axis=1)
    high = low + sizes
    flat = [corners.reshape(-1, 3) for corners in (low, high)]

    def sums(tensor: np.ndarray, power: int = 1) -> np.ndarray:
        return whole_sums(prefix_sum(tensor, power), *flat).reshape(low.shape[:2])

    truth, noisy, estimate = sums(run.truth), sums(run.noisy), sums(run.estimate)
    claimed = None if run.deviation is None else np.sqrt(np.maximum(sums(run.deviation, 2), 0))
    claim = _claim(estimate, claimed)
    at_record = np.broadcast_to(np.arange(low.shape[1]) >= anywhere.shape[1], claim.shape)
    tile = (low + high) // 2 // sizes
    place = (number * (shape[1] + 1) + tile[..., 1]) * (shape[2] + 1) + tile[..., 2]
    made = (estimate - truth, noisy - truth, claim, at_record, place, place * shape[0] + tile[..., 0])
    return [_Errors(*(values[i] for values in made)) for i in range(len(ladder))]


def _joined(drawn: list[list[_Errors]]) -> list[_Errors]:
    """The boxes of several rehearsals, by size."""
    return [_Errors(*(np.concatenate(parts) for parts in zip(*sizes, strict=True))) for sizes in zip(*drawn, strict=True)]


def _draw_records(truth: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Cells of records drawn at random, count x 3; none where there are no records."""
    heights = np.cumsum(np.maximum(truth, 0), dtype=np.float64)
    if heights[-1] <= 0:
        return np.zeros((0, 3), dtype=np.int64)
    cells = np.searchsorted(heights, random.uniform(0, heights[-1], count), side="right")
    return np.stack(np.unravel_index(np.minimum(cells, truth.size - 1), truth.shape), axis=1)


def _harder(alike: list[_Errors], real: list[_Errors], ladder: list[tuple[int, int, int]]) -> np.ndarray:
    """By how much squared errors of tonight's estimate exceed those of rehearsals, for boxes of each area; at least 1.

    A plausible truth is as smooth as the estimate that it was drawn from, so a rehearsal may find it easier than reality was.
    With the error e of the estimate and n of the noisy sum, (e - n)^2 is known of both, and n^2 and e n are alike in both.
    Boxes of one slice are many enough to tell; what each area says is taken with that of its neighbours, by how sure they are,
    and with a guess that rehearsals are right, give or take as much as they say.
    """
    found = [_excess(e, r) for e, r, (length, *_) in zip(alike, real, ladder, strict=True) if length == 1]
    excess, known = np.array(found).T
    near = [slice(max(0, number - 1), number + 2) for number in range(len(found))]
    # Areas side by side see the same noise: together they know no more than the mean of what each of them knows.
    return np.array([1 + max(0.0, float(np.mean(excess[n] * known[n]) / (1 + np.mean(known[n])))) for n in near])


def _excess(alike: _Errors, real: _Errors) -> tuple[float, float]:
    """By what part real squared errors exceed rehearsed ones in boxes of one size, and one over its standard error squared."""
    tiles = len(np.unique(real.tile))
    edges = np.unique(np.quantile(alike.claim, np.arange(1, LEVELS) / LEVELS)) if tiles >= LEVELS * COUNTED else np.empty(0)
    seen, known = 0.0, 0.0
    for number in range(len(edges) + 1):
        here, there = alike.within(edges, number, 1), real.within(edges, number, 1)
        if min(len(np.unique(one.tile)) for one in (here, there)) < COUNTED:
            continue
        square = float(np.mean(here.estimate**2))
        more, doubt = _difference(here, there, power=2)
        weight = square / max(doubt**2, 1e-300)
        seen, known = seen + weight * more, known + weight * square
    return (seen / known, known) if known > 0 else (0.0, 0.0)


def _bias(alike: _Errors, real: _Errors) -> float:
    """How much higher real estimates are above their noisy sums than rehearsed ones, less two standard errors of it."""
    if min(len(np.unique(one.tile)) for one in (alike, real)) < COUNTED:
        return 0.0
    bias, doubt = _difference(alike, real, power=1)
    return copysign(max(0.0, abs(bias) - 2 * doubt), bias)


def _difference(alike: _Errors, real: _Errors, power: int) -> tuple[float, float]:
    """How much larger a power of estimate less noisy sum is tonight than in rehearsals, on average, and its standard error."""
    apart = [(one.estimate - one.noisy) ** power for one in (alike, real)]
    tiles = [len(np.unique(one.tile)) for one in (alike, real)]
    unsure = sum(float(np.var(values)) / number for values, number in zip(apart, tiles, strict=True))
    return float(np.mean(apart[1]) - np.mean(apart[0])), sqrt(OVERLAP * unsure)


def _judge(errors: _Errors, claim: np.ndarray, noise: float) -> tuple[float, float, float]:
    """Weight, low and high of one bin.

    Large boxes lie in few places, and what few boxes show is taken with the caution of Student's law. From fewer than MIXED
    places no weight can be learnt: either the estimate alone or the noisy sum alone answers, whichever has the shorter interval.
    """
    places = len(np.unique(errors.place))
    if places < MIXED:
        wide = _student(max(places, 1)) * _mean_root(errors.estimate**2 / claim)
        return (1.0, -wide, wide) if wide**2 * float(np.mean(claim)) < NORMAL**2 * noise else (0.0, -NORMAL, NORMAL)
    apart = errors.noisy - errors.estimate
    weight = float(np.clip(np.mean(errors.noisy * apart) / max(float(np.mean(apart**2)), 1e-300), 0, 1))
    spread = weight**2 * claim + (1 - weight) ** 2 * noise
    off = -(weight * errors.estimate + (1 - weight) * errors.noisy) / np.sqrt(spread)
    if places >= COUNTED:
        return weight, *_interval(off[~errors.at_record], off[errors.at_record])
    wide = _student(places - 1) * _mean_root(off**2) * sqrt(places / (places - 1))
    return weight, -wide, wide


def _student(freedom: int) -> float:
    """Quantile of Student's law at 1 - TAIL."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, 1 - TAIL))


def _interval(anywhere: np.ndarray, at_records: np.ndarray) -> tuple[float, float]:
    """The one interval that holds both kinds of boxes as nearly in 90 % as one can.

    Around records there is more than there seems to be, anywhere less. An interval from the lower of both lower quantiles to the
    higher of both upper ones holds both too often, so its ends are drawn in, each as far as serves; of those that are about as
    good the narrowest is taken. A kind counts by how many of its boxes are here: few boxes around records lie where it is cold,
    and must not make all the others there too wide.
    """
    kinds = [np.sort(kind) for kind in (anywhere, at_records) if len(kind) >= COUNTED]
    kinds = kinds or [np.sort(np.concatenate([anywhere, at_records]))]
    ends = np.concatenate([np.quantile(kind, (TAILS, 1 - TAILS)) for kind in kinds], axis=1)
    lows, highs = np.unique(ends[0]), np.unique(ends[1])
    loss = NARROW * np.log(np.maximum(highs - lows[:, None], FLOOR))
    here = np.mean([len(kind) for kind in kinds])
    for kind in kinds:
        held = np.searchsorted(kind, highs, side="right") - np.searchsorted(kind, lows)[:, None]
        off = held / len(kind) - COVERAGE
        loss += len(kind) / here * np.square(off) * np.where(off < 0, MISSED, 1)
    best = np.unravel_index(np.argmin(loss), loss.shape)
    return float(lows[best[0]]), float(highs[best[1]])


def _around(place: np.ndarray, size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The rungs on both sides of each place on a ladder, with their parts."""
    below = np.minimum(place.astype(np.int64), max(size - 2, 0))
    part = place - below
    return [(below, 1 - part), (np.minimum(below + 1, size - 1), part)]


def _empty(areas: int, lengths: int) -> list[np.ndarray]:
    return [np.full((areas, lengths, BINS - 1), np.inf), *(np.zeros((areas, lengths, BINS)) for _ in range(4))]


def _mean_root(squares: np.ndarray) -> float:
    return sqrt(float(np.mean(squares)))


def _short(values: np.ndarray) -> list[float]:
    return [float(f"{value:.{DIGITS}g}") for value in values]
