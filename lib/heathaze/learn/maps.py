"""Slices measured in large blocks, and one map of the whole period that tells where in a block the events are.

Where events are few and the noise is strong, a slice can be told apart from the others only in large blocks. Where in a block the
events lie changes little from slice to slice, and all slices together show it much better than each of them: a map of their sum,
measured apart, needs one draw of noise per cell instead of one per cell and slice. The count of a block in a slice is shared out
among its cells as the map's counts are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from heathaze.learn.denoiser import Denoised, discrete_laplace, noise_variance, non_negative
from heathaze.learn.totals import Totals, measured_again, settle_totals
from heathaze.rho import block_sums

LEAST = 1e-3
"""Events of a block in the map below which its cells share evenly: there is nothing to go by."""

DOUBT = 2.0
"""Deviations of their difference by which the map and the slices may disagree about a block by chance."""

GROWTH = 0.25
"""Half as long, parts of blocks change 2 ^ GROWTH times as much from slice to slice: about what the cabs' do, by days and by
hours, while those of synthetic cities grow twice as fast. Read off public data, with the truth in view."""

ROUNDS = 20
"""Of finding how much parts change: how well a place tells it depends on how much they do."""


@dataclass(frozen=True)
class Measurement:
    """What was measured of one night."""

    slices: np.ndarray
    """slices x rows x cols of the grid of slices, int32."""
    totals: Totals
    """Of the slices."""
    map: np.ndarray | None = None
    """1 x rows x cols of the published grid, int32; None where slices are measured as they are published."""


@dataclass(frozen=True)
class Scales:
    """Of the noise of a measurement."""

    cell: Fraction
    total: Fraction
    """Of the total of one slice."""
    map: Fraction | None = None
    """Of one cell of the map; None where there is none."""
    side: int = 1
    """Of the blocks in which slices are measured, in published cells."""


def measure_again(truth: np.ndarray, scales: Scales, random: np.random.Generator) -> Measurement:
    """A plausible truth measured with noise of the same laws. It protects nobody."""

    def noisy(counts: np.ndarray, scale: Fraction) -> np.ndarray:
        limits, out = np.iinfo(np.int32), np.empty(counts.shape, dtype=np.int32)
        for image, into in zip(counts, out, strict=True):
            into[:] = np.clip(image + discrete_laplace(random, float(scale), image.shape), limits.min, limits.max)
        return out

    slices = noisy(block_sums(truth, scales.side), scales.cell)
    totals = measured_again(truth, scales.total, random)
    return Measurement(slices, totals, None if scales.map is None else noisy(truth.sum(0, keepdims=True), scales.map))


@dataclass(frozen=True)
class Estimate:
    """What is made of a measurement."""

    slices: Denoised
    """On the grid of slices."""
    map: Denoised | None
    """Of the whole period, one slice; None where there is none."""
    side: int

    def published(self) -> Denoised:
        """On the published grid."""
        return self.slices if self.map is None else share_out(self.slices, self.map, self.side)


def estimate_night(
    measured: Measurement,
    scales: Scales,
    slices: Callable[[np.ndarray], Denoised],
    whole: Callable[[np.ndarray], Denoised],
) -> Estimate:
    """`slices` denoises the slices and `whole` the map; totals settle both."""
    totals = measured.totals.with_cells(measured.slices, scales.cell).drawn_together()
    blocks = settle_totals(slices(measured.slices), totals)
    if measured.map is None or scales.map is None:
        return Estimate(blocks, None, 1)
    total = Totals(measured.totals.values.sum(keepdims=True), len(measured.slices) * measured.totals.variance)
    of_map = settle_totals(whole(measured.map), total.with_cells(measured.map, scales.map))
    return Estimate(blocks, settle_map(of_map, blocks, measured.map, scales.map, scales.side), scales.side)


def settle_map(of_map: Denoised, blocks: Denoised, noisy: np.ndarray, scale: Fraction, side: int) -> Denoised:
    """The map as it was measured where the slices show that its estimate is wrong about a block.

    A crowd where there was none on any night before is well seen in the slices' blocks; in a cell of the map, under stronger
    noise, it passes for noise. The further map and slices are apart about a block, beyond DOUBT of the deviations that both claim
    and what noise does to its sum in the map, the more its cells are taken as measured; what is then still missing is shared by
    how unsure they are.
    """
    if of_map.deviation is None or blocks.deviation is None:
        return of_map
    held = non_negative(blocks.values).sum(0, keepdims=True, dtype=np.float64)
    unsure = np.square(blocks.deviation, dtype=np.float64).sum(0, keepdims=True)
    variance = np.square(of_map.deviation, dtype=np.float64)

    def apart(values: np.ndarray) -> np.ndarray:
        return np.asarray(held - block_sums(non_negative(values).astype(np.float64), side))

    noise = noise_variance(scale)
    by_chance = DOUBT**2 * (block_sums(variance, side) + unsure) + side**2 * noise
    wrong = np.maximum(1 - by_chance / np.maximum(np.square(apart(of_map.values)), LEAST), 0)
    doubted = _spread(wrong, side)
    values = non_negative(of_map.values + doubted * (noisy - of_map.values))
    variance = variance + doubted * np.maximum(noise - variance, 0)
    shift = wrong * apart(values) / np.maximum(block_sums(variance, side) + unsure, LEAST)
    return Denoised((values + variance * _spread(shift, side)).astype(np.float32), np.sqrt(variance).astype(np.float32))


def share_out(blocks: Denoised, of_map: Denoised, side: int) -> Denoised:
    """Blocks of slices shared out among their `side` x `side` cells as the map says, with deviations.

    A cell's count is the block's times the cell's part of it in the map; both err, apart from each other. In a slice, events
    fall into cells by chance as well: a Poisson count's variance is added to that of the two estimates. A count below 0 cannot be
    shared out, so there is none before, as in what is published.
    """
    counts = non_negative(of_map.values)[0].astype(np.float64)
    whole = non_negative(blocks.values)
    held = _spread(block_sums(counts[None], side), side)[0]
    part = parts_of(counts[None], side)[0]
    values = _spread(whole, side) * part.astype(np.float32)
    if blocks.deviation is None or of_map.deviation is None:
        return Denoised(values)
    unsure = np.square(of_map.deviation[0], dtype=np.float64) / np.maximum(held, 1) ** 2
    sure = np.square(_spread(blocks.deviation, side)) * np.square(part).astype(np.float32)
    variance = sure + np.square(_spread(whole, side)) * unsure.astype(np.float32) + np.maximum(values, 0)
    return Denoised(values, np.sqrt(variance))


def share_noisy(noisy: np.ndarray, values: np.ndarray, side: int) -> np.ndarray:
    """Noisy blocks of slices shared out among their cells as an estimate shares them out over the whole period."""
    if side == 1:
        return noisy
    parts = parts_of(np.maximum(values, 0).sum(0, keepdims=True, dtype=np.float64), side)
    return (_spread(noisy, side) * parts).astype(np.float32)


def parts_of(counts: np.ndarray, side: int) -> np.ndarray:
    """What part of its block of `side` x `side` cells each cell holds; even parts where a block holds next to nothing."""
    held = _spread(block_sums(counts, side), side)
    return np.where(held > LEAST, counts / np.maximum(held, LEAST), 1 / side**2)


def change_of_parts(measured: np.ndarray, estimate: np.ndarray, scale: Fraction) -> float:
    """How much the parts that blocks hold of squares of 2 x 2 of them change from slice to slice, beyond what noise and chance
    explain: the squared coefficient of variation of what goes on in each block, at most 1.

    Where blocks change by themselves with the variance c, the part p of one of four changes by c ((1 - p)^2 + the squares of the
    other three): one that holds nearly everything always does. `measured` are noisy blocks and `estimate` what is made of them.
    Every place is weighed by how well it tells: the square of a deviation varies as the square of its own mean. Weighed by the
    noise alone, a few crowds would speak for all: they change least, because many places average out in them. What few blocks
    show by chance is taken off.
    """
    slices, rows, cols = measured.shape
    noisy, blocks = (tensor[:, : rows // 2 * 2, : cols // 2 * 2].astype(np.float64) for tensor in (measured, estimate))
    if slices < 2 or not noisy.size:
        return 0.0
    squares, around = (_spread(block_sums(tensor, 2), 2) for tensor in (np.maximum(blocks, 0), noisy))
    part = np.maximum(blocks, 0).sum(0) / np.maximum(squares.sum(0), LEAST)
    expected = part * squares
    chance = noise_variance(scale) * ((1 - part) ** 2 + 3 * part**2) + expected * (1 - part)
    seen = np.square(noisy - part * around) - chance
    free = (1 - part) ** 2 + _spread(block_sums(part[None] ** 2, 2), 2)[0] - part**2
    squared = np.square(expected) * free * (1 - 1 / slices)
    change = 0.0
    for _ in range(ROUNDS):
        weight = squared / np.square(chance + change * squared)
        known = max(float(np.sum(weight * squared)), LEAST)
        change = float(np.clip(np.sum(weight * seen) / known, 0, 1))
    # 2 / known is its variance: what is no larger than its own error is nothing, and what is far larger stays.
    return max(0.0, change - 2 / (known * max(change, LEAST)))


def vary_parts(parts: np.ndarray, side: int, change: float, random: np.random.Generator) -> np.ndarray:
    """Parts of blocks of `side` x `side` cells that change from slice to slice, at every step from blocks down to cells.

    Blocks change by `change` in larger squares, and what is smaller changes more, because fewer places average out in it: by
    (side / length) ^ GROWTH times as much.
    """
    length = side if change > 0 else 1
    while length > 1:
        shorter = next(length // factor for factor in range(2, length + 1) if length % factor == 0)
        shape = (len(parts), parts.shape[1] // shorter, parts.shape[2] // shorter)
        here = change * (side / shorter) ** GROWTH
        parts = parts * _spread(random.gamma(1 / here, here, shape), shorter)
        length = shorter
    return parts_of(parts, side)


def scatter(blocks: np.ndarray, parts: np.ndarray, side: int, random: np.random.Generator) -> np.ndarray:
    """The events of blocks, whole numbers, put into their cells at random by their parts of the block."""
    slices, rows, cols = blocks.shape
    chances = parts.reshape(slices, rows, side, cols, side).transpose(0, 1, 3, 2, 4).reshape(slices, rows, cols, side * side)
    drawn = random.multinomial(blocks, chances / chances.sum(-1, keepdims=True))
    return drawn.reshape(slices, rows, cols, side, side).transpose(0, 1, 3, 2, 4).reshape(parts.shape)


def _spread(blocks: np.ndarray, side: int) -> np.ndarray:
    """The value of its block in every cell."""
    return np.repeat(np.repeat(blocks, side, 1), side, 2)
