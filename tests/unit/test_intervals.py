"""The 90 % intervals of a denoised night hold the truth about as often as they say, though nobody looked at it."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from scipy.special import ndtri
from tests.conftest import policy_text

from heathaze.evaluate.events import Events
from heathaze.evaluate.harness import coverage
from heathaze.evaluate.learned import chosen_measuring
from heathaze.evaluate.synthetic import City, batches
from heathaze.policy import Policy, parse_policy
from heathaze.release.uncertainty import _interval

BOX = {"south": 40.0, "west": -74.0, "north": 40.18, "east": -73.76}


def policy() -> Policy:
    text = policy_text(slices=8, rows=96, cols=96, k=1)
    for name, old in (("north", "40.1"), ("east", "-73.9")):
        text = text.replace(f"{name} = {old}", f"{name} = {BOX[name]}")
    return parse_policy(text)


def events(shape: str, rules: Policy) -> Events:
    table = pa.concat_tables(
        batches(City(users=8_000, events_per_user=20, first_day=date(2026, 11, 14), shape=shape, seed=5, **BOX))
    )
    cell = rules.grid.build().cells_of(table["lat"].to_numpy(), table["lon"].to_numpy())
    number = table["event_time"].cast("int64").to_numpy() // 1_000_000 % 86_400 // 10_800
    inside = cell >= 0
    return Events(np.arange(inside.sum()), number[inside], cell[inside])


@pytest.mark.parametrize("shape", ["rings", "corridors", "polycentric"])
@pytest.mark.parametrize("epsilon", ["0.05", "0.2", "0.8"])
def test_intervals_hold_the_truth_as_often_as_they_say(shape: str, epsilon: str) -> None:
    rules = policy()
    for boxes, held in coverage(events(shape, rules), rules, Decimal(epsilon), "shrink", seeds=4, queries=3_000).items():
        assert 0.85 <= round(held.share, 2) <= 0.95, (boxes, held)


@pytest.mark.parametrize("shape", ["rings", "corridors", "polycentric"])
def test_intervals_of_blocks_that_a_map_shares_out_hold_the_truth_too(shape: str) -> None:
    """The noise is so strong that the rule measures slices in blocks, beside a map of the whole period."""
    rules, epsilon = policy(), Decimal("0.02")
    given = events(shape, rules)
    rules = replace(rules, privacy=replace(rules.privacy, declared_event_count=len(given.user)))
    assert chosen_measuring(rules, Fraction(epsilon), 1).map > 0
    for boxes, held in coverage(given, rules, epsilon, "bayes_blocks", seeds=4, queries=3_000).items():
        # What few blocks err by, many boxes have in common, so that even four draws say less of large boxes.
        assert 0.83 <= held.share <= 0.98, (boxes, held)


def test_intervals_that_are_too_narrow_would_be_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from heathaze.release.uncertainty import ErrorModel, Judged

    whole = ErrorModel.answer

    def narrow(*arguments: object) -> Judged:
        judged = whole(*arguments)  # type: ignore[arg-type]
        middle = judged.answer
        return judged._replace(low=middle + (judged.low - middle) / 2, high=middle + (judged.high - middle) / 2)

    monkeypatch.setattr(ErrorModel, "answer", narrow)
    rules = policy()
    held = coverage(events("rings", rules), rules, Decimal("0.2"), "shrink", seeds=1, queries=3_000)
    assert held["small at records"].share < 0.8 and held["middle at records"].share < 0.8


@pytest.mark.parametrize("shift, spread", [(0.0, 1.0), (0.8, 1.0), (0.8, 1.25)])
def test_one_interval_holds_boxes_anywhere_and_around_records_in_nine_of_ten(shift: float, spread: float) -> None:
    random = np.random.default_rng(0)
    kinds = random.standard_t(5, 4_000), shift + spread * random.standard_t(5, 4_000)
    low, high = _interval(*kinds)
    shares = [float(np.mean((kind >= low) & (kind <= high))) for kind in kinds]
    assert all(0.88 < share < 0.93 for share in shares), shares
    wide = max(np.quantile(kind, 0.95) for kind in kinds) - min(np.quantile(kind, 0.05) for kind in kinds)
    assert high - low <= wide


def test_an_interval_of_boxes_that_are_nearly_all_empty_is_not_stretched() -> None:
    """A kind that no interval holds in as few as nine of ten boxes leaves the choice to the other."""
    random = np.random.default_rng(0)
    empty = np.where(random.random(4_000) < 0.97, 0.0, 5.0)
    low, high = _interval(empty, random.standard_normal(4_000))
    assert -1.8 < low < -1.4 and 1.4 < high < 1.8


def test_few_boxes_around_records_do_not_stretch_the_interval_of_the_many_anywhere() -> None:
    anywhere, around = (ndtri((np.arange(number) + 0.5) / number) for number in (4_000, 80))
    at_records = 0.3 + 1.5 * around
    (low, high), (lowest, highest) = (_interval(anywhere, records) for records in (at_records, np.repeat(at_records, 50)))
    assert high - low < 0.9 * (highest - lowest)
    assert np.mean((anywhere >= low) & (anywhere <= high)) < 0.92
