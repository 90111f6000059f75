"""ParamSelect: the side of a cell from public numbers."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest
from tests.conftest import ROOT

from heathaze.errors import InputError
from heathaze.evaluate import paramselect
from heathaze.evaluate.paramselect import (
    MODELS,
    Row,
    best_sides,
    cross_validate,
    entropy,
    features,
    fit_power_law,
    make_rows,
    read_table,
    validate_authors,
    write_table,
)
from heathaze.evaluate.synthetic import City
from heathaze.rho import SHIPPED, PowerLaw, select_rho

AUTHORS = [ROOT.parent / "shared" / "data" / name for name in ("best_rho_GW_train_test.csv", "city_features_fromGW.csv")]


def rows_of(law: PowerLaw, off: float = 0.0) -> list[Row]:
    """A table of four cities that follow a law, with some scatter."""
    random = np.random.default_rng(0)
    return [
        Row(f"city {city}", n, epsilon, 5.0 + city, law.predict(n, epsilon) * exp(off * random.standard_normal()))
        for city in range(4)
        for n in (10_000, 100_000, 1_000_000)
        for epsilon in (0.05, 0.2, 0.8)
    ]


def test_the_power_law_is_recovered() -> None:
    law = PowerLaw(4.0, -0.15, -0.4)
    found = fit_power_law(rows_of(law))
    assert (found.a, found.b, found.c) == pytest.approx((4.0, -0.15, -0.4))
    assert law.predict(100_000, 0.2) == pytest.approx(exp(4) * 100_000**-0.15 * 0.2**-0.4)


def test_cities_that_are_judged_were_not_learned_from() -> None:
    """A model that remembers its rows is perfect on them and useless on another city."""
    rows = [Row(f"city {city}", 1_000, 0.1, 1.0, 10.0 * 2**city) for city in range(3)]

    class Remembers:
        def __init__(self, known: list[Row]):
            self.known = {row.rho for row in known}

        def predict(self, n, epsilon, entropy):
            return max(self.known)

    errors = cross_validate(rows, Remembers)
    assert errors["relative_error"] == pytest.approx((30 / 10 + 20 / 20 + 20 / 40) / 3)


@pytest.mark.parametrize("name", MODELS)
def test_every_model_follows_a_clean_table(name) -> None:
    rows = rows_of(PowerLaw(4.0, -0.15, -0.4), off=0.05)
    assert cross_validate(rows, MODELS[name])["relative_error"] < 0.15


def test_entropy_is_seen_by_the_trees_that_take_it() -> None:
    rows = [Row(f"city {i}", 10_000, 0.2, float(i % 2), 20.0 + 40 * (i % 2)) for i in range(10)]
    seen = cross_validate(rows, MODELS["trees with entropy"])["relative_error"]
    unseen = cross_validate(rows, MODELS["trees without entropy"])["relative_error"]
    assert seen < 0.05 < 0.3 < unseen
    assert features(100, 0.25, None)[:4] == [100, 0.25, 1 / 25, 0.2]


def test_entropy_of_one_place_is_nothing_and_of_many_their_logarithm() -> None:
    lat, lon = np.meshgrid(np.linspace(0.1, 0.9, 20), np.linspace(0.1, 0.9, 20))
    assert entropy(lat.ravel(), lon.ravel(), 0, 0, 1, 1) == pytest.approx(np.log(400))
    assert entropy(np.full(50, 0.5), np.full(50, 0.5), 0, 0, 1, 1) == pytest.approx(0)


def test_more_noise_asks_for_larger_cells() -> None:
    random = np.random.default_rng(0)
    points = np.clip(random.normal(0, 40, (20_000, 2)) + 2_000 * random.random((30, 2))[random.integers(0, 30, 20_000)], 0, 1_999)
    fine, coarse = best_sides(points, (2_000.0, 2_000.0), (2.0, 0.05), seed=1)
    assert 8 <= fine < coarse <= 200


def test_a_synthetic_city_makes_rows(monkeypatch) -> None:
    monkeypatch.setattr(paramselect, "SIDES", np.geomspace(15, 150, 7))
    city = City(users=2_000, events_per_user=20, south=37.75, north=37.79, west=-122.45, east=-122.40)
    rows = make_rows(city, counts=(5_000, 10_000_000), epsilons=(0.1, 0.8))
    assert [(row.city, row.n, row.epsilon) for row in rows] == [("rings-0-4km", 5_000, 0.1), ("rings-0-4km", 5_000, 0.8)]
    assert all(15 <= row.rho <= 150 and 3 < row.entropy < np.log(512**2) for row in rows)


def test_a_table_comes_back_as_it_was_written(tmp_path) -> None:
    rows = [Row("a", 1_000, 0.05, 5.125, 33.25), Row("b", 2_000, 0.8, 6.5, 12.0)]
    write_table(rows, tmp_path / "table.csv")
    assert read_table(tmp_path / "table.csv") == rows


def test_what_is_shipped_is_the_law_of_the_table_and_the_better_model() -> None:
    rows = read_table()
    assert len({row.city for row in rows}) >= 10 and len(rows) >= 100
    fitted = fit_power_law(rows)
    assert (SHIPPED.a, SHIPPED.b, SHIPPED.c) == pytest.approx((fitted.a, fitted.b, fitted.c), abs=0.002)
    errors = {name: cross_validate(rows, fit)["relative_error"] for name, fit in MODELS.items()}
    assert errors["power law"] <= min(errors.values()) + 0.02


def test_a_side_is_chosen_from_public_numbers() -> None:
    assert 10 < select_rho(217_438, 0.2) < 80
    assert select_rho(100_000, 0.05) > select_rho(100_000, 0.8)
    assert select_rho(100_000, 0.2, unit=10) == pytest.approx(select_rho(100_000, 0.02))
    for bad in ((0, 0.2), (100, 0.0), (float("nan"), 0.2), (100, float("inf"))):
        with pytest.raises(InputError, match="n >= 1, epsilon > 0"):
            select_rho(*bad)


@pytest.mark.skipif(not all(path.exists() for path in AUTHORS), reason="the table of the authors is not at hand")
def test_the_table_of_the_authors_says_what_they_published_with_entropy() -> None:
    """0.151 is their error with entropy. Their 0.193 without it does not follow from the table: entropy does not help there."""
    found = {row["model"]: row for row in validate_authors(*AUTHORS)}
    assert found["trees with entropy"]["error_over_mean"] == pytest.approx(0.151, abs=0.01)
    assert found["trees without entropy"]["error_over_mean"] < found["trees with entropy"]["error_over_mean"]
    assert found["power law"]["held_out_relative_error"] == pytest.approx(0.20, abs=0.01)
    assert found["power law"]["held_out_relative_error"] < found["trees with entropy"]["held_out_relative_error"]
