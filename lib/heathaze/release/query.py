"""query: counts in boxes, nearest hotspots and forecasts from a published release.

From Python, one query or a hundred thousand:

    release = open_release(Tables("demo/tables"), "latest")
    answers = count(release, release.boxes(south=37.76, west=-122.45, north=37.80, east=-122.40))
    print(answers.answer, answers.low, answers.high, answers.basis)

Every argument of a query may be a number or an array. A release holds noisy and later values only, so any number of questions may
be asked of it. Intervals hold 90 %. They speak of the noise and of what the denoiser made of it; that only a bounded sample of
each user was counted, and that a box may cut a cell whose events do not lie evenly, is not in them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta, timezone
from fractions import Fraction
from functools import cached_property
from math import cos, radians
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa

from heathaze.errors import InputError
from heathaze.grid import METRES_PER_DEGREE, Grid
from heathaze.learn.maps import share_noisy
from heathaze.release.forecast import theta
from heathaze.release.publish import Published, find_release, releases, squares_of
from heathaze.release.squares import BY, Squares, unpack
from heathaze.release.sums import box_sums, prefix_sum, share_powers, whole_sums
from heathaze.release.uncertainty import NORMAL, ErrorModel, NoiseLaw, chance_of
from heathaze.rho import spread_evenly
from heathaze.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Numbers = float | Sequence[float] | np.ndarray
Times = str | datetime | None | Sequence[Any] | np.ndarray
Label = Callable[[int], str]
"""What an error about the i-th query begins with, such as its line in a file."""

HOTSPOT_SIDE = 5000.0
"""Side of the box in which a hotspot is looked for, metres."""


def _no_label(number: int) -> str:
    return ""


@dataclass(frozen=True, eq=False)
class Release:
    """A published release, open for queries. Slices are rows x cols, as they were read; tensors are made on demand."""

    name: str
    value_slices: Sequence[np.ndarray]
    """float32; what is published: gamma x the denoised count."""
    noisy_slices: Sequence[np.ndarray]
    """int32, in units of the bounded sample; float32 where the cells of a block that was measured as one share it evenly."""
    deviation_slices: Sequence[np.ndarray] | None
    """float32, in the same units; what the denoiser claims of each cell."""
    grid: Grid
    edges: tuple[datetime, ...]
    """The slices + 1 instants at which slices begin and the period ends."""
    scale: Fraction
    """Of the noise of one cell; of a block that was measured as one where `side` is above 1."""
    gamma: float
    """The refinement factor."""
    manifest: dict[str, Any]
    networks: bytes | None = None
    """Of the method snh: the networks with the grid that they came from."""
    side: int = 1
    """Of the blocks of cells that were measured as one in each slice."""

    @cached_property
    def values(self) -> np.ndarray:
        return np.asarray(self.value_slices)

    @cached_property
    def noisy(self) -> np.ndarray:
        return np.asarray(self.noisy_slices)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Slices, rows and cols."""
        return len(self.value_slices), self.grid.rows, self.grid.cols

    @cached_property
    def squares(self) -> Squares | None:
        """The networks of snh, open for queries; None for a release of another method."""
        return None if self.networks is None else Squares(unpack(self.networks))

    @property
    def zone(self) -> ZoneInfo:
        """Of times that carry no offset."""
        return ZoneInfo(self.manifest["policy"]["dataset"]["timezone"])

    @property
    def is_non_negative(self) -> bool:
        """Whether the policy promises that nothing published is below 0."""
        return bool(self.manifest["policy"]["refine"]["non_negative"])

    @property
    def step(self) -> timedelta:
        """Length of a slice by the local clock."""
        period = self.manifest["policy"]["period"]
        return timedelta(days=period["days"]) / period["slices"]

    @cached_property
    def law(self) -> NoiseLaw:
        return NoiseLaw(self.scale)

    @cached_property
    def model(self) -> ErrorModel | None:
        """How sure answers are, where the release says it."""
        found = self.manifest.get("uncertainty")
        return None if found is None else ErrorModel.from_json(found)

    @cached_property
    def value_prefix(self) -> np.ndarray:
        return prefix_sum(self.value_slices)

    @cached_property
    def noisy_prefix(self) -> np.ndarray:
        return prefix_sum(self.noisy_slices)

    @cached_property
    def shared_prefix(self) -> np.ndarray:
        """Of the noisy counts, where the cells of a block share it as the published values of the whole period do."""
        if self.side == 1:
            return self.noisy_prefix
        blocks = self.noisy[:, :: self.side, :: self.side] * np.float32(self.side**2)
        return prefix_sum(share_noisy(blocks, self.values, self.side))

    @cached_property
    def claim_prefix(self) -> np.ndarray | None:
        """Of the squared deviations."""
        return None if self.deviation_slices is None else prefix_sum(self.deviation_slices, 2)

    @property
    def metres(self) -> tuple[float, float]:
        """Metres in a degree of latitude and of longitude, at the middle of the grid, as for the sizes of cells."""
        return METRES_PER_DEGREE, METRES_PER_DEGREE * cos(radians((self.grid.south + self.grid.north) / 2))

    def boxes(
        self,
        south: Numbers | None = None,
        west: Numbers | None = None,
        north: Numbers | None = None,
        east: Numbers | None = None,
        start: Times = None,
        end: Times = None,
        label: Label = _no_label,
    ) -> Boxes:
        """Boxes of latitude, longitude and time; what is not given reaches to the edge of the release.

        What reaches beyond the release is cut, which the answer says. A box that is empty or altogether outside is refused.
        """
        grid = self.grid
        given = [(south, grid.south), (north, grid.north), (west, grid.west), (east, grid.east)]
        sides = [np.atleast_1d(np.asarray(default if value is None else value, dtype=np.float64)) for value, default in given]
        first, last = self.edges[0].timestamp(), self.edges[-1].timestamp()
        times = [self.instants(start, first, label), self.instants(end, last, label)]
        lat = np.stack(np.broadcast_arrays(*sides, *times)[:2], axis=1)
        lon = np.stack(np.broadcast_arrays(*sides, *times)[2:4], axis=1)
        time = np.stack(np.broadcast_arrays(*sides, *times)[4:], axis=1)
        known = np.isfinite(lat).all(1) & np.isfinite(lon).all(1)
        _require(known, label, lambda i: "south, west, north and east must be numbers, but one of them is not.")
        for edges, names in ((lat, "south north"), (lon, "west east")):
            low, high = names.split()
            texts = f"a box must have an area: {low} must be below {high}"
            _require(edges[:, 0] < edges[:, 1], label, _but(texts, edges))
        _require(time[:, 0] < time[:, 1], label, lambda i: "a box must last: its start must be before its end, but it is not.")
        rows = _snap((lat - grid.south) * grid.rows_per_degree)
        cols = _snap((lon - grid.west) * grid.cols_per_degree)
        frame = f"{grid.south:g}..{grid.north:g}, {grid.west:g}..{grid.east:g}"
        inside = (rows[:, 1] > 0) & (rows[:, 0] < grid.rows) & (cols[:, 1] > 0) & (cols[:, 0] < grid.cols)
        _require(inside, label, lambda i: f"a box must meet the grid of {self.name} ({frame}), but it lies outside.")
        period = f"{self.clock(first)} to {self.clock(last)}"
        meets = (time[:, 1] > first) & (time[:, 0] < last)
        _require(meets, label, lambda i: f"a box must meet the period of {self.name} ({period}), but its time lies outside.")
        is_cut = (lat[:, 0] < grid.south) | (lat[:, 1] > grid.north) | (lon[:, 0] < grid.west) | (lon[:, 1] > grid.east)
        is_short = (time[:, 0] < first) | (time[:, 1] > last)
        slices = _snap(self._slices_of(np.clip(time, first, last)))
        return Boxes(lat, lon, time, slices, np.clip(rows, 0, grid.rows), np.clip(cols, 0, grid.cols), is_cut, is_short)

    def boxes_around(
        self, lat: Numbers, lon: Numbers, side: Numbers, start: Times = None, end: Times = None, label: Label = _no_label
    ) -> Boxes:
        """Square boxes around points, with their side in metres."""
        lat, lon, sides = np.broadcast_arrays(*(np.atleast_1d(np.asarray(value, np.float64)) for value in (lat, lon, side)))
        _require(sides > 0, label, lambda i: f"the side of a box must be above 0 metres, but it is {sides[i]:g}.")
        up, across = (sides / 2 / metres for metres in self.metres)
        return self.boxes(lat - up, lon - across, lat + up, lon + across, start, end, label)

    def instants(self, given: Times, default: float, label: Label = _no_label) -> np.ndarray:
        """Times as seconds since 1970: ISO texts or datetimes, local to the policy's time zone unless they carry an offset."""
        if given is None:
            return np.array([default])
        if isinstance(given, str | datetime):
            given = [given]
        known: dict[Any, float] = {None: default, "": default}
        seconds = np.empty(len(given))
        for number, one in enumerate(given):
            if one not in known:
                known[one] = self._instant(one if isinstance(one, datetime) else str(one), label(number))
            seconds[number] = known[one]
        return seconds

    def clock(self, seconds: float) -> str:
        """An instant as the local clock shows it, with its offset."""
        return datetime.fromtimestamp(seconds, timezone.utc).astimezone(self.zone).isoformat(timespec="minutes")

    def _instant(self, given: str | datetime, label: str) -> float:
        try:
            time = datetime.fromisoformat(given) if isinstance(given, str) else given
            return (time if time.tzinfo else time.replace(tzinfo=self.zone)).timestamp()
        except (ValueError, OverflowError):
            raise InputError(f"{label}a time must read as 2026-11-14 or 2026-11-14T08:00, but {given!r} was given.") from None

    def _slices_of(self, seconds: np.ndarray) -> np.ndarray:
        """Places of instants on the axis of slices: 2.5 is in the middle of slice 2."""
        edges = np.array([edge.timestamp() for edge in self.edges])
        below = np.clip(np.searchsorted(edges, seconds, side="right") - 1, 0, len(edges) - 2)
        # A slice in the hour that the local clock skips is empty of time.
        lengths = np.maximum(edges[below + 1] - edges[below], 1e-9)
        return below + np.minimum((seconds - edges[below]) / lengths, 1)


