"""Questions to published releases through the command line: one by arguments, many by a file, and mistakes."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from tests.conftest import policy_text
from tests.nights import candidate_of, draw_noise

from heathaze.cli import main
from heathaze.policy import parse_policy
from heathaze.release.candidate import Candidate
from heathaze.release.manifest import make_manifest
from heathaze.release.publish import publish
from heathaze.tables import Tables

NIGHTS = ("2026-11-11", "2026-11-12", "2026-11-13", "2026-11-14")
SOUTH, WEST, NORTH, EAST = 40.0, -74.0, 40.1, -73.9
ROWS, COLS, SLICES = 20, 20, 8
GAMMA = 2.0
WHOLE_CELLS = ["--south", "40.01", "--west", "-73.95", "--north", "40.03", "--east", "-73.93"]
"""Rows 2 to 5, columns 10 to 13."""

Ask = Callable[..., Any]


def night(day: str) -> Candidate:
    """A night of known counts: a day's rhythm that grows from night to night, one hot cell, noise on top."""
    zone = 'name = "toy"\ntimezone = "America/New_York"'
    policy = parse_policy(policy_text(slices=SLICES, rows=ROWS, cols=COLS, cap="20").replace('name = "toy"', zone))
    rhythm = np.array([1, 1, 2, 4, 6, 8, 5, 2]) * (1 + 0.1 * NIGHTS.index(day))
    truth = np.broadcast_to(rhythm[:, None, None], (SLICES, ROWS, COLS)).copy()
    truth[5, 15, 4] = 100
    noise = draw_noise(truth.shape, float(policy.privacy.histogram_scale), np.random.default_rng(NIGHTS.index(day)))
    return candidate_of(policy, day, np.rint(truth) + noise, truth, np.full(truth.shape, 0.5), GAMMA)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four nights in a row, published in a folder."""
    folder = tmp_path_factory.mktemp("query")
    for day in NIGHTS:
        candidate = night(day)
        publish(Tables(str(folder)), candidate, make_manifest(candidate, []), "")
    return folder


@pytest.fixture
def ask(place: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a query and returns its report; with code=, what it says on standard error."""

    def run(*arguments: str, code: int = 0, plain: bool = False) -> Any:
        given = ["query", *arguments, "--tables", str(place), *([] if code or plain else ["--json"])]
        try:
            ended = main(given)
        except SystemExit as exit:
            ended = int(exit.code or 0)
        said = capsys.readouterr()
        assert ended == code, said.err
        return said.err if code else said.out if plain else json.loads(said.out)

    return run


def published(day: str = NIGHTS[-1]) -> np.ndarray:
    return night(day).refined


def test_a_range_of_whole_cells_and_slices_is_their_sum(ask: Ask) -> None:
    report = ask("range", *WHOLE_CELLS, "--start", "2026-11-14T09:00", "--end", "2026-11-14T15:00")
    (answer,) = report["answers"]
    assert answer["answer"] == pytest.approx(float(published()[3:5, 2:6, 10:14].sum()), abs=1e-3)
    half = GAMMA * 1.6449 * 0.5 * np.sqrt(32)
    assert (answer["low"], answer["high"]) == pytest.approx((answer["answer"] - half, answer["answer"] + half), abs=0.01)
    assert "without calibration" in answer["basis"] and "cut" not in answer["basis"]
    assert answer["start"] == "2026-11-14T09:00-05:00"


def test_times_with_an_offset_mean_the_same_instants(ask: Ask) -> None:
    local = ask("range", "--start", "2026-11-14T09:00", "--end", "2026-11-14T15:00")
    offset = ask("range", "--start", "2026-11-14T14:00Z", "--end", "2026-11-14T21:00+01:00")
    assert local == offset


def test_noisy_answers_come_from_the_noisy_tensor_in_published_units(ask: Ask) -> None:
    (answer,) = ask("range", *WHOLE_CELLS, "--noisy")["answers"]
    assert answer["answer"] == GAMMA * int(night(NIGHTS[-1]).noisy[:, 2:6, 10:14].sum())
    assert answer["basis"] == "noisy sum; interval from the exact law of the noise"
    assert answer["low"] < answer["answer"] < answer["high"]


def test_a_box_around_a_point_and_one_by_its_edges_agree(ask: Ask) -> None:
    square = ask("range", "--lat", "40.05", "--lon", "-73.95", "--side", "2000")["answers"][0]
    edges = [part for side in ("south", "west", "north", "east") for part in (f"--{side}", f"{square[side]:.6f}")]
    assert ask("range", *edges)["answers"][0]["answer"] == pytest.approx(square["answer"], rel=1e-3)


def test_a_box_that_reaches_beyond_is_cut_and_says_so(ask: Ask) -> None:
    beyond = ["--south", "39", "--west", "-75", "--north", "40.05", "--east", "-73", "--end", "2026-11-20"]
    (answer,) = ask("range", *beyond)["answers"]
    assert answer["answer"] == pytest.approx(float(published()[:, :10].sum()), rel=1e-6)
    assert "cut at the edge of the grid and the period" in answer["basis"]


