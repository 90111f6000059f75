"""snh: squares by the shipped and the paper's networks beside the answers that need no thought, and where learning pays."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from scipy.spatial import cKDTree

from heathaze.evaluate.meter import Meter, discrete_laplace
from heathaze.evaluate.methods import METHODS
from heathaze.evaluate.synthetic import City, batches
from heathaze.grid import METRES_PER_DEGREE, Grid
from heathaze.learn.distributed import Seam, alone, launch
from heathaze.learn.snh import SquareNetworks
from heathaze.learn.snh_places import SQUARE_FEATURES, Places, prefix
from heathaze.learn.snh_training import Task, fit
from heathaze.policy import SNHSettings
from heathaze.release.squares import SquareRelease, Squares, pack, plan_grid, unpack
from heathaze.rho import select_rho

CABS = Path(__file__).parents[3] / "shared" / "data" / "snh_cabs_sfs_points.parquet"
EPSILONS = ("0.05", "0.2", "0.8")
QUERIES = 5_000
BASELINES = ("ug", "ag", "privtree", "quadtree", "hb", "dawa", "dpcube", "stholes", "pgm")
ARCHITECTURES = {"local": "snh", "paper": "snh as published"}
LEAST = 0.001
"""psi, as a share of all events."""
ORIGIN = (37.7, -122.5)
"""South-western corner of made-up planes."""

Truth = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""lat, lon, side and true count of queries."""


@dataclass(frozen=True)
class Plane:
    """Public points in a declared box."""

    name: str
    lat: np.ndarray
    lon: np.ndarray
    south: float
    west: float
    north: float
    east: float

    def grid(self, rho: float) -> Grid:
        return plan_grid(self.south, self.west, self.north, self.east, rho)

    def noisy(self, grid: Grid, epsilon: Fraction, seed: int) -> np.ndarray:
        """Counts of the grid under event-level noise."""
        counts = self.counts(grid)
        return counts + discrete_laplace(np.random.default_rng(seed), float(1 / epsilon), counts.shape)

    def counts(self, grid: Grid) -> np.ndarray:
        return np.bincount(grid.cells_of(self.lat, self.lon), minlength=grid.cells).reshape(grid.rows, grid.cols)

    def ask(self, at_events: bool, side: float | None, seed: int = 0) -> Truth:
        """Squares around events or anywhere, of one side or of any from 25 to 100 m, and how many events each holds."""
        random = np.random.default_rng(seed)
        box = Grid(self.south, self.west, self.north, self.east, 1, 1)
        sides = random.uniform(25, 100, QUERIES) if side is None else np.full(QUERIES, float(side))
        if at_events:
            chosen = random.integers(0, len(self.lat), QUERIES)
            lat, lon = self.lat[chosen], self.lon[chosen]
        else:
            lat, lon = random.uniform(self.south, self.north, QUERIES), random.uniform(self.west, self.east, QUERIES)
        metres = np.array([METRES_PER_DEGREE, box.width_metres / (self.east - self.west)])
        tree = cKDTree(np.column_stack([self.lat, self.lon]) * metres)
        held = tree.query_ball_point(np.column_stack([lat, lon]) * metres, sides / 2, p=np.inf, return_length=True)
        return lat, lon, sides, held


def squares() -> list[dict[str, Any]]:
    """Relative error and mean absolute error of squares at three epsilons: trivial answers, baselines, and snh."""
    return [row for plane in _planes() for epsilon in EPSILONS for row in _compare(plane, Fraction(epsilon), BASELINES, "local")]


def published() -> list[dict[str, Any]]:
    """The same for the networks as published, on the first of the cities: they take minutes each."""
    return [row for epsilon in EPSILONS for row in _compare(next(_planes()), Fraction(epsilon), (), "paper")]


