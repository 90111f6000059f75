"""ParamSelect: the side of a cell, chosen before any data is touched, from the number of events, epsilon, and public data.

Zeighami et al. (PVLDB 2022) search the best side on public cities and let extremely randomised trees learn it from the number of
events n, epsilon, 1 / (n epsilon), 1 / sqrt(n epsilon) and the entropy h of public data of the same city. A power law of n and
epsilon is two lines, needs no library, and goes on beyond the table. Both are fitted here to a table made from synthetic
cities, and held against each other on cities that they have not seen. To make the table again, and to hold the models against
each other on the authors' table:

    heathaze paramselect train --out TABLE.csv
    heathaze paramselect validate RHO.csv CITIES.csv
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from math import exp, log
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy.spatial import cKDTree

from heathaze.evaluate.meter import discrete_laplace
from heathaze.evaluate.synthetic import SHAPES, City, batches
from heathaze.learn.snh_places import Places, prefix
from heathaze.rho import PowerLaw

TABLE = Path(__file__).with_suffix(".csv")
"""Best sides on synthetic cities."""

AUTHORS_UNIT = 1_240.0
"""Metres in one unit of the authors' plane: 10 units are 12.4 km."""

SIDES = np.geomspace(8, 200, 22)
"""Sides of cells that are tried, metres."""
COUNTS = (25_000, 100_000, 400_000)
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8)
QUERIES, DRAWS = 2_000, 3
SMALLEST, LARGEST = 25.0, 100.0
"""Sides of the squares that are asked, metres."""
LEAST = 0.001
"""psi, as a share of n."""
ENTROPY_CELLS = 512
"""Cells along each side of the grid on which entropy is measured."""


@dataclass(frozen=True)
class Row:
    """One best side."""

    city: str
    n: int
    """Number of events."""
    epsilon: float
    """Of one event."""
    entropy: float
    """Of public data of the city, nats."""
    rho: float
    """Side of a cell with the least error, metres."""


class Model(Protocol):
    """Chooses the side of a cell."""

    def predict(self, n: float, epsilon: float, entropy: float | None) -> float: ...


Fit = Callable[[Sequence[Row]], Model]


class Trees:
    """Extremely randomised trees, as in the paper: 150 of depth 7."""

    def __init__(self, rows: Sequence[Row], with_entropy: bool):
        from sklearn.ensemble import ExtraTreesRegressor

        self._with_entropy = with_entropy
        self._trees = ExtraTreesRegressor(150, max_depth=7, random_state=0)
        self._trees.fit([self._features(row.n, row.epsilon, row.entropy) for row in rows], [row.rho for row in rows])

    def predict(self, n: float, epsilon: float, entropy: float | None) -> float:
        return float(self._trees.predict([self._features(n, epsilon, entropy)])[0])

    def _features(self, n: float, epsilon: float, entropy: float | None) -> list[float]:
        found = features(n, epsilon, entropy)
        return found if self._with_entropy else found[:4]


def features(n: float, epsilon: float, entropy: float | None) -> list[float]:
    """What the trees see."""
    return [n, epsilon, 1 / (n * epsilon), (n * epsilon) ** -0.5, float("nan") if entropy is None else entropy]


def fit_power_law(rows: Sequence[Row]) -> PowerLaw:
    """Least squares of the logarithms."""
    known = np.array([[1.0, log(row.n), log(row.epsilon)] for row in rows])
    return PowerLaw(*np.linalg.lstsq(known, np.log([row.rho for row in rows]), rcond=None)[0].tolist())


MODELS: dict[str, Fit] = {
    "trees with entropy": lambda rows: Trees(rows, True),
    "trees without entropy": lambda rows: Trees(rows, False),
    "power law": fit_power_law,
}


def cross_validate(rows: Sequence[Row], fit: Fit) -> dict[str, float]:
    """Errors on each city of a model fitted to the others: of the side (relative), and their mean over the mean side."""
    relative, by_city = [], []
    for city in sorted({row.city for row in rows}):
        model = fit([row for row in rows if row.city != city])
        mine = [row for row in rows if row.city == city]
        off = np.array([abs(model.predict(row.n, row.epsilon, row.entropy) - row.rho) for row in mine])
        sides = np.array([row.rho for row in mine])
        relative.append(float((off / sides).mean()))
        by_city.append(float(off.mean() / sides.mean()))
    return {"relative_error": float(np.mean(relative)), "error_over_mean": float(np.mean(by_city))}


def read_table(path: Path = TABLE) -> list[Row]:
    """Rows of a table that `write_table` wrote."""
    with path.open(newline="") as file:
        return [
            Row(row["city"], int(row["n"]), float(row["epsilon"]), float(row["entropy"]), float(row["rho"]))
            for row in csv.DictReader(file)
        ]


def write_table(rows: Sequence[Row], path: Path) -> None:
    """A row per line, with a head."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows([row.city, row.n, row.epsilon, f"{row.entropy:.3f}", f"{row.rho:.2f}"] for row in rows)


def read_authors(sides: Path, cities: Path) -> list[Row]:
    """The authors' table: `sides` has city, n, eps, best (in units of their plane), `cities` has city and entropy_512."""
    with cities.open(newline="") as file:
        entropies = {row["city"]: float(row["entropy_512"]) for row in csv.DictReader(file)}
    with sides.open(newline="") as file:
        return [
            Row(row["city"], int(row["n"]), float(row["eps"]), entropies[row["city"]], float(row["best"]) * AUTHORS_UNIT)
            for row in csv.DictReader(file)
            if row["best"]
        ]


