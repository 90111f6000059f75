"""What `heathaze suggest` knows of cities and denoisers, measured on synthetic cities: nothing here has seen a person.

`python -m heathaze.evaluate.suggest_measure` makes `suggest_table.py` again: seeded, so the same numbers on every machine of the
same libraries. It takes about an hour with bayes, which is trained for every noise, and minutes without (`--without-bayes`).
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from math import cos, radians
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from scipy.spatial import cKDTree

from heathaze.evaluate.synthetic import SHAPES, City, batches
from heathaze.grid import METRES_PER_DEGREE
from heathaze.learn.denoiser import Denoised, Denoiser, discrete_laplace, noise_variance
from heathaze.learn.shrink import shrink
from heathaze.policy import BayesSettings, Refine
from heathaze.release.refine import finish
from heathaze.release.sums import box_sums, prefix_sum

SIDES = (25, 50, 100, 200, 400, 800, 1_600, 3_200)
"""Sides of boxes, metres."""
TOWNS = (2, 5, 12, 30, 80, 199)
"""Sides of the cities, kilometres."""
PER_DAY = (1, 2, 4, 8, 24)
"""Slices of a day."""
SLICES = (1, 4, 8, 24)
"""Slices of a period whose denoising was measured."""
ACROSS = (1, 3, 10, 30)
"""Sides of boxes, in cells."""
SIGNALS = (0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Mean count of a box at a record, in deviations of the noise of the box."""
DENSITIES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Mean count of all cells, in deviations of the noise of a cell."""
CELLS = (25, 50, 100, 200, 400, 800)
"""Sides of cells, metres."""

TUESDAY = date(2026, 11, 17)
SEEDS = (9_001, 9_002)
"""Of the cities that are measured; cities on which the model is tested have others."""


@dataclass(frozen=True)
class Points:
    """The events of a period inside the box."""

    user: np.ndarray
    slice: np.ndarray
    place: np.ndarray
    """(events, 2): metres north and east of the corner."""
    size: np.ndarray
    """Height and width of the box, metres."""
    slices: int

    def __len__(self) -> int:
        return len(self.user)

    def of(self, chosen: np.ndarray) -> Points:
        """Some of the events."""
        return replace(self, user=self.user[chosen], slice=self.slice[chosen], place=self.place[chosen])

    def shape(self, cell: float) -> tuple[int, int, int]:
        """Slices x rows x cols of cells of about that side, as a policy's cell_metres gives them."""
        rows, cols = (max(1, round(side / cell)) for side in self.size)
        return self.slices, rows, cols

    def cells_of(self, cell: float) -> np.ndarray:
        """(events, 3): slice, row and column."""
        shape = np.array(self.shape(cell))
        inside = np.minimum((self.place / self.size * shape[1:]).astype(np.int64), shape[1:] - 1)
        return np.column_stack([self.slice, inside])

    def count(self, cell: float) -> np.ndarray:
        """Events of every cell, slices x rows x cols."""
        shape = self.shape(cell)
        return np.bincount(np.ravel_multi_index(tuple(self.cells_of(cell).T), shape), minlength=np.prod(shape)).reshape(shape)


def square(kilometres: float) -> dict[str, float]:
    """Edges of a square box of that side."""
    south, west = 40.0, -75.0
    north = south + kilometres * 1_000 / METRES_PER_DEGREE
    return {
        "south": south,
        "west": west,
        "north": north,
        "east": west + kilometres * 1_000 / METRES_PER_DEGREE / cos(radians((south + north) / 2)),
    }


def points_of(city: City, slices: int) -> Points:
    """The events of a city that lie in its box, as numbers."""
    events = pa.concat_tables(batches(city))
    user = pc.cast(pc.utf8_slice_codeunits(events["user_id"], 1), pa.int32()).to_numpy()
    first = np.datetime64(city.first_day, "us").astype(np.int64)
    moment = events["event_time"].cast("int64").to_numpy() - first
    size = np.array([city.plane.height_metres, city.plane.width_metres])
    north = (events["lat"].to_numpy() - city.south) / (city.north - city.south) * size[0]
    east = (events["lon"].to_numpy() - city.west) / (city.east - city.west) * size[1]
    place = np.column_stack([north, east])
    inside = ((place >= 0) & (place < size)).all(1)
    number = moment * slices // (city.days * 86_400_000_000)
    return Points(user, number, place, size, slices).of(inside)