def test_a_release_is_asked_by_its_name(ask: Ask, place: Path) -> None:
    from heathaze.release.publish import releases

    first = releases(Tables(str(place)))[0].release
    report = ask("range", first)
    assert report["release"] == first
    assert report["answers"][0]["answer"] == pytest.approx(float(published(NIGHTS[0]).sum()), rel=1e-6)


def test_many_ranges_from_csv_to_parquet_keep_their_columns(ask: Ask, tmp_path: Path) -> None:
    given, out = tmp_path / "in.csv", tmp_path / "out.parquet"
    given.write_text(
        "id,south,west,north,east,start,end\n"
        "a,40.01,-73.95,40.03,-73.93,,\n"
        "b,40.01,-73.95,40.03,-73.93,2026-11-14T09:00,2026-11-14T12:00\n"
    )
    ask("range", "--file", str(given), "--out", str(out))
    found = pq.read_table(out).to_pylist()
    assert [row["id"] for row in found] == ["a", "b"]
    block = published()[:, 2:6, 10:14]
    assert [row["answer"] for row in found] == pytest.approx([float(block.sum()), float(block[3].sum())], rel=1e-5)
    assert all(row["low"] < row["answer"] < row["high"] for row in found)


def test_many_hotspots_from_parquet_to_csv(ask: Ask, tmp_path: Path) -> None:
    given, out = tmp_path / "in.parquet", tmp_path / "out.csv"
    pq.write_table(pa.table({"lat": [40.0775, 40.001], "lon": [-73.9775, -73.901], "nu": [150.0, 150.0]}), given)
    assert "2 answers" in ask("hotspot", "--file", str(given), "--out", str(out), "--side", "1000", plain=True)
    with out.open() as file:
        near, far = csv.DictReader(file)
    assert (near["hotspot"], near["slice"], near["value"]) == ("found", "5", "200.0")
    assert float(near["distance"]) == pytest.approx(0, abs=0.1)
    assert near["slice_start"] == "2026-11-14T15:00-05:00"
    assert (far["hotspot"], far["value"]) == ("none", "")


def test_a_hotspot_has_its_distance_from_the_point(ask: Ask) -> None:
    (found,) = ask("hotspot", "--lat", "40.0675", "--lon", "-73.9775", "--nu", "150")["answers"]
    assert (found["cell_lat"], found["cell_lon"]) == pytest.approx((40.0775, -73.9775))
    assert found["distance"] == pytest.approx(0.01 * 111_195, abs=0.2)
    (none,) = ask("hotspot", "--lat", "40.0675", "--lon", "-73.9775", "--nu", "150", "--end", "2026-11-14T15:00")["answers"]
    assert none["hotspot"] == "none" and none["distance"] is None


def test_a_forecast_over_a_chain_of_nights_follows_the_day(ask: Ask) -> None:
    report = ask("forecast", *WHOLE_CELLS, "--nights", "all")
    assert len(report["releases"]) == 4
    ahead = [row["forecast"] for row in report["answers"]]
    assert len(ahead) == SLICES and report["answers"][0]["slice_start"] == "2026-11-15T00:00-05:00"
    assert report["answers"][0]["season"].startswith("season of 8 steps, multiplicative, ")
    last = published()[:, 2:6, 10:14].sum((1, 2))
    assert ahead == pytest.approx(last.tolist(), rel=0.25)
    assert np.argmax(ahead) == 5


def test_a_forecast_from_one_night_says_that_it_saw_no_season(ask: Ask) -> None:
    report = ask("forecast", *WHOLE_CELLS, "--horizon", "3")
    assert len(report["answers"]) == 3 and len(report["releases"]) == 1
    assert "too few" in report["answers"][0]["season"]


def test_forecasts_of_many_boxes_have_a_row_per_step(ask: Ask, tmp_path: Path) -> None:
    given = tmp_path / "in.csv"
    given.write_text("lat,lon,side\n40.05,-73.95,1000\n40.02,-73.92,1500\n")
    rows = ask("forecast", "--file", str(given), "--nights", "2", "--horizon", "4")["answers"]
    assert [(row["query"], row["step"]) for row in rows] == [(query, step) for query in (1, 2) for step in (1, 2, 3, 4)]
    assert rows[0]["side"] == 1000 and rows[4]["side"] == 1500


@pytest.mark.parametrize(
    "question",
    [
        ["range", *WHOLE_CELLS, "--start", "2026-11-14T09:00"],
        ["hotspot", "--lat", "40.0675", "--lon", "-73.9775", "--nu", "150"],
        ["hotspot", "--lat", "40.0675", "--lon", "-73.9775", "--nu", "1500", "--noisy"],
        ["forecast", "--nights", "all"],
    ],
)
def test_a_query_is_drawn(ask: Ask, tmp_path: Path, question: list[str]) -> None:
    ask(*question, "--plot", str(tmp_path / "picture.png"))
    with Image.open(tmp_path / "picture.png") as picture:
        assert picture.width > 500 and len(picture.convert("RGB").getcolors(1 << 24)) > 50


