"""Real ranks: Horovod and torch.distributed, two processes each."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import ROOT
from tests.train import ranks

from heathaze.errors import HeathazeError
from heathaze.learn.distributed import RankFailed, choose_launcher, launch

no_horovod = pytest.mark.skipif(not importlib.util.find_spec("horovod"), reason="Horovod is not built: no C++ compiler")
LAUNCHERS = [pytest.param("horovod", marks=no_horovod), "torch"]


@pytest.fixture(autouse=True)
def _ranks_can_import_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_step_like_one_rank_with_the_joined_batch(launcher: str) -> None:
    joined = np.random.default_rng(0).normal(0, 1, (4, 1, 32, 32)).astype(np.float32)
    alone = launch(ranks.one_step, {"joined": joined}, 1, launcher)
    together = launch(ranks.one_step, {"joined": joined}, 2, launcher)
    start = ranks.VQVAELearner(ranks.noisy_slices(), 50.0, ranks.SETTINGS, _alone(), seed=1).model.state_dict()
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=1e-6, msg=name)
    assert any(not torch.equal(alone[name], start[name]) for name in alone), "the step must change something"


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_end_with_identical_weights_and_codebooks(launcher: str, tmp_path: Path) -> None:
    first, second = launch(ranks.trained_states, {"work": str(tmp_path), "epochs": 2}, 2, launcher)
    assert "quantiser.codes" in first
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_agree_whether_small_or_large_weights_are_kept(launcher: str, tmp_path: Path) -> None:
    first, second = launch(ranks.fitted_states, {"work": str(tmp_path)}, 2, launcher)
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert all((tmp_path / f"{name}-weights.pt").exists() for name in ("small", "large"))


@pytest.mark.parametrize("how", ["killed", "raises"])
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_rank_that_dies_ends_the_job_with_a_clear_error(launcher: str, how: str) -> None:
    with pytest.raises(RankFailed, match="rank"):  # a hang would end in the timeout of the test
        launch(ranks.dies, {"how": how}, 2, launcher)


def test_auto_falls_back_to_torch_without_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert choose_launcher("auto") == "torch"
    with pytest.raises(HeathazeError, match="not installed"):
        choose_launcher("horovod")


def _alone():  # type: ignore[no-untyped-def]
    from heathaze.learn.distributed import _Alone

    return _Alone()
