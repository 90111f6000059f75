"""`heathaze evaluate` through the command line: its files, its page in a real browser, its refusals, and what it cannot see."""

from __future__ import annotations

import ast
import base64
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import date
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.conftest import ROOT, policy_text

from heathaze.cli import main
from heathaze.evaluate.synthetic import City, synthesize
from heathaze.policy import load_policy

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-component-update "
    "--disable-sync --hide-scrollbars --enable-logging=stderr --v=0"
)
METHODS = ["zero", "identity", "gaussian_oracle", "shrink"]
Refuse = Callable[..., str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic city and a policy of few cells for it."""
    folder = tmp_path_factory.mktemp("evaluate")
    city = City(users=400, first_day=date(2026, 11, 14), south=40.0, north=40.1, west=-74.0, east=-73.9)
    synthesize(city, folder / "city")
    (folder / "policy.toml").write_text(policy_text(name="town", slices=4, rows=40, cols=40))
    return folder


def arguments(place: Path, **changes: str) -> list[str]:
    given = {"events": str(place / "city"), "policy": str(place / "policy.toml"), "out": str(place / "out")} | changes
    given = {"epsilon": "0.5", "methods": "identity", "seeds": "1", "queries": "200"} | given
    return ["evaluate", *(word for name, value in given.items() for word in (f"--{name}", *value.split(" ")))]


@pytest.fixture(scope="module")
def out(place: Path) -> Path:
    """The files of a run with everything in it."""
    folder = place / "whole"
    more = {"epsilon": "0.5 2", "methods": " ".join(METHODS), "seeds": "2", "levels": "event user", "intervals": "shrink"}
    assert main(arguments(place, out=str(folder), **more)) == 0
    return folder


@pytest.fixture
def refuse(place: Path, capsys: pytest.CaptureFixture[str]) -> Refuse:
    """Runs what must be refused as the user's mistake; returns what it says, and sees that nothing was written."""

    def ask(**changes: str) -> str:
        folder = place / "refused"
        try:
            code = main(arguments(place, out=str(folder), **changes))
        except SystemExit as left:
            code = int(str(left.code))
        assert code == 1
        assert not list(folder.glob("*"))
        return capsys.readouterr().err

    return ask


# What it writes


def test_three_files_are_written(out: Path) -> None:
    assert {file.name for file in out.iterdir()} == {"table.md", "table.json", "report.html"}


def test_the_text_says_what_it_is_of_and_for_which_data(out: Path) -> None:
    text = (out / "table.md").read_text()
    first, note, *_ = text.split("\n\n")
    assert re.fullmatch(r"# town, [\d,]+ events from 2026-11-14", first)
    assert note.startswith("Public or synthetic data only")
    titles = re.findall(r"^### (.*)$", text, re.MULTILINE)
    assert titles[:2] == ["event level, epsilon 0.5", "event level, epsilon 2"]
    assert "user level, epsilon 2: what noise and method add, against the sample scaled up" in titles
    assert titles[-1].startswith("90 % intervals")


def test_oracles_and_sampling_alone_are_marked_and_never_bold(out: Path) -> None:
    lines = [line for line in (out / "table.md").read_text().splitlines() if line.startswith("|")]
    marked = [line for line in lines if re.match(r"\| (gaussian_oracle|sampling alone) \(not private\)", line)]
    assert len(marked) == 2 * 3 + 2  # the oracle in every table, sampling alone at user level
    assert not any("**" in line for line in marked)
    assert any("**" in line for line in lines)


def test_the_json_has_every_row_and_the_two_kinds_of_errors(out: Path) -> None:
    report = json.loads((out / "table.json").read_text())
    events = [row for row in report["rows"] if row["level"] == "event"]
    users = [row for row in report["rows"] if row["level"] == "user"]
    assert len(events) == len(METHODS) * 2 * 2
    assert len(users) == (len(METHODS) + 1) * 2 * 2 + 2  # a denoiser twice, and sampling alone once a seed
    assert all(row["errors_after_sampling"] for row in users) and not any(row["errors_after_sampling"] for row in events)
    assert all(np.isfinite(list(row["errors"].values())).all() for row in report["rows"])
    assert {one["boxes"] for one in report["intervals"]} == {
        f"{size} {where}" for size in ("small", "middle", "large") for where in ("at records", "anywhere")
    } | {"cell at records"}
    assert all(0 <= one["share"] <= 1 and one["width"] >= 0 for one in report["intervals"])
    assert report["period"] == "2026-11-14" and "only" in report["note"]


def test_the_same_command_gives_the_same_errors(place: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments(place, methods="identity shrink", out=str(place / "again")), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in again["rows"]] == ["identity", "shrink"]
    twice = arguments(place, methods="shrink identity", out=str(place / "more"), epsilon="0.5 0.50")
    assert main(twice) == 0
    other = json.loads((place / "more" / "table.json").read_text())
    assert {row["method"]: row["errors"] for row in other["rows"]} == {row["method"]: row["errors"] for row in again["rows"]}
    assert len(other["rows"]) == 2  # the same epsilon in other digits is the same


# The page


def test_the_page_stands_alone_and_holds_its_pictures(out: Path) -> None:
    document = (out / "report.html").read_text()
    pictures = re.findall(r'src="data:image/png;base64,([^"]+)"', document)
    assert len(pictures) == 3  # errors at both levels, and maps
    for picture in pictures:
        assert np.asarray(Image.open(BytesIO(base64.b64decode(picture)))).std() > 5
    bare = re.sub(r"base64,[A-Za-z0-9+/=]+", "", document)
    assert "//" not in bare and not re.search(r"<script|<link|url\(", bare)
    assert "Public or synthetic data only" in document and "<b>" in document and "**" not in bare


@pytest.mark.skipif(BROWSER is None, reason="no chromium or chromium-browser on PATH to look at the page with")
def test_a_browser_shows_the_page_without_errors(out: Path, tmp_path: Path) -> None:
    shot = tmp_path / "page.png"
    more = [f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={shot}", "--window-size=1200,3200"]
    command = [str(BROWSER), *OPTIONS.split(), *more, (out / "report.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert "CONSOLE" not in done.stderr
    pixels = np.asarray(Image.open(shot).convert("RGB")).astype(int)
    assert len(np.unique(pixels @ [1, 256, 65536])) > 60
    orange = (pixels[..., 0] > 200) & (pixels[..., 2] < 90) & (pixels[..., 1] < 180)
    assert orange.sum() > 50  # the hot cells of a map


# What it refuses


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"methods": "identity idenity"}, "'idenity' is none of them"),
        ({"epsilon": "0"}, "epsilon must be above 0"),
        ({"epsilon": "-1"}, "epsilon must be above 0"),
        ({"epsilon": "101"}, "at most 100"),
        ({"epsilon": "nan"}, "but it is NaN"),
        ({"epsilon": "much"}, "--epsilon must be numbers, but much was given"),
        ({"seeds": "0"}, "at least 1"),
        ({"queries": "0"}, "at least 1"),
        ({"levels": "person"}, "invalid choice: 'person'"),
        ({"intervals": "gaussian"}, "'gaussian' is none of them"),
        ({"period": "tomorrow"}, "invalid"),
        ({"period": "2026-12-24"}, "Change --period"),
        ({"events": "nowhere.parquet"}, "nowhere.parquet does not exist"),
        ({"policy": "nowhere.toml"}, "nowhere.toml"),
    ],
)
def test_a_mistake_is_named_and_nothing_is_written(refuse: Refuse, changes: dict[str, str], words: str) -> None:
    assert words in refuse(**changes)


