"""The yardstick: every method on the same draw of the same data, over the same questions.

For public and synthetic data only. It compares answers with the truth, which no release may do; it knows neither ledger nor
tables and cannot publish.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from heathaze.errors import InputError
from heathaze.evaluate.learned import learned_methods, prepare
from heathaze.evaluate.meter import Meter
from heathaze.evaluate.methods import INFO
from heathaze.evaluate.workloads import draw_workload, score
from heathaze.grid import Period
from heathaze.learn.denoiser import discrete_laplace, noise_variance
from heathaze.learn.families import season_of
from heathaze.policy import Policy
from heathaze.release.refine import Measured, finish, refine
from heathaze.release.rehearsal import rehearse
from heathaze.release.sums import prefix_sum, whole_sums

LEVELS = ("event", "user")

SAMPLING = "sampling alone"
"""The bounded sample scaled up, without noise: what no method can be rid of at user level. It is no private method."""


@dataclass(frozen=True)
class Events:
    """Public events inside the grid and the period."""

    user: np.ndarray
    """Number of the user of each event."""
    slice: np.ndarray
    cell: np.ndarray


@dataclass(frozen=True)
class Row:
    """One method at one epsilon on one draw."""

    level: str
    epsilon: str
    method: str
    seed: int
    seconds: float
    megabytes: float
    """Peak memory beyond what the process held before."""
    runs_at: str
    errors: dict[str, float]


def read_events(path: str, policy: Policy, first: date | None) -> tuple[Events, Period]:
    """Public events from Parquet or CSV; the period begins on `first`, or on the first day of the data."""
    columns = policy.dataset
    wanted = [columns.user, columns.time, columns.lat, columns.lon]
    kind = "csv" if path.endswith(".csv") else "parquet"
    if not Path(path).exists():
        raise InputError(f"--events must name a Parquet or CSV file or folder, but {path} does not exist.")
    source = ds.dataset(path, format=kind)
    missing = [name for name in wanted if name not in source.schema.names]
    if missing:
        raise InputError(f"the events must have the columns {', '.join(wanted)}, but {', '.join(missing)} is missing.")
    table = source.to_table(columns=wanted)
    micros = pc.cast(pc.cast(table[columns.time], pa.timestamp("us", "UTC")), pa.int64()).to_numpy()
    begins = first or date.fromisoformat(str(np.datetime64(int(micros.min()), "us").astype("datetime64[D]")))
    period = policy.period_of(begins.isoformat())
    edges = np.array([round(edge.timestamp() * 1e6) for edge in period.edges])
    number = np.searchsorted(edges, micros, side="right") - 1
    cell = policy.grid.build().cells_of(table[columns.lat].to_numpy(), table[columns.lon].to_numpy())
    inside = (cell >= 0) & (number >= 0) & (number < period.slices)
    user = pc.rank(pc.fill_null(pc.cast(table[columns.user], pa.string()), ""), tiebreaker="dense").to_numpy()
    return Events(user[inside], number[inside], cell[inside]), period


def counts_of(events: Events, shape: tuple[int, int, int]) -> np.ndarray:
    """Exact counts, slices x rows x cols."""
    flat = events.slice * (shape[1] * shape[2]) + events.cell
    return np.bincount(flat, minlength=int(np.prod(shape))).reshape(shape)


def bounded(events: Events, k: int, seed: int) -> Events:
    """At most k events of each user, uniformly."""
    order = np.lexsort((np.random.default_rng((seed, 5)).random(len(events.user)), events.user))
    user = events.user[order]
    first = np.flatnonzero(np.r_[True, user[1:] != user[:-1]]) if len(user) else np.zeros(0, dtype=np.int64)
    rank = np.arange(len(user)) - np.repeat(first, np.diff(np.r_[first, len(user)]))
    kept = np.sort(order[rank < k])
    return Events(events.user[kept], events.slice[kept], events.cell[kept])


def evaluate(
    events: Events,
    policy: Policy,
    epsilons: Sequence[Decimal],
    methods: Sequence[str],
    seeds: int,
    levels: Sequence[str],
    queries: int = 5_000,
    say: Callable[[str], None] = lambda text: None,
) -> list[Row]:
    """Rows of the table. The same arguments give the same errors."""
    known = available(policy)
    unknown = [name for name in methods if name not in known]
    if unknown:
        raise InputError(f"unknown method '{unknown[0]}'; known are: {', '.join(known)}.")
    grid = policy.grid.build()
    shape = (policy.period.slices, grid.rows, grid.cols)
    truth = counts_of(events, shape)
    rows = []
    for seed in range(seeds):
        workload = draw_workload(truth, grid, season_of(policy), queries, seed)
        for level in levels:
            unit = policy.privacy.max_events_per_user if level == "user" else 1
            sample = events if level == "event" else bounded(events, unit, seed)
            counts = counts_of(sample, shape)
            if level == "user":
                scaled = counts * (truth.sum() / max(1, counts.sum()))
                rows.append(Row(level, "", SAMPLING, seed, 0.0, 0.0, "", score(scaled, truth, workload)))
            for epsilon in epsilons:
                for name in methods:
                    say(f"{level} level, epsilon {epsilon}, seed {seed}, {name}")
                    meter = Meter(Fraction(epsilon), unit, seed)
                    with _measured() as cost:
                        answer = known[name](counts, meter)
                    if level == "user":
                        answer = _scaled_up(answer, counts, truth, policy, meter)
                    runs_at = INFO[name].runs_at if name in INFO else ""
                    errors = score(answer, truth, workload)
                    rows.append(Row(level, str(epsilon), name, seed, cost["seconds"], cost["megabytes"], runs_at, errors))
    return rows


def available(policy: Policy) -> dict[str, Callable[[np.ndarray, Meter], np.ndarray]]:
    """Every method by name, heathaze's own with the settings of the policy."""
    return {name: info.method for name, info in INFO.items()} | learned_methods(policy)


