"""What a denoiser is: noisy tensors in, a better tensor out. Nothing here, or right of here, has seen a person's record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import exp

import numpy as np


@dataclass(frozen=True)
class Denoised:
    """An estimate of the counts before noise."""

    values: np.ndarray
    """slices x rows x cols, float32; may be below 0."""
    deviation: np.ndarray | None = None
    """Standard deviation of each value where the denoiser knows it, else None."""


Denoiser = Callable[[np.ndarray, Sequence[np.ndarray], Fraction], Denoised]
"""denoise(tonight, earlier nights with the newest last, scale of the noise of one cell)."""


def noise_variance(scale: Fraction) -> float:
    """Variance of discrete Laplace noise: 2 a / (1 - a)^2 with a = exp(-1 / scale), about 2 scale^2 - 1/6."""
    a = exp(-1 / float(scale))
    return 2 * a / (1 - a) ** 2


def noise_fourth_moment(scale: Fraction) -> float:
    """E[X^4] of discrete Laplace noise: 2 a (1 + 10 a + a^2) / (1 - a)^4."""
    a = exp(-1 / float(scale))
    return 2 * a * (1 + 10 * a + a * a) / (1 - a) ** 4


def discrete_laplace(random: np.random.Generator, scale: float, shape: tuple[int, ...]) -> np.ndarray:
    """Seeded noise of the law that releases use, for rehearsals and evaluation. It protects nobody."""
    stop = 1 - exp(-1 / scale)
    return random.geometric(stop, shape) - random.geometric(stop, shape)


def non_negative(values: np.ndarray) -> np.ndarray:
    """No value below 0, and the same total of each slice: a small amount is taken off every value before cutting at 0.

    Cutting alone would turn what is left of the noise in the many cold cells into people. The amount is the one that keeps the
    total, the projection onto non-negative tables of that total.
    """
    return np.stack([_projected(image) for image in values])


def _projected(image: np.ndarray) -> np.ndarray:
    total = max(float(np.sum(image, dtype=np.float64)), 0.0)
    low, high = 0.0, max(float(image.max()), 0.0)
    for _ in range(40):
        middle = (low + high) / 2
        if float(np.sum(np.maximum(image - np.float32(middle), 0), dtype=np.float64)) > total:
            low = middle
        else:
            high = middle
    return np.maximum(image - np.float32(high), 0)


def none(tonight: np.ndarray, earlier: Sequence[np.ndarray], scale: Fraction) -> Denoised:
    """The noisy counts as they are."""
    deviation = np.full(tonight.shape, noise_variance(scale) ** 0.5, dtype=np.float32)
    return Denoised(tonight.astype(np.float32), deviation)
