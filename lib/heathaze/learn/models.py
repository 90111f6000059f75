"""Trained models with their lineage: what they saw, by which settings and versions, and how they learnt."""

from __future__ import annotations

import io
import json
import platform
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc
import torch

from heathaze import __version__
from heathaze.learn.handoff import Night
from heathaze.learn.training import Trained
from heathaze.policy import Policy
from heathaze.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Model:
    """A model as it was registered."""

    name: str
    method: str
    trained_until: str
    """Newest period it has seen."""
    score: float
    """Estimated error on noisy data at training, in units of the noise variance."""
    lineage: dict[str, Any]
    curve: list[dict[str, Any]]
    weights: dict[str, torch.Tensor]


def register(
    tables: Tables,
    name: str,
    policy: Policy,
    nights: list[Night],
    trained: Trained,
    run: dict[str, Any],
    spark: SparkSession | None = None,
) -> None:
    """Write a model, once per name."""
    weights = io.BytesIO()
    torch.save(trained.weights, weights)
    lineage = {
        "noisy_entries": [night.entry for night in nights],
        "periods": [night.period for night in nights],
        "policy_hash": policy.hash,
        "denoise_hash": policy.denoise_hash,
        "seed": policy.denoise.seed,
        "best_epoch": trained.best_epoch,
        "versions": {"heathaze": __version__, "python": platform.python_version(), **_versions("torch", "numpy", "horovod")},
        **run,
    }
    row = {
        "model": name,
        "dataset": policy.dataset.name,
        "measurement": policy.measurement_hash,
        "method": policy.denoise.method,
        "settings": policy.denoise_hash,
        "trained_until": nights[-1].period,
        "created_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "score": trained.curve[trained.best_epoch - 1].score,
        "lineage": json.dumps(lineage),
        "curve": json.dumps([asdict(epoch) for epoch in trained.curve]),
        "picture": draw_curve(trained),
        "weights": weights.getvalue(),
    }
    tables.append_rows_once("models", [row], f"model:{name}", spark)


def newest(tables: Tables, policy: Policy, period: str, spark: SparkSession | None) -> Model | None:
    """The model of this policy's measurement and denoise settings that has seen the most, but nothing after `period`."""
    same = (pc.field("measurement") == policy.measurement_hash) & (pc.field("settings") == policy.denoise_hash)
    columns = ["model", "trained_until", "created_at"]
    rows = tables.load("models", same & (pc.field("trained_until") <= period), columns, spark).to_pylist()
    if not rows:
        return None
    return load(tables, max(rows, key=lambda row: (row["trained_until"], row["created_at"]))["model"], spark)


def load(tables: Tables, name: str, spark: SparkSession | None) -> Model:
    """A registered model by its name."""
    row = tables.load("models", pc.field("model") == name, spark=spark).to_pylist()[0]
    return Model(
        name=row["model"],
        method=row["method"],
        trained_until=row["trained_until"],
        score=row["score"],
        lineage=json.loads(row["lineage"]),
        curve=json.loads(row["curve"]),
        weights=torch.load(io.BytesIO(row["weights"]), weights_only=True),
    )


def draw_curve(trained: Trained) -> bytes:
    """The learning curve as a PNG, a row for each step of the learning: loss and score on noisy data against minutes."""
    from matplotlib.figure import Figure

    curves = {**trained.before, "kept" if trained.before else "": trained.curve}
    figure = Figure(figsize=(7, 3 * len(curves)), layout="constrained")
    for row, (step, curve) in zip(figure.subplots(len(curves), 2, squeeze=False), curves.items(), strict=True):
        minutes = [epoch.seconds / 60 for epoch in curve]
        scores = [epoch.score for epoch in curve]
        best = trained.best_epoch if curve is trained.curve else 1 + min(range(len(scores)), key=scores.__getitem__)
        titles = ("training loss", "score on noisy data (lower is better)" if step else "estimated error, in noise variances")
        for axes, values, label in zip(row, ([epoch.loss for epoch in curve], scores), titles, strict=True):
            axes.plot(minutes, values, color="#b5442e")
            axes.axvline(minutes[best - 1], color="#888888", linestyle=":", label=f"best: epoch {best}")
            axes.set_xlabel("minutes")
            axes.set_title(f"{step}: {label}" if step else label, fontsize=9)
            axes.legend(fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=110, metadata={"Software": "heathaze"})
    return out.getvalue()


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found
