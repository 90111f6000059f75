"""A night whose slices are measured in larger blocks beside a map of the whole period, from raw events to answers."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.conftest import ROOT

from heathaze.cli import main
from heathaze.evaluate.synthetic import City, synthesize
from heathaze.policy import load_policy
from heathaze.release import gate, publish
from heathaze.release.candidate import load_candidate
from heathaze.release.query import count, open_release
from heathaze.tables import Tables

NIGHTS = ("2026-11-12", "2026-11-13")
SIDE = 4


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights, the second with the first night's model."""
    folder = tmp_path_factory.mktemp("map")
    policy = (ROOT / "conf" / "demo.toml").read_text().replace("rows = 144", f"rows = 48\nslice_block = {SIDE}")
    policy = policy.replace("cols = 144", "cols = 48").replace("histogram = 0.98", "histogram = 0.63\nmap = 0.12")
    # So few blocks tell too little of drift to judge a model by it.
    policy = policy.replace("max_drift = 5 ", "max_drift = 1000 ")
    (folder / "policy.toml").write_text(policy.replace("totals = 0.02", "totals = 0.25").replace("epochs = 10", "epochs = 3"))
    for day in NIGHTS:
        synthesize(City(users=400, events_per_user=10, first_day=date.fromisoformat(day)), folder / day)
        arguments = ["--policy", str(folder / "policy.toml"), "--events", str(folder / day), "--period", day]
        assert main(["release", *arguments, "--tables", str(folder / "tables"), "--json"]) == 0
    return folder


def test_slices_are_measured_in_blocks_the_map_in_cells_and_cells_are_published(place: Path) -> None:
    tables = Tables(str(place / "tables"))
    noisy = tables.load("noisy").sort_by([("period", "ascending"), ("slice", "ascending")])
    assert set(noisy["rows"].to_pylist()) == {48 // SIDE} and len(noisy) == 16
    assert [len(content or b"") for content in noisy["map"].to_pylist()] == ([48 * 48 * 4] + [0] * 7) * 2
    first, second = publish.releases(tables)
    assert publish.values_of(tables, first.release).shape == (8, 48, 48)
    assert second.manifest["denoise"]["trained"] is False, "both networks of the first night serve the second"
    assert (second.manifest["noise"]["block"], second.manifest["noise"]["map_scale"]) == (SIDE, "125/3")
    assert {"coarser", "all_slices"} <= {stage["stage"] for stage in second.manifest["stages"]}
    assert first.manifest["uncertainty"] is not None


def test_the_release_verifies_and_its_report_tells_of_blocks_and_map(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--tables", str(place / "tables")]
    assert main(["verify", "latest", *where]) == 0 and main(["explain", "latest", *where]) == 0
    assert "A map of the whole period on the public grid is measured apart with 0.24" in capsys.readouterr().out
    [report, _] = sorted((place / "tables" / "files" / "releases").glob("*/report.html"))
    assert "did the map of the whole period" in report.read_text() and "cells were counted as one" in report.read_text()


def test_cells_of_a_block_differ_by_the_map_and_noisy_answers_spread_blocks_evenly(place: Path) -> None:
    release = open_release(Tables(str(place / "tables")))
    assert release.values.reshape(8, 12, SIDE, 12, SIDE).std((2, 4)).max() > 1, "cells of one block are told apart"
    assert release.noisy.shape == (8, 48, 48) and np.ptp(release.noisy.reshape(8, 12, SIDE, 12, SIDE), axis=(2, 4)).max() == 0
    everywhere = release.boxes_around(np.array([37.79]), np.array([-122.406]), np.array([19_000.0]))
    answers, noisy = count(release, everywhere), count(release, everywhere, noisy=True)
    assert answers.low[0] <= answers.answer[0] <= answers.high[0]
    # Three times half the 90 % interval are five deviations: the noise is drawn anew in every run of this test.
    assert abs(answers.answer[0] - noisy.answer[0]) < 1.5 * (noisy.high[0] - noisy.low[0])


def test_the_gate_sees_a_map_without_noise_or_slices_of_another_shape(place: Path, tmp_path: Path) -> None:
    policy = load_policy(place / "policy.toml")
    candidate = load_candidate(Tables(str(place / "tables")), policy, NIGHTS[0])
    assert candidate.map is not None and candidate.noisy.shape == (8, 12, 12) and candidate.side == SIDE
    epsilon = str(policy.privacy.epsilon)
    assert gate.judge_release(candidate, None, epsilon, tmp_path / "right").passed
    bare = np.maximum(candidate.refined.sum(0) - 5, 0).astype(np.int32)
    for number, wrong in enumerate((replace(candidate, map=bare), replace(candidate, map=None))):
        verdict = gate.judge_release(wrong, None, epsilon, tmp_path / f"bare{number}")
        [found] = [judgement for judgement in verdict.judgements if not judgement.held]
        assert found.expectation == gate.NOISE and "map of the whole period is missing or has other noise" in found.seen
    cells = replace(candidate, noisy=np.repeat(np.repeat(candidate.noisy, SIDE, 1), SIDE, 2))
    verdict = gate.judge_release(cells, None, epsilon, tmp_path / "shape")
    assert gate.SHAPE in [judgement.expectation for judgement in verdict.judgements if not judgement.held]
