"""The yardstick: every method on the same draw of the same data, over the same questions.

For public and synthetic data only. It compares answers with the truth, which no release may do; it knows neither ledger nor
tables and cannot publish.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, field
from decimal import Decimal
from fractions import Fraction
from itertools import product
from pathlib import Path

import numpy as np

from heathaze.errors import InputError
from heathaze.evaluate.events import Events, bounded, counts_of
from heathaze.evaluate.learned import BLOCKS, DENOISERS, Look, denoise, learned_methods, look_again, plan_of
from heathaze.evaluate.meter import Meter, Method
from heathaze.evaluate.methods import INFO
from heathaze.evaluate.workloads import Workload, draw_workload, score
from heathaze.learn.denoiser import noise_variance
from heathaze.learn.families import season_of
from heathaze.learn.maps import share_noisy
from heathaze.policy import MAX_SCALE, Policy
from heathaze.release.refine import Measured, finish, refine
from heathaze.release.rehearsal import rehearse
from heathaze.release.sums import box_sums, prefix_sum, share_powers, whole_sums
from heathaze.rho import spread_evenly

LEVELS = ("event", "user")

SAMPLING = "sampling alone"
"""The bounded sample scaled up, without noise: what no method can be rid of at user level. It is no private method."""
EXACT = "exact counts"
"""The truth itself, which has no error but that of its forecasts: nobody knows what comes. It is no private method."""
AS_RELEASED = ", as released"
"""Added to the name of a denoiser at user level where its answer is scaled by the release's gamma instead of N / n."""


@dataclass(frozen=True)
class Row:
    """One method at one epsilon on one draw."""

    level: str
    epsilon: str
    """Empty for what is not private."""
    method: str
    seed: int
    seconds: float
    megabytes: float
    """Peak memory beyond what the process held before."""
    runs_at: str
    errors: dict[str, float]
    """Against the truth."""
    errors_after_sampling: dict[str, float] = field(default_factory=dict)
    """At user level, against the bounded sample scaled up: what noise and method do, without what sampling does."""

    @property
    def protects(self) -> bool:
        """Whether a release could do this: neither an oracle nor an answer without noise."""
        return self.method not in (SAMPLING, EXACT) and not (self.method in INFO and INFO[self.method].is_oracle)


def evaluate(
    events: Events,
    policy: Policy,
    epsilons: Sequence[Decimal],
    methods: Sequence[str],
    seeds: int,
    levels: Sequence[str],
    queries: int = 5_000,
    say: Callable[[str], None] = lambda text: None,
    show: Callable[[Row, np.ndarray], None] = lambda row, answer: None,
) -> list[Row]:
    """Rows of the table; `show` sees the answer behind each. The same arguments give the same errors.

    At user level every answer is about all N events, scaled by N / n from the bounded sample's n; both are taken as public here.
    """
    known = available(policy)
    check(policy, methods, epsilons, levels)
    grid = policy.grid.fine()
    shape = (policy.period.slices, grid.rows, grid.cols)
    truth = counts_of(events, shape)
    rows: list[Row] = []

    def add(row: Row, answer: np.ndarray) -> None:
        rows.append(row)
        show(row, answer)

    for seed in range(seeds):
        workload = draw_workload(truth, grid, season_of(policy), queries, seed)
        for level in levels:
            unit = policy.privacy.max_events_per_user if level == "user" else 1
            counts = truth if level == "event" else counts_of(bounded(events, unit, seed), shape)
            scaled = counts * (truth.sum() / max(1, counts.sum()))
            errors = score(scaled, truth, workload)
            if level == "user":
                add(Row(level, "", SAMPLING, seed, 0.0, 0.0, "", errors, score(scaled, scaled, workload)), scaled)
            elif workload.horizon:
                add(Row(level, "", EXACT, seed, 0.0, 0.0, "", errors), scaled)
            for epsilon, name in product(epsilons, methods):
                say(f"{level} level, epsilon {epsilon}, seed {seed}, {name}")
                meter = Meter(Fraction(epsilon), unit, seed)
                with _measured() as cost:
                    answers = _answers(name, known[name], counts, None if level == "event" else truth.sum(), policy, meter)
                for label, answer in answers.items():
                    _must_be_sound(label, answer, shape)
                    errors = score(answer, truth, workload)
                    after = score(answer, scaled, workload) if level == "user" else {}
                    runs_at = INFO[name].runs_at if name in INFO else _blocks(policy, name, meter)
                    add(Row(level, str(epsilon), label, seed, cost.seconds, cost.megabytes, runs_at, errors, after), answer)
    return rows


