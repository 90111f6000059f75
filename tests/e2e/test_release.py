"""A night from raw events to a published release, through the command line."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.conftest import ROOT

from heathaze.cli import main
from heathaze.evaluate.synthetic import City, synthesize
from heathaze.release import pipeline, publish
from heathaze.tables import Tables

NIGHTS = ("2026-11-12", "2026-11-13")


def _release(place: Path, day: str) -> int:
    events = place / f"events-{day}"
    if not events.exists():
        synthesize(City(users=400, events_per_user=10, first_day=date.fromisoformat(day)), events)
    arguments = ["--policy", str(place / "policy.toml"), "--events", str(events), "--period", day]
    return main(["release", *arguments, "--tables", str(place / "tables"), "--json"])


@pytest.fixture(scope="module")
def place(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights, released one after the other."""
    folder = tmp_path_factory.mktemp("release")
    policy = (ROOT / "conf" / "demo.toml").read_text()
    (folder / "policy.toml").write_text(policy.replace("rows = 144", "rows = 48").replace("cols = 144", "cols = 48"))
    for day in NIGHTS:
        assert _release(folder, day) == 0
    return folder


def test_each_night_is_one_release_and_one_charge(place: Path) -> None:
    tables = Tables(str(place / "tables"))
    listed = publish.releases(tables)
    assert [one.period for one in listed] == list(NIGHTS)
    assert publish.find_release(tables, "latest").period == NIGHTS[1]
    assert [one.manifest["epsilon"]["left"] for one in listed] == ["58.0", "56.0"]
    assert tables.load("ledger").num_rows == 3  # the beginning, and two charges


def test_the_second_night_learns_from_the_first(place: Path) -> None:
    second = publish.releases(Tables(str(place / "tables")))[1]
    assert second.manifest["denoise"]["nights_used"] == 2


def test_the_manifest_tells_each_stage_that_touched_data_with_its_sensitivity(place: Path) -> None:
    manifest = publish.releases(Tables(str(place / "tables")))[0].manifest
    stages = {stage["stage"]: stage for stage in manifest["stages"]}
    assert {"usable", "bound", "count", "add_noise", "noisy_totals"} <= set(stages)
    assert "at most `max_events_per_user` places" in stages["bound"]["sensitivity"]
    assert all(stage["does"] and stage["sensitivity"] for stage in manifest["stages"])
    assert all(gate["held"] for gate in manifest["gates"])


def test_the_same_night_again_is_the_same_release_and_costs_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = Tables(str(place / "tables"))
    before = tables.load("releases")
    assert _release(place, NIGHTS[0]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["is_new"] is False and report["epsilon"] == "0"
    assert tables.load("releases").equals(before)
    assert Path(report["report"]).read_text().startswith("<!doctype html>") or Path(report["report"]).stat().st_size > 10_000


def test_files_for_people_come_back_if_they_are_lost(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release = publish.releases(Tables(str(place / "tables")))[0].release
    report = place / "tables" / "files" / "releases" / release / "report.html"
    report.unlink()
    assert _release(place, NIGHTS[0]) == 0
    assert report.exists()


def test_a_release_explains_and_verifies_itself(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--tables", str(place / "tables")]
    assert main(["explain", "latest", *where]) == 0
    told = capsys.readouterr().out
    assert "ALL records of one user id" in told and "Sensitivity:" in told and "- held: " in told
    assert main(["verify", "latest", *where]) == 0
    assert "FAILED" not in capsys.readouterr().out
    assert main(["releases", *where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["explain", "nothing-like-it", *where]) == 1


def test_a_changed_slice_does_not_verify(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    true_values = publish.values_of

    def changed(*arguments: object) -> object:
        values = true_values(*arguments).copy()  # type: ignore[arg-type]
        values[0, 0, 0] += 1
        return values

    monkeypatch.setattr(publish, "values_of", changed)
    assert main(["verify", "latest", "--tables", str(place / "tables")]) == 2
    assert "FAILED  every slice has the checksum of the manifest" in capsys.readouterr().out


def test_a_night_that_fails_its_gate_is_not_published(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = Tables(str(place / "tables"))
    judge = pipeline.judge_release
    monkeypatch.setattr(pipeline, "judge_release", lambda candidate, last, epsilon, docs: judge(candidate, last, "0.5", docs))
    assert _release(place, "2026-11-14") == 2
    said = capsys.readouterr().err
    assert "GateFailed" in said and "published" in said
    assert [one.period for one in publish.releases(tables)] == list(NIGHTS)
    verdicts = [row for row in tables.load("verdicts").to_pylist() if row["period"] == "2026-11-14" and row["gate"] == "release"]
    assert [row["passed"] for row in verdicts] == [False]
    assert Path(verdicts[0]["docs"]).exists()
