"""The training loop: checkpoints, kills, failures, what it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.conftest import ROOT
from tests.train import ranks

from heathaze.learn.distributed import _Alone
from heathaze.learn.training import TrainingFailed, TrainSettings, train
from heathaze.learn.vqvae_training import VQVAELearner


def test_a_killed_training_goes_on_to_the_same_weights(tmp_path: Path) -> None:
    undisturbed = ranks.train_alone(_Alone(), _folder(tmp_path / "whole"), epochs=6)
    work = _folder(tmp_path / "killed")
    for epochs_before_kill in (2, 4):
        code = (
            "from tests.train import ranks; from heathaze.learn.distributed import _Alone; "
            f"ranks.train_alone(_Alone(), {work!r}, 6, 0.3)"
        )
        process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
        progress = Path(work) / "progress.jsonl"
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and (
            not progress.exists() or len(progress.read_text().splitlines()) < epochs_before_kill
        ):
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    resumed = ranks.train_alone(_Alone(), work, epochs=6)
    assert [point.epoch for point in resumed.curve] == [1, 2, 3, 4, 5, 6]
    assert resumed.best_epoch == undisturbed.best_epoch
    for name, value in undisturbed.weights.items():
        torch.testing.assert_close(resumed.weights[name], value, rtol=1e-4, atol=1e-5, msg=name)


def test_a_loss_that_is_not_finite_stops_training(tmp_path: Path) -> None:
    learner = VQVAELearner(ranks.noisy_slices(), 50.0, ranks.SETTINGS, _Alone(), seed=1)
    next(learner.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(TrainingFailed, match="loss became nan"):
        train(_Alone(), learner, TrainSettings(2, 3, 1e-3, 5, 100), tmp_path)
    assert not (tmp_path / "checkpoint.pt").exists()
    assert "nan" in (tmp_path / "failure.txt").read_text()


def test_training_stops_when_the_score_stops_falling(tmp_path: Path) -> None:
    learner = VQVAELearner(ranks.noisy_slices(), 50.0, ranks.SETTINGS, _Alone(), seed=1)
    learner.score = lambda: (1.0, 1.0)  # type: ignore[method-assign]
    trained = train(_Alone(), learner, TrainSettings(50, 1, 1e-3, 5, 3), tmp_path)
    assert len(trained.curve) == 4
    assert trained.best_epoch == 1


def test_training_learns(tmp_path: Path) -> None:
    trained = ranks.train_alone(_Alone(), str(tmp_path), epochs=40)
    assert trained.curve[-1].loss < 0.9 * trained.curve[0].loss
    assert min(point.score for point in trained.curve) == trained.curve[trained.best_epoch - 1].score < trained.curve[0].score
    lines = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == list(range(1, 41))
    assert lines[-1]["facts"]["codes_used"] > 1


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def _folder(path: Path) -> str:
    path.mkdir(parents=True, exist_ok=True)
    return str(path)