def available(policy: Policy) -> dict[str, Method]:
    """Every method by name, heathaze's own with the settings of the policy."""
    return {name: info.method for name, info in INFO.items()} | learned_methods(policy)


def _answers(
    name: str, method: Method, counts: np.ndarray, events: int | None, policy: Policy, meter: Meter
) -> dict[str, np.ndarray]:
    """The answer of a method, about so many events where the counts are a sample of them.

    About a sample, a denoiser also answers as a release would, with its gamma.
    """
    if events is None:
        return {name: method(counts, meter)}
    size = int(counts.sum())
    up = np.float32(events / max(1, size))
    if name not in (*DENOISERS, BLOCKS):
        return {name: method(counts, meter) * up}
    look = denoise(policy, name, counts, meter)
    measured = Measured(size, int(events), noise_variance(look.plan.scales.cell))
    refined = refine(look.found.values, look.found.deviation, look.measured.slices, measured, policy.refine).values
    answers = {name: finish(look.found.values * up, policy.refine), f"{name}{AS_RELEASED}": refined}
    return {label: spread_evenly(answer, look.plan.side) for label, answer in answers.items()}


def _blocks(policy: Policy, name: str, meter: Meter) -> str:
    """What a table says of a method that measures blocks of cells."""
    plan = plan_of(policy, name, meter.epsilon, meter.unit)
    told = [] if plan.side == 1 else [f"blocks of {plan.side} x {plan.side} cells"]
    side = plan.side * plan.scales.side
    return "; ".join(told + ([f"slices in blocks of {side} x {side}"] if side > plan.side else []))


def check(
    policy: Policy, methods: Sequence[str], epsilons: Sequence[Decimal], levels: Sequence[str], denoisers: Sequence[str] = ()
) -> None:
    """Raise where something cannot be evaluated; `denoisers` are those whose intervals are wanted."""
    _must_be_of("methods", methods, available(policy))
    _must_be_of("levels", levels, LEVELS)
    with_intervals = (*DENOISERS, BLOCKS)
    _must_be_of("denoisers with intervals", denoisers or with_intervals, with_intervals)
    unit = policy.privacy.max_events_per_user if "user" in levels else 1
    for epsilon in epsilons:
        if not epsilon.is_finite() or not 0 < epsilon <= 100 or Fraction(unit) / Fraction(epsilon) > MAX_SCALE:
            least = f"at least {unit / MAX_SCALE:g}, below which noise leaves nothing"
            raise InputError(f"epsilon must be above 0, {least}, and at most 100, but it is {epsilon}.")


