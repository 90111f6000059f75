"""Hand-made nights: candidates from tensors, without a ledger, a denoiser or a gate."""

from __future__ import annotations

import numpy as np

from heathaze.policy import Policy
from heathaze.release.candidate import Budget, Candidate


def draw_noise(shape: tuple[int, ...], scale: float, random: np.random.Generator) -> np.ndarray:
    """Discrete Laplace noise: the difference of two geometric draws."""
    odds = 1 - np.exp(-1 / scale)
    return random.geometric(odds, shape) - random.geometric(odds, shape)


def candidate_of(
    policy: Policy, day: str, noisy: np.ndarray, denoised: np.ndarray, deviation: np.ndarray | None, gamma: float
) -> Candidate:
    """A night that was denoised and scaled by gamma, and nothing else."""
    refined = (gamma * denoised).astype(np.float32)
    totals = {"total_denoised": float(denoised.sum()), "total_published": float(refined.sum())}
    return Candidate(
        policy=policy,
        period=policy.period_of(day),
        entry=f"entry-{day}",
        grid=policy.grid.build(),
        scale=policy.privacy.histogram_scale,
        noisy=noisy.astype(np.int32),
        denoised=denoised.astype(np.float32),
        deviation=None if deviation is None else deviation.astype(np.float32),
        refined=refined,
        refinement={"gamma": gamma, "uniformity": 0.01, "was_chosen": True, **totals},
        sample_size=int(denoised.sum()),
        event_count=1000,
        denoise_facts={"method": "shrink", "nights_used": 1},
        model=None,
        budget=Budget("1.0", "0", "1.0", "20", "2026-Q4", ((day, "1.0"),)),
    )