def bound(points: Points, k: int, random: np.random.Generator) -> np.ndarray:
    """Which events are kept where every user keeps at most k, chosen evenly."""
    order = np.lexsort((random.random(len(points)), points.user))
    user = points.user[order]
    rank = np.arange(len(user)) - np.searchsorted(user, user)
    kept = np.zeros(len(points), dtype=bool)
    kept[order[rank < k]] = True
    return kept


Edges = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Of boxes: slices, rows and columns, each (boxes, 2), in cells."""


def boxes_at(points: Points, chosen: np.ndarray, side: float | None, cell: float) -> Edges:
    """Boxes of that side in metres, centred at chosen events but inside the area; None: the event's own cell."""
    shape = np.array(points.shape(cell))
    if side is None:
        low = points.cells_of(cell)[chosen].astype(np.float64)
        edges = [np.column_stack([at, at + 1]) for at in low.T]
    else:
        middle = middles(points, chosen, side) / points.size * shape[1:]
        half = side / 2 / points.size * shape[1:]
        number = points.slice[chosen].astype(np.float64)
        sides = [np.clip(np.column_stack([m - h, m + h]), 0, end) for m, h, end in zip(middle.T, half, shape[1:], strict=True)]
        edges = [np.column_stack([number, number + 1]), *sides]
    return edges[0], edges[1], edges[2]


def middles(points: Points, chosen: np.ndarray, side: float) -> np.ndarray:
    """Middles of boxes at chosen events, moved until the box is inside the area."""
    margin = np.minimum(side, points.size) / 2
    return np.clip(points.place[chosen], margin, points.size - margin)


def count_around(points: Points, middle: np.ndarray, number: np.ndarray, side: float) -> np.ndarray:
    """Events in boxes of that side around `middle`, each in its own slice; exact, without cells."""
    found = np.zeros(len(middle))
    for one in np.unique(number):
        tree, here = cKDTree(points.place[points.slice == one]), number == one
        found[here] = tree.query_ball_point(middle[here], side / 2, p=np.inf, return_length=True)
    return found


def crowd(shape: str, town: float, seed: int, boxes: int = 3_000) -> list[float]:
    """Events of others around an event, in the same eighth of a day, as a multiple of an even spread; for each of SIDES."""
    points = _strangers(_crowded(shape, town, seed), 8, seed)
    random = np.random.default_rng(seed)
    chosen = random.choice(len(points), boxes)
    found = []
    for side in SIDES:
        others = count_around(points, points.place[chosen], points.slice[chosen], side) - 1
        even = (len(points) - 1) / 8 * side**2 / float(np.prod(points.size))
        found.append(float(others.mean()) / even)
    return found


def hours(per_day: int, shape: str, seed: int) -> float:
    """Events of others within 400 m in the same slice of a day, of so many, as a multiple of those in all slices / slices."""
    day = _strangers(_crowded(shape, 12, seed), per_day, seed)
    chosen = np.random.default_rng(seed).choice(len(day), 10_000)
    together = replace(day, slice=np.zeros(len(day), dtype=np.int64))
    same, whole = (count_around(p, p.place[chosen], p.slice[chosen], 400.0).mean() - 1 for p in (day, together))
    return float(same / whole * per_day)


def own(per_day: int, shape: str, seed: int) -> tuple[list[float], list[float]]:
    """How likely another event of the same user and day lies in the same slice and box, for each of SIDES; likewise its cell."""
    points = points_of(_crowded(shape, 12, seed), per_day)
    order = np.lexsort((np.random.default_rng(seed).random(len(points)), points.user))
    user = points.user[order]
    firsts = np.flatnonzero(np.r_[True, user[1:] != user[:-1]] & np.r_[user[1:] == user[:-1], False])
    one, other = points.of(order[firsts]), points.of(order[firsts + 1])
    apart, together = np.abs(one.place - other.place), one.slice == other.slice
    box = [float(np.mean(together & (apart.max(1) < side / 2))) for side in SIDES]
    # A cell lies anywhere around the event.
    cell = [float(np.mean(together * np.prod(np.maximum(1 - apart / side, 0), axis=1))) for side in SIDES]
    return box, cell


