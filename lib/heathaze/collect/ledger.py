"""The ledger: what has been spent of the privacy budget, and the only way to spend more.

Check and charge are one transaction on one snapshot: a charge is written on the condition that the table still stands
where the check read it (`heathaze.tables.ConditionalLog`). Sums are exact rationals.
"""

from __future__ import annotations

import hashlib
import random
import time
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from decimal import Decimal
from fractions import Fraction

from heathaze.errors import BudgetExhausted, HeathazeError, LedgerMismatch
from heathaze.policy import Policy
from heathaze.tables import ConditionalLog

ATTEMPTS = 1000
"""Tries of one charge against concurrent ones; each lost try means that another charge was granted."""


@dataclass(frozen=True)
class Entry:
    """One charge."""

    entry: str
    """Random name of the charge; what later stages and the release refer to."""
    idempotency_key: str
    """Hash of dataset, period, measurement and input version: the same release is charged once."""
    dataset: str
    """Name of the dataset."""
    period: str
    """First day of the period."""
    time_window: str
    """The window whose cap this charge counts against, as 2026-Q4."""
    unit: str
    """What is protected."""
    window_kind: str
    """month, quarter, year or ever."""
    epsilon: str
    """Charged epsilon, a decimal."""
    delta: str
    """Charged delta, a decimal."""
    cap: str
    """Cap on epsilon that the policy declared with this charge."""
    delta_cap: str
    """Cap on delta that the policy declared with this charge."""
    measurement: str
    """Hash of the part of the policy that the private side reads."""
    input_version: str
    """Version of the events that this charge is for."""
    charged_at: str
    """When, in UTC."""


@dataclass(frozen=True)
class Bucket:
    """What one window of one dataset has spent."""

    dataset: str
    time_window: str
    unit: str
    cap: Decimal
    spent: Decimal
    delta_spent: Decimal
    entries: tuple[Entry, ...]

    @property
    def left(self) -> Decimal:
        return _decimal(Fraction(self.cap) - Fraction(self.spent))


class Ledger:
    """Reads and charges one ledger table."""

    def __init__(self, log: ConditionalLog):
        self._log = log

    def entries(self) -> list[Entry]:
        """Every charge so far, oldest first."""
        names = Entry.__dataclass_fields__
        return [Entry(**{name: str(row[name]) for name in names}) for row in self._log.read()]

    def charge(self, policy: Policy, period: str, input_version: str) -> tuple[Entry, bool]:
        """Charge one release and return its entry, and whether it is new.

        The same release (dataset, period, measurement, input version) returns its first entry and charges nothing.
        Raises `BudgetExhausted` where the sum of the window would pass the cap, and `LedgerMismatch` where the policy
        contradicts earlier charges of the dataset.
        """
        wanted = _entry(policy, period, input_version)
        for attempt in range(ATTEMPTS):
            entries = self.entries()
            for entry in entries:
                if entry.idempotency_key == wanted.idempotency_key:
                    return entry, False
            _check(policy, wanted, entries)
            if self._log.add(asdict(wanted)):
                return wanted, True
            time.sleep(min(0.5, 0.005 * (attempt + 1)) * random.uniform(0.5, 1.5))
        raise HeathazeError(f"the ledger was changed by others {ATTEMPTS} times in a row: nothing was charged; run again.")

    def find(self, policy: Policy, period: str) -> Entry | None:
        """The newest charge for this policy's measurement of `period`."""
        for entry in reversed(self.entries()):
            if (entry.dataset, entry.period, entry.measurement) == (policy.dataset.name, period, policy.measurement_hash):
                return entry
        return None

    def buckets(self) -> list[Bucket]:
        """All windows of all datasets."""
        entries = self.entries()
        groups = dict.fromkeys((entry.dataset, entry.time_window) for entry in entries)
        return [_bucket([e for e in entries if (e.dataset, e.time_window) == group]) for group in groups]


def _entry(policy: Policy, period: str, input_version: str) -> Entry:
    identity = "\n".join([policy.dataset.name, period, policy.measurement_hash, input_version])
    return Entry(
        entry=uuid.uuid4().hex[:16],
        idempotency_key=hashlib.sha256(identity.encode()).hexdigest(),
        dataset=policy.dataset.name,
        period=period,
        time_window=policy.budget.window_of(policy.period_of(period).first)[0],
        unit=policy.privacy.unit,
        window_kind=policy.budget.window,
        epsilon=str(policy.privacy.epsilon),
        delta=str(policy.privacy.delta),
        cap=str(policy.budget.cap),
        delta_cap=str(policy.budget.delta_cap),
        measurement=policy.measurement_hash,
        input_version=input_version,
        charged_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _check(policy: Policy, wanted: Entry, entries: list[Entry]) -> None:
    """Refuse a charge that would pass the cap, or whose rules differ from those already promised."""
    same_dataset = [entry for entry in entries if entry.dataset == wanted.dataset]
    for entry in same_dataset:
        if (entry.unit, entry.window_kind) != (wanted.unit, wanted.window_kind):
            raise LedgerMismatch(
                f"dataset {wanted.dataset} has been charged per {entry.unit} and {entry.window_kind}, but the policy says per "
                f"{wanted.unit} and {wanted.window_kind}: a new window would forget what was spent. Keep {entry.window_kind}."
            )
    same_window = [entry for entry in same_dataset if entry.time_window == wanted.time_window]
    promised = min((Decimal(entry.cap) for entry in same_window), default=policy.budget.cap)
    if policy.budget.cap > promised:
        raise LedgerMismatch(
            f"the cap of {wanted.dataset} for {wanted.time_window} was promised to be {promised}, but the policy says "
            f"{policy.budget.cap}. A cap can be lowered at any time and raised from the next window on."
        )
    spent = _sum(entry.epsilon for entry in same_window)
    until = policy.budget.window_of(policy.period_of(wanted.period).first)[1]
    if spent + Fraction(policy.privacy.epsilon) > Fraction(policy.budget.cap):
        left = _decimal(max(Fraction(0), Fraction(policy.budget.cap) - spent))
        raise BudgetExhausted(
            wanted.dataset, wanted.period, wanted.time_window, policy.privacy.epsilon, left, policy.budget.cap, until
        )
    if _sum(entry.delta for entry in same_window) + Fraction(policy.privacy.delta) > Fraction(policy.budget.delta_cap):
        raise LedgerMismatch(
            f"releasing {wanted.dataset}/{wanted.period} would pass the delta cap {policy.budget.delta_cap} of "
            f"{wanted.time_window}. Lower privacy.delta or wait for {until}."
        )


def _bucket(entries: list[Entry]) -> Bucket:
    first = entries[0]
    return Bucket(
        dataset=first.dataset,
        time_window=first.time_window,
        unit=first.unit,
        cap=min(Decimal(entry.cap) for entry in entries),
        spent=_decimal(_sum(entry.epsilon for entry in entries)),
        delta_spent=_decimal(_sum(entry.delta for entry in entries)),
        entries=tuple(entries),
    )


def _sum(numbers: Iterable[str]) -> Fraction:
    return sum((Fraction(Decimal(number)) for number in numbers), Fraction(0))


def _decimal(value: Fraction) -> Decimal:
    """The exact decimal of a sum of decimals."""
    digits = 0
    while (value * 10**digits).denominator != 1:
        digits += 1
    whole = int(value * 10**digits)
    return Decimal((int(whole < 0), tuple(int(digit) for digit in str(abs(whole))), -digits))