def validate_authors(sides: Path, cities: Path) -> list[dict[str, Any]]:
    """Each model on the authors' table: across their training cities (Gowalla), and from those to the others."""
    rows = read_authors(sides, cities)
    training = [row for row in rows if row.city.startswith("gowalla_")]
    others = [row for row in rows if not row.city.startswith("gowalla_")]
    found = []
    for name, fit in MODELS.items():
        model = fit(training)
        held_out = [abs(model.predict(row.n, row.epsilon, row.entropy) - row.rho) / row.rho for row in others]
        rounded = {key: round(value, 3) for key, value in cross_validate(training, fit).items()}
        found.append({"model": name, **rounded, "held_out_relative_error": round(float(np.mean(held_out)), 3)})
    return found


def entropy(lat: np.ndarray, lon: np.ndarray, south: float, west: float, north: float, east: float) -> float:
    """Shannon entropy, in nats, of points on a fixed grid over a box. For public points."""
    counts, _, _ = np.histogram2d(lat, lon, ENTROPY_CELLS, ((south, north), (west, east)))
    share = counts[counts > 0] / max(1.0, float(counts.sum()))
    return float(-(share * np.log(share)).sum())


def grid_errors(
    points: np.ndarray, extent: tuple[float, float], rho: float, epsilons: Iterable[float], queries: np.ndarray, random: Any
) -> list[float]:
    """Mean relative error of squares on noisy grids of cells of `rho` metres, at each epsilon.

    points: (n, 2), metres north and east; extent: height and width; queries: (m, 4), centre, side and true count. Answers are
    cut at 0.
    """
    shape = tuple(int(np.ceil(side / rho)) for side in extent)
    cells = np.minimum((points / rho).astype(np.int64), np.array(shape) - 1)
    counts = np.bincount(cells[:, 0] * shape[1] + cells[:, 1], minlength=shape[0] * shape[1]).reshape(shape)
    places, side, truth = Places(queries[:, 0] / rho, queries[:, 1] / rho), queries[:, 2] / rho, queries[:, 3]
    least = np.maximum(truth, LEAST * len(points))
    errors = []
    for epsilon in epsilons:
        off = []
        for _ in range(DRAWS):
            noisy = prefix(counts + discrete_laplace(random, 1 / epsilon, shape))
            off.append(np.abs(np.maximum(places.sums(noisy, side, side), 0) - truth) / least)
        errors.append(float(np.mean(off)))
    return errors


def best_sides(points: np.ndarray, extent: tuple[float, float], epsilons: Sequence[float], seed: int) -> list[float]:
    """The side of a cell with the least error at each epsilon, for squares around events."""
    random = np.random.default_rng(seed)
    chosen = points[random.integers(0, len(points), QUERIES)]
    side = random.uniform(SMALLEST, LARGEST, QUERIES)
    truth = cKDTree(points).query_ball_point(chosen, side / 2, p=np.inf, return_length=True)
    queries = np.column_stack([chosen, side, truth])
    errors = np.array([grid_errors(points, extent, rho, epsilons, queries, random) for rho in SIDES])
    return [_bottom(np.log(SIDES), column) for column in errors.T]


def _bottom(logs: np.ndarray, errors: np.ndarray) -> float:
    """The side at the bottom of a parabola through the points around the least error."""
    least = int(np.argmin(errors))
    around = slice(max(0, least - 2), least + 3)
    bend, slope, _ = np.polyfit(logs[around], errors[around], 2)
    bottom = -slope / (2 * bend) if bend > 0 else logs[least]
    return exp(float(np.clip(bottom, logs[around][0], logs[around][-1])))


def synthetic_cities() -> list[City]:
    """Cities of every shape, in a large box and a small one."""
    whole = City(users=30_000, events_per_user=25)
    small = {
        "south": whole.south + 0.045,
        "north": whole.north - 0.045,
        "west": whole.west + 0.057,
        "east": whole.east - 0.057,
    }
    boxes: tuple[dict[str, float], ...] = ({}, small)
    return [
        City(users=30_000, events_per_user=25, shape=shape, seed=seed, **box)  # type: ignore[arg-type]
        for shape in SHAPES
        for seed in (1, 2)
        for box in boxes
    ]


def make_rows(city: City, counts: Sequence[int] = COUNTS, epsilons: Sequence[float] = EPSILONS) -> list[Row]:
    """The best sides of one synthetic city. Half of its users are the public data that entropy is measured on."""
    lat, lon, user = (np.concatenate(column) for column in zip(*map(_columns, batches(city)), strict=True))
    inside = (lat >= city.south) & (lat < city.north) & (lon >= city.west) & (lon < city.east)
    is_public = inside & (user % 2 == 1)
    h = entropy(lat[is_public], lon[is_public], city.south, city.west, city.north, city.east)
    height, width = city.plane.height_metres, city.plane.width_metres
    north = (lat - city.south) / (city.north - city.south) * height
    east = (lon - city.west) / (city.east - city.west) * width
    points = np.column_stack([north, east])[inside & ~is_public]
    points = points[np.random.default_rng(city.seed).permutation(len(points))]
    name = f"{city.shape}-{city.seed}-{height / 1000:.0f}km"
    rows = []
    for n in counts:
        if len(points) >= n:
            found = best_sides(points[:n], (height, width), epsilons, city.seed)
            rows += [Row(name, n, epsilon, h, rho) for epsilon, rho in zip(epsilons, found, strict=True)]
    return rows


def _columns(table: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    numbers = np.array([int(user[1:]) for user in table["user_id"].to_pylist()])
    return table["lat"].to_numpy(), table["lon"].to_numpy(), numbers
