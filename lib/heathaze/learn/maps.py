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

from heathaze.learn.denoiser import Denoised, discrete_laplace, non_negative
from heathaze.learn.totals import Totals, measured_again, settle_totals
from heathaze.rho import block_sums

LEAST = 1e-3
"""Events of a block in the map below which its cells share evenly: there is nothing to go by."""


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
        limits = np.iinfo(np.int32)
        return np.clip(counts + discrete_laplace(random, float(scale), counts.shape), limits.min, limits.max).astype(np.int32)

    slices = noisy(block_sums(truth, scales.side), scales.cell)
    totals = measured_again(truth, scales.total, random)
    return Measurement(slices, totals, None if scales.map is None else noisy(truth.sum(0, keepdims=True), scales.map))


def estimate_night(
    measured: Measurement,
    scales: Scales,
    slices: Callable[[np.ndarray], Denoised],
    whole: Callable[[np.ndarray], Denoised],
) -> Denoised:
    """The estimate on the published grid: `slices` denoises the slices and `whole` the map; totals settle both."""
    blocks = settle_totals(slices(measured.slices), measured.totals.with_cells(measured.slices, scales.cell))
    if measured.map is None or scales.map is None:
        return blocks
    total = Totals(measured.totals.values.sum(keepdims=True), len(measured.slices) * measured.totals.variance)
    of_map = settle_totals(whole(measured.map), total.with_cells(measured.map, scales.map))
    return share_out(blocks, of_map, scales.side)


def share_out(blocks: Denoised, of_map: Denoised, side: int) -> Denoised:
    """Blocks of slices shared out among their `side` x `side` cells as the map says, with deviations.

    A cell's count is the block's times the cell's part of it in the map; both err, apart from each other. In a slice, events
    fall into cells by chance as well: a Poisson count's variance is added to that of the two estimates. A count below 0 cannot be
    shared out, so there is none before, as in what is published.
    """
    counts = non_negative(of_map.values)[0].astype(np.float64)
    whole = non_negative(blocks.values)
    held = _spread(block_sums(counts[None], side), side)[0]
    part = np.where(held > LEAST, counts / np.maximum(held, LEAST), 1 / side**2)
    values = _spread(whole, side) * part.astype(np.float32)
    if blocks.deviation is None or of_map.deviation is None:
        return Denoised(values)
    unsure = np.square(of_map.deviation[0], dtype=np.float64) / np.maximum(held, 1) ** 2
    sure = np.square(_spread(blocks.deviation, side)) * np.square(part).astype(np.float32)
    variance = sure + np.square(_spread(whole, side)) * unsure.astype(np.float32) + np.maximum(values, 0)
    return Denoised(values, np.sqrt(variance))


def _spread(blocks: np.ndarray, side: int) -> np.ndarray:
    """The value of its block in every cell."""
    return np.repeat(np.repeat(blocks, side, 1), side, 2)
