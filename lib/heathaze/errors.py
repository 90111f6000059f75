"""Every error that a user can meet, with the exit code of the command that met it.

A message says what must hold, what was found and what to do. It never carries anything about people: no ids,
no coordinates, no counts of raw rows.
"""

from __future__ import annotations

from decimal import Decimal

DONE, MISTAKE, REFUSED, BROKEN = 0, 1, 2, 3


class HeathazeError(Exception):
    """An error with a message for the user; `exit_code` is what the command returns."""

    exit_code = MISTAKE


class PolicyError(HeathazeError):
    """The policy file says something that cannot be promised or understood."""


class InputError(HeathazeError):
    """The events, a table or an argument are not what they must be. Nothing was charged."""


class Refused(HeathazeError):
    """heathaze understood the request and will not do it."""

    exit_code = REFUSED


class BudgetExhausted(Refused):
    """The charge would pass the cap of its window."""

    def __init__(self, dataset: str, period: str, window: str, needed: Decimal, left: Decimal, cap: Decimal, until: str):
        self.dataset, self.period, self.window = dataset, period, window
        self.needed, self.left, self.cap = needed, left, cap
        super().__init__(
            f"releasing {dataset}/{period} needs epsilon {needed}, but {left} of {cap} is left for {window}. "
            f"Lower privacy.epsilon or wait for {until}."
        )
        self._arguments = (dataset, period, window, needed, left, cap, until)

    def __reduce__(self) -> tuple[type[BudgetExhausted], tuple[object, ...]]:
        return type(self), self._arguments


class LedgerMismatch(Refused):
    """The policy contradicts what the ledger has already promised for this dataset."""


class KeyDestroyed(HeathazeError):
    """The noise key of this release was destroyed, because its noisy table has been committed."""


class SamplerBroken(HeathazeError):
    """The noise sampler failed its own test. Nothing was drawn."""

    exit_code = BROKEN


class BoundViolated(HeathazeError):
    """A user has more events in the sample than the policy allows. No noise was drawn."""

    exit_code = BROKEN
