"""Squares end to end: a night under method = "snh", from raw events to answers of its networks."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from heathaze.cli import main
from heathaze.collect.private import PrivateTables
from heathaze.errors import PolicyError
from heathaze.evaluate.synthetic import City, synthesize
from heathaze.policy import parse_policy
from heathaze.release import publish
from heathaze.release.query import count, open_release
from heathaze.release.squares import Squares, unpack
from heathaze.tables import Tables

DAY = "2026-11-12"
BOX = {"south": 37.76, "west": -122.45, "north": 37.79, "east": -122.41}
CITY = City(users=3_000, events_per_user=15, first_day=date.fromisoformat(DAY), **BOX)
POLICY = """
[release]
method = "snh"
[dataset]
name = "squares"
[grid]
south = 37.76
west = -122.45
north = 37.79
east = -122.41
rho = {rho}
[denoise.snh]
epochs = 4
[privacy]
epsilon = 4
max_events_per_user = 20
{declared}
[budget]
cap = 8
"""


def policy_of(rho: str = '"auto"', declared: str = "declared_event_count = 40000") -> str:
    return POLICY.format(rho=rho, declared=declared)


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One night of squares, released."""
    folder = tmp_path_factory.mktemp("snh")
    synthesize(CITY, folder / "events")
    (folder / "policy.toml").write_text(policy_of())
    assert release(folder) == 0
    return folder


def release(place: Path) -> int:
    given = ["--policy", str(place / "policy.toml"), "--events", str(place / "events"), "--period", DAY]
    return main(["release", *given, "--tables", str(place / "tables"), "--json"])


def test_a_release_holds_networks_grid_manifest_and_report(place: Path) -> None:
    tables = Tables(str(place / "tables"))
    (one,) = publish.releases(tables)
    assert one.manifest["denoise"]["method"] == "snh" and one.manifest["model"]["name"].startswith("snh-")
    files = place / "tables" / "files" / "releases" / one.release
    content = (files / "squares.npz").read_bytes()
    assert len(content) < 4_000_000 and content == publish.squares_of(tables, one.release)
    squares = Squares(unpack(content))
    assert squares.count(37.775, -122.43, 60.0).high >= 0
    report = (files / "report.html").read_text()
    assert "Squares of any size" in report and "Answers for squares of 30 m" in report and "Learning curve" in report
    assert all(held for _, held in publish.verify(tables, one))


def test_a_release_with_other_networks_is_found_out(place: Path) -> None:
    tables = Tables(str(place / "tables"))
    (one,) = publish.releases(tables)
    manifest = {**one.manifest, "squares": {**one.manifest["squares"], "checksum": "0" * 64}}
    checks = dict(publish.verify(tables, publish.Published(**{**vars(one), "manifest": manifest})))
    assert not checks["the networks are those of the manifest"]


