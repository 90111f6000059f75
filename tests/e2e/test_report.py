"""The report in a real browser: it asks nothing of the network, runs without errors, and shows every picture it holds."""

from __future__ import annotations

import base64
import dataclasses
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import date
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.conftest import policy_text

from heathaze.grid import Period
from heathaze.learn.denoiser import noise_variance
from heathaze.policy import parse_policy
from heathaze.release import report
from heathaze.release.candidate import Budget, Candidate
from heathaze.release.report import render

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium or chromium-browser on PATH to look at the report with")

OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --enable-logging=stderr --v=0"
)
RELEASE = "toy/2026-11-14/1"
GATES = [
    {"expectation": "total < 10 % off & not <b>more</b>", "held": True, "seen": "0.4 %"},
    {"expectation": "no value below 0", "held": False, "seen": '<script>window.onerror("hurt")</script>'},
]


def city(slices: int = 8, rows: int = 48, cols: int = 64, **changes: Any) -> Candidate:
    """A noisy night with one hot centre, denoised by halving."""
    policy = parse_policy(policy_text(slices=slices, rows=rows, cols=cols, cap="20"))
    rng = np.random.default_rng(5)
    north, east = np.mgrid[0:rows, 0:cols]
    hill = 200 * np.exp(-((north - rows / 2) ** 2 + (east - cols / 3) ** 2) / (rows * cols / 60 + 1))
    truth = rng.poisson(hill * np.linspace(0.3, 1, slices)[:, None, None])
    odds = 1 - np.exp(-1 / float(policy.privacy.histogram_scale))
    noisy = (truth + rng.geometric(odds, truth.shape) - rng.geometric(odds, truth.shape)).astype(np.int32)
    denoised = ((noisy + hill) / 2).astype(np.float32)
    made = Candidate(
        policy=policy,
        period=policy.period_of("2026-11-14"),
        entry="entry",
        grid=policy.grid.build(),
        scale=policy.privacy.histogram_scale,
        noisy=noisy,
        denoised=denoised,
        deviation=np.full(truth.shape, 2.0, dtype=np.float32),
        refined=np.maximum(denoised * np.float32(1.5) - 2, 0),
        refinement={"gamma": 1.5, "uniformity": 0.01, "was_chosen": True},
        sample_size=int(truth.sum()),
        event_count=1000,
        denoise_facts={"method": "shrink", "nights_used": 3},
        model=None,
        budget=Budget("1.0", "0", "3.0", "20", "2026-Q4", tuple((f"2026-11-{day}", "1.0") for day in (12, 13, 14))),
    )
    return dataclasses.replace(made, **changes)


def with_model() -> dict[str, Any]:
    out = BytesIO()
    Image.new("RGB", (70, 30), "white").save(out, format="PNG")
    lineage = {"periods": ["2026-11-12", "2026-11-13"], "versions": {"torch": "<2>"}, "seed": 0}
    return {"model": "vqvae-1", "lineage": lineage, "curve": [{"loss": 1.0}] * 7, "picture": out.getvalue(), "score": 0.2}


class Page(HTMLParser):
    """The elements of a document and its text outside scripts and styles."""

    def __init__(self, document: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(document)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] not in ("script", "style"):
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


Browse = Callable[..., str]


