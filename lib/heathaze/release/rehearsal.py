"""How sure published answers are, without the truth: the night is rehearsed.

A plausible truth is drawn from the published estimate and its deviations, noise of the declared law is added to it, and it is
denoised and refined exactly as the night was. In a rehearsal the truth is known, so the error of every size of box can be looked
at. It reads noisy tables only, so it is free, and its random numbers protect nobody.

Deviations are of cells, each for itself, so such a truth is as smooth over wide areas as the estimate, and easier to find than
reality was. So the night is rehearsed several times, each time from an estimate that is moved over areas by as much as the
rehearsal before was off there: a plausible truth lies as far off an estimate as estimates are found to lie off the truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import starmap

import numpy as np

from heathaze.learn.denoiser import Denoised, noise_variance, non_negative
from heathaze.learn.maps import (
    Estimate,
    Measurement,
    Scales,
    change_of_parts,
    measure_again,
    parts_of,
    scatter,
    share_noisy,
    vary_parts,
)
from heathaze.learn.tree import FINEST, area_sums, spread_areas
from heathaze.policy import Refine
from heathaze.release.refine import finish
from heathaze.release.uncertainty import ErrorModel, Rehearsal

Again = Callable[[Measurement], Estimate]
"""Estimates another measurement as the night's was."""

ROUNDS = 3
"""Rehearsals of a night. Those before the last find how far over areas a plausible truth lies off an estimate, which hardly grows
any more after two."""
READ = 2
"""Rehearsals whose errors are read, the last ones: in one alone, the luck of a few totals can make large boxes seem sure."""
FARTHEST = 4.0
"""An area is moved to at most so many times what it was estimated to hold."""
LEAST = 0.01
"""Events of an area below which it stays where it is."""


def rehearse(found: Estimate, noisy: np.ndarray, scales: Scales, again: Again, settings: Refine, seed: int) -> ErrorModel:
    """The error model of a night, from its estimate and its noisy slices.

    Where the night's estimate lies further off its own noisy sums than a rehearsal's does, its intervals are made wider.
    """
    drawn = last_rehearsals(found, noisy, scales, again, np.random.default_rng(seed))
    runs = starmap(partial(_run, scales=scales, settings=settings), drawn)
    tonight = found.published()
    asked = finish(tonight.values, settings)
    night = (share_noisy(noisy, asked, scales.side), asked, tonight.deviation)
    return ErrorModel.fit(runs, noise_variance(scales.cell) / scales.side**2, night)


def _run(truth: np.ndarray, measured: Measurement, result: Estimate, scales: Scales, settings: Refine) -> Rehearsal:
    answer = result.published()
    values = finish(answer.values, settings)
    return Rehearsal(truth, share_noisy(measured.slices, values, scales.side), values, answer.deviation)


def last_rehearsals(
    found: Estimate, noisy: np.ndarray, scales: Scales, again: Again, random: np.random.Generator
) -> Iterator[tuple[np.ndarray, Measurement, Estimate]]:
    """Plausible truths, how they were measured, and what was made of that: the last READ of ROUNDS, one at a time."""
    start = found
    for number in range(ROUNDS):
        truth = imagine(start, noisy, scales, random)
        measured = measure_again(truth, scales, random)
        result = again(measured)
        if number < ROUNDS - 1:
            start = moved(found, start, result)
        if number >= ROUNDS - READ:
            yield truth, measured, result
        # Let go before the next one is made: they are as large as the night.
        del truth, measured, result


def imagine(found: Estimate, noisy: np.ndarray, scales: Scales, random: np.random.Generator) -> np.ndarray:
    """A plausible truth: whole counts on the published grid.

    Where slices were measured in blocks, the blocks and the map are imagined each for itself, for the map errs alike in all
    slices; and the parts of blocks change from slice to slice, which the map cannot tell.
    """
    if found.map is None:
        return plausible(found.slices, random)
    side = found.side
    blocks = plausible(Denoised(non_negative(found.slices.values), found.slices.deviation), random)
    of_map = plausible(Denoised(non_negative(found.map.values), found.map.deviation), random)
    change = change_of_parts(noisy, found.slices.values, scales.cell)
    parts = np.broadcast_to(parts_of(of_map.astype(np.float64), side), (len(blocks), *of_map.shape[1:]))
    return scatter(blocks, vary_parts(parts, side, change, random), side, random)


def moved(found: Estimate, start: Estimate, result: Estimate) -> Estimate:
    """An estimate moved over areas by as much as a rehearsal that started from `start` was off, the other way."""
    slices = _moved(found.slices, start.slices, result.slices)
    if found.map is None or start.map is None or result.map is None:
        return replace(found, slices=slices)
    return replace(found, slices=slices, map=_moved(found.map, start.map, result.map))


def _moved(found: Denoised, start: Denoised, result: Denoised) -> Denoised:
    ours, began, ended = (area_sums(non_negative(one.values), FINEST) for one in (found, start, result))
    factor = np.where(ours > LEAST, np.clip((ours + began - ended) / np.maximum(ours, LEAST), 0, FARTHEST), 1).astype(np.float32)
    values = non_negative(found.values)
    deviation = None if found.deviation is None else found.deviation.copy()
    for number, times in enumerate(factor):
        cells = spread_areas(times, FINEST, values.shape[1:])
        if deviation is not None:
            # What a count varies by beyond Poisson's law is a varying rate, which is as many times larger as the area holds more.
            extra = np.square(deviation[number]) - values[number]
            variance = cells * values[number] + np.where(extra > 0, np.square(cells), cells) * extra
            deviation[number] = np.sqrt(np.maximum(variance, 0))
        values[number] *= cells
    return Denoised(values, deviation)


def plausible(denoised: Denoised, random: np.random.Generator) -> np.ndarray:
    """Whole counts with the means and deviations of an estimate, int32; slice by slice, which takes less room.

    Where the deviation is above that of a Poisson count, the rate varies by a gamma law; without deviations, counts are Poisson.
    """
    counts = np.empty(denoised.values.shape, dtype=np.int32)
    for number, values in enumerate(denoised.values):
        counts[number] = _plausible(values, None if denoised.deviation is None else denoised.deviation[number], random)
    return counts


def _plausible(values: np.ndarray, deviation: np.ndarray | None, random: np.random.Generator) -> np.ndarray:
    mean = np.maximum(values, 0).astype(np.float64)
    extra = np.zeros_like(mean) if deviation is None else np.square(deviation, dtype=np.float64) - mean
    varies = (extra > 1e-9) & (mean > 1e-9)
    shape = np.where(varies, mean**2 / np.where(varies, extra, 1.0), 1.0)
    rate = np.where(varies, random.gamma(shape) * np.where(varies, extra / np.maximum(mean, 1e-9), 0.0), mean)
    counts = random.poisson(np.minimum(rate, 1e9))
    if deviation is None:
        return counts
    # A count that is known better than a Poisson count is drawn around its mean instead.
    sure = (mean > 20) & (extra < 0)
    near = np.rint(mean + deviation * random.standard_normal(mean.shape))
    return np.where(sure, np.maximum(near, 0), counts)
