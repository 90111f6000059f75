"""The answers that need no thought: nothing, the Laplace mechanism, and the same without negatives.

Dwork, McSherry, Nissim, Smith 2006: "Calibrating noise to sensitivity in private data analysis". All of epsilon goes into one
measurement of every cell; `zero` looks at nothing and spends nothing.
"""

from __future__ import annotations

import numpy as np

from heathaze.evaluate.meter import Meter


def zero(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """No events anywhere. On a sparse map many a method does worse."""
    return np.zeros(counts.shape, dtype=np.float32)


def identity(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Discrete Laplace noise on every cell, with all of epsilon."""
    return meter.laplace(counts, meter.epsilon).astype(np.float32)


def clipped(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """`identity`, with 0 in place of negatives: closer to the truth in every cell, too high in every sum."""
    return np.maximum(identity(counts, meter), 0)