@dataclass(frozen=True, eq=False)
class Boxes:
    """Boxes of a release, one per query; all arrays but the last two are n x 2: begin and end."""

    lat: np.ndarray
    lon: np.ndarray
    time: np.ndarray
    """Seconds since 1970. These three are as they were asked for."""
    slices: np.ndarray
    """In slices; this and the next two are cut at the edges of the release."""
    rows: np.ndarray
    """In cells."""
    cols: np.ndarray
    is_cut: np.ndarray
    """Whether the box reached beyond the grid."""
    is_short: np.ndarray
    """Whether it reached beyond the period."""

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def axes(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.slices, self.rows, self.cols

    def chosen(self, which: np.ndarray) -> Boxes:
        """Some of the boxes."""
        return Boxes(**{f.name: getattr(self, f.name)[which] for f in fields(self)})

    def cells_met(self, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """The first slice, row and column that each box meets, and the ones beyond its last, both n x 3."""
        edges = np.stack(self.axes, axis=1)
        low = np.minimum(np.floor(edges[..., 0]).astype(np.int64), np.array(shape) - 1)
        return low, np.maximum(np.ceil(edges[..., 1]).astype(np.int64), low + 1)

    def per_slice(self, slices: int) -> Boxes:
        """Each box once for every slice, whole: those of the first box first."""
        steps = np.tile(np.stack([np.arange(slices), np.arange(slices) + 1], axis=1).astype(np.float64), (len(self), 1))
        repeated = {f.name: np.repeat(getattr(self, f.name), slices, axis=0) for f in fields(self)}
        return Boxes(**{**repeated, "slices": steps, "is_short": np.zeros(len(steps), dtype=bool)})


@dataclass(frozen=True, eq=False)
class Answers:
    """Counts in boxes, in published units."""

    answer: np.ndarray
    low: np.ndarray
    high: np.ndarray
    """Low and high: the 90 % interval."""
    weight: np.ndarray | None
    """Of the denoised sum where it was mixed with the noisy one; None where not."""
    source: str | list[str]
    """Where the interval comes from, and the answer where it was not mixed; one for all, or one for each."""
    boxes: Boxes

    @property
    def sources(self) -> list[str]:
        """For each answer, where it and its interval come from."""
        weights = [None] * len(self.boxes) if self.weight is None else self.weight.tolist()
        sources = [self.source] * len(self.boxes) if isinstance(self.source, str) else self.source
        return [f"{_mixture(weight)}{source}" for weight, source in zip(weights, sources, strict=True)]

    @property
    def basis(self) -> list[str]:
        """The same, and where the box was cut."""
        cuts = zip(self.sources, self.boxes.is_cut.tolist(), self.boxes.is_short.tolist(), strict=True)
        return [f"{source}{_cut(is_cut, is_short)}" for source, is_cut, is_short in cuts]


def _mixture(weight: float | None) -> str:
    if weight is None:
        return ""
    if weight > 0.995:
        return "denoised; "
    return f"combined (weight {weight:.2f} of the denoised); " if weight >= 0.005 else "noisy sum; "


def _cut(is_cut: bool, is_short: bool) -> str:
    where = [name for name, holds in (("grid", is_cut), ("period", is_short)) if holds]
    return f"; the box was cut at the edge of the {' and the '.join(where)}" if where else ""


def open_release(tables: Tables, name: str = "latest", spark: SparkSession | None = None) -> Release:
    """A release by its name, or the newest of all for `latest`. Every slice is read once."""
    return _open(tables, find_release(tables, name, spark), spark)


def _open(tables: Tables, published: Published, spark: SparkSession | None) -> Release:
    manifest = published.manifest
    grid = Grid(**{side: manifest["grid"][side] for side in ("south", "west", "north", "east", "rows", "cols")})
    edges = tuple(datetime.fromisoformat(edge) for edge in manifest["slices"])
    columns = {"values": "<f4", "noisy": "<i4", "deviation": "<f4"}
    rows = list(tables.load_singly("releases", published.release, ["slice", *columns], spark))
    shape = (len(edges) - 1, grid.rows, grid.cols)
    side = manifest["noise"]["block"]
    measured = (shape[0], grid.rows // side, grid.cols // side)
    values, deviation = (_slices(rows, column, columns[column], shape) for column in ("values", "deviation"))
    noisy = _slices(rows, "noisy", columns["noisy"], measured)
    if noisy is not None and side > 1:
        noisy = list(spread_evenly(np.stack(noisy), side))
    if values is None or noisy is None:
        raise InputError(f"{published.release} must hold values and noisy counts, but some are missing: see heathaze verify.")
    scale, gamma = Fraction(manifest["noise"]["scale"]), float(manifest["refinement"]["gamma"])
    networks = squares_of(tables, published.release, spark) if manifest.get("squares") else None
    return Release(published.release, values, noisy, deviation, grid, edges, scale, gamma, manifest, networks, side)


def _slices(rows: list[pa.RecordBatch], name: str, kind: str, shape: tuple[int, int, int]) -> list[np.ndarray] | None:
    """The slices of one column in their order, as Arrow read them, without a copy; None where some are null."""
    if any(row[name].null_count for row in rows):
        return None
    order = [row["slice"][0].as_py() for row in rows]
    images = dict(zip(order, (_numbers(row[name], kind) for row in rows), strict=True))
    cells = shape[1] * shape[2]
    if sorted(order) != list(range(shape[0])) or any(image.size != cells for image in images.values()):
        raise InputError(f"the release must hold {shape[0]} slices of {cells} cells, but it holds others: see heathaze verify.")
    return [images[number].reshape(shape[1:]) for number in range(shape[0])]


def _numbers(binary: pa.BinaryArray, kind: str) -> np.ndarray:
    """The numbers of the one value of an array; a scalar of Arrow would be a copy."""
    _, offsets, data = binary.buffers()
    begin, end = np.frombuffer(offsets, np.int32)[binary.offset : binary.offset + 2]
    numbers = np.frombuffer(data, kind, count=(end - begin) // 4, offset=begin)
    numbers.flags.writeable = False
    return numbers


def count(release: Release, boxes: Boxes, noisy: bool = False) -> Answers:
    """Events in each box, with a 90 % interval; a cell or slice that the border cuts counts by its share.

    `noisy` answers from the noisy counts alone, which are unbiased and whose law is known; such a sum may be below 0.
    """
    if release.squares is None or noisy:
        return _from_grid(release, boxes, noisy)
    # The networks of snh speak of the whole period; each box is answered as it would be alone.
    is_whole = (boxes.slices[:, 0] <= 0) & (boxes.slices[:, 1] >= release.shape[0])
    if not is_whole.any():
        return _from_grid(release, boxes, noisy)
    whole = _by_squares(release, release.squares, boxes.chosen(is_whole))
    if is_whole.all():
        return whole
    others = _from_grid(release, boxes.chosen(~is_whole), noisy)
    answer, low, high = (np.empty(len(boxes)) for _ in range(3))
    source = np.empty(len(boxes), dtype=object)
    for chosen, part in ((is_whole, whole), (~is_whole, others)):
        answer[chosen], low[chosen], high[chosen], source[chosen] = part.answer, part.low, part.high, part.sources
    return Answers(answer, low, high, None, source.tolist(), boxes)


def _from_grid(release: Release, boxes: Boxes, noisy: bool) -> Answers:
    """Boxes from the published and the noisy tensor."""
    # Noise of one variance in all cells: sums of squared shares are products over the axes.
    axes = [share_powers(edges, 2) for edges in boxes.axes]
    squares = np.prod(axes, axis=0)
    if noisy:
        (total,) = box_sums([release.noisy_prefix], *boxes.axes)
        half = _half_width(release, boxes)
        answer, low, high = (release.gamma * part for part in (total, total - half, total + half))
        evenly = "" if release.side == 1 else "; within a block that was measured as one, events are taken to lie evenly"
        return Answers(answer, low, high, None, f"noisy sum; interval from the exact law of the noise{evenly}", boxes)
    claimed = _claimed(release, boxes, squares)
    weight = None
    if release.model is not None:
        published, total = box_sums([release.value_prefix, release.shared_prefix], *boxes.axes)
        area, length = axes[1] * axes[2], axes[0]
        judged = release.model.answer(published / release.gamma, total, claimed, area, length)
        answer, low, high = (release.gamma * part for part in judged[:3])
        weight, source = judged.weight, "interval from a rehearsal on noisy data"
    elif claimed is not None:
        (answer,) = box_sums([release.value_prefix], *boxes.axes)
        half = release.gamma * NORMAL * claimed
        low, high = answer - half, answer + half
        source = "denoised; interval is the denoiser's own claim as if cells erred independently, without calibration"
    else:
        answer, total = box_sums([release.value_prefix, release.noisy_prefix], *boxes.axes)
        half = _half_width(release, boxes)
        low, high = (release.gamma * (total + sign * half) for sign in (-1, 1))
        low, high = np.minimum(low, answer), np.maximum(high, answer)
        source = "denoised; interval of the noisy sum, from the exact law of the noise"
    if release.is_non_negative:
        answer, low, high = (np.maximum(part, 0) for part in (answer, low, high))
    return Answers(answer, low, high, weight, source, boxes)


def _half_width(release: Release, boxes: Boxes) -> np.ndarray:
    """Half the 90 % interval of what noise adds to boxes; of a block that was measured as one, the part that a box covers."""
    measured = (boxes.slices, boxes.rows / release.side, boxes.cols / release.side)
    squares, fourths = (np.prod([share_powers(edges, power) for edges in measured], axis=0) for power in (2, 4))
    return release.law.half_width(squares, fourths)


SAID = {
    "networks": "by the networks of its size; interval from replicas of the noisy grid",
    "scaled": "by the networks of the nearest size, scaled by area; interval from replicas of the noisy grid",
    "cells": "sum of learned cells; interval from what is left of the noise",
    "noisy": "noisy sum; interval from the law of the noise and the unevenness of cut cells",
}
"""How the answers of snh were made, in words."""


def _by_squares(release: Release, squares: Squares, boxes: Boxes) -> Answers:
    """Squares by the networks, other boxes by learned or noisy cells, whichever are expected to be nearer."""
    tall, wide = (
        np.diff(edges, axis=1)[:, 0] * metres for edges, metres in zip((boxes.lat, boxes.lon), release.metres, strict=True)
    )
    is_square = np.abs(tall - wide) <= 0.01 * np.maximum(tall, wide)
    found = squares.rectangles(boxes.lat[:, 0], boxes.lon[:, 0], boxes.lat[:, 1], boxes.lon[:, 1])
    if is_square.any():
        lat, lon = boxes.lat[is_square].mean(1), boxes.lon[is_square].mean(1)
        found.take_over(np.flatnonzero(is_square), squares.counts(lat, lon, np.sqrt(tall * wide)[is_square]), slice(None))
    source = [SAID[BY[number]] for number in found.by]
    answer, low, high = (release.gamma * part for part in (found.count, found.low, found.high))
    return Answers(answer, low, high, None, source, boxes)


def _claimed(release: Release, boxes: Boxes, squares: np.ndarray) -> np.ndarray | None:
    """Standard deviation of each box as the denoiser claims it, in units of the sample; None where it claims nothing.

    The mean variance of the cells that the box meets, times the sum of their squared shares.
    """
    if release.claim_prefix is None:
        return None
    low, high = boxes.cells_met(release.shape)
    variance = whole_sums(release.claim_prefix, low, high)
    return np.sqrt(np.maximum(variance, 0) / np.prod(high - low, axis=1) * squares)


@dataclass(frozen=True, eq=False)
class Hotspots:
    """The nearest hotspot of each query; numbers are NaN, and row, col and slice -1, where there is none."""

    distance: np.ndarray
    """From the point to the centre of the cell, metres."""
    lat: np.ndarray
    """Centre of the cell."""
    lon: np.ndarray
    value: np.ndarray
    row: np.ndarray
    col: np.ndarray
    slice: np.ndarray
    """Where the cell has several, the one with the largest value."""
    chance: np.ndarray
    """That the cell's count there is nu at least, as the denoiser knows it; NaN where it does not say how sure it is."""

    @property
    def is_found(self) -> np.ndarray:
        return self.row >= 0


def hotspots(
    release: Release,
    lat: Numbers,
    lon: Numbers,
    nu: Numbers,
    side: Numbers = HOTSPOT_SIDE,
    start: Times = None,
    end: Times = None,
    noisy: bool = False,
    label: Label = _no_label,
) -> Hotspots:
    """The cell nearest to each point that has at least `nu` events in some slice, and the chance that it truly has.

    Looked for in a square around the point, with its side in metres, and in the slices that meet the time from `start` to `end`.
    """
    boxes = release.boxes_around(lat, lon, side, start, end, label)
    lat, lon, levels, side = (np.broadcast_to(np.asarray(value, dtype=np.float64), len(boxes)) for value in (lat, lon, nu, side))
    _require(levels > 0, label, lambda i: f"nu must be above 0 events, but it is {levels[i]:g}.")
    spans = np.stack([met[:, 0] for met in boxes.cells_met(release.shape)], axis=1)
    values = release.noisy * np.float32(release.gamma) if noisy else release.values
    up, across = release.metres
    points = np.stack([(lat - release.grid.south) * up, (lon - release.grid.west) * across], axis=1)
    cells = np.full(len(boxes), -1)
    for first, beyond in np.unique(spans, axis=0):
        highest, in_span = values[first:beyond].max(0), (spans == (first, beyond)).all(1)
        for level in np.unique(levels[in_span]):
            here = in_span & (levels == level)
            cells[here] = _nearest(release.grid, highest >= level, points[here], side[here] / 2)
    return _describe(release, values, cells, points, spans, None if noisy else levels)


def _nearest(grid: Grid, is_hot: np.ndarray, points: np.ndarray, half: np.ndarray) -> np.ndarray:
    """The nearest hot cell within `half` metres along each axis of each point (north, east), -1 where there is none."""
    from scipy.spatial import cKDTree

    hot = np.flatnonzero(is_hot)
    if not len(hot):
        return np.full(len(points), -1)
    centres = _centres(grid, hot)
    tree = cKDTree(centres)
    distance, nearest = tree.query(points)
    found = np.where(np.abs(centres[nearest] - points).max(1) <= half, hot[nearest], -1)
    # The nearest of all may lie beside the square while another lies in a corner of it.
    for number in np.flatnonzero((found < 0) & (distance <= half * 2**0.5)):
        near = np.array(tree.query_ball_point(points[number], half[number], p=np.inf), dtype=np.int64)
        if len(near):
            off = np.square(centres[near] - points[number]).sum(1)
            found[number] = hot[near[np.lexsort((near, off))[0]]]
    return found


def _centres(grid: Grid, cells: np.ndarray) -> np.ndarray:
    """Metres north and east of the grid's corner at which cells have their centres, n x 2."""
    sides = grid.height_metres / grid.rows, grid.width_metres / grid.cols
    return np.stack([(cells // grid.cols + 0.5) * sides[0], (cells % grid.cols + 0.5) * sides[1]], axis=1)


def _describe(
    release: Release, values: np.ndarray, cells: np.ndarray, points: np.ndarray, spans: np.ndarray, levels: np.ndarray | None
) -> Hotspots:
    """What is known of the found cells; chances only where levels are given."""
    grid, is_found = release.grid, cells >= 0
    distance = np.sqrt(np.square(_centres(grid, cells) - points).sum(1))
    row, col = cells // grid.cols, cells % grid.cols
    slices, highest = np.full(len(cells), -1), np.full(len(cells), np.nan)
    for first, beyond in np.unique(spans[is_found], axis=0):
        here = np.flatnonzero(is_found & (spans == (first, beyond)).all(1))
        seen = values[first:beyond, row[here], col[here]]
        slices[here], highest[here] = first + seen.argmax(0), seen.max(0)
    lat = grid.south + (row + 0.5) / grid.rows_per_degree
    lon = grid.west + (col + 0.5) / grid.cols_per_degree
    distance, lat, lon = (np.where(is_found, value, np.nan) for value in (distance, lat, lon))
    row, col, chance = np.where(is_found, row, -1), np.where(is_found, col, -1), np.full(len(cells), np.nan)
    if levels is not None and release.deviation_slices is not None:
        for number in np.unique(slices[is_found]):
            here = slices == number
            deviation = release.deviation_slices[number][row[here], col[here]]
            chance[here] = chance_of(highest[here] / release.gamma, deviation, levels[here] / release.gamma)
    return Hotspots(distance, lat, lon, highest, row, col, slices, chance)


def chain(tables: Tables, name: str = "latest", nights: int | None = None, spark: SparkSession | None = None) -> list[Published]:
    """The releases of one dataset whose periods follow each other up to the named one, oldest first, at most `nights` of them.

    Of a period that was released twice, the newer release. A gap, another grid or other slices end the chain.
    """
    wanted, listed = find_release(tables, name, spark), releases(tables, spark)
    found = [wanted]
    while nights is None or len(found) < nights:
        before = [one for one in listed if _is_followed(one, found[-1])]
        if not before:
            break
        found.append(before[-1])
    return found[::-1]


def _is_followed(one: Published, by: Published) -> bool:
    same = all(one.manifest[key] == by.manifest[key] for key in ("dataset", "grid"))
    periods = [manifest["policy"]["period"] for manifest in (one.manifest, by.manifest)]
    ends = datetime.fromisoformat(one.manifest["period_ends"])
    return same and periods[0] == periods[1] and ends == datetime.fromisoformat(by.manifest["period_starts"])


def open_chain(
    tables: Tables, name: str = "latest", nights: int | None = None, spark: SparkSession | None = None
) -> Iterable[Release]:
    """The releases of a chain, each opened when it is asked for: one is in memory at a time."""
    return (_open(tables, one, spark) for one in chain(tables, name, nights, spark))


@dataclass(frozen=True, eq=False)
class Forecast:
    """The past of some boxes, and what is expected of the steps to come, in published units."""

    times: tuple[datetime, ...]
    """When the steps of the past begin, by the local clock."""
    past: np.ndarray
    """boxes x steps."""
    low: np.ndarray
    high: np.ndarray
    """Low and high: the 90 % interval of each count of the past."""
    coming: tuple[datetime, ...]
    """When the forecast steps begin."""
    ahead: np.ndarray
    """boxes x horizon."""
    seasons: tuple[str, ...]
    """For each box, whether its past has a season."""
    releases: tuple[str, ...]
    """Where the past is from."""


def forecast(
    nights: Iterable[Release],
    boxes: Boxes,
    horizon: int | None = None,
    season: int | None = None,
    start: Times = None,
    end: Times = None,
    noisy: bool = False,
) -> Forecast:
    """Forecast the counts of boxes by the Theta method, from one release or a chain of them.

    `season` is the length of a season in slices, by default a day, or a week where a slice is a day; `horizon` defaults to one
    season. The past is made of the whole slices between `start` and `end`; the time of the boxes does not count.
    """
    names, parts, edges = [], [], list[float]()
    for release in nights:
        answers = count(release, boxes.per_slice(len(release.edges) - 1), noisy)
        parts.append([part.reshape(len(boxes), -1) for part in (answers.answer, answers.low, answers.high)])
        edges[-1:] = [edge.timestamp() for edge in release.edges]
        names.append(release.name)
    first, beyond = np.array(edges[:-1]), np.array(edges[1:])
    used = (first >= release.instants(start, edges[0])) & (beyond <= release.instants(end, edges[-1]))
    if not used.any():
        raise InputError("a forecast needs at least one whole slice of the past, but there is none between start and end.")
    past, low, high = (np.concatenate(kind, axis=1)[:, used] for kind in zip(*parts, strict=True))
    season = _season(release.step) if season is None else season
    horizon = season if horizon is None else horizon
    made = theta(past, season, horizon)
    local = [datetime.fromtimestamp(time, timezone.utc).astimezone(release.zone) for time in [*first[used], beyond[used][-1]]]
    now = local.pop().replace(tzinfo=None)
    coming = tuple((now + release.step * number).replace(tzinfo=release.zone) for number in range(horizon))
    ahead = np.maximum(made.values, 0) if release.is_non_negative and not noisy else made.values
    return Forecast(tuple(local), past, low, high, coming, ahead, made.seasons, tuple(names))


def _season(step: timedelta) -> int:
    """A day in steps; a week where a step is a day; 1, for none, where a day is no whole number of steps."""
    day, rest = divmod(timedelta(days=1), step)
    if step == timedelta(days=1):
        return 7
    return day if day and not rest else 1


def _snap(places: np.ndarray) -> np.ndarray:
    """Borders that miss an edge of a cell by rounding alone are put on it."""
    edges = np.rint(places)
    return np.where(np.abs(places - edges) < 1e-6, edges, places)


def _require(holds: np.ndarray, label: Label, message: Callable[[int], str]) -> None:
    """Refuse the first query for which something does not hold."""
    if not holds.all():
        number = int(np.argmin(holds))
        raise InputError(label(number) + message(number))


def _but(rule: str, edges: np.ndarray) -> Callable[[int], str]:
    return lambda i: f"{rule}, but they are {edges[i, 0]:g} and {edges[i, 1]:g}."
