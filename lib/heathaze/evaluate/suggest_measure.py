"""What `heathaze suggest` knows of cities and denoisers, measured on synthetic cities: nothing here has seen a person.

    python -m heathaze.evaluate.suggest_measure [cities] [shrink] [bayes]

makes those parts of `suggest_table.py` again; everything is seeded. On an idle core cities take ten minutes, shrink three, and
bayes, which is trained anew for every run, ten.
"""

from __future__ import annotations

import pprint
import sys
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

from heathaze.console import Progress
from heathaze.evaluate import suggest_table
from heathaze.evaluate.events import Events, bounded
from heathaze.evaluate.learned import prepare
from heathaze.evaluate.suggest import ACROSS, CELL_SIDES, PARTS, PER_DAY, SIDES, SIGNALS, TOWNS, blur
from heathaze.evaluate.synthetic import SHAPES, City, batches
from heathaze.grid import METRES_PER_DEGREE
from heathaze.learn.denoiser import Denoised, discrete_laplace, noise_variance
from heathaze.policy import Policy, Refine, parse_policy
from heathaze.release.refine import finish
from heathaze.release.sums import box_sums, prefix_sum

TUESDAY, SATURDAY = date(2026, 11, 17), date(2026, 11, 21)
DRAWN = ((9_001, TUESDAY), (9_002, TUESDAY), (9_003, TUESDAY), (9_004, SATURDAY))
"""Seeds and days of the cities that are measured. Cities that test the model have other seeds."""
SLICES = (1, 4, 8, 24)
"""Slices of a period that is denoised."""
RECORDS = 3_000
"""Records whose boxes are looked at."""

EVERY = {"bayes": 4}
"""Of a denoiser that is trained only every so many runs are made."""

POLICY = """
[dataset]
name = "rehearsal"
[period]
slices = {slices}
[grid]
south = 0
west = 0
north = 1
east = 1
rows = 1
cols = 1
[privacy]
epsilon = 1
max_events_per_user = 1
declared_event_count = 1
[budget]
cap = 1
[denoise.bayes]
cells = 400_000
"""
"""Nothing of it counts but how bayes is trained."""