def _crowded(shape: str, town: float, seed: int) -> City:
    """Many users with a few events each: where people are does not depend on how active they are."""
    return City(
        users=150_000, events_per_user=4, tail=10, shape=shape, seed=seed, first_day=TUESDAY, weekly=False, **square(town)
    )


def _strangers(city: City, slices: int, seed: int) -> Points:
    """One event of each user."""
    points = points_of(city, slices)
    order = np.random.default_rng(seed).permutation(len(points))
    return points.of(order[np.unique(points.user[order], return_index=True)[1]])


def cut(points: Points, side: float, cell: float, seed: int, boxes: int = 3_000) -> tuple[float, float]:
    """What cutting cells adds to the count of a box: mean and mean absolute deviation, as parts of the mean count."""
    random = np.random.default_rng(seed)
    chosen = random.choice(np.flatnonzero(bound(points, 10, random)), boxes)
    exact = count_around(points, middles(points, chosen, side), points.slice[chosen], side)
    (shared,) = box_sums([prefix_sum(points.count(cell))], *boxes_at(points, chosen, side, cell))
    off = (shared - exact) / exact.mean()
    return float(off.mean()), float(np.abs(off - off.mean()).mean())


@dataclass(frozen=True)
class Leaves:
    """What a denoiser leaves of the noise in boxes of one size, in one run."""

    across: float
    """Side of the boxes in cells."""
    signal: float
    """Mean count of the boxes, in deviations of the noise of a box."""
    mean: float
    """Mean error, in deviations of the noise of a box."""
    spread: float
    """Mean absolute deviation of the errors, likewise."""


def leaves(
    sample: Points, cell: float, scale: Fraction, denoise: Denoiser, seed: int, boxes: int = 3_000
) -> tuple[list[Leaves], float, float]:
    """What a denoiser leaves in boxes at events of a bounded sample; the density, and what it claims to leave on average.

    The claim is the mean of the squared deviations of all cells, in units of the noise variance.
    """
    random = np.random.default_rng(seed)
    counts = sample.count(cell)
    noisy = counts + discrete_laplace(random, float(scale), counts.shape)
    found = denoise(noisy, [], scale)
    deviation, chosen = noise_variance(scale) ** 0.5, random.choice(len(sample), boxes)
    prefixes = [prefix_sum(finish(found.values, Refine())), prefix_sum(counts)]
    results = []
    for across in ACROSS:
        side = across * float(sample.size[0]) / counts.shape[1]
        if side > min(sample.size) / 2:
            continue
        estimate, truth = box_sums(prefixes, *boxes_at(sample, chosen, None if across == 1 else side, cell))
        noise, error = deviation * blur(across) if across > 1 else deviation, estimate - truth
        signal, mean = float(truth.mean()) / noise, float(error.mean())
        results.append(Leaves(across, signal, mean / noise, float(np.abs(error - mean).mean()) / noise))
    assert found.deviation is not None
    claim = float(np.square(found.deviation, dtype=np.float64).mean()) / deviation**2
    return results, float(counts.mean()) / deviation, claim


def blur(across: float) -> float:
    """Deviation of the noise of a box that cuts cells, in deviations of a cell; its side is in cells.

    Along one axis the squared shares of the cells add up to a - 1/3 on average over all offsets, or a^2 - a^3 / 3 where the box
    is smaller than a cell; the deviation is the root of the product of two such sums.
    """
    return across - 1 / 3 if across >= 1 else across**2 - across**3 / 3


