"""denoise: tonight's noisy tensor and every earlier one in, a better tensor out. Trains a model where the method has one."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from heathaze.errors import HeathazeError, InputError
from heathaze.learn import denoiser
from heathaze.learn.denoiser import Denoised, Denoiser
from heathaze.learn.handoff import Night, nights_until, read_night, read_slices, shared_out
from heathaze.learn.shrink import shrink
from heathaze.policy import Policy, VQVAESettings
from heathaze.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from heathaze.learn.distributed import Seam
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
    policy = night.policy
    nights = nights_until(night.tables, policy.dataset.name, policy.measurement_hash, night.period, night.spark)
    if not nights or nights[-1].period != night.period:
        raise InputError(f"{policy.dataset.name}/{night.period} has no noisy tensor yet: run collect first.")
    tonight, earlier = nights[-1], nights[:-1][-policy.denoise.history :] if policy.denoise.history else []
    token = f"{tonight.entry}:denoised:{policy.denoise_hash}"
    if night.tables.is_committed("denoised", token, night.spark):
        return {"entry": tonight.entry, "done_before": True}
    storage = night.tables.storage("noisy", night.spark)
    tensor = read_night(storage, tonight)
    facts: dict[str, Any] = {"method": policy.denoise.method, "nights_used": len(earlier) + 1}
    model_name = ""
    if policy.denoise.method in CLASSICAL:
        night.say(f"denoising by {policy.denoise.method}, with {len(earlier)} earlier nights")
        result = CLASSICAL[policy.denoise.method](tensor, [read_night(storage, one) for one in earlier], tonight.scale)
    else:
        model, about = _model_for(night, [*earlier, tonight], tensor, storage)
        night.say(f"denoising with model {model.name}")
        result, model_name = _apply_vqvae(model, tensor, tonight.scale, policy.denoise.vqvae), model.name
        facts |= about
    _write(night, tonight, token, model_name, facts, result)
    return {"entry": tonight.entry, "done_before": False, "model": model_name, **facts}


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


def _model_for(night: Denoising, nights: list[Night], tensor: np.ndarray, storage: str) -> tuple[Model, dict[str, Any]]:
    """The model to use tonight: the newest one while it is young and fits tonight's noisy tensor, else a new one."""
    from heathaze.learn import models

    settings = night.policy.denoise
    model = models.newest(night.tables, night.policy, night.period, night.spark)
    reason = "there is none yet"
    if model is not None:
        age = sum(one.period > model.trained_until for one in nights)
        drift = _drift(model, tensor, nights[-1].scale, settings.vqvae)
        if age < settings.retrain_every and drift <= float(settings.max_drift):
            night.say(f"reusing model {model.name}, {age} nights old, drift {drift:.2f}")
            return model, {"trained": False, "model_age": age, "drift": round(drift, 3)}
        reason = f"the last one is {age} nights old, drift {drift:.2f}"
    name = _model_name(night.policy, nights)
    night.say(f"training model {name} on {len(nights)} nights ({reason})")
    trained, run = _train(night, nights, name, storage)
    models.register(night.tables, name, night.policy, nights, trained, run, night.spark)
    shutil.rmtree(night.work / name, ignore_errors=True)
    made = models.newest(night.tables, night.policy, night.period, night.spark)
    assert made is not None
    return made, {"trained": True, "model_age": 0, "drift": 1.0, "epochs": len(trained.curve)}


def _model_name(policy: Policy, nights: list[Night]) -> str:
    """The same nights and settings give the same name, so a run that was killed finds its checkpoints."""
    identity = "\n".join([policy.measurement_hash, policy.denoise_hash, *(night.entry for night in nights)])
    return f"{policy.denoise.method}-{nights[-1].period}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"


def _train(night: Denoising, nights: list[Night], name: str, storage: str) -> tuple[Trained, dict[str, Any]]:
    from heathaze.learn.distributed import choose_launcher, launch
    from heathaze.learn.progress import watch
    from heathaze.learn.training import TrainingFailed

    settings = night.policy.denoise
    work = night.work / name
    work.mkdir(parents=True, exist_ok=True)
    (work / "failure.txt").unlink(missing_ok=True)
    launcher = choose_launcher(settings.launcher)
    arguments = {
        "storage": storage,
        "nights": [asdict(one) for one in nights],
        "settings": settings.vqvae,
        "seed": settings.seed,
        "work": str(work),
    }
    try:
        with watch(work / "progress.jsonl", night.note):
            trained = launch(train_rank, arguments, settings.ranks, launcher)
    except HeathazeError:
        if (work / "failure.txt").exists():
            reason = (work / "failure.txt").read_text()
            shutil.rmtree(work, ignore_errors=True)
            raise TrainingFailed(f"{reason}. No model was registered; lower denoise.vqvae.learning_rate and run again.") from None
        raise
    return trained, {"ranks": settings.ranks, "launcher": launcher if settings.ranks > 1 else "one process"}


def train_rank(seam: Seam, storage: str, nights: list[dict[str, Any]], settings: VQVAESettings, seed: int, work: str) -> Trained:
    """What every rank does: read its own slices, and train."""
    from heathaze.learn.training import TrainSettings, train
    from heathaze.learn.vqvae_training import RESOLUTIONS, VQVAELearner

    named = [Night(**one) for one in nights]
    slices = read_slices(storage, shared_out(named, seam.rank, seam.size))
    learner = VQVAELearner(slices, denoiser.noise_variance(named[0].scale), settings, seam, seed)
    cells = sum(one.slices for one in named) * slices.shape[1] * slices.shape[2] * len(RESOLUTIONS)
    steps = max(1, -(-cells // (settings.batch * min(settings.crop, slices.shape[1]) * min(settings.crop, slices.shape[2]))))
    schedule = TrainSettings(settings.epochs, steps, float(settings.learning_rate), seed, settings.patience)
    return train(seam, learner, schedule, Path(work))


def _apply_vqvae(model: Model, tensor: np.ndarray, scale: Fraction, settings: VQVAESettings) -> Denoised:
    from heathaze.learn.vqvae_training import denoise_slice

    network = _network(model, settings)
    variance = denoiser.noise_variance(scale)
    return Denoised(np.stack([denoise_slice(network, image, variance) for image in tensor]))


def _drift(model: Model, tensor: np.ndarray, scale: Fraction, settings: VQVAESettings) -> float:
    """How many times its error at training the model's estimated error on tonight's noisy tensor is, at least 0."""
    from heathaze.learn.vqvae_training import blind_spot_error, check_crops

    crops = check_crops(tensor, denoiser.noise_variance(scale), settings, seed=0)
    summed, weight = blind_spot_error(_network(model, settings), crops)
    # An error below a hundredth of the noise is measured as noise; a ratio of two such says nothing.
    return max(summed / weight, 0.01) / max(model.score, 0.01)


def _network(model: Model, settings: VQVAESettings):  # type: ignore[no-untyped-def]
    from heathaze.learn.vqvae import VQVAE

    network = VQVAE(settings.codes, settings.code_size)
    network.load_state_dict(model.weights)
    return network.eval()
