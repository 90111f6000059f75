"""rho: the side of a cell, chosen before any data is touched, from the number of events and epsilon.

ParamSelect as it is shipped. How the law below was found, and what it was held against, is in `heathaze.evaluate.paramselect`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, isfinite, log

from heathaze.errors import InputError


@dataclass(frozen=True)
class PowerLaw:
    """rho = exp(a) n^b epsilon^c, metres."""

    a: float
    b: float
    c: float

    def predict(self, n: float, epsilon: float, entropy: float | None = None) -> float:
        return exp(self.a + self.b * log(n) + self.c * log(epsilon))


SHIPPED = PowerLaw(a=7.411, b=-0.4043, c=-0.4046)


def select_rho(n: float, epsilon: float, unit: int = 1) -> float:
    """The side of a cell, metres, for about `n` events, of which up to `unit` of one person may be in the counts.

    Every argument is public: `n` is declared, guessed, or an earlier release's noisy n; never counted.
    """
    if not (isfinite(n) and n >= 1 and isfinite(epsilon) and epsilon > 0 and unit >= 1):
        raise InputError(f"a side of cells needs n >= 1, epsilon > 0 and unit >= 1, but found {n}, {epsilon} and {unit}.")
    # The noise is that of one event at epsilon / unit.
    return SHIPPED.predict(n, float(epsilon) / unit)
