"""docs/bayes.png: what bayes does, in one picture, from a synthetic city."""

from __future__ import annotations

import tempfile
from datetime import date, datetime, timezone
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from heathaze.evaluate.synthetic import City, batches
from heathaze.grid import Grid
from heathaze.learn.bayes import Context
from heathaze.learn.bayes_training import BayesLearner, estimate, fit, schedule_of
from heathaze.learn.denoiser import discrete_laplace
from heathaze.learn.distributed import alone
from heathaze.policy import BayesSettings
from heathaze.release.report import RAMP
from tests.bench.denoise import _add

SCALE = Fraction(10)
SIDE, SLICES, EVENING = 192, 8, 6
"""Cells along a side; slices of three hours, and the one that is shown."""
SHOWN = slice(60, 124)
"""Rows and columns of the maps."""


def picture() -> list[dict[str, Any]]:
    """A part of a synthetic city as it is, under noise and as bayes publishes it, and how it came to one of its cells."""
    import torch

    truth = _city()
    noisy = (truth + discrete_laplace(np.random.default_rng(0), float(SCALE), truth.shape)).astype(np.int32)
    context, settings = Context(noisy, SCALE), BayesSettings()
    learner = BayesLearner(context, noisy, SCALE, settings, alone(), 0)
    with tempfile.TemporaryDirectory() as work:
        learner.model.load_state_dict(fit(alone(), learner, schedule_of(settings, noisy.size, 0), Path(work)).weights)
    found = estimate(learner.model, context, noisy, SCALE)
    values = np.maximum(found.settled, 0)
    tonight, prior, seen = truth[EVENING], found.prior[EVENING], noisy[EVENING]
    # A place where something is going on, and whose noise is what noise is wont to be.
    score = np.abs(np.log(np.maximum(prior, 0.1) / 25)) + np.abs(np.abs(seen - tonight) / float(SCALE) - 1.5)
    row, col = np.unravel_index(int(np.argmin(score[SHOWN, SHOWN])), (SHOWN.stop - SHOWN.start,) * 2)
    place = int((row + SHOWN.start) * SIDE + col + SHOWN.start)
    with torch.no_grad():
        weights = torch.softmax(learner.model(context.features(EVENING)[:, [place]]), 1)[0].double().numpy()
    _draw(truth, noisy, values, (int(row), int(col)), _laws(weights, learner.model.rates.numpy(), int(seen.flat[place])), place)
    error = {name: float(np.abs(tensor - truth).mean()) for name, tensor in (("noise", noisy), ("bayes", values))}
    cell = {"cell_exact": int(tonight.flat[place]), "cell_noisy": int(seen.flat[place])}
    return [{**cell, "cell_bayes": round(float(values[EVENING].flat[place]), 1), **{k: round(v, 2) for k, v in error.items()}}]


def _city() -> np.ndarray:
    grid = Grid(37.70, -122.52, 37.88, -122.292, SIDE, SIDE)
    counts = np.zeros((SLICES, grid.cells), dtype=np.int64)
    first = datetime(2026, 11, 3, tzinfo=timezone.utc).timestamp()
    for table in batches(City(users=60_000, events_per_user=20, first_day=date(2026, 11, 3), seed=1)):
        number = ((table["event_time"].cast("int64").to_numpy() / 1e6 - first) // 10_800).astype(int)
        _add(counts, grid, number, table["lat"].to_numpy(), table["lon"].to_numpy())
    return counts.reshape(SLICES, SIDE, SIDE)


def _laws(weights: np.ndarray, rates: np.ndarray, noisy: int) -> dict[str, np.ndarray]:
    """Chances of every count of one cell: by its surroundings, by its noisy value alone, and by both."""
    from scipy.stats import poisson

    counts = np.arange(0, 100)
    prior = weights @ poisson.pmf(counts, rates[:, None])
    noise = np.exp(-np.abs(counts - noisy) / float(SCALE))
    both = prior * noise
    return {"prior": prior / prior.sum(), "noise": noise / noise.sum(), "both": both / both.sum()}


def _draw(
    truth: np.ndarray, noisy: np.ndarray, values: np.ndarray, at: tuple[int, int], laws: dict[str, np.ndarray], place: int
) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 3.9), layout="constrained")
    axes = figure.subplots(1, 4, width_ratios=(1, 1, 1, 1.25))
    titles = ("what was counted (nobody sees it)", "under exact noise", "as bayes publishes it")
    for one, title, tensor in zip(axes[:3], titles, (truth, noisy, values), strict=True):
        one.imshow(np.log10(np.maximum(tensor[EVENING, SHOWN, SHOWN], 0.3)), origin="lower", cmap=RAMP, vmin=-0.5, vmax=2)
        one.plot(at[1], at[0], "s", markersize=9, markerfacecolor="none", markeredgecolor="#1668b0", markeredgewidth=1.8)
        one.set(title=title, xticks=[], yticks=[])
    exact, seen = (int(tensor[EVENING].flat[place]) for tensor in (truth, noisy))
    drawn = axes[3]
    counts = np.arange(len(laws["prior"]))
    drawn.plot(counts, laws["prior"], color="#888888", label="what surrounds the cell says (network, blind to it)")
    drawn.plot(counts, laws["noise"], color="#e07b43", label=f"what its noisy value says ({seen}; exact law)")
    drawn.fill_between(counts, laws["both"], color="#762150", alpha=0.35, label="both, by Bayes' rule: published")
    drawn.axvline(exact, color="#1668b0", linewidth=1.5, label=f"what was counted ({exact})")
    drawn.set(title="the marked cell", xlabel="events", yticks=[], xlim=(0, 80), ylim=(0, 1.9 * float(laws["both"].max())))
    drawn.legend(fontsize=7.5, loc="upper right", frameon=False)
    figure.savefig(Path(__file__).parents[2] / "docs" / "bayes.png", dpi=110)
