"""Queries: opening a release beside numpy reading the same bytes, and many range queries at once."""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from heathaze.learn.denoiser import noise_variance
from heathaze.policy import PeriodSettings, load_policy
from heathaze.release.candidate import Candidate
from heathaze.release.manifest import make_manifest
from heathaze.release.publish import publish
from heathaze.release.query import Release, count, open_release
from heathaze.release.uncertainty import ErrorModel
from heathaze.tables import Tables
from tests.nights import candidate_of, draw_noise

POLICY = load_policy(Path(__file__).parents[2] / "conf" / "nightly.toml")
SLICES = 96
QUERIES = 100_000
WORK = Path(tempfile.gettempdir()) / "heathaze-bench" / "query"


def query() -> list[dict[str, Any]]:
    """576 x 576 x 96: opening a release against numpy reading the same bytes, and 100,000 range queries."""
    shutil.rmtree(WORK, ignore_errors=True)
    candidate = _city()
    tables = Tables(str(WORK / "tables"))
    rehearsal = candidate.denoised, candidate.noisy, candidate.denoised, candidate.deviation
    model = ErrorModel.fit([rehearsal], noise_variance(candidate.scale), boxes=400)
    manifest = {**make_manifest(candidate, []), "uncertainty": model.to_json()}
    publish(tables, candidate, manifest, "")
    assert candidate.deviation is not None
    for name, tensor in (("values", candidate.refined), ("noisy", candidate.noisy), ("deviation", candidate.deviation)):
        tensor.tofile(WORK / f"{name}.bin")
    del candidate
    numpys, ours = _alternating(_read_plain, lambda: open_release(tables))
    kinds = {"seconds": 0, "processor_seconds": 1}
    rows = [{"what": f"open, {name}", **_beside(ours[kind], numpys[kind])} for name, kind in kinds.items()]
    release = open_release(tables)
    began = time.perf_counter()
    count(release, release.boxes())
    rows.append({"what": "first query (makes the prefix sums)", "seconds": round(time.perf_counter() - began, 2)})
    return rows + _ranges(release)


def _ranges(release: Release) -> list[dict[str, Any]]:
    """The same boxes answered in every way, from latitudes and longitudes to intervals."""
    random = np.random.default_rng(1)
    grid = release.grid
    sides = random.uniform(30, 2000, QUERIES)
    lat, lon = random.uniform(grid.south, grid.north, QUERIES), random.uniform(grid.west, grid.east, QUERIES)
    begin = release.edges[0].timestamp()
    span = release.edges[-1].timestamp() - begin
    boxes = release.boxes_around(lat, lon, sides)
    times = np.sort(random.uniform(0, SLICES, (QUERIES, 2)), axis=1)
    boxes = dataclasses.replace(boxes, slices=times, time=begin + times / SLICES * span)
    claiming = dataclasses.replace(release, manifest={**release.manifest, "uncertainty": None})
    for name in ("value_prefix", "noisy_prefix", "claim_prefix"):
        claiming.__dict__[name] = getattr(release, name)
    ways: dict[str, Callable[[], object]] = {
        "making boxes of places and sides": lambda: release.boxes_around(lat, lon, sides),
        "noisy, exact interval": lambda: count(release, boxes, noisy=True),
        "denoised, the denoiser's interval": lambda: count(claiming, boxes),
        "mixed, interval from a rehearsal": lambda: count(release, boxes),
    }
    times = dict(zip(ways, _alternating(*ways.values()), strict=True))
    return [{"what": f"{QUERIES:,} ranges: {name}", "seconds": round(times[name][0], 3)} for name in ways]


def _beside(ours: float, numpys: float) -> dict[str, float]:
    return {"release": round(ours, 3), "numpy": round(numpys, 3), "ratio": round(ours / numpys, 2)}


def _city() -> Candidate:
    """A night of noise with a few warm cells, and a claimed deviation for each cell."""
    policy = dataclasses.replace(POLICY, period=PeriodSettings(days=1, slices=SLICES))
    grid = policy.grid.build()
    random = np.random.default_rng(0)
    heat = random.gamma(0.05, 2, (grid.rows, grid.cols))
    shape = (SLICES, grid.rows, grid.cols)
    noisy = random.poisson(heat, shape) + draw_noise(shape, float(policy.privacy.histogram_scale), random)
    deviation = random.uniform(0.5, 1.5, shape)
    return candidate_of(policy, "2026-11-14", noisy, heat + 0.05 * noisy, deviation, 1.5)


def _read_plain() -> list[np.ndarray]:
    kinds = {"values": "<f4", "noisy": "<i4", "deviation": "<f4"}
    return [np.fromfile(WORK / f"{name}.bin", dtype=kind) for name, kind in kinds.items()]


def _alternating(*works: Callable[[], object]) -> list[tuple[float, float]]:
    """Least seconds and processor seconds of each work, taken in turns, so that a slow minute of the machine hits all."""
    taken: list[list[tuple[float, float]]] = [[] for _ in works]
    for _ in range(7):
        for number, work in enumerate(works):
            began = time.perf_counter(), time.process_time()
            work()
            taken[number].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return [(min(one[0] for one in times), min(one[1] for one in times)) for times in taken]