@dataclass(frozen=True)
class Points:
    """The events of one period inside the box."""

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

    def kept(self, k: int, seed: int) -> np.ndarray:
        """Numbers of the events that bounding keeps."""
        return bounded(Events(self.user, self.slice, np.arange(len(self))), k, seed).cell

    def shape(self, cell: float) -> tuple[int, int, int]:
        """Slices x rows x cols of cells of about that side, as a policy's cell_metres gives them."""
        rows, cols = (max(1, round(side / cell)) for side in self.size)
        return self.slices, rows, cols

    def cells_of(self, cell: float) -> np.ndarray:
        """(events, 3): slice, row and column."""
        shape = np.array(self.shape(cell)[1:])
        return np.column_stack([self.slice, np.minimum((self.place / self.size * shape).astype(np.int64), shape - 1)])

    def count(self, cell: float) -> np.ndarray:
        """Events of every cell, slices x rows x cols."""
        shape = self.shape(cell)
        flat = np.ravel_multi_index(tuple(self.cells_of(cell).T), shape)
        return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)

    def middles(self, chosen: np.ndarray, side: float) -> np.ndarray:
        """Middles of boxes at chosen events, moved until the box is inside the area."""
        margin = np.minimum(side, self.size) / 2
        return np.clip(self.place[chosen], margin, self.size - margin)

    def boxes(self, chosen: np.ndarray, side: float | None, cell: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Edges (n, 2) along slices, rows and columns, in cells, of boxes at chosen events; None: the cell of the event."""
        shape = np.array(self.shape(cell)[1:])
        if side is None:
            low = self.cells_of(cell)[chosen, 1:].astype(np.float64)
            high = low + 1
        else:
            middle, half = self.middles(chosen, side) / self.size * shape, side / 2 / self.size * shape
            low, high = np.maximum(middle - half, 0), np.minimum(middle + half, shape)
        number = self.slice[chosen].astype(np.float64)
        return np.column_stack([number, number + 1]), *(np.column_stack([low[:, i], high[:, i]]) for i in (0, 1))  # type: ignore[return-value]

    def around(self, middle: np.ndarray, number: np.ndarray, side: float) -> np.ndarray:
        """Events in boxes of that side around `middle`, each in its own slice; exact, without cells."""
        found = np.zeros(len(middle))
        for one in np.unique(number):
            tree, here = cKDTree(self.place[self.slice == one]), number == one
            found[here] = tree.query_ball_point(middle[here], side / 2, p=np.inf, return_length=True)
        return found


def square_city(
    kilometres: float, users: int, events_per_user: float, shape: str, seed: int, day: date = TUESDAY, tail: float = 1.5
) -> City:
    """One day of a city in a square box of that side."""
    south, west, degrees = 40.0, -75.0, kilometres * 1_000 / METRES_PER_DEGREE
    north, east = south + degrees, west + degrees / cos(radians(south + degrees / 2))
    return City(users, events_per_user, day, 1, south, west, north, east, tail, shape=shape, seed=seed)


def points_of(city: City, slices: int) -> Points:
    """The events of a city that lie in its box, as numbers."""
    events = pa.concat_tables(batches(city))
    user = pc.cast(pc.utf8_slice_codeunits(events["user_id"], 1), pa.int32()).to_numpy()
    moment = events["event_time"].cast("int64").to_numpy() - np.datetime64(city.first_day, "us").astype(np.int64)
    size = np.array([city.plane.height_metres, city.plane.width_metres])
    north = (events["lat"].to_numpy() - city.south) / (city.north - city.south) * size[0]
    east = (events["lon"].to_numpy() - city.west) / (city.east - city.west) * size[1]
    place = np.column_stack([north, east])
    points = Points(user, moment * slices // (city.days * 86_400_000_000), place, size, slices)
    return points.of(np.flatnonzero(((place >= 0) & (place < size)).all(1)))


def crowd(shape: str, town: float, seed: int, day: date) -> list[float]:
    """Events of others around an event, in the same eighth of a day, as a multiple of an even spread; for each of SIDES."""
    points = _strangers(shape, town, 8, seed, day)
    chosen = np.random.default_rng(seed).choice(len(points), RECORDS)
    even = (len(points) - 1) / 8 / float(np.prod(points.size))
    near = [points.around(points.place[chosen], points.slice[chosen], side) - 1 for side in SIDES]
    return [float(others.mean()) / (even * side**2) for side, others in zip(SIDES, near, strict=True)]


def hours(per_day: int, shape: str, seed: int, day: date) -> float:
    """Events of others within 400 m in the same slice, of so many a day, as a multiple of an even spread over the slices."""
    points = _strangers(shape, 12, per_day, seed, day)
    chosen = np.random.default_rng(seed).choice(len(points), RECORDS)
    together = replace(points, slice=np.zeros(len(points), dtype=np.int64))
    same, whole = (float(one.around(one.place[chosen], one.slice[chosen], 400.0).mean()) - 1 for one in (points, together))
    return same / whole * per_day


def own(per_day: int, shape: str, seed: int, day: date) -> tuple[list[float], list[float]]:
    """How likely another event of the same user and day lies in the same slice and box, for each of SIDES; likewise its cell."""
    points = points_of(_crowded(shape, 12, seed, day), per_day)
    order = np.lexsort((np.random.default_rng(seed).random(len(points)), points.user))
    user = points.user[order]
    firsts = np.flatnonzero(np.r_[True, user[1:] != user[:-1]] & np.r_[user[1:] == user[:-1], False])
    one, other = points.of(order[firsts]), points.of(order[firsts + 1])
    apart, together = np.abs(one.place - other.place), one.slice == other.slice
    box = [float(np.mean(together & (apart.max(1) < side / 2))) for side in SIDES]
    # A cell lies anywhere around the event.
    cell = [float(np.mean(together * np.prod(np.maximum(1 - apart / side, 0), axis=1))) for side in SIDES]
    return box, cell


def _crowded(shape: str, town: float, seed: int, day: date) -> City:
    """Many users with a few events each: where people are does not depend on how active they are."""
    return square_city(town, 150_000, 4, shape, seed, day, tail=10)


def _strangers(shape: str, town: float, slices: int, seed: int, day: date) -> Points:
    """One event of each user."""
    points = points_of(_crowded(shape, town, seed, day), slices)
    order = np.random.default_rng(seed).permutation(len(points))
    return points.of(order[np.unique(points.user[order], return_index=True)[1]])


def cut(points: Points, side: float, cell: float, seed: int) -> tuple[float, float]:
    """What cutting cells adds to the count of a box: mean and mean absolute deviation, as parts of the mean count."""
    chosen = np.random.default_rng(seed).choice(points.kept(10, seed), RECORDS)
    exact = points.around(points.middles(chosen, side), points.slice[chosen], side)
    (shared,) = box_sums([prefix_sum(points.count(cell))], *points.boxes(chosen, side, cell))
    off = (shared - exact) / exact.mean()
    return float(off.mean()), float(np.abs(off - off.mean()).mean())


@dataclass(frozen=True)
class Leaves:
    """What a denoiser leaves of the noise in boxes of one size, in one run."""

    across: int
    """Side of the boxes in cells."""
    signal: float
    """Mean count of the boxes, in deviations of the noise of a box."""
    mean: float
    """Mean error, in deviations of the noise of a box."""
    spread: float
    """Mean absolute deviation of the errors, likewise."""


def leaves(
    sample: Points, cell: float, scale: Fraction, denoise: Callable[[np.ndarray, Fraction], Denoised], seed: int
) -> list[Leaves]:
    """What a denoiser leaves in boxes at events of a bounded sample."""
    random = np.random.default_rng(seed)
    counts = sample.count(cell)
    noisy = (counts + discrete_laplace(random, float(scale), counts.shape)).astype(np.int32)
    found = denoise(noisy, scale)
    deviation, chosen = noise_variance(scale) ** 0.5, random.choice(len(sample), RECORDS)
    prefixes = [prefix_sum(finish(found.values, Refine())), prefix_sum(counts)]
    results = []
    for across in ACROSS:
        side = across * float(sample.size[0]) / counts.shape[1]
        estimate, truth = box_sums(prefixes, *sample.boxes(chosen, None if across == 1 else side, cell))
        noise, error = deviation * (1 if across == 1 else blur(across)), estimate - truth
        spread = float(np.abs(error - error.mean()).mean())
        results.append(Leaves(across, float(truth.mean()) / noise, float(error.mean()) / noise, spread / noise))
    return results


def runs() -> Iterator[tuple[Points, float, Fraction, int]]:
    """Bounded samples, sides of cells, scales and seeds that denoisers are measured with: every shape, many densities."""
    random = np.random.default_rng(DRAWN[0][0])
    for number in range(36):
        slices, shape, seed = SLICES[number // 3 % 4], list(SHAPES)[number % 3], 9_100 + number
        town, across = float(random.choice([8, 14, 24])), int(random.choice([64, 90, 128]))
        users, k = int(random.choice([5_000, 20_000, 80_000])), int(random.choice([4, 10, 30]))
        points = points_of(square_city(town, users, 10, shape, seed), slices)
        sample = points.of(points.kept(k, seed))
        for scale in (1, 8, 64):
            yield sample, town * 1_000 / across, Fraction(scale * 2 ** (number % 3)), seed


def measure_cities(say: Callable[[str], None]) -> dict[str, Any]:
    """crowd, hours, own_box, own_cell and cut."""
    shapes = list(SHAPES)
    crowds: dict[str, list[list[float]]] = {}
    for shape in shapes:
        say(f"crowds of {shape}")
        crowds[shape] = [_middle([crowd(shape, town, *drawn) for drawn in DRAWN]) for town in TOWNS]
    say("hours and habits")
    places = [(shape, *drawn) for shape in shapes for drawn in DRAWN]
    pairs = [[own(per_day, *place) for place in places] for per_day in PER_DAY]
    spread = [_middle([[hours(per_day, *place)] for place in places])[0] for per_day in PER_DAY]
    say("cells that are cut")
    cities = [points_of(square_city(12, 60_000, 10, shape, DRAWN[0][0]), 8) for shape in shapes]
    cuts = [
        [np.mean([cut(points, side, cell, DRAWN[0][0]) for points in cities], axis=0).tolist() for cell in CELL_SIDES]
        for side in SIDES
    ]
    return {
        "crowd": crowds,
        "hours": spread,
        "own_box": [_middle([box for box, _ in found]) for found in pairs],
        "own_cell": [_middle([cell for _, cell in found]) for found in pairs],
        "cut_mean": [[pair[0] for pair in row] for row in cuts],
        "cut_spread": [[pair[1] for pair in row] for row in cuts],
    }


def measure_denoiser(name: str, say: Callable[[str], None]) -> dict[str, Any]:
    """mean and spread of what a denoiser leaves."""
    policies: dict[int, Policy] = {slices: parse_policy(POLICY.format(slices=slices)) for slices in SLICES}

    def denoise(noisy: np.ndarray, scale: Fraction) -> Denoised:
        return prepare(policies[len(noisy)], name, noisy, scale)(noisy)

    found: list[Leaves] = []
    for number, (sample, cell, scale, seed) in enumerate(runs()):
        if number % EVERY.get(name, 1):
            continue
        say(f"{name}, run {number + 1}: {sample.shape(cell)}, scale {scale}")
        found += leaves(sample, cell, scale, denoise, seed)
    return _summary(found)


def _summary(found: list[Leaves]) -> dict[str, Any]:
    """mean and spread at every node of ACROSS and SIGNALS."""
    summary: dict[str, Any] = {"mean": [], "spread": []}
    for across in ACROSS:
        here = [one for one in found if one.across == across]
        for part, rows in summary.items():
            rows.append(_smooth([one.signal for one in here], [getattr(one, part) for one in here], SIGNALS, fades=True))
    return summary


def _middle(rows: list[list[float]]) -> list[float]:
    """Geometric means of the columns."""
    return np.exp(np.log(np.maximum(rows, 1e-9)).mean(0)).tolist()


def _smooth(at: Sequence[float], values: Sequence[float], nodes: Sequence[float], fades: bool = False) -> list[float]:
    """Local means of values at the nodes, on a logarithmic scale; beyond the measured range those of its ends.

    What fades falls with the node below the range: a denoiser cannot leave more than there is.
    """
    inside = np.clip(nodes, min(at), max(at))
    weight = np.exp(-((np.log(at)[:, None] - np.log(inside)) ** 2) / (2 * 0.4**2))
    smoothed = np.array(values) @ weight / weight.sum(0)
    return (smoothed * np.minimum(1, np.array(nodes) / inside) if fades else smoothed).tolist()


def _short(value: Any) -> Any:
    """Numbers with three digits."""
    if isinstance(value, dict):
        return {name: _short(one) for name, one in value.items()}
    return [_short(one) for one in value] if isinstance(value, list) else float(f"{value:.3g}")


def write_table(table: dict[str, Any], path: Path) -> None:
    """Write `suggest_table.py`."""
    text = pprint.pformat(_short(table), width=128, compact=True, sort_dicts=False)
    head = '"""Made by heathaze.evaluate.suggest_measure from synthetic cities: do not edit."""'
    path.write_text(f"{head}\n\n# fmt: off\nfrom typing import Any\n\nTABLE: dict[str, Any] = {text}\n", encoding="utf-8")


def main(parts: Sequence[str]) -> None:
    """Make the named parts of the table again; all of them where none is named."""
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        sys.exit(f"a part must be one of {', '.join(PARTS)}, but it is {unknown[0]}.")
    say, table = Progress(), dict(suggest_table.TABLE)
    for part in parts or PARTS:
        table[part] = measure_cities(say) if part == "cities" else measure_denoiser(part, say)
    say.finish()
    write_table(table, Path(suggest_table.__file__))


if __name__ == "__main__":
    main(sys.argv[1:])