@pytest.fixture(scope="module")
def document() -> str:
    """A report with everything in it."""
    return render(city(model=with_model()), RELEASE, GATES)


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Opens a document in the browser and returns the DOM after its scripts ran, and what the console said."""

    def run(document: str, *more: str) -> str:
        file = tmp_path / "report.html"
        file.write_text(document, encoding="utf-8")
        command = [str(BROWSER), *OPTIONS.split(), f"--user-data-dir={tmp_path / 'profile'}", *more, file.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
        said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        assert not said, said
        return done.stdout

    return run


@needs_browser
def test_browser_runs_the_page_without_errors_and_decodes_every_picture(browse: Browse, document: str) -> None:
    root, *rest = Page(browse(document, "--dump-dom")).elements
    pictures = sum(tag == "img" for tag, _ in rest)
    assert root[1].get("data-ready") == "yes"
    assert "data-error" not in root[1]
    assert root[1].get("data-images") == f"{pictures} of {pictures}"
    assert pictures >= 8 + 7


@needs_browser
def test_slider_shows_the_slice_that_it_is_moved_to(browse: Browse, document: str) -> None:
    move = """<script>window.addEventListener("load", function () {
      var slider = document.getElementById("slider");
      slider.value = 2; slider.dispatchEvent(new Event("input"));
      var same = document.getElementById("shown").src === document.querySelectorAll("#frames img")[2].src;
      document.documentElement.dataset.moved = document.getElementById("clock").textContent + " " + same;
    });</script>"""
    page = Page(browse(document.replace("</body>", f"{move}</body>"), "--dump-dom"))
    assert page.all("html")[0].get("data-moved") == "06:00–09:00 true"


@needs_browser
def test_an_error_in_the_page_is_seen_by_these_tests(browse: Browse, document: str) -> None:
    with pytest.raises(AssertionError, match="CONSOLE"):
        browse(document.replace('pick("slider")', 'pick("no-such-thing")'), "--dump-dom")


@needs_browser
@pytest.mark.parametrize("width", [1200, 500])
def test_screenshot_shows_the_map_in_colour(browse: Browse, document: str, tmp_path: Path, width: int) -> None:
    shot = tmp_path / "report.png"
    browse(document, f"--screenshot={shot}", f"--window-size={width},3000")
    assert shot.stat().st_size > 20_000
    pixels = np.asarray(Image.open(shot).convert("RGB"))
    assert pixels.shape == (3000, width, 3)
    assert len(np.unique(pixels.astype(np.uint32) @ [1, 256, 65536])) > 60
    hottest = np.abs(pixels[:1200].astype(int) - report.PALETTE[-1].astype(int)).sum(2) < 12
    assert hottest.any()


def test_slider_has_one_step_per_slice_in_local_time() -> None:
    page = Page(render(city(slices=4), RELEASE, GATES))
    slider = next(item for item in page.all("input") if item.get("type") == "range")
    assert (slider["min"], slider["max"], slider["step"]) == ("0", "3", "1")
    assert [f.get("data-label") for f in page.all("figure") if "data-label" in f] == [
        "00:00–06:00",
        "06:00–12:00",
        "12:00–18:00",
        "18:00–24:00",
    ]


def test_nothing_points_outside_the_file(document: str) -> None:
    page = Page(document)
    sources = [value or "" for _, attributes in page.elements for name, value in attributes.items() if name in ("src", "href")]
    assert sources
    assert all(source.startswith("data:image/png;base64,") for source in sources)
    bare = re.sub(r"base64,[A-Za-z0-9+/=]+", "", document)
    assert "//" not in bare
    assert not re.search(r"url\(|@import|fetch\(|XMLHttp|<link|<iframe", bare)
    assert "default-src 'none'" in bare


def test_text_of_others_is_escaped() -> None:
    document = render(city(model=with_model()), "toy/<i>1</i>", GATES)
    assert "<script>window.onerror(" not in document
    assert "<b>more</b>" not in document
    assert "<i>1</i>" not in document
    text = Page(document).text
    assert "total < 10 % off & not <b>more</b>" in text
    assert "toy/<i>1</i>" in text
    assert "<2>" in text


def test_report_says_what_was_spent_what_failed_and_what_is_promised(document: str) -> None:
    text = Page(document).text
    assert "So far 3.0 of epsilon 20 is spent for 2026-Q4; 17.0 is left." in text
    assert "1 of 2 expectations did not hold." in text
    assert "adding or removing ALL records of one user id" in text
    assert text.count("Touches people's data") == 3


def test_measured_event_count_is_told_with_its_sensitivity() -> None:
    shares = "[privacy.shares]\nhistogram = 0.9\ntotals = 0.05\nevent_count = 0.05"
    measured = policy_text().replace("declared_event_count = 1000", f"max_counted_per_user = 50\n{shares}")
    text = report._method(city(policy=parse_policy(measured)), RELEASE, GATES)
    assert "N got noise of scale 1000 (sensitivity 50) and reads 1,000" in text


def test_labels_follow_the_local_clock() -> None:
    assert report._labels(Period(date(2026, 3, 29), 1, 4, "Europe/Paris"), 1)[0] == "00:00–06:00"
    assert report._labels(Period(date(2026, 11, 14), 2, 4, "Asia/Tokyo"), 1)[1:3] == [
        "Sat 14 Nov, 12:00–24:00",
        "Sun 15 Nov, 00:00–12:00",
    ]
    assert report._labels(Period(date(2026, 11, 14), 2, 2, "UTC"), 2) == ["Sat 14 Nov, 00:00–Sun 15 Nov, 24:00"]


def test_errors_of_boxes_are_those_of_the_noise() -> None:
    candidate = city()
    cell, hundred, five_hundred, two_km = report._errors(candidate)
    sigma = noise_variance(candidate.scale) ** 0.5
    assert cell.noisy == pytest.approx(1.5 * sigma)
    assert cell.denoised == pytest.approx(1.5 * 2.0)
    assert hundred.cells is None, "cells of 232 x 133 m hold no box of 100 m"
    assert five_hundred.cells == (2, 4)
    assert five_hundred.noisy == pytest.approx(8**0.5 * 1.5 * sigma)
    assert five_hundred.denoised == pytest.approx(8**0.5 * 1.5 * 2.0)
    assert two_km.cells == (9, 15)
    sums = candidate.refined[:, :48, :64].reshape(8, 24, 2, 16, 4).sum((2, 4), dtype=np.float64)
    assert five_hundred.typical == pytest.approx(float(np.median(sums[sums > 0])))
    reliable = sums >= five_hundred.noisy / report.RELIABLE
    assert five_hundred.reliable == pytest.approx(sums[reliable].sum() / sums.sum())


def test_unknown_deviation_is_said_to_be_unknown_and_no_model_is_not_shown(document: str) -> None:
    plain = Page(render(city(deviation=None), RELEASE, GATES)).text
    assert "not known" in plain
    assert "The model" not in plain
    assert "not known" not in Page(document).text


def test_night_without_events_renders() -> None:
    nothing = np.zeros((8, 48, 64), dtype=np.float32)
    empty = city(noisy=nothing.astype(np.int32), denoised=nothing, deviation=nothing, refined=nothing)
    text = Page(render(empty, RELEASE, [])).text
    assert "No expectation was judged." in text
    assert "nan" not in text


def test_values_below_zero_render() -> None:
    candidate = city()
    assert "nan" not in Page(render(city(refined=candidate.denoised - 50), RELEASE, GATES)).text


def test_grid_of_one_cell_and_one_slice_renders() -> None:
    page = Page(render(city(slices=1, rows=1, cols=1), RELEASE, GATES))
    assert next(item for item in page.all("input"))["max"] == "0"


def test_model_has_its_curve_and_lineage(document: str) -> None:
    assert base64.b64encode(with_model()["picture"]).decode() in document
    text = Page(document).text
    assert "vqvae-1 learnt from noisy tensors only, in 7 epochs." in text
    assert "versions.torch" in text


@pytest.mark.parametrize(("slices", "side", "most"), [(8, 576, 3_000_000), (96, 300, 6_000_000)])
def test_file_stays_small_where_every_cell_is_noise(slices: int, side: int, most: int) -> None:
    noise = np.random.default_rng(0).gamma(0.5, 9, (slices, side, side)).astype(np.float32)
    document = render(city(slices=slices, rows=side, cols=side, refined=noise), RELEASE, GATES)
    assert len(document) < most
    page = Page(document)
    assert next(item for item in page.all("input"))["max"] == str(slices - 1)


def test_more_slices_than_steps_are_added_up() -> None:
    candidate = city(slices=288, rows=6, cols=6)
    page = Page(render(candidate, RELEASE, GATES))
    assert next(item for item in page.all("input"))["max"] == "95"
    assert "One step stands for 3 slices." in page.text
    frames = report._frames(candidate)
    assert sum(frames.totals) == pytest.approx(float(candidate.refined.sum(dtype=np.float64)))
    assert frames.labels[-1] == "23:45–24:00"


def test_blocks_for_display_keep_the_total_and_reach_past_the_edge() -> None:
    image = np.arange(35, dtype=np.float32).reshape(5, 7)
    blocks = report._block_sums(image, 2)
    assert blocks.shape == (3, 4)
    assert blocks.sum() == image.sum()
    assert blocks[0, 0] == image[:2, :2].sum()


def test_pictures_have_north_up() -> None:
    values = np.zeros((3, 2))
    values[0, 1] = 100.0
    painted = np.asarray(Image.open(BytesIO(report._paint(values, report._scale_of(values)))).convert("RGB"))
    assert (painted[2, 1] == report.PALETTE[-1]).all()
    assert (painted[0] == report.PALETTE[0]).all()
