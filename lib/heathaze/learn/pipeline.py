"""denoise: tonight's noisy tensor and every earlier one in, a better tensor out. Trains a model where the method has one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heathaze.errors import HeathazeError, InputError
from heathaze.learn import denoiser
from heathaze.learn.denoiser import Denoised, Denoiser
from heathaze.learn.families import FAMILIES, NO_ERROR, Family, Nights, Weights, season_of
from heathaze.learn.handoff import Night, nights_until
from heathaze.learn.maps import Estimate, Measurement, Scales, estimate_night
from heathaze.learn.shrink import shrink
from heathaze.policy import Policy
from heathaze.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from heathaze.learn.models import Model
    from heathaze.learn.training import Trained

CLASSICAL: dict[str, Denoiser] = {"none": denoiser.none, "shrink": shrink}
"""Denoisers that need no training."""


@dataclass(frozen=True)
class Denoising:
    """What one night's denoising works with."""

    policy: Policy
    period: str
    tables: Tables
    work: Path
    """Folder for checkpoints; shared by the ranks."""
    say: Callable[[str], None]
    note: Callable[[str], None]
    """Called with progress within a step."""
    spark: SparkSession | None = None
    """Needed only where the tables are in a catalog."""


def run_denoise(night: Denoising) -> dict[str, Any]:
    """Denoise one night and write it; returns what there is to say about it. A second run finds it done."""
    policy, nights = night.policy, _nights(night)
    tonight = nights.named[-1]
    token = f"{tonight.entry}:denoised:{policy.denoise_hash}"
    if night.tables.is_committed("denoised", token, night.spark):
        return {"entry": tonight.entry, "done_before": True}
    measured = _measured(nights)
    facts: dict[str, Any] = {"method": policy.denoise.method, "nights_used": len(nights.named)}
    model_name = ""
    if policy.denoise.method in CLASSICAL:
        night.say(f"denoising by {policy.denoise.method}, with {len(nights.named) - 1} earlier nights")
        result = _estimate(policy, nights, measured)
    else:
        model, about = _model_for(night, nights, measured.slices)
        night.say(f"denoising with model {model.name}")
        result, model_name = _estimate(policy, nights, measured, model.weights), model.name
        facts |= about
    _write(night, tonight, token, model_name, facts, result.published())
    return {"entry": tonight.entry, "done_before": False, "model": model_name, **facts}


def measured_of(night: Denoising) -> Measurement:
    """What was measured of a night."""
    return _measured(_nights(night))


def _measured(nights: Nights) -> Measurement:
    return Measurement(nights.tonight(), nights.totals(), None if nights.map_shape is None else nights.maps().tonight())


def denoise_again(night: Denoising, model_name: str) -> Callable[[Measurement], Estimate]:
    """The very denoising of a night, for other measurements in its place: rehearsals."""
    policy, nights = night.policy, _nights(night)
    if policy.denoise.method in CLASSICAL:
        return lambda measured: _estimate(policy, nights, measured)
    from heathaze.learn import models

    weights = models.load(night.tables, model_name, night.spark).weights
    return lambda measured: _estimate(policy, nights, measured, weights)


def _estimate(policy: Policy, nights: Nights, measured: Measurement, weights: Weights | None = None) -> Estimate:
    """The estimate of a night; the networks of snh speak for themselves."""

    def denoise(whose: Nights, tensor: np.ndarray) -> Denoised:
        if weights is None:
            return CLASSICAL[policy.denoise.method](tensor, [night.noisy for night in whose.earlier()], whose.scale)
        return _family(policy).denoise(weights, whose, tensor, policy.denoise)

    if policy.release.method == "snh":
        return Estimate(denoise(nights, measured.slices), None, 1)
    tonight = nights.named[-1]
    scales = Scales(tonight.scale, tonight.total_scale, tonight.map_scale, policy.grid.coarser)
    return estimate_night(measured, scales, partial(denoise, nights), partial(denoise, nights.maps()))


