"""The questions of the yardstick: boxes, single cells, hotspots and series, drawn once and put to every method.

Boxes are made of whole cells, and the truth of a box is what the exact tensor says of it: what is measured is what noise,
sampling and the method do, and an oracle that knows the exact tensor scores 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from scipy.spatial import cKDTree

from heathaze.grid import Grid
from heathaze.release.forecast import theta
from heathaze.release.sums import prefix_sum, whole_sums

SIDES = {"small": (30, 120), "middle": (300, 2_000), "large": (2_000, 10_000)}
"""Sides of square boxes in metres, at least and at most."""
SERIES = 100
"""Places whose series are forecast."""
HOT = 20.0
"""nu: a cell with so many events in a slice is a hotspot."""
REACH_METRES = 2_500.0
"""Half the side of the box in which a hotspot is looked for."""
CRITICAL = 1.6448536269514722
"""Of the test for a season: 90 %, two-sided, normal."""
PSI = 0.001
"""Relative errors are taken of at least this share of the events of a slice."""


@dataclass(frozen=True)
class Boxes:
    """Boxes of whole cells in one slice each."""

    low: np.ndarray
    """(n, 3): slice, row, column; within."""
    high: np.ndarray
    """(n, 3): beyond."""

    def sums(self, prefix: np.ndarray) -> np.ndarray:
        """The sum over each box of a tensor, from its prefix sums."""
        return whole_sums(prefix, self.low, self.high)


@dataclass(frozen=True)
class Workload:
    """Everything that is asked of an estimate."""

    boxes: dict[str, Boxes]
    points: np.ndarray
    """(n, 2): row and column, in cells, from which hotspots are looked for."""
    series: Boxes
    """Boxes whose series are forecast; the slices are all of them."""
    season: int
    horizon: int
    metres: tuple[float, float]
    """Height and width of a cell."""


def draw_workload(truth: np.ndarray, grid: Grid, season: int, queries: int, seed: int) -> Workload:
    """Questions at random records and at random places. It sees the truth: records are where people would ask."""
    random = np.random.default_rng((seed, 99))
    metres = grid.height_metres / grid.rows, grid.width_metres / grid.cols
    cell = (metres[0] * metres[1]) ** 0.5
    boxes = {"cell at records": _boxes(truth, (1, 1), True, queries, random)}
    for name, (least, most) in SIDES.items():
        sides = tuple(min(ceil(side / cell), min(truth.shape[1:])) for side in (least, most))
        for at_records in (True, False):
            place = "at records" if at_records else "anywhere"
            boxes[f"{name} {place}"] = _boxes(truth, sides, at_records, queries, random)
    horizon = season if season and len(truth) >= 3 * season else 0
    side = max(1, min(ceil(500 / cell), min(truth.shape[1:])))
    series = _boxes(truth, (side, side), True, 2_000, random)
    if horizon:
        chosen = np.flatnonzero(is_seasonal(_series(prefix_sum(truth), series), season))[:SERIES]
        series = Boxes(series.low[chosen], series.high[chosen])
    records = _records(truth, 1_000, random)[:, 1:] + random.random((1_000, 2)) if truth.any() else np.zeros((0, 2))
    return Workload(boxes, records, series, season, horizon, metres)


def is_seasonal(series: np.ndarray, period: int) -> np.ndarray:
    """Whether the autocorrelation at one season is beyond what the shorter lags explain, at 90 %."""
    length = series.shape[1]
    centred = series - series.mean(1, keepdims=True)
    scale = np.square(centred).sum(1)
    is_flat = np.ptp(series, axis=1) == 0
    scale = np.where(is_flat, 1.0, scale)
    lags = [(centred[:, lag:] * centred[:, :-lag]).sum(1) / scale for lag in range(1, period + 1)]
    limit = CRITICAL * np.sqrt((1 + 2 * sum((lag**2 for lag in lags[:-1]), np.zeros(len(series)))) / length)
    return ~is_flat & (np.abs(lags[-1]) > limit)


def score(estimate: np.ndarray, truth: np.ndarray, workload: Workload) -> dict[str, float]:
    """Every error of an estimate: mean absolute beside every relative one."""
    psi = max(PSI * float(truth.sum()) / len(truth), 1e-9)
    exactly, roughly = prefix_sum(truth), prefix_sum(estimate)
    found = {}
    for name, boxes in workload.boxes.items():
        exact, answer = boxes.sums(exactly), boxes.sums(roughly)
        off = np.abs(answer - exact)
        found[f"{name}: relative"] = float(np.mean(off / np.maximum(exact, psi)))
        found[f"{name}: absolute"] = float(np.mean(off))
    found |= _hotspots(estimate, truth, workload)
    found |= _forecasts(roughly, exactly, workload)
    found["all cells: root mean square"] = float(np.sqrt(np.mean(np.square(estimate - truth, dtype=np.float64))))
    totals = estimate.sum((1, 2), dtype=np.float64) - truth.sum((1, 2))
    found["whole slice: absolute"] = float(np.mean(np.abs(totals)))
    return found


def _records(truth: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Cells (slice, row, column) of records drawn at random."""
    heights = np.cumsum(truth.ravel(), dtype=np.float64)
    cells = np.searchsorted(heights, random.uniform(0, heights[-1], count), side="right")
    return np.stack(np.unravel_index(np.minimum(cells, truth.size - 1), truth.shape), axis=1)