def test_a_table_and_csv_hold_what_json_holds(ask: Ask) -> None:
    answer = ask("range", *WHOLE_CELLS)["answers"][0]
    table = ask("range", *WHOLE_CELLS, plain=True)
    assert table.splitlines()[1].split()[-4:] == ["answer", "low", "high", "basis"] and f"{answer['answer']:,.10g}" in table
    (row,) = csv.DictReader(ask("range", *WHOLE_CELLS, "--csv", plain=True).splitlines())
    assert float(row["answer"]) == answer["answer"] and row["basis"] == answer["basis"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (["range", "no-such-release"], "there is no release 'no-such-release'"),
        (["range", "--south", "50", "--west", "-74", "--north", "51", "--east", "-73"], "it lies outside"),
        (["range", "--south", "40.02", "--west", "-74", "--north", "40.02", "--east", "-73"], "south must be below north"),
        (["range", "--start", "2026-11-14T09:00", "--end", "2026-11-14T09:00"], "start must be before its end"),
        (["range", "--start", "2027-01-01", "--end", "2027-01-02"], "its time lies outside"),
        (["range", "--start", "tomorrow"], "a time must read as"),
        (["range", "--south", "40.02"], "missing: west, north, east"),
        (["range", "--south", "40.02", "--lat", "40"], "some of both"),
        (["range", "--lat", "40.05", "--lon", "-73.95", "--side", "0"], "side of a box must be above 0"),
        (["range", "--lat", "forty"], "invalid float value"),
        (["range", "--out", "answers.txt"], "ends in .csv or .parquet"),
        (["range", "--plot", "no/such/folder/x.png"], "folder that exists"),
        (["range", "--file", "no-such.csv"], "cannot be read"),
        (["hotspot", "--lat", "40.05", "--lon", "-73.95"], "missing: nu"),
        (["hotspot", "--lat", "40.05", "--lon", "-73.95", "--nu", "0"], "nu must be above 0"),
        (["hotspot", "--lat", "48.05", "--lon", "-73.95", "--nu", "5"], "it lies outside"),
        (["forecast", "--horizon", "0"], "--horizon must be at least 1"),
        (["forecast", "--nights", "0"], "whole number above 0"),
        (["forecast", "--start", "2026-11-14T22:00"], "at least one whole slice"),
    ],
)
def test_a_mistake_is_told_and_ends_with_1(ask: Ask, question: list[str], said: str) -> None:
    assert said in ask(*question, code=1)


@pytest.mark.parametrize(
    ("kind", "text", "said"),
    [
        ("range", "south,west,north,east\n40,-74,40.1,-73.9\n40,-74,x,-73.9\n", "in.csv, line 3: north must be a number"),
        ("range", "south,west,north,east\n40,-74,40.1\n", "in.csv, line 2: a row must have 4 values"),
        ("range", "south,west,north,east\n\n", "in.csv, line 2: a row must have 4 values"),
        ("range", "south,west,north,east\n40,-74,40.1,-73.9\n41,-74,42,-73.9\n", "in.csv, line 3: a box must meet the grid"),
        ("range", "south,west,north,east,start\n40,-74,40.1,-73.9,soon\n", "in.csv, line 2: a time must read as"),
        ("range", "south,west,north\n40,-74,40.1\n", "missing: east"),
        ("range", "a,b\n1,2\n", "missing: south, west, north, east"),
        ("range", "south,west,north,east\n", "at least one query"),
        ("range", "", "a line of column names"),
        ("hotspot", "lat,lon,nu\n40.05,-73.95,10\n40.05,-73.95,-1\n", "in.csv, line 3: nu must be above 0"),
        ("hotspot", 'lat,lon,nu,note\n40.05,-73.95,10,"two\nlines"\n40.05,-73.95,,\n', "in.csv, line 4: nu must be a number"),
        ("forecast", "lat,lon,side,start\n40.05,-73.95,10,2026-11-14\n", "one start for all boxes"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_line(ask: Ask, tmp_path: Path, kind: str, text: str, said: str) -> None:
    (tmp_path / "in.csv").write_text(text)
    assert said in ask(kind, "--file", str(tmp_path / "in.csv"), code=1)


def test_a_file_of_another_kind_is_refused(ask: Ask, tmp_path: Path) -> None:
    (tmp_path / "in.parquet").write_text("not parquet")
    assert "cannot be read" in ask("range", "--file", str(tmp_path / "in.parquet"), code=1)
    (tmp_path / "in.xls").write_text("not either")
    assert "ends in .csv or .parquet" in ask("range", "--file", str(tmp_path / "in.xls"), code=1)