def _nights(night: Denoising) -> Nights:
    policy = night.policy
    named = nights_until(night.tables, policy.dataset.name, policy.measurement_hash, night.period, night.spark)
    if not named or named[-1].period != night.period:
        raise InputError(f"{policy.dataset.name}/{night.period} has no noisy tensor yet: run collect first.")
    storage = night.tables.storage("noisy", night.spark)
    history = 0 if policy.release.method == "snh" else policy.denoise.history
    grid = policy.grid.build()
    cell = (grid.height_metres / grid.rows, grid.width_metres / grid.cols)
    map_shape = (grid.rows, grid.cols) if policy.grid.slice_block else None
    return Nights(storage, tuple(named[-1 - history :]), policy.period.days, season_of(policy), cell, map_shape)


def _family(policy: Policy) -> Family:
    return FAMILIES[policy.denoise.method]


def _write(night: Denoising, tonight: Night, token: str, model: str, facts: dict[str, Any], result: Denoised) -> None:
    rows = [
        {
            "entry": tonight.entry,
            "settings": night.policy.denoise_hash,
            "method": night.policy.denoise.method,
            "model": model,
            "facts": json.dumps(facts),
            "slice": number,
            "rows": result.values.shape[1],
            "cols": result.values.shape[2],
            "values": result.values[number].astype("<f4").tobytes(),
            "deviation": None if result.deviation is None else result.deviation[number].astype("<f4").tobytes(),
        }
        for number in range(tonight.slices)
    ]
    night.tables.append_rows_once("denoised", rows, token, night.spark)


def _model_for(night: Denoising, nights: Nights, tensor: np.ndarray) -> tuple[Model, dict[str, Any]]:
    """The model to use tonight: the newest one while it is young and fits tonight's noisy tensor, else a new one."""
    from heathaze.learn import models

    settings = night.policy.denoise
    model = models.newest(night.tables, night.policy, night.period, night.spark)
    reason = "there is none yet"
    if model is not None:
        age = sum(one.period > model.trained_until for one in nights.named)
        error = _family(night.policy).error(model.weights, nights, tensor, settings)
        drift = float("inf") if error is None else max(error, NO_ERROR) / max(model.score, NO_ERROR)
        if age < settings.retrain_every and drift <= float(settings.max_drift):
            night.say(f"reusing model {model.name}, {age} nights old, drift {drift:.2f}")
            return model, {"trained": False, "model_age": age, "drift": round(drift, 3)}
        reason = f"the last one is {age} nights old" + (
            f", drift {drift:.2f}" if drift < float("inf") else " and of other context"
        )
    name = _model_name(night.policy, nights.named)
    night.say(f"training model {name} on {len(nights.named)} nights ({reason})")
    trained, run = _train(night, nights, name)
    models.register(night.tables, name, night.policy, list(nights.named), trained, run, night.spark)
    shutil.rmtree(night.work / name, ignore_errors=True)
    made = models.load(night.tables, name, night.spark)
    return made, {"trained": True, "model_age": 0, "drift": 1.0, "epochs": len(trained.curve)}


def _model_name(policy: Policy, nights: Sequence[Night]) -> str:
    """The same nights and settings give the same name, so a run that was killed finds its checkpoints."""
    identity = "\n".join([policy.measurement_hash, policy.denoise_hash, *(night.entry for night in nights)])
    return f"{policy.denoise.method}-{nights[-1].period}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _train(night: Denoising, nights: Nights, name: str) -> tuple[Trained, dict[str, Any]]:
    from heathaze.learn.distributed import choose_launcher, launch
    from heathaze.learn.progress import watch
    from heathaze.learn.training import TrainingFailed

    settings = night.policy.denoise
    work = night.work / name
    work.mkdir(parents=True, exist_ok=True)
    (work / "failure.txt").unlink(missing_ok=True)
    launcher = choose_launcher(settings.launcher)
    arguments = {"nights": nights, "settings": settings, "work": str(work)}
    try:
        with watch(work / "progress.jsonl", night.note):
            trained = launch(_family(night.policy).train_rank, arguments, settings.ranks, launcher)
    except HeathazeError:
        if (work / "failure.txt").exists():
            reason = (work / "failure.txt").read_text()
            shutil.rmtree(work, ignore_errors=True)
            raise TrainingFailed(
                f"{reason}. No model was registered; lower denoise.{settings.method}.learning_rate and run again."
            ) from None
        raise
    return trained, {"ranks": settings.ranks, "launcher": launcher if settings.ranks > 1 else "one process"}