def _boxes(truth: np.ndarray, sides: tuple[int, ...], at_records: bool, count: int, random: np.random.Generator) -> Boxes:
    side = random.integers(sides[0], sides[1] + 1, count)
    size = np.stack([np.ones_like(side), side, side], axis=1)
    shape = np.array(truth.shape)
    if at_records and truth.any():
        low = np.clip(_records(truth, count, random) - (size - 1) // 2, 0, shape - size)
    else:
        low = random.integers(0, shape - size + 1)
    return Boxes(low, low + size)


def _hotspots(estimate: np.ndarray, truth: np.ndarray, workload: Workload) -> dict[str, float]:
    """How far off the nearest hotspot is, and by how much what was found falls short of one."""
    if not len(workload.points):
        return {}
    reach = REACH_METRES * 2**0.5
    right, _ = _nearest(truth, workload)
    found, cells = _nearest(estimate, workload)
    best = estimate.argmax(0).ravel()
    there = truth.reshape(len(truth), -1)[best[cells], cells]
    regret = np.where(found < reach, np.maximum(HOT - there, 0), 0)
    return {"hotspots: distance, metres": float(np.mean(np.abs(found - right))), "hotspots: regret": float(np.mean(regret))}


def _nearest(tensor: np.ndarray, workload: Workload) -> tuple[np.ndarray, np.ndarray]:
    """Distance to the nearest hotspot and its cell; the corner of the box where there is none in it."""
    height, width = workload.metres
    reach = REACH_METRES * 2**0.5
    hot = np.flatnonzero(tensor.max(0).ravel() >= HOT)
    if not len(hot):
        return np.full(len(workload.points), reach), np.zeros(len(workload.points), dtype=np.int64)
    row, col = np.divmod(hot, tensor.shape[2])
    tree = cKDTree(np.stack([(row + 0.5) * height, (col + 0.5) * width], axis=1))
    distance, which = tree.query(workload.points * np.array([height, width]))
    return np.minimum(distance, reach), hot[which]


def _series(prefix: np.ndarray, boxes: Boxes) -> np.ndarray:
    """(box, slice): the series of each box, from the prefix sums of a tensor."""
    slices = len(prefix) - 1
    low, high = (np.repeat(edges, slices, 0) for edges in (boxes.low, boxes.high))
    low[:, 0] = np.tile(np.arange(slices), len(boxes.low))
    high[:, 0] = low[:, 0] + 1
    return whole_sums(prefix, low, high).reshape(-1, slices)


def _forecasts(roughly: np.ndarray, exactly: np.ndarray, workload: Workload) -> dict[str, float]:
    """How far forecasts by the Theta method on the estimate's series are off what came after, and off those on the true series.

    Nobody knows what comes after, so the first is above 0 for the truth itself; the second is what the estimate adds.
    """
    if not workload.horizon or not len(workload.series.low):
        return {}
    series = [_series(prefix, workload.series) for prefix in (roughly, exactly)]
    known = series[0].shape[1] - workload.horizon
    made, best = (theta(one[:, :known], workload.season, workload.horizon).values for one in series)
    later = series[1][:, known:]
    gap = 2 * np.abs(made - later) / np.maximum(np.abs(made) + np.abs(later), 1e-9)
    return {
        "forecasts: sMAPE": float(np.mean(gap)),
        "forecasts: absolute": float(np.mean(np.abs(made - later))),
        "forecasts: off those on the truth": float(np.mean(np.abs(made - best))),
    }
