"""Denoisers: error beside the answers that need no thought, and the speed of a training step beside a plain one."""

from __future__ import annotations

import tempfile
import time
from datetime import date, datetime, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from heathaze.evaluate.synthetic import City, batches
from heathaze.grid import Grid
from heathaze.learn.denoiser import discrete_laplace, noise_variance
from heathaze.learn.shrink import shrink

CABS = Path(__file__).parents[3] / "shared" / "data" / "sf_cabs_trip_ends.parquet"
SCALE = Fraction(5)
"""Event level, epsilon 0.2."""
KINDS = ("mean_absolute", "relative")


def error() -> list[dict[str, Any]]:
    """One-cell queries at records, event level, epsilon 0.2, 24 daily slices: absolute error, and relative error at psi 20."""
    rows = []
    for name, truth in _cities():
        noisy = truth + discrete_laplace(np.random.default_rng(0), float(SCALE), truth.shape)
        mean, variance = noisy.mean(0), noise_variance(SCALE)
        signal = np.maximum(noisy.var(0, ddof=1) - variance, 0)
        began = time.perf_counter()
        shrunk = shrink(noisy, [], SCALE).values
        seconds = time.perf_counter() - began
        answers = {
            "identity": noisy,
            "zero": np.zeros_like(noisy),
            "clipped": np.maximum(noisy, 0),
            "mean over time": np.broadcast_to(mean, noisy.shape),
            "shrinkage in three lines": mean + signal / (signal + variance) * (noisy - mean),
            f"shrink ({seconds:.1f} s)": shrunk,
        }
        reference: tuple[float, float] | None = None
        for method, answer in answers.items():
            absolute, relative = _errors(answer, truth)
            reference = reference or (absolute, relative)
            rows.append(
                {
                    "city": name,
                    "method": method,
                    "mean_absolute": round(absolute, 3),
                    "relative": round(relative, 4),
                    "of_identity": f"{absolute / reference[0]:.3f} / {relative / reference[1]:.3f}",
                    "all_cells_rms": round(float(np.sqrt(np.mean((answer - truth) ** 2))), 3),
                }
            )
    return rows


def vqvae() -> list[dict[str, Any]]:
    """The VQ-VAE on the last of the cities above, trained to the end: its error beside identity's, and its learning curve."""
    from heathaze.learn.distributed import alone
    from heathaze.learn.training import TrainSettings, train
    from heathaze.learn.vqvae_training import RESOLUTIONS, VQVAELearner, denoise_slice
    from heathaze.policy import VQVAESettings

    name, truth = _cities()[-1]
    noisy = truth + discrete_laplace(np.random.default_rng(0), float(SCALE), truth.shape)
    settings, variance = VQVAESettings(), noise_variance(SCALE)
    learner = VQVAELearner(noisy, variance, settings, alone(), seed=0)
    steps = -(-noisy.size * len(RESOLUTIONS) // (settings.batch * settings.crop**2))
    schedule = TrainSettings(settings.epochs, steps, float(settings.learning_rate), 0, settings.patience)
    with tempfile.TemporaryDirectory() as work:
        trained = train(alone(), learner, schedule, Path(work))
    learner.model.load_state_dict(trained.weights)
    drawn = np.stack([denoise_slice(learner.model, image, variance) for image in noisy])
    reference, ours = _errors(noisy, truth), _errors(drawn, truth)
    rows: list[dict[str, Any]] = [
        {"epoch": point.epoch, "minutes": round(point.seconds / 60, 1), "estimated_error": round(point.score, 4)}
        for point in trained.curve[:: max(1, len(trained.curve) // 10)]
    ]
    ratios = {f"{kind}_of_identity": round(mine / theirs, 3) for kind, mine, theirs in zip(KINDS, ours, reference, strict=True)}
    return [*rows, {"city": name, "minutes": round(trained.curve[-1].seconds / 60, 1), **ratios}]


def step() -> list[dict[str, Any]]:
    """One training step of the VQ-VAE, in pixels per second: crops as we train, and the same model on whole slices."""
    import torch

    from heathaze.learn.distributed import alone
    from heathaze.learn.vqvae_training import VQVAELearner
    from heathaze.policy import VQVAESettings

    rows = []
    slices = np.random.default_rng(0).integers(-20, 20, (8, 576, 576)).astype(np.int32)
    cases = (("crops of 144, batch 128", 144, 128), ("crops of 144, batch 16", 144, 16), ("whole slices, batch 8", 576, 8))
    for name, crop, batch in cases:
        learner = VQVAELearner(slices, 50.0, VQVAESettings(crop=crop, batch=batch), alone(), seed=0)
        optimizer = torch.optim.Adam(learner.model.parameters(), lr=1e-3)
        data = learner.batch(np.random.default_rng(0))
        best = float("inf")
        for _ in range(4):
            began = time.perf_counter()
            optimizer.zero_grad()
            learner.loss(data).backward()
            optimizer.step()
            learner.after_step(alone())
            best = min(best, time.perf_counter() - began)
        rows.append({"what": name, "seconds": round(best, 2), "million_pixels_per_second": round(data.numel() / best / 1e6, 2)})
    return rows


def _errors(answer: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Mean absolute error, and relative error at psi 20, of one-cell queries at records."""
    records = np.repeat(np.arange(truth.size), truth.ravel())
    at_records = truth.ravel()[records]
    off = np.abs(answer.ravel()[records] - at_records)
    return float(off.mean()), float((off / np.maximum(at_records, 20)).mean())


def _cities() -> list[tuple[str, np.ndarray]]:
    """Exact daily counts on 576 x 576 cells: a synthetic city, and the San Francisco cabs where they are at hand."""
    grid = Grid(37.70, -122.52, 37.88, -122.292, 576, 576)
    city = City(users=2_000, events_per_user=20, first_day=date(2026, 11, 2), days=24, seed=1)
    truth = np.zeros((24, grid.cells), dtype=np.int64)
    first = datetime(2026, 11, 2, tzinfo=timezone.utc).timestamp()
    for table in batches(city):
        seconds = table["event_time"].cast("int64").to_numpy() / 1e6 - first
        _add(truth, grid, (seconds // 86_400).astype(int), table["lat"].to_numpy(), table["lon"].to_numpy())
    found = [("synthetic", truth.reshape(24, 576, 576))]
    if CABS.exists():
        import pandas as pd

        cabs = pd.read_parquet(CABS)
        day = ((cabs.ts - pd.Timestamp("2008-05-17", tz="UTC")) / pd.Timedelta(days=1)).astype(int).to_numpy()
        height, width = 10_000 / 111_195, 10_000 / 111_195 / np.cos(np.radians(37.79))
        box = Grid(37.79 - height, -122.42 - width, 37.79 + height, -122.42 + width, 576, 576)
        counts = np.zeros((24, box.cells), dtype=np.int64)
        _add(counts, box, day, cabs.lat.to_numpy(), cabs.lon.to_numpy())
        found.append(("cabs", counts.reshape(24, 576, 576)))
    return found


def _add(counts: np.ndarray, grid: Grid, day: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> None:
    cell = grid.cells_of(lat, lon)
    inside = (cell >= 0) & (day >= 0) & (day < len(counts))
    np.add.at(counts, (day[inside], cell[inside]), 1)