def _must_be_of(what: str, given: Sequence[str], known: Iterable[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown or not given:
        found = f"'{unknown[0]}' is none of them" if unknown else "none was given"
        raise InputError(f"{what} must be of {', '.join(known)}, but {found}.")


def _must_be_sound(name: str, answer: np.ndarray, shape: tuple[int, int, int]) -> None:
    """A method that answers something else than it was asked cannot be scored."""
    if answer.shape != shape or not np.isfinite(answer).all():
        raise InputError(f"'{name}' must answer with {shape} finite numbers, but it gave {answer.shape}, or numbers without end.")


@dataclass(frozen=True)
class Held:
    """How the 90 % intervals of one kind of box did."""

    share: float
    """Of boxes whose interval holds the truth."""
    width: float
    """Mean width of the intervals."""
    empty: float
    """Share of boxes without a single event."""
    tight: float
    """Share of boxes whose interval has room for at most one whole number: counts leave it no narrower."""


def coverage(events: Events, policy: Policy, epsilon: Decimal, method: str, seeds: int, queries: int = 5_000) -> dict[str, Held]:
    """How the 90 % intervals of a denoiser hold on average over draws of noise and questions, for each kind of box; event level.

    The interval is made as a release makes it: from rehearsals on the noisy tensor, without the truth. What was trained on the
    first draw denoises the others too, as the nights after a training are.
    """
    grid = policy.grid.fine()
    truth = counts_of(events, (policy.period.slices, grid.rows, grid.cols))
    check(policy, [method], [epsilon], ["event"], [method])
    look: Look | None = None
    drawn: list[dict[str, Held]] = []
    for seed in range(seeds):
        meter = Meter(Fraction(epsilon), 1, seed)
        look = look_again(look, truth, meter) if look else denoise(policy, method, truth, meter)
        workload = draw_workload(truth, grid, season_of(policy), queries, seed)
        drawn.append(_held(look, truth, workload, policy, seed))
    return {kind: Held(*np.mean([astuple(one[kind]) for one in drawn], axis=0).tolist()) for kind in drawn[0]}


def _held(look: Look, truth: np.ndarray, workload: Workload, policy: Policy, seed: int) -> dict[str, Held]:
    found, side = look.found, look.plan.side
    model = rehearse(look.estimate, look.measured.slices, look.plan.scales, look.again, policy.refine, seed)
    values = finish(found.values, policy.refine)
    noisy = share_noisy(look.measured.slices, values, look.plan.scales.side)
    published, noised, exactly = (prefix_sum(tensor) for tensor in (values, noisy, truth))
    squares = None if found.deviation is None else prefix_sum(found.deviation, 2)
    held = {}
    for name, boxes in workload.boxes.items():
        # In published cells, which a box may cut.
        edges = np.stack([boxes.low, boxes.high], axis=2) / np.array([1, side, side])[:, None]
        axes = (edges[:, 0], edges[:, 1], edges[:, 2])
        slices, rows, cols = (share_powers(ends, 2) for ends in axes)
        claimed = None
        if squares is not None:
            low, high = np.floor(edges[..., 0]).astype(np.int64), np.ceil(edges[..., 1]).astype(np.int64)
            mean = np.maximum(whole_sums(squares, low, high), 0) / np.prod(high - low, axis=1)
            claimed = np.sqrt(mean * slices * rows * cols)
        estimate, total = box_sums([published, noised], *axes)
        judged = model.answer(estimate, total, claimed, rows * cols, slices)
        exact = boxes.sums(exactly)
        ends = [np.maximum(end, 0) if policy.refine.non_negative else end for end in (judged.low, judged.high)]
        low, high = ends[0] - 1e-6, ends[1] + 1e-6
        held[name] = Held(
            share=float(np.mean((exact >= low) & (exact <= high))),
            width=float(np.mean(ends[1] - ends[0])),
            empty=float(np.mean(exact == 0)),
            tight=float(np.mean(np.floor(high) <= np.ceil(low))),
        )
    return held


@dataclass
class _Cost:
    seconds: float = 0.0
    megabytes: float = 0.0


@contextmanager
def _measured() -> Iterator[_Cost]:
    """Seconds and peak memory of a block, by a thread that looks now and then."""
    ended, before, cost = threading.Event(), _resident(), _Cost()

    def look() -> None:
        while not ended.wait(0.02):
            cost.megabytes = max(cost.megabytes, _resident() - before)

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    began = time.perf_counter()
    try:
        yield cost
    finally:
        cost.seconds = time.perf_counter() - began
        ended.set()
        watcher.join()


def _resident() -> float:
    """Memory of this process in megabytes; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6
    except OSError:
        return 0.0