def test_the_same_night_again_is_the_same_release(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release(place) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["is_new"] is False and report["epsilon"] == "0"


def test_squares_are_answered_by_networks_and_other_boxes_by_cells(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--lat", "37.775", "--lon", "-122.43"]
    for side, by in (("60", "by the networks of its size"), ("10", "scaled by area")):
        assert main(["query", "range", *where, "--side", side, "--tables", str(place / "tables"), "--json"]) == 0
        (answer,) = json.loads(capsys.readouterr().out)["answers"]
        assert by in answer["basis"] and answer["low"] <= answer["answer"] <= answer["high"]
    box = ["--south", "37.765", "--west", "-122.44", "--north", "37.785", "--east", "-122.435"]
    assert main(["query", "range", *box, "--tables", str(place / "tables"), "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)["answers"]
    assert "cells" in answer["basis"] or "noisy sum" in answer["basis"]


def test_answers_are_near_the_truth(place: Path) -> None:
    """Squares around events of the bounded sample: nearer than answering nothing, and most intervals hold its count."""
    cells = np.concatenate(
        PrivateTables(str(place / "tables")).load("sample")["places"].to_pylist()
    )  # one slice: a place is a cell
    opened = open_release(Tables(str(place / "tables")))
    grid = opened.grid
    random = np.random.default_rng(0)
    rows, cols = np.divmod(cells, grid.cols) + random.random((2, len(cells)))  # each somewhere in its cell
    lat, lon = grid.south + rows / grid.rows_per_degree, grid.west + cols / grid.cols_per_degree
    chosen = random.integers(0, len(lat), 400)
    chosen = chosen[(np.abs(lat[chosen] - 37.775) < 0.013) & (np.abs(lon[chosen] + 122.43) < 0.018)]
    boxes = opened.boxes_around(lat[chosen], lon[chosen], 90.0)
    found = count(opened, boxes)
    truth = np.array(
        [
            np.count_nonzero((lat >= south) & (lat < north) & (lon >= west) & (lon < east))
            for (south, north), (west, east) in zip(boxes.lat, boxes.lon, strict=True)
        ]
    )
    answer, low, high = (part / opened.gamma for part in (found.answer, found.low, found.high))
    assert np.abs(answer - truth).mean() < 0.3 * truth.mean()
    assert np.mean((truth >= low) & (truth <= high)) > 0.75


def test_part_of_the_period_is_answered_from_the_grid(place: Path) -> None:
    opened = open_release(Tables(str(place / "tables")))
    boxes = opened.boxes_around(37.775, -122.43, 60.0, start=f"{DAY}T00:00", end=f"{DAY}T12:00")
    assert "networks" not in count(opened, boxes).basis[0]


def test_an_answer_does_not_depend_on_what_else_is_asked(place: Path) -> None:
    opened = open_release(Tables(str(place / "tables")))
    ends = [f"{DAY}T12:00", ""]
    both = count(opened, opened.boxes_around([37.775, 37.775], [-122.43, -122.43], 60.0, end=ends))
    for number, end in enumerate(ends):
        alone = count(opened, opened.boxes_around([37.775], [-122.43], 60.0, end=[end]))
        assert (both.answer[number], both.low[number], both.high[number]) == (alone.answer[0], alone.low[0], alone.high[0])
        assert both.basis[number] == alone.basis[0]
    assert "networks" in both.basis[1] and "networks" not in both.basis[0]


@pytest.mark.parametrize(
    ("rho", "declared", "words"),
    [
        ('"auto"', "max_counted_per_user = 100", "declared_event_count"),
        ('"best"', "declared_event_count = 40000", "auto"),
        ("0.5", "declared_event_count = 40000", "8,388,608 cells"),
        ('"auto"\ncell_metres = 30', "declared_event_count = 40000", "more than one of these"),
    ],
)
def test_a_side_that_cannot_be_is_refused(rho: str, declared: str, words: str) -> None:
    with pytest.raises(PolicyError, match=words):
        parse_policy(policy_of(rho, declared))


def test_the_side_follows_from_public_numbers_and_is_part_of_the_measurement() -> None:
    chosen, given = parse_policy(policy_of()), parse_policy(policy_of("20"))
    assert chosen.grid.cell_metres is not None and 8 < chosen.grid.cell_metres < 200
    assert given.grid.cell_metres == 20 and given.measurement_hash != chosen.measurement_hash
    more = parse_policy(policy_of(declared="declared_event_count = 4000000"))
    assert more.grid.cell_metres is not None and more.grid.cell_metres < chosen.grid.cell_metres


@pytest.mark.parametrize("change", ["[denoise]\nmethod = 'bayes'\n", "[period]\nslices = 8\n"])
def test_what_does_not_go_with_squares_is_refused(change: str) -> None:
    text = policy_of().replace("[denoise.snh]\nepochs = 4\n", change)
    with pytest.raises(PolicyError, match=r"denoise\.method|period\.slices"):
        parse_policy(text)
