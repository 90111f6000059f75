"""Every error that a user can meet, with the exit code of the command that met it.

A message says what must hold, what was found and what to do. It never carries anything about people: no ids,
no coordinates, no counts of raw rows.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from decimal import Decimal

DONE, MISTAKE, REFUSED, BROKEN = 0, 1, 2, 3


class HeathazeError(Exception):
    """An error with a message for the user; `exit_code` is what the command returns."""

    exit_code = MISTAKE


class PolicyError(HeathazeError):
    """The policy file says something that cannot be promised or understood."""


class InputError(HeathazeError):
    """The events, a table or an argument are not what they must be. Nothing was charged."""


class StorageError(HeathazeError):
    """A place that heathaze writes to is full, read-only or forbidden."""


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


_STORAGE_FAULTS = (
    ({errno.ENOSPC, errno.EDQUOT}, "No space left on device|Disk quota exceeded", "it is full", "Free some space"),
    ({errno.EFBIG}, "File too large", "it takes no file of this size", "Raise the limit on the size of files"),
    ({errno.EROFS}, "Read-only file system", "it is read-only", "Make it writable, or name another place"),
    ({errno.EACCES, errno.EPERM}, "Permission denied|Operation not permitted", "permission is denied", "Grant it to this user"),
)
"""Numbers of the operating system, its words for them, what is wrong, and what to do about it."""


def storage_error(
    error: BaseException,
    place: str = "",
    afterwards: str = "run the same command again: what was committed stays, and nothing is charged or drawn twice",
) -> StorageError | None:
    """The error to show where the storage is at fault, None elsewhere.

    Arrow, delta-rs and Spark each wrap what the operating system said in errors of their own. Their text is searched for its
    words and never shown: it may quote a record.
    """
    for one in _chain(error):
        for numbers, words, found, remedy in _STORAGE_FAULTS:
            if getattr(one, "errno", None) in numbers or re.search(words, _text(one)):
                where = place or getattr(one, "filename", None) or "a folder that heathaze writes to"
                return StorageError(f"{where} must be open to heathaze and have room, but {found}. {remedy}, then {afterwards}.")
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, and what it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # an error of the JVM asks the JVM for its text, which may be gone
        return ""