def _compare(plane: Plane, epsilon: Fraction, baselines: Sequence[str], architecture: str) -> list[dict[str, Any]]:
    rows = []
    grid = plane.grid(select_rho(len(plane.lat), float(epsilon)))
    noisy = plane.noisy(grid, epsilon, seed=1)
    methods, facts = _plain(grid, noisy), {}
    for name in baselines:
        began = time.perf_counter()
        found = METHODS[name](plane.counts(grid)[None], Meter(epsilon, 1, seed=1))[0]
        methods[name], facts[name] = _sums(grid, found), {"trained_s": round(time.perf_counter() - began)}
        print(f"{plane.name}, epsilon {float(epsilon)}: {name}", file=sys.stderr, flush=True)
    name = ARCHITECTURES[architecture]
    opened, facts[name] = learn(grid, noisy, 1 / epsilon, architecture)
    methods[name] = _by(opened)
    print(f"{plane.name}, epsilon {float(epsilon)}: {name}", file=sys.stderr, flush=True)
    for at_events in (True, False):
        for side in (30.0, 95.0, None):
            asked = plane.ask(at_events, side)
            rows += [
                {
                    "city": plane.name,
                    "epsilon": float(epsilon),
                    "rho": round(grid.height_metres / grid.rows, 1),
                    "queries": f"{'at events' if at_events else 'anywhere'}, {f'{side:.0f} m' if side else '25-100 m'}",
                    "method": name,
                    **_errors(method, asked, LEAST * len(plane.lat)),
                    **facts.get(name, {}),
                }
                for name, method in methods.items()
            ]
    return rows


def speed() -> list[dict[str, Any]]:
    """A release of squares: bytes, seconds to open, one query, a million queries, and the table beside the networks."""
    plane = next(_planes())
    grid = plane.grid(20.0)
    noisy = plane.noisy(grid, Fraction("0.2"), seed=1)
    opened, facts = learn(grid, noisy, Fraction(5), "local", epochs=2)
    random = np.random.default_rng(0)
    lat, lon = random.uniform(grid.south, grid.north, 1_000_000), random.uniform(grid.west, grid.east, 1_000_000)
    side = random.uniform(25, 100, 1_000_000)
    began = time.perf_counter()
    opened.counts(lat, lon, side)
    million = time.perf_counter() - began
    single = []
    for number in range(2_000):
        began = time.perf_counter()
        opened.count(float(lat[number]), float(lon[number]), float(side[number]))
        single.append(time.perf_counter() - began)
    return [{**facts, "one_query_us": round(float(np.median(single)) * 1e6, 1), "million_queries_s": round(million, 2)}]


def ranks() -> list[dict[str, Any]]:
    """Steps of the square networks in a second: one process, two ranks that share the batch, two that share the networks out."""
    found = {"one process": alone_speed(8, 2_048)}
    for name, networks, batch, is_joined in (
        ("two ranks share the batch", 8, 1_024, True),
        ("two ranks share the networks", 4, 2_048, False),
    ):
        found[name] = launch(rank_speed, {"networks": networks, "batch": batch, "is_joined": is_joined}, 2, "horovod")
    return [{"what": name, "steps_per_second": round(speed, 1)} for name, speed in found.items()]


def alone_speed(networks: int, batch: int) -> float:
    return rank_speed(alone(), networks, batch, is_joined=True)


def rank_speed(seam: Seam, networks: int, batch: int, is_joined: bool, steps: int = 150) -> float:
    """Steps in a second on made-up questions; `is_joined`: gradients are averaged over the ranks."""
    import torch

    model = SquareNetworks(networks, SQUARE_FEATURES)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    stepper = seam.wrap(optimizer, model) if is_joined else optimizer
    features, plain = torch.randn(networks, batch, SQUARE_FEATURES), torch.rand(networks, batch) * 50
    for number in range(steps + 10):
        if number == 10:
            began = time.perf_counter()
        stepper.zero_grad()
        model(features, plain, plain).mean().backward()
        stepper.step()
    return steps / (time.perf_counter() - began)


def gaussians() -> list[dict[str, Any]]:
    """The paper's experiment: 100,000 points of 16 equal Gaussians on 200 x 200 cells; how much learning gains at each sigma."""
    rows = []
    for sigma in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
        plane = _gaussian_plane(sigma)
        grid, epsilon = plane.grid(20.0), Fraction("0.2")
        noisy = plane.noisy(grid, epsilon, seed=1)
        methods: dict[str, Callable[..., np.ndarray]] = _plain(grid, noisy)
        methods["snh"] = _by(learn(grid, noisy, 1 / epsilon, "local")[0])
        asked = plane.ask(True, None)
        errors = {name: _errors(method, asked, LEAST * len(plane.lat))["relative"] for name, method in methods.items()}
        labels = errors["identity"]
        rows.append(
            {
                "sigma_cells": sigma,
                "labels": labels,
                **{f"gain of {name}": round(labels / errors[name], 2) for name in ("clipped", "snh")},
            }
        )
    _draw(rows, Path(__file__).parents[2] / "docs" / "snh_gaussians.png")
    return rows