def test_missing_columns_are_named(refuse: Refuse, place: Path) -> None:
    text = (place / "policy.toml").read_text().replace('name = "town"', 'name = "town"\ntime = "when"\nuser = "who"')
    (place / "other.toml").write_text(text)
    said = refuse(policy=str(place / "other.toml"))
    assert "who, when are missing" in said and "[dataset]" in said


def test_a_file_that_is_no_parquet_is_refused_without_quoting_it(refuse: Refuse, place: Path) -> None:
    (place / "broken.parquet").write_text("somebody,40.05,-73.95\n" * 10)
    said = refuse(events=str(place / "broken.parquet"))
    assert "cannot be read as parquet" in said and "somebody" not in said


def test_help_says_for_which_data_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["evaluate", "--help"])
    assert "For public or synthetic data only" in " ".join(capsys.readouterr().out.split())


# What it cannot see


def test_evaluate_can_neither_see_a_ledger_nor_publish() -> None:
    """What it runs on imports nothing of the private side or of publishing, and names neither tables nor a ledger."""
    library = ROOT / "lib" / "heathaze"
    apart = {"synthetic.py"}  # writes a city as a Delta table, and reads nothing
    files = [*(file for file in (library / "evaluate").rglob("*.py") if file.name not in apart), library / "evaluate_cli.py"]
    assert len(files) > 20
    forbidden = re.compile(r"\bheathaze\.(collect|tables|session|night)\b|\bheathaze\.release\.(publish|pipeline|candidate)\b")
    for file in files:
        nodes = list(ast.walk(ast.parse(file.read_text())))
        imported = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        for node in nodes:
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, file
                imported += [f"{node.module}.{alias.name}" for alias in node.names]
        assert not [name for name in imported if forbidden.search(name)], file
        names = {getattr(node, "id", None) or getattr(node, "attr", None) for node in nodes}
        assert not names & {"Tables", "PrivateTables", "Ledger", "ledger", "ledger_log", "publish"}, file


# Public policies


@pytest.mark.parametrize("name", ["cabs", "gowalla", "synthetic"])
def test_a_public_policy_has_cells_of_35_metres_in_20_kilometres(name: str) -> None:
    policy = load_policy(str(ROOT / "conf" / "public" / f"{name}.toml"))
    grid = policy.grid.build()
    assert grid.height_metres == pytest.approx(20_000, rel=0.01) and grid.width_metres == pytest.approx(20_000, rel=0.01)
    assert (grid.rows, grid.cols) == (576, 576)


def test_the_policy_of_the_synthetic_city_has_its_box() -> None:
    grid, city = load_policy(str(ROOT / "conf" / "public" / "synthetic.toml")).grid.build(), City()
    assert (grid.south, grid.west, grid.north, grid.east) == (city.south, city.west, city.north, city.east)
