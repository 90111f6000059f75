"""How a method under evaluation looks at the counts: every look adds noise, and its epsilon is written down.

For public and synthetic data only. The noise comes from a seeded generator, so that a table can be made again; it protects
nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np

from heathaze.errors import HeathazeError
from heathaze.learn.denoiser import discrete_laplace

Method = Callable[[np.ndarray, "Meter"], np.ndarray]
"""method(exact counts, slices x rows x cols; meter) -> estimate of the same shape. It looks at the counts by the meter only."""


class Overspent(HeathazeError):
    """A method took more epsilon than it was given: its error cannot be compared with anything."""

    exit_code = 3


class Meter:
    """The budget of one method on one draw of the data, and its only source of noise.

    `unit` is how many events of one protected unit may be in the counts: 1 at event level, k at user level. Sensitivities are
    given for one event and multiplied by it.
    """

    def __init__(self, epsilon: Fraction, unit: int, seed: int):
        self.epsilon, self.unit = epsilon, unit
        self.spent = Fraction(0)
        self.random = np.random.default_rng(seed)
        """For choices of the method that need no privacy, too."""

    def laplace(self, values: np.ndarray, epsilon: Fraction, sensitivity: int | Fraction = 1) -> np.ndarray:
        """Values with Laplace noise; one event changes them by at most `sensitivity` in sum. Discrete noise for whole numbers.

        Values that depend on disjoint parts of the data belong into one call: they are charged once.
        """
        self._charge(epsilon)
        scale = float(sensitivity * self.unit / epsilon)
        if np.issubdtype(values.dtype, np.integer):
            return values + discrete_laplace(self.random, scale, values.shape)
        return values + self.random.laplace(0, scale, values.shape)

    def choose(self, scores: np.ndarray, epsilon: Fraction, sensitivity: int | Fraction = 1) -> int:
        """The exponential mechanism: an index, the likelier the higher its score; one event moves a score by `sensitivity`."""
        self._charge(epsilon)
        noise = self.random.gumbel(size=scores.size)
        return int(np.argmax(float(epsilon / (2 * sensitivity * self.unit)) * scores.ravel() + noise))

    def _charge(self, epsilon: Fraction) -> None:
        self.spent += epsilon
        if epsilon <= 0 or self.spent > self.epsilon:
            raise Overspent(f"a method was given epsilon {self.epsilon}, but its looks at the data add up to {self.spent}.")