def runs() -> Iterator[tuple[Points, float, Fraction, int]]:
    """Bounded samples, sides of cells, scales and seeds that denoisers are measured with: every shape, many densities."""
    random = np.random.default_rng(SEEDS[0])
    for number in range(24):
        slices, shape = SLICES[number // 3 % 4], list(SHAPES)[number % 3]
        town, k = float(random.choice([6, 9, 14])), int(random.choice([4, 10, 30]))
        cell, users = float(random.choice([80, 140, 250])), int(random.choice([5_000, 20_000, 60_000]))
        city = City(users=users, events_per_user=10, shape=shape, seed=SEEDS[0] + number, first_day=TUESDAY, **square(town))
        points = points_of(city, slices)
        sample = points.of(bound(points, k, random))
        for step in range(4):
            yield sample, cell, Fraction(4**step) * (2 if number % 2 else 1), number


def bayes(noisy: np.ndarray, earlier: Sequence[np.ndarray], scale: Fraction) -> Denoised:
    """The denoiser bayes, trained on tonight alone."""
    from heathaze.learn.bayes import Context, ContextNet
    from heathaze.learn.bayes_training import BayesLearner, estimate
    from heathaze.learn.distributed import Seam, launch
    from heathaze.learn.training import TrainSettings, train

    context, settings = Context(noisy, noise_variance(scale)), BayesSettings(cells=400_000)

    def work(seam: Seam, folder: str) -> Any:
        steps = max(1, min(settings.cells, 4 * noisy.size) // settings.batch)
        schedule = TrainSettings(settings.epochs, steps, float(settings.learning_rate), 0, settings.patience)
        return train(seam, BayesLearner(context, noisy, scale, settings, seam, 0), schedule, Path(folder))

    with tempfile.TemporaryDirectory() as folder:
        trained = launch(work, {"folder": folder}, ranks=1, launcher="torch")
    return estimate(ContextNet.of_weights(trained.weights), context, noisy, scale).denoised


Number = float | list[Any]


def measure_cities(say: Callable[[str], None]) -> dict[str, Any]:
    """What is known of cities: CROWD, HOURS, OWN and CUT."""
    shapes = list(SHAPES)
    places = [(shape, seed) for shape in shapes for seed in SEEDS]
    crowds: dict[str, Any] = {}
    for shape in shapes:
        say(f"crowds of {shape}")
        crowds[shape] = [_middle([crowd(shape, town, seed) for seed in SEEDS]) for town in TOWNS]
    say("hours and habits")
    pairs = [[own(per_day, *place) for place in places] for per_day in PER_DAY]
    cuts = [cut_points(shape) for shape in shapes]
    say("cells that are cut")
    return {
        "CROWD": crowds,
        "HOURS": [_middle([[hours(per_day, *place)] for place in places])[0] / 1 for per_day in PER_DAY],
        "OWN_BOX": [_middle([box for box, _ in found]) for found in pairs],
        "OWN_CELL": [_middle([cell for _, cell in found]) for found in pairs],
        "CUT": [
            [np.mean([cut(points, side, cell, SEEDS[0]) for points in cuts], axis=0).tolist() for cell in CELLS]
            for side in SIDES
        ],
    }


def cut_points(shape: str) -> Points:
    city = City(users=60_000, events_per_user=10, shape=shape, seed=SEEDS[0], first_day=TUESDAY, **square(12))
    return points_of(city, 8)


def measure_denoiser(denoise: Denoiser, say: Callable[[str], None]) -> dict[str, Any]:
    """What is known of a denoiser: LEAVES and CLAIMS."""
    found: list[Leaves] = []
    claims: list[tuple[int, float, float]] = []
    for number, (sample, cell, scale, seed) in enumerate(runs()):
        say(f"run {number + 1}")
        results, density, claim = leaves(sample, cell, scale, denoise, seed)
        found += results
        claims.append((sample.slices, density, claim))
    left = []
    for across in ACROSS:
        here = [one for one in found if one.across == across]
        signals = [one.signal for one in here]
        parts = [_smooth(signals, [getattr(one, name) for one in here], SIGNALS) for name in ("mean", "spread")]
        left.append([list(pair) for pair in zip(*parts, strict=True)])
    claimed = []
    for slices in SLICES:
        here_claims = [(density, claim) for one, density, claim in claims if one == slices]
        claimed.append(_smooth(*(list(column) for column in zip(*here_claims, strict=True)), DENSITIES))
    return {"LEAVES": left, "CLAIMS": claimed}


def _middle(rows: list[list[float]]) -> list[float]:
    """Geometric means of the columns."""
    return np.exp(np.log(np.maximum(rows, 1e-9)).mean(0)).tolist()


def _smooth(at: Sequence[float], values: Sequence[float], nodes: Sequence[float], width: float = 0.4) -> list[float]:
    """Local means of values at the nodes, on a logarithmic scale; beyond the measured range the last ones, faded with the node."""
    where, lowest, highest = np.log(at), min(at), max(at)
    smoothed = []
    for node in nodes:
        inside = min(max(node, lowest), highest)
        weight = np.exp(-(((where - np.log(inside)) / width) ** 2) / 2)
        # Below the range there is less than the denoiser can leave: errors fall with the signal.
        smoothed.append(float(np.average(values, weights=weight)) * min(1.0, node / inside))
    return smoothed
