"""What the ranks of the tests do: top-level functions, so that they can be sent to other processes."""

from __future__ import annotations

import os
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from heathaze.learn.bayes import Context
from heathaze.learn.bayes_training import BayesLearner, fit
from heathaze.learn.distributed import Seam
from heathaze.learn.training import Trained, TrainSettings, train
from heathaze.learn.vqvae_training import VQVAELearner
from heathaze.policy import BayesSettings, VQVAESettings

BAYES = BayesSettings(rates=16, hidden=8, cells=8_000, batch=512)
SETTINGS = VQVAESettings(codes=16, code_size=8, crop=32, batch=4)


def noisy_slices(count: int = 4, side: int = 48, seed: int = 3) -> np.ndarray:
    """A few warm streets under noise of deviation 7."""
    random = np.random.default_rng(seed)
    truth = np.zeros((count, side, side))
    truth[:, ::8, :] = 20
    truth[:, :, ::12] = 40
    return (truth + random.laplace(0, 5, truth.shape)).round().astype(np.int32)


def one_step(seam: Seam, joined: np.ndarray) -> dict[str, torch.Tensor]:
    """One step of plain gradient descent on this rank's part of the joined batch; the state it ends with."""
    learner = VQVAELearner(noisy_slices(), 50.0, SETTINGS, seam, seed=1)
    seam.broadcast(learner.model)
    optimizer = seam.wrap(torch.optim.SGD(learner.model.parameters(), lr=1.0), learner.model)
    optimizer.zero_grad()
    part = torch.from_numpy(joined[seam.rank :: seam.size])
    learner.loss((part, part)).backward()
    optimizer.step()
    learner.after_step(seam)
    return dict(learner.model.state_dict())


def trained_states(seam: Seam, work: str, epochs: int) -> list[dict[str, torch.Tensor]]:
    """Train and return the final state of every rank, gathered through the seam."""
    slices = noisy_slices()[seam.rank :: seam.size]
    learner = VQVAELearner(slices, 50.0, SETTINGS, seam, seed=1)
    torch.manual_seed(seam.rank)
    train(seam, learner, TrainSettings(epochs, 3, 1e-3, 5, 100), Path(work))
    return _gathered(seam, learner.model.state_dict())


def fitted_states(seam: Seam, work: str) -> list[dict[str, torch.Tensor]]:
    """Train bayes with small and with large weights, and return what every rank keeps."""
    noisy = noisy_slices()
    learner = BayesLearner(Context(noisy, Fraction(5)), noisy, Fraction(5), BAYES, seam, seed=1)
    return _gathered(seam, fit(seam, learner, TrainSettings(2, 10, 3e-3, 5, 2), Path(work)).weights)


def _gathered(seam: Seam, state: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    states: list[dict[str, torch.Tensor]] = [{} for _ in range(seam.size)]
    for name, value in state.items():
        for rank in range(seam.size):
            mine = value if seam.rank == rank else torch.zeros_like(value)
            states[rank][name] = seam.sum(mine, name=f"{name}-{rank}")
    return states


def dies(seam: Seam, how: str) -> int:
    """Rank 1 ends without a word, or raises; the others would wait for it for ever."""
    if seam.rank == 1:
        if how == "killed":
            os.kill(os.getpid(), 9)
        raise ValueError("this rank raises")
    time.sleep(0.5)
    return int(seam.sum(torch.ones(1), name="never").item())


def train_alone(seam: Seam, work: str, epochs: int, pause: float = 0.0) -> Trained:
    """A whole small training; `pause` makes epochs long enough to be killed in."""
    learner: Any = VQVAELearner(noisy_slices(), 50.0, SETTINGS, seam, seed=1)
    score = learner.score

    def slow_score() -> tuple[float, float]:
        time.sleep(pause)
        return score()

    learner.score = slow_score
    return train(seam, learner, TrainSettings(epochs, 3, 1e-3, 5, 100), Path(work))
