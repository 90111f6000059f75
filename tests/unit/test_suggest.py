"""suggest: what it expects is what is then measured, on cities that its tables have not seen; and what it says of bad numbers."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from heathaze.cli import main
from heathaze.errors import InputError
from heathaze.evaluate.learned import prepare
from heathaze.evaluate.suggest import BOXES, Feed, Setting, assess, suggest
from heathaze.evaluate.suggest_measure import POLICY, points_of, square_city
from heathaze.learn.denoiser import discrete_laplace, noise_variance
from heathaze.policy import Refine, Shares, parse_policy
from heathaze.release.refine import Measured, refine
from heathaze.release.sums import box_sums, prefix_sum


def measured_errors(feed: Feed, setting: Setting, shape: str, kilometres: float, seed: int) -> list[float]:
    """Mean absolute error of each size of box at records, through bounding, noise, the denoiser and refinement."""
    points = points_of(square_city(kilometres, feed.users, feed.events_per_user, shape, seed), setting.slices)
    kept = points.kept(setting.k, seed)
    counts = points.of(kept).count(setting.cell_metres)
    scale = Fraction(setting.k) / (Fraction(feed.epsilon) * Fraction(Shares().histogram))
    noisy = (counts + discrete_laplace(np.random.default_rng(seed), float(scale), counts.shape)).astype(np.int32)
    found = prepare(parse_policy(POLICY.format(slices=setting.slices)), setting.denoiser, noisy, scale)(noisy)
    measured = Measured(len(kept), len(points), noise_variance(scale))
    published = prefix_sum(refine(found.values, found.deviation, noisy, measured, Refine()).values)
    chosen = np.random.default_rng(seed + 1).choice(kept, 1_500)
    errors = []
    for _, side in BOXES:
        answer = box_sums([published], *points.boxes(chosen, side, setting.cell_metres))[0]
        if side is None:
            exact = box_sums([prefix_sum(points.count(setting.cell_metres))], *points.boxes(chosen, None, setting.cell_metres))[0]
        else:
            exact = points.around(points.middles(chosen, side), points.slice[chosen], side)
        errors.append(float(np.mean(np.abs(answer - exact))))
    return errors


@pytest.mark.parametrize("denoiser", ["shrink", "bayes"])
@pytest.mark.parametrize(
    ("shape", "kilometres", "users", "each", "epsilon"), [("rings", 20, 20_000, 20, "1"), ("polycentric", 14, 30_000, 12, "2")]
)
def test_expected_errors_are_within_a_factor_of_one_and_a_half_of_measured_ones(
    shape: str, kilometres: float, users: int, each: float, epsilon: str, denoiser: str
) -> None:
    feed = Feed(users, each, Decimal(epsilon), kilometres**2)
    chosen = suggest(feed).setting
    setting = Setting(chosen.k, chosen.cell_metres, chosen.slices, denoiser)
    found = measured_errors(feed, setting, shape, kilometres, seed=901)
    factors = [one.absolute / error for one, error in zip(assess(feed, setting).expected, found, strict=True)]
    assert all(1 / 1.5 < factor < 1.5 for factor in factors), [round(factor, 2) for factor in factors]


def test_more_epsilon_and_more_users_are_expected_to_be_better() -> None:
    setting = Setting(10, 200, 8)
    base = assess(Feed(20_000, 20, Decimal(1), 400), setting).expected[2].relative
    assert assess(Feed(20_000, 20, Decimal(4), 400), setting).expected[2].relative < base
    assert assess(Feed(200_000, 20, Decimal(1), 400), setting).expected[2].relative < base


def test_numbers_that_make_no_sense_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="epsilon"):
        Feed(20_000, 20, Decimal(0), 400)
    assert main(["suggest", "--users", "0", "--events-per-user", "5", "--epsilon", "1", "--area", "400"]) == 1
    assert "users" in capsys.readouterr().err