def learn(
    grid: Grid, noisy: np.ndarray, scale: Fraction, architecture: str, epochs: int = 20
) -> tuple[Squares, dict[str, float]]:
    """Train on a noisy grid, pack, and open again."""
    settings = SNHSettings(architecture=architecture, epochs=epochs)
    task = Task(noisy, scale, (grid.height_metres / grid.rows, grid.width_metres / grid.cols), settings)
    with tempfile.TemporaryDirectory() as work:
        began = time.perf_counter()
        trained = fit(alone(), task, Path(work))
        seconds = time.perf_counter() - began
    weights = {name: value.numpy() for name, value in trained.weights.items()}
    sizes = (settings.sides, float(settings.smallest), float(settings.largest))
    content = pack(SquareRelease(grid, scale, noisy, architecture, *sizes, weights))
    facts = {"trained_s": round(seconds)}
    began = time.perf_counter()
    opened = Squares(unpack(content))
    seconds = time.perf_counter() - began
    return opened, {**facts, "opened_s": round(seconds, 1), "megabytes": round(len(content) / 1e6, 2)}


def _plain(grid: Grid, noisy: np.ndarray) -> dict[str, Callable[..., np.ndarray]]:
    """Answers without learning; two ways to cut at 0, answers or cells."""
    identity = _sums(grid, noisy)
    return {
        "zero": lambda lat, lon, side: np.zeros(len(lat)),
        "identity": identity,
        "clipped": lambda lat, lon, side: np.maximum(identity(lat, lon, side), 0),
        "clipped cells": _sums(grid, np.maximum(noisy, 0)),
    }


def _sums(grid: Grid, cells: np.ndarray) -> Callable[..., np.ndarray]:
    """Squares as sums of cells by their share inside."""
    total, per_metre = prefix(cells), (grid.rows / grid.height_metres, grid.cols / grid.width_metres)

    def answer(lat: np.ndarray, lon: np.ndarray, side: np.ndarray) -> np.ndarray:
        places = Places((lat - grid.south) * grid.rows_per_degree, (lon - grid.west) * grid.cols_per_degree)
        return places.sums(total, side * per_metre[0], side * per_metre[1])

    return answer


def _by(opened: Squares) -> Callable[..., np.ndarray]:
    return lambda lat, lon, side: opened.counts(lat, lon, side).count


def _errors(method: Callable[..., np.ndarray], asked: Truth, least: float) -> dict[str, float]:
    lat, lon, side, truth = asked
    off = np.abs(method(lat, lon, side) - truth)
    return {"relative": round(float((off / np.maximum(truth, least)).mean()), 4), "mean_absolute": round(float(off.mean()), 2)}


def _planes() -> Iterator[Plane]:
    """The points of the San Francisco cabs where they are at hand, and a synthetic city."""
    if CABS.exists():
        import pandas as pd

        cabs = pd.read_parquet(CABS, columns=["lat", "lon"])
        yield Plane("cabs", cabs.lat.to_numpy(), cabs.lon.to_numpy(), 37.705, -122.51, 37.822, -122.357)
    city = City(users=10_000, events_per_user=20, seed=3, south=37.74, north=37.84, west=-122.47, east=-122.345)
    columns = [(table["lat"].to_numpy(), table["lon"].to_numpy()) for table in batches(city)]
    lat, lon = (np.concatenate(part) for part in zip(*columns, strict=True))
    inside = (lat >= city.south) & (lat < city.north) & (lon >= city.west) & (lon < city.east)
    yield Plane("synthetic", lat[inside], lon[inside], city.south, city.west, city.north, city.east)


def _gaussian_plane(sigma: float, cells: int = 200, side: float = 20.0) -> Plane:
    random = np.random.default_rng(7)
    middles = random.uniform(0.1, 0.9, (16, 2)) * cells
    points = np.mod(middles[random.integers(0, 16, 100_000)] + sigma * random.standard_normal((100_000, 2)), cells)
    south, west = ORIGIN
    height = cells * side / METRES_PER_DEGREE
    width = height / np.cos(np.radians(south + height / 2))
    lat, lon = south + points[:, 0] / cells * height, west + points[:, 1] / cells * width
    # A hair's breadth more, so that the box has exactly as many cells.
    return Plane(f"gaussians {sigma}", lat, lon, south, west, south + height * (1 - 1e-9), west + width * (1 - 1e-9))


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    for name in ("clipped", "snh"):
        axes.plot([row["sigma_cells"] for row in rows], [row[f"gain of {name}"] for row in rows], marker="o", label=name)
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(
        xscale="log", yscale="log", xlabel="sigma, cells", ylabel="error of the labels / error", title="16 Gaussians, epsilon 0.2"
    )
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
