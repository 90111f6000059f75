"""What the networks of snh are shown of a noisy grid, and what they answer: numpy alone, so that a release opens without torch.

A place is the centre of a square, in cells from the south-western corner of the grid: row 2.5, column 3.0 lies in the middle of
the western edge of cell (2, 3).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from heathaze.learn.denoiser import noise_variance

Weights = Mapping[str, np.ndarray]
"""Names as in the state of the torch modules, with `cells.` or `squares.` before them."""

QUANTILES = (0.025, 0.5, 0.975)
"""What a square network answers: the middle, and the ends of the 90 % interval. The networks learn from replicas, which are
kinder than a city, so the ends lie a little farther out."""

STRETCH, SHIFT = 0.3, 0.5
"""An output of 1 stretches the plain answer by exp(0.3), and moves it by half of its spread."""

BLOCKS = (3, 5, 9, 17, 33, 65)
"""Sides of the blocks around a cell whose sums are shown."""
CROWDS = (3, 5, 9, 17)
"""Sides of the blocks in which what rises above the noise is shown by itself: a few hot cells, or many warm ones."""
CROWDED = 2.5
"""Deviations of the noise above which a cell is surely not empty."""
RINGS = ((1, 0), (1, 1), (2, 0), (2, 1), (2, 2))
"""The nearest neighbours, one of each kind; those that a turn or a mirror makes equal are shown together."""
LINES = (3, 7)
"""Cells to either side along a street through the cell."""
DIRECTIONS = ((0, 1), (1, 0), (1, 1), (1, -1))

CELL_FEATURES = 2 * len(RINGS) + 2 * len(BLOCKS) + len(CROWDS) + 2 * len(LINES)

WIDER = (1, 2, 3, 5, 8, 15)
"""Sides, in cells, of the squares around a place that its networks are shown too."""
WIDER_NOISY = (1, 2, 3)
SQUARE_FEATURES = 11 + len(WIDER) + len(WIDER_NOISY)

WELL_KNOWN = 16
"""A noisy value of so many scales is taken as it is: no prior has anything to add."""

PART = 1 << 15
"""Cells or places that go through a network together: what they need stays in the processor's cache."""


def prefix(cells: np.ndarray) -> np.ndarray:
    """F[r, c] = the sum of cells[:r, :c], float64."""
    total = np.zeros((cells.shape[0] + 1, cells.shape[1] + 1))
    np.cumsum(cells, axis=0, out=total[1:, 1:])
    np.cumsum(total[1:, 1:], axis=1, out=total[1:, 1:])
    return total


@dataclass(frozen=True)
class Places:
    """Centres of squares: scattered ones, or every row with every column."""

    rows: np.ndarray
    cols: np.ndarray
    lattice: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), len(self.cols)) if self.lattice else self.rows.shape

    def sums(self, total: np.ndarray, height: float | np.ndarray, width: float | np.ndarray) -> np.ndarray:
        """Sums over the squares (height x width cells) of a grid, given by its prefix sums; cells count by their share inside.

        What a square has outside the grid counts nothing.
        """
        south, north = self.rows - height / 2, self.rows + height / 2
        west, east = self.cols - width / 2, self.cols + width / 2
        if self.lattice:
            bands = _along(total, north) - _along(total, south)
            return (_along(bands.T, east) - _along(bands.T, west)).T
        inner = (_between(total, north, east), _between(total, south, east), _between(total, north, west))
        return inner[0] - inner[1] - inner[2] + _between(total, south, west)

    def at(self, cells: np.ndarray) -> np.ndarray:
        """The value of the cell that each place lies in."""
        rows = np.clip(self.rows.astype(np.int64), 0, cells.shape[0] - 1)
        cols = np.clip(self.cols.astype(np.int64), 0, cells.shape[1] - 1)
        return cells[np.ix_(rows, cols)] if self.lattice else cells[rows, cols]

    def cover(self, height: float, width: float) -> np.ndarray:
        """The share of the cell around each place that lies in its square."""
        tall, wide = _covered(self.rows, height), _covered(self.cols, width)
        return tall[:, None] * wide if self.lattice else tall * wide


def _along(total: np.ndarray, edges: np.ndarray) -> np.ndarray:
    below, beyond = _below(edges, len(total))
    return total[below] * (1 - beyond)[:, None] + total[below + 1] * beyond[:, None]


