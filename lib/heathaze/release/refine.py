"""refine: from counts of the bounded sample to counts of all events, clipped and rounded as the policy says.

VDR's factor gamma minimises the summed squared error of gamma x estimate against the counts of all N events, under uniform
sampling of n of them: gamma = n N C / (V + (1 - C) n + C n^2), where C is the sum of the squared shares of the cells and V the
summed variance of the noise. Both n and N are noisy or declared; nothing here is private.

That is the factor for a table whose errors come on top of it. A denoiser that knows how sure it is gives posterior means, which
are shrunk already: a second shrinking would publish a fraction of a thin night. They are scaled by N / n. Where they add up to
more than n, what is too much is taken off first, from each cell in proportion to its deviation, so that no more than N events
are ever published and the crowds that are well known stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heathaze.learn.denoiser import non_negative
from heathaze.policy import Refine


@dataclass(frozen=True)
class Measured:
    """What was measured of one night besides the cells."""

    sample_size: int
    """Noisy n: events after bounding."""
    event_count: int
    """N: events before bounding, noisy or declared."""
    noise_variance: float
    """Variance of the noise of one cell."""


@dataclass(frozen=True)
class Refined:
    """The values to publish, and what was done to them."""

    values: np.ndarray
    """slices x rows x cols, float32."""
    gamma: float
    """The factor."""
    uniformity: float | None
    """C; None where the estimate needed no shrinking."""
    was_chosen: bool
    """Whether C was chosen from the noisy tensor rather than given by the policy."""
    total_denoised: float
    total_scaled: float
    total_published: float


def refine(
    denoised: np.ndarray, deviation: np.ndarray | None, noisy: np.ndarray, measured: Measured, settings: Refine
) -> Refined:
    """Scale, clip and round. `deviation` is the denoiser's own, None where only the noise's is known."""
    n = max(measured.sample_size, 1)
    big_n = max(measured.event_count, n)
    uniformity = None if settings.uniformity is None else float(settings.uniformity)
    scaled = denoised
    if uniformity is None and deviation is not None:
        gamma = big_n / n
        scaled = _at_most(denoised, deviation, n)
    else:
        uniformity = uniformity or estimate_uniformity(noisy, measured)
        left = denoised.size * measured.noise_variance
        if deviation is not None:
            left = float(np.sum(np.square(deviation, dtype=np.float64)))
        gamma = n * big_n * uniformity / (left + (1 - uniformity) * n + uniformity * n**2)
    scaled = scaled * np.float32(gamma)
    values = finish(scaled, settings)
    totals = [float(np.sum(tensor, dtype=np.float64)) for tensor in (denoised, scaled, values)]
    return Refined(values.astype(np.float32), gamma, uniformity, settings.uniformity is None, *totals)


def _at_most(denoised: np.ndarray, deviation: np.ndarray, n: int) -> np.ndarray:
    """The estimate with no more than n events in all.

    An estimate of more than twice as many is wrong everywhere alike, and only its shape is kept.
    """
    total, unsure = (float(np.sum(part, dtype=np.float64)) for part in (denoised, deviation))
    if total <= n:
        return denoised
    if total > 2 * n or unsure <= 0:
        return denoised * np.float32(n / total)
    return denoised - deviation * np.float32((total - n) / unsure)


def finish(values: np.ndarray, settings: Refine) -> np.ndarray:
    """Clip and round as the policy says."""
    values = non_negative(values) if settings.non_negative else values
    return np.rint(values) if settings.round else values


def estimate_uniformity(noisy: np.ndarray, measured: Measured) -> float:
    """C from the noisy tensor: the sum of squares, less what noise and sampling add, over n squared.

    The paper's 5e-5 was found on tens of millions of points and shrinks smaller data to a tenth; the sum of squared shares is
    what C stands for, and the noisy squares measure it without the truth.
    """
    n = max(measured.sample_size, 1)
    squares = float(np.sum(np.square(noisy, dtype=np.float64)))
    spread = squares - noisy.size * measured.noise_variance - n
    return float(np.clip(spread / n**2, 1 / noisy.size, 1))
