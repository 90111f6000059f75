"""snh: labels by prefix sums, networks that beat the clipped grid they came from, and a release that answers any square."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from heathaze.errors import InputError
from heathaze.grid import Grid
from heathaze.learn.denoiser import discrete_laplace
from heathaze.learn.distributed import alone, launch
from heathaze.learn.snh import PaperNetworks
from heathaze.learn.snh_places import Places, prefix
from heathaze.learn.snh_training import Task, augment, fit
from heathaze.policy import SNHSettings
from heathaze.release.squares import SquareRelease, Squares, pack, plan_grid, unpack

SCALE = Fraction(5)
BOX = (40.0, -75.0, 40.03, -74.96)


@pytest.fixture(scope="module")
def city() -> np.ndarray:
    """Points (lat, lon) of streets and squares, far from even."""
    random = np.random.default_rng(3)
    centres = random.uniform((40.003, -74.997), (40.027, -74.963), (60, 2))
    weights = random.pareto(1.2, 60) + 0.2
    chosen = random.choice(60, 40_000, p=weights / weights.sum())
    points = centres[chosen] + random.normal(0, 4e-4, (40_000, 2))
    inside = (points > [BOX[0], BOX[1]]).all(1) & (points < [BOX[2], BOX[3]]).all(1)
    return points[inside]


@pytest.fixture(scope="module")
def released(city: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> SquareRelease:
    grid = plan_grid(*BOX, rho=25.0)
    counts = np.bincount(grid.cells_of(city[:, 0], city[:, 1]), minlength=grid.cells).reshape(grid.rows, grid.cols)
    noisy = counts + discrete_laplace(np.random.default_rng(1), float(SCALE), counts.shape)
    return learn(grid, noisy, SNHSettings(epochs=8), tmp_path_factory.mktemp("snh"))


def learn(grid: Grid, noisy: np.ndarray, settings: SNHSettings, work: Path) -> SquareRelease:
    cell = (grid.height_metres / grid.rows, grid.width_metres / grid.cols)
    trained = fit(alone(), Task(noisy, SCALE, cell, settings), work)
    weights = {name: value.numpy() for name, value in trained.weights.items()}
    sizes = (settings.sides, float(settings.smallest), float(settings.largest))
    return SquareRelease(grid, SCALE, noisy, settings.architecture, *sizes, weights)


def exact(city: np.ndarray, grid, lat: np.ndarray, lon: np.ndarray, side: float) -> np.ndarray:
    half = side / 2 / np.array([grid.height_metres / (grid.north - grid.south), grid.width_metres / (grid.east - grid.west)])
    return np.array([(np.abs(city - place) <= half).all(1).sum() for place in np.column_stack([lat, lon])])


def test_labels_are_sums_of_cells_by_their_share_of_area() -> None:
    noisy = np.arange(12).reshape(3, 4)
    label = augment(noisy, [(1.0, 1.5)])[0]
    assert label.shape == (4, 5)
    # Around the corner of cells (0, 0), (0, 1), (1, 0) and (1, 1): half a cell up and down, three quarters to both sides.
    assert label[1, 1] == pytest.approx(0.5 * 0.75 * (0 + 1 + 4 + 5))
    assert augment(-noisy, [(1.0, 1.5)])[0][1, 1] == pytest.approx(-label[1, 1]), "labels are never cut at 0"


def test_the_papers_network_has_the_published_size() -> None:
    assert sum(weight.numel() for weight in PaperNetworks(1).parameters()) == 129_921


@pytest.mark.parametrize("side", [30.0, 95.0])
def test_networks_beat_the_clipped_grid_at_events(city: np.ndarray, released: SquareRelease, side: float) -> None:
    squares = Squares(unpack(pack(released)))
    places = city[np.random.default_rng(5).choice(len(city), 800)]
    margin = [0.0006, 0.0008]
    places = places[((places > np.array(BOX[:2]) + margin) & (places < np.array(BOX[2:]) - margin)).all(1)]
    truth = exact(city, released.grid, places[:, 0], places[:, 1], side)
    found = squares.counts(places[:, 0], places[:, 1], side)
    grid = released.grid
    clipped = prefix(np.maximum(released.noisy, 0))
    centres = Places((places[:, 0] - grid.south) * grid.rows_per_degree, (places[:, 1] - grid.west) * grid.cols_per_degree)
    plain = centres.sums(clipped, side / grid.height_metres * grid.rows, side / grid.width_metres * grid.cols)
    ours, theirs = np.abs(found.count - truth).mean(), np.abs(plain - truth).mean()
    assert ours < theirs, (side, ours, theirs)
    assert np.mean((truth >= found.low) & (truth <= found.high)) > 0.75


def test_a_release_is_small_and_says_how_it_answered(released: SquareRelease) -> None:
    content = pack(released)
    assert len(content) < 4_000_000
    squares = Squares(unpack(content))
    inside, larger = squares.count(40.015, -74.98, 60.0), squares.count(40.015, -74.98, 400.0)
    assert inside.low <= inside.count <= inside.high
    assert larger.by != inside.by, "a side outside the trained range is answered in another way, and said"


def test_bad_questions_and_grids_are_refused(released: SquareRelease) -> None:
    squares = Squares(released)
    with pytest.raises(InputError):
        squares.count(41.0, -74.98, 60.0)
    with pytest.raises(InputError, match="cells"):
        plan_grid(*BOX, rho=0.001)


def test_an_empty_grid_is_learned_like_any_other(tmp_path: Path) -> None:
    grid = plan_grid(*BOX, rho=100.0)
    noisy = discrete_laplace(np.random.default_rng(2), float(SCALE), (grid.rows, grid.cols))
    squares = Squares(learn(grid, noisy, SNHSettings(epochs=1), tmp_path))
    assert np.isfinite(squares.count(40.015, -74.98, 60.0).count)


def test_the_papers_networks_learn_and_answer(tmp_path: Path) -> None:
    grid = plan_grid(*BOX, rho=100.0)
    noisy = discrete_laplace(np.random.default_rng(2), float(SCALE), (grid.rows, grid.cols))
    noisy[10:14, 10:14] += 400
    released = learn(grid, noisy, SNHSettings(architecture="paper", epochs=6, batch=512), tmp_path)
    squares = Squares(unpack(pack(released)))
    south, west = BOX[:2]
    hot = squares.count(south + 12 / grid.rows_per_degree, west + 12 / grid.cols_per_degree, 95.0)
    cold = squares.count(south + 25 / grid.rows_per_degree, west + 30 / grid.cols_per_degree, 95.0)
    assert hot.count > cold.count + 50


def test_a_killed_learning_goes_on_to_the_same_networks(city: np.ndarray, tmp_path: Path) -> None:
    grid = plan_grid(*BOX, rho=50.0)
    counts = np.bincount(grid.cells_of(city[:, 0], city[:, 1]), minlength=grid.cells).reshape(grid.rows, grid.cols)
    noisy = counts + discrete_laplace(np.random.default_rng(1), float(SCALE), counts.shape)
    settings = SNHSettings(epochs=3, patience=3)
    (tmp_path / "whole").mkdir()
    whole = learn(grid, noisy, settings, tmp_path / "whole")
    halfway = tmp_path / "halfway"
    halfway.mkdir()
    # Cells learned to the end, squares not begun: what a kill between the steps leaves.
    (halfway / "cells.pt").write_bytes((tmp_path / "whole" / "cells.pt").read_bytes())
    again = learn(grid, noisy, settings, halfway)
    for name, value in whole.weights.items():
        np.testing.assert_allclose(again.weights[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_two_horovod_ranks_share_the_networks_out_and_end_with_those_of_one(city: np.ndarray, tmp_path: Path) -> None:
    grid = plan_grid(*BOX, rho=60.0)
    counts = np.bincount(grid.cells_of(city[:, 0], city[:, 1]), minlength=grid.cells).reshape(grid.rows, grid.cols)
    noisy = counts + discrete_laplace(np.random.default_rng(1), float(SCALE), counts.shape)
    cell = (grid.height_metres / grid.rows, grid.width_metres / grid.cols)
    task = Task(noisy, SCALE, cell, SNHSettings(epochs=2, patience=2))
    trained = launch(fit, {"task": task, "work": tmp_path}, ranks=2, launcher="horovod")
    assert [len(trained.curve), len(trained.before["cells"])] == [2, 2]
    assert all((tmp_path / f"{name}.pt").exists() for name in ("cells", "squares-0", "squares-1"))
    # The cell network is one for all sizes and is trained by both ranks; given it, one process ends with networks as good. Their
    # weights part by rounding, which Adam magnifies.
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "cells.pt").write_bytes((tmp_path / "cells.pt").read_bytes())
    by_one = fit(alone(), task, tmp_path / "one")
    assert [point.score for point in trained.curve] == pytest.approx([point.score for point in by_one.curve], rel=0.02)
    for name in ("first", "second", "last"):
        shared, whole = (one.weights[f"squares.{name}.weight"].flatten(1) for one in (trained, by_one))
        assert ((shared - whole).norm(dim=1) < 0.5 * whole.norm(dim=1)).all(), "every size has the network of its own rank"