def _between(total: np.ndarray, rows: np.ndarray, cols: np.ndarray) -> np.ndarray:
    south, up = _below(rows, total.shape[0])
    west, right = _below(cols, total.shape[1])
    lower = total[south, west] * (1 - right) + total[south, west + 1] * right
    upper = total[south + 1, west] * (1 - right) + total[south + 1, west + 1] * right
    return lower * (1 - up) + upper * up


def _below(edges: np.ndarray, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """The node below each edge and how far beyond it the edge lies; edges beyond the grid lie on its border."""
    inside = np.clip(edges, 0, nodes - 1)
    below = np.minimum(inside.astype(np.int64), nodes - 2)
    return below, inside - below


def _covered(centres: np.ndarray, side: float) -> np.ndarray:
    offset = centres - np.floor(centres)
    return np.minimum(offset + side / 2, 1) - np.maximum(offset - side / 2, 0)


def surroundings(noisy: np.ndarray, deviation: float) -> np.ndarray:
    """What is seen around each cell without looking at the cell: (cells, CELL_FEATURES), float32, in deviations of the noise.

    All sums are of whole numbers or leave the cell out from the start, so blindness is exact to the bit.
    """
    rows, cols = noisy.shape
    out = np.empty((CELL_FEATURES, rows, cols), dtype=np.float32)
    columns = iter(out)

    def show(values: np.ndarray) -> None:
        np.arcsinh(values, out=next(columns), casting="same_kind")

    reach = max(2, *LINES)
    framed = np.pad(noisy.astype(np.float32) / np.float32(deviation), reach)

    def moved(down: int, right: int) -> np.ndarray:
        return framed[reach + down : reach + down + rows, reach + right : reach + right + cols]

    for down, right in RINGS:
        turns = {(a * s, b * t) for a, b in ((down, right), (right, down)) for s in (1, -1) for t in (1, -1)}
        ring = [moved(*turn) for turn in sorted(turns)]
        show(sum(ring[1:], ring[0]) / np.float32(len(ring) ** 0.5))
        show(np.maximum.reduce(ring))
    for length in LINES:
        lines = []
        for down, right in DIRECTIONS:
            steps = [moved(step * down, step * right) for step in range(-length, length + 1) if step]
            lines.append(sum(steps[1:], steps[0]) / np.float32((2 * length) ** 0.5))
        second, first = np.sort(np.stack(lines), axis=0)[-2:]
        show(first)
        show(second)
    everything, whole = prefix(noisy), prefix(np.ones(noisy.shape))
    centres = Places(np.arange(rows) + 0.5, np.arange(cols) + 0.5, lattice=True)
    for block in BLOCKS:
        around = centres.sums(everything, block, block) - noisy
        others = np.maximum(centres.sums(whole, block, block) - 1, 1)
        show(around / (deviation * np.sqrt(others)))
        show(around / (deviation * others) * 3)
    # Whole numbers again, so that taking the cell out leaves no trace of it.
    above = np.maximum(noisy - int(np.ceil(CROWDED * deviation)), 0)
    everything = prefix(above)
    for block in CROWDS:
        others = np.maximum(centres.sums(whole, block, block) - 1, 1)
        show((centres.sums(everything, block, block) - above) / (deviation * others) * 3)
    return out.reshape(CELL_FEATURES, -1).T


@dataclass(frozen=True, eq=False)
class Cells:
    """A noisy grid, and what the cell network makes of it."""

    noisy: np.ndarray
    """rows x cols, whole numbers."""
    deviation: float
    """Of the noise of one cell."""
    prior: np.ndarray
    """Expected count of each cell before its own noisy value is looked at."""
    mean: np.ndarray
    """Expected count of each cell."""
    square: np.ndarray
    """Expected square of the count."""

    @cached_property
    def noisy_sums(self) -> np.ndarray:
        return prefix(self.noisy)

    @cached_property
    def mean_sums(self) -> np.ndarray:
        return prefix(self.mean)

    @cached_property
    def variance_sums(self) -> np.ndarray:
        return prefix(np.maximum(self.square - self.mean.astype(np.float64) ** 2, 0))

    @cached_property
    def asked(self) -> np.ndarray:
        """Expected count of a cell that somebody asks about.

        People ask where things happen: a cell is asked about in proportion to its count, and a little everywhere. So of two
        counts that the noise leaves possible, the higher one is the likelier to be asked about.
        """
        anywhere = max(float(self.noisy.sum()) / self.noisy.size, 1e-3)
        return (self.square + anywhere * self.mean) / (self.mean + anywhere)


def look(
    noisy: np.ndarray, scale: Fraction, weights: Weights, random: np.random.Generator | None = None, draws: int = 0
) -> tuple[Cells, np.ndarray]:
    """The cell network on every cell of a grid; and `draws` grids of counts, drawn from what it leaves possible."""
    deviation = noise_variance(scale) ** 0.5
    features, values = surroundings(noisy, deviation), noisy.ravel()
    counts = weights["cells.counts"].astype(np.float32)
    out = np.empty((3, noisy.size), dtype=np.float32)
    drawn = np.zeros((draws, noisy.size), dtype=np.int64)
    chance = random.random((draws, noisy.size), dtype=np.float32) if random is not None else np.zeros((0, noisy.size))

    def part(span: slice) -> None:
        prior = calibrated(_priors(features[span], weights), weights)
        value = values[span].astype(np.float32)
        apart = np.abs(value[:, None] - counts) / np.float32(scale)
        joint = prior * np.exp(apart.min(1, keepdims=True) - apart)
        joint /= joint.sum(1, keepdims=True)
        known = value > WELL_KNOWN * float(scale)
        out[0, span] = prior @ counts
        out[1, span] = np.where(known, value, joint @ counts)
        out[2, span] = np.where(known, value**2 + deviation**2, joint @ counts**2)
        steps = np.cumsum(joint, axis=1) if draws else joint
        for number in range(draws):
            turn = chance[number, span]
            drawn[number, span] = counts[np.minimum((steps < turn[:, None]).sum(1), len(counts) - 1)]
            noise = np.sign(turn - 0.5) * float(scale) * np.log1p(-np.minimum(2 * np.abs(turn - 0.5), 0.999999))
            drawn[number, span][known] = np.rint(value + noise)[known]

    in_parts(part, noisy.size)
    prior, mean, square = (image.reshape(noisy.shape) for image in out)
    return Cells(noisy, deviation, prior, mean, square), drawn.reshape(draws, *noisy.shape)


def _priors(features: np.ndarray, weights: Weights) -> np.ndarray:
    x = features
    for name in ("first", "second"):
        x = x @ weights[f"cells.{name}.weight"].T + weights[f"cells.{name}.bias"]
        x = x / (1 + np.exp(-x))
    x = x @ weights["cells.last.weight"].T + weights["cells.last.bias"]
    x = np.exp(x - x.max(1, keepdims=True))
    return x / x.sum(1, keepdims=True)


def calibrated(priors: np.ndarray, weights: Weights) -> np.ndarray:
    """Priors with more or less of an empty cell in them, where cells of their level turned out to hold less or more."""
    level = np.log(np.maximum(priors @ weights["cells.counts"].astype(np.float32), 1e-6))
    held = np.interp(level, weights["cells.level"], weights["cells.held"]).astype(np.float32)
    held = np.minimum(held, 1 / np.maximum(1 - priors[:, 0], 1e-6))
    mixed = priors * held[:, None]
    mixed[:, 0] = np.maximum(mixed[:, 0] + 1 - held, 0)
    return mixed


@dataclass(frozen=True)
class Seen:
    """What the network of one size is shown of squares of that size."""

    plain: np.ndarray
    """The sum of the cells' means, with the cell around the place as one that is asked about."""
    spread: np.ndarray
    """Deviation of that sum, as far as the cells know it."""
    features: np.ndarray
    """(..., SQUARE_FEATURES), float32."""


def see(cells: Cells, places: Places, height: float, width: float, wider: np.ndarray) -> Seen:
    """Squares of height x width cells at places; `wider` is what `see_wider` saw there."""
    noise = cells.deviation
    mean, noisy = places.sums(cells.mean_sums, height, width), places.sums(cells.noisy_sums, height, width)
    variance = np.maximum(places.sums(cells.variance_sums, height, width), 0)
    cover, asked, own = places.cover(height, width), places.at(cells.asked), places.at(cells.mean)
    plain = np.maximum(mean + cover * (asked - own), 0)
    least = plain + 0.15 * noise
    features = np.empty((*places.shape, SQUARE_FEATURES), dtype=np.float32)
    shown = (
        *(plain / noise, mean / noise, noisy / noise, np.sqrt(variance) / noise),
        *(asked / noise, own / noise, places.at(cells.noisy) / noise, places.at(cells.prior) / noise),
    )
    for number, values in enumerate(shown):
        features[..., number] = np.arcsinh(values)
    features[..., 8] = cover - 0.8
    features[..., 9] = np.log1p(variance / (noise * least) * 7)
    features[..., 10] = asked * cover / least
    features[..., 11:] = wider
    return Seen(plain.astype(np.float32), (np.sqrt(variance) + 0.07 * noise).astype(np.float32), features)


def see_wider(cells: Cells, places: Places) -> np.ndarray:
    """What is around places, the same for all sizes."""
    out = np.empty((*places.shape, len(WIDER) + len(WIDER_NOISY)), dtype=np.float32)
    for number, side in enumerate(WIDER):
        out[..., number] = np.arcsinh(places.sums(cells.mean_sums, side, side) / (side * cells.deviation))
    for number, side in enumerate(WIDER_NOISY, len(WIDER)):
        out[..., number] = np.arcsinh(places.sums(cells.noisy_sums, side, side) / (side * cells.deviation))
    return out


def answer(seen: Seen, weights: Weights, size: int) -> np.ndarray:
    """Quantiles of the counts of squares by the network of one size, (..., QUANTILES): ordered, none below 0."""
    x = seen.features.reshape(-1, SQUARE_FEATURES)
    for name in ("first", "second"):
        x = x @ weights[f"squares.{name}.weight"][size] + weights[f"squares.{name}.bias"][size]
        np.maximum(x, 0, out=x)
    x = x @ weights["squares.last.weight"][size] + weights["squares.last.bias"][size]
    stretch, shift = x[:, : len(QUANTILES)], x[:, len(QUANTILES) :]
    raw = seen.plain.reshape(-1, 1) * np.exp(STRETCH * stretch) + SHIFT * seen.spread.reshape(-1, 1) * shift
    return np.sort(np.maximum(raw, 0), axis=1).reshape(*seen.plain.shape, len(QUANTILES))


def answer_as_published(rows: np.ndarray, cols: np.ndarray, shape: tuple[int, int], weights: Weights, size: int) -> np.ndarray:
    """Counts of squares at every row with every column by the paper's network of one size."""
    out = np.empty((len(rows), len(cols)), dtype=np.float32)
    across = 10 * cols / shape[1] - 5
    hidden = weights["paper.hidden.weight"][:, size], weights["paper.hidden.bias"][:, size]

    def part(span: slice) -> None:
        up = 10 * rows[span] / shape[0] - 5
        centres = np.stack(np.broadcast_arrays(up[:, None], across[None, :]), axis=-1).reshape(-1, 2).astype(np.float32)
        x = np.sin(centres @ weights["paper.first.weight"][size] + weights["paper.first.bias"][size])
        for weight, bias in zip(*hidden, strict=True):
            x = x @ weight + bias
            x /= 1 + np.exp(-np.maximum(x, -80))
        out[span] = (x @ weights["paper.last.weight"][size] + weights["paper.last.bias"][size]).reshape(-1, len(cols))

    in_parts(part, len(rows), max(1, PART // len(cols)))
    return out


def unevenness(noisy: np.ndarray, variance: float) -> float:
    """How unevenly events lie in a cell: the variance of the count in a share w of it is this times w (1 - w) of its square.

    Measured on blocks of 2 x 2 cells, whose halves are seen; 1 were all events of a cell always in one half.
    """
    rows, cols = noisy.shape[0] // 2 * 2, noisy.shape[1] // 2 * 2
    blocks = noisy[:rows, :cols].reshape(rows // 2, 2, cols // 2, 2).astype(np.float64)
    halves = np.concatenate([blocks.sum(1).reshape(-1, 2), blocks.sum(3).transpose(0, 2, 1).reshape(-1, 2)])
    apart = ((halves[:, 0] - halves[:, 1]) ** 2 - 4 * variance).sum()
    whole = (halves.sum(1) ** 2 - 4 * variance).sum()
    return float(np.clip(apart / whole, 0, 1)) if whole > 0 else 1.0


def in_parts(work: Callable[[slice], None], count: int, part: int = PART) -> None:
    """Call work(slice) for all parts of `count` things, on all cores: numpy lets go of the interpreter while it computes."""
    if count <= part:
        return work(slice(0, count))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(work, _spans(count, part)):
            assert done is None


def _spans(count: int, part: int) -> Iterator[slice]:
    return (slice(start, min(start + part, count)) for start in range(0, count, part))