def _scaled_up(answer: np.ndarray, counts: np.ndarray, truth: np.ndarray, policy: Policy, meter: Meter) -> np.ndarray:
    """The answer about all events from one about the sample, by the release's refinement; n and N are taken as public here."""
    measured = Measured(int(counts.sum()), int(truth.sum()), noise_variance(Fraction(meter.unit) / meter.epsilon))
    noisy = counts + discrete_laplace(np.random.default_rng(1), float(Fraction(meter.unit) / meter.epsilon), counts.shape)
    still = np.zeros(answer.shape, dtype=np.float32)  # methods do not say what is left of the noise: they are scaled by N / n
    return refine(answer.astype(np.float32), still, noisy, measured, policy.refine).values


def coverage(
    events: Events, policy: Policy, epsilon: Decimal, method: str, seed: int, queries: int = 5_000
) -> dict[str, tuple[float, float]]:
    """Share of boxes whose 90 % interval holds the truth, and the mean width, for each kind of box; event level.

    The interval is made as a release makes it: from a rehearsal on the noisy tensor, without the truth.
    """
    grid = policy.grid.build()
    truth = counts_of(events, (policy.period.slices, grid.rows, grid.cols))
    scale = 1 / Fraction(epsilon)
    noisy = Meter(Fraction(epsilon), 1, seed).laplace(truth, Fraction(epsilon)).astype(np.int32)
    ready = prepare(policy, method, noisy, scale)
    found = ready(noisy)
    model = rehearse(found, scale, ready, policy.refine, seed)
    workload = draw_workload(truth, grid, season_of(policy), queries, seed)
    published = prefix_sum(finish(found.values, policy.refine))
    squares = None if found.deviation is None else prefix_sum(found.deviation, 2)
    held = {}
    for name, boxes in workload.boxes.items():
        size = boxes.high - boxes.low
        claimed = None if squares is None else np.sqrt(np.maximum(whole_sums(squares, boxes.low, boxes.high), 0))
        judged = model.answer(
            whole_sums(published, boxes.low, boxes.high),
            boxes.sums(noisy),
            claimed,
            (size[:, 1] * size[:, 2]).astype(float),
            size[:, 0].astype(float),
        )
        exact = boxes.sums(truth)
        low = np.maximum(judged.low, 0) if policy.refine.non_negative else judged.low
        inside = (exact >= low - 1e-6) & (exact <= judged.high + 1e-6)
        held[name] = (float(inside.mean()), float(np.mean(judged.high - low)))
    return held


@contextmanager
def _measured() -> Iterator[dict[str, float]]:
    """Seconds and peak memory of a block, by a thread that looks now and then."""
    ended, before = threading.Event(), _resident()
    cost = {"seconds": 0.0, "megabytes": 0.0}

    def look() -> None:
        while not ended.wait(0.02):
            cost["megabytes"] = max(cost["megabytes"], _resident() - before)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    began = time.perf_counter()
    try:
        yield cost
    finally:
        cost["seconds"] = time.perf_counter() - began
        ended.set()
        watcher.join()


def _resident() -> float:
    """Memory of this process in megabytes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
    except OSError:
        return 0.0
