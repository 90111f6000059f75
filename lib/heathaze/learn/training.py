"""The training loop, the same for every model and every number of ranks.

Steps are numbered, and what a step does depends on the seed and its number alone, so a run that was killed goes on from its last
checkpoint to the same weights. What is good is decided on noisy data: `Learner.score` never sees a truth.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from heathaze.errors import HeathazeError
from heathaze.learn.distributed import Seam


class TrainingFailed(HeathazeError):
    """Training cannot go on; no model was registered."""

    exit_code = 3


@dataclass(frozen=True)
class TrainSettings:
    """How long and how fast."""

    epochs: int
    """Passes over the training set, at most."""
    steps_per_epoch: int
    """Optimizer steps of one epoch, the same on every rank."""
    learning_rate: float
    """Of Adam, at its highest; a short rise, then half a cosine down to a hundredth."""
    seed: int
    """Seed of weights and batches."""
    patience: int
    """Epochs without a better score after which training stops."""


@dataclass(frozen=True)
class Epoch:
    """One point of the learning curve."""

    epoch: int
    loss: float
    score: float
    """Estimated error on noisy data alone, in units of the noise variance; lower is better."""
    seconds: float
    """Training time so far, over all runs."""
    facts: dict[str, float]
    """What else the learner reports, such as the share of codes in use."""


@dataclass(frozen=True)
class Trained:
    """A finished training."""

    weights: dict[str, torch.Tensor]
    """Of the epoch with the best score."""
    curve: list[Epoch]
    best_epoch: int
    before: dict[str, list[Epoch]] = field(default_factory=dict)
    """Learning curves of steps that came first, where a method learns in several, by name."""


class Learner(Protocol):
    """A model and how it learns."""

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    def batch(self, random: np.random.Generator) -> Any:
        """One batch of this rank's data."""

    def loss(self, batch: Any) -> torch.Tensor:
        """The loss of a batch, ready for backward."""

    def after_step(self, seam: Seam) -> None:
        """What moves without gradients, agreed between the ranks."""

    def after_epoch(self, seam: Seam, random: np.random.Generator) -> dict[str, float]:
        """Housekeeping between epochs; facts for the learning curve."""

    def score(self) -> tuple[float, float]:
        """Sum and weight of the estimated error on this rank's noisy data."""


class Quiet:
    """What a learner does between steps and epochs where everything moves by gradients: nothing."""

    def after_step(self, seam: Seam) -> None:
        pass

    def after_epoch(self, seam: Seam, random: np.random.Generator) -> dict[str, float]:
        return {}


def train(
    seam: Seam,
    learner: Learner,
    settings: TrainSettings,
    work: Path,
    step_name: str = "checkpoint",
    is_silent: bool = False,
) -> Trained:
    """Train until the last epoch or until the score stops falling; `work` holds progress and the checkpoint of this step."""
    checkpoint = work / f"{step_name}.pt"
    optimizer = torch.optim.Adam(learner.model.parameters(), lr=settings.learning_rate)
    curve: list[Epoch] = []
    best = {name: value.clone() for name, value in learner.model.state_dict().items()}
    best_epoch = 0
    saved = _load_checkpoint(checkpoint)
    if saved is not None:
        learner.model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        curve, best, best_epoch = [Epoch(**point) for point in saved["curve"]], saved["best"], saved["best_epoch"]
    seam.broadcast(learner.model)
    stepper = seam.wrap(optimizer, learner.model)
    before = curve[-1].seconds if curve else 0.0
    began = time.monotonic()

    for epoch in range(len(curve) + 1, settings.epochs + 1):
        if epoch - best_epoch > settings.patience:
            break
        total = 0.0
        for step in range(settings.steps_per_epoch):
            number = (epoch - 1) * settings.steps_per_epoch + step
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * _schedule(number, settings.epochs * settings.steps_per_epoch)
            stepper.zero_grad()
            loss = learner.loss(learner.batch(np.random.default_rng((settings.seed, number, seam.rank))))
            value = loss.item()
            if not math.isfinite(value):
                raise _failed(work, f"the loss became {value} at step {number} of epoch {epoch}")
            loss.backward()
            stepper.step()
            learner.after_step(seam)
            total += value
        facts = learner.after_epoch(seam, np.random.default_rng((settings.seed, epoch, seam.rank, 1)))
        summed, weight = learner.score()
        agreed = seam.sum(torch.tensor([total, summed, weight], dtype=torch.float64), name="epoch")
        point = Epoch(
            epoch=epoch,
            loss=float(agreed[0]) / (settings.steps_per_epoch * seam.size),
            score=float(agreed[1] / agreed[2]),
            seconds=before + time.monotonic() - began,
            facts=facts,
        )
        curve.append(point)
        if best_epoch == 0 or point.score < curve[best_epoch - 1].score:
            best_epoch = epoch
            best = {name: value.clone() for name, value in learner.model.state_dict().items()}
        if seam.rank == 0:
            _save_checkpoint(checkpoint, learner.model, optimizer, curve, best, best_epoch)
            if not is_silent:
                _say(work, point, settings.epochs)
    return Trained(best, curve, best_epoch)


def _schedule(step: int, steps: int) -> float:
    """Share of the learning rate at a step: a rise over the first hundred, then half a cosine."""
    rise = min(1.0, (step + 1) / 100)
    return rise * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / max(1, steps)))))


def _load_checkpoint(path: Path) -> dict[str, Any] | None:
    return torch.load(path, weights_only=False) if path.exists() else None


def _save_checkpoint(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    curve: list[Epoch],
    best: dict[str, torch.Tensor],
    best_epoch: int,
) -> None:
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "curve": [asdict(point) for point in curve],
        "best": best,
        "best_epoch": best_epoch,
    }
    torch.save(content, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def _say(work: Path, point: Epoch, epochs: int) -> None:
    """Tell whoever started the ranks; a rank's own output may be on another machine."""
    with (work / "progress.jsonl").open("a") as file:
        file.write(json.dumps({**asdict(point), "epochs": epochs}) + "\n")


def _failed(work: Path, reason: str) -> TrainingFailed:
    (work / "failure.txt").write_text(reason)
    return TrainingFailed(f"{reason}. No model was registered; lower the learning rate, or look at the noisy table.")
