"""The gates: a good night passes, and each thing that can be wrong is refused by its own expectation and no other."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
from collections.abc import Callable
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession
from tests.conftest import policy_text

from heathaze.errors import REFUSED
from heathaze.learn import denoiser
from heathaze.learn.denoiser import noise_variance
from heathaze.learn.shrink import shrink
from heathaze.learn.totals import measured_again, settle_totals
from heathaze.policy import Policy, parse_policy
from heathaze.release import gate
from heathaze.release.candidate import Budget, Candidate
from heathaze.release.gate import GateFailed, NoiseLaw, Verdict, judge_events, judge_release, require
from heathaze.release.refine import Measured, refine
from heathaze.schemas import VERDICTS

Edit = Callable[[Candidate], dict[str, Any]]
DENOISERS = {"none": denoiser.none, "shrink": shrink}


def declared(scale: str = "3", shape: tuple[int, int, int] = (4, 64, 64), more: str = "") -> Policy:
    """A policy whose cells get noise of `scale`, and half of epsilon."""
    k, epsilon = {"1/2": (1, "4.0"), "3": (3, "2.0"), "40": (10, "0.5"), "1000": (50, "0.1")}[scale]
    text = policy_text(slices=shape[0], rows=shape[1], cols=shape[2], epsilon=epsilon, k=k)
    text = text.replace("declared_event_count = 1000", "declared_event_count = 1000000")
    policy = parse_policy(text + "[privacy.shares]\nhistogram = 0.5\ntotals = 0.5\n" + more)
    assert policy.privacy.histogram_scale == Fraction(scale)
    return policy


def laplace(rng: np.random.Generator, scale: float, shape: tuple[int, ...]) -> np.ndarray:
    """Discrete Laplace noise: the difference of two geometric draws."""
    p = 1 - np.exp(-1 / scale)
    return rng.geometric(p, shape).astype(np.int64) - rng.geometric(p, shape)


def city(rng: np.random.Generator, kind: str, shape: tuple[int, int, int]) -> np.ndarray:
    """True counts: of nobody, of a city with crowded places among empty cells, or of crowds everywhere."""
    if kind == "empty":
        return np.zeros(shape, dtype=np.int64)
    if kind == "dense":
        return rng.poisson(600, shape)
    places = rng.gamma(0.05, 400, shape[1:])
    return rng.poisson(np.broadcast_to(places, shape))


def night(policy: Policy, kind: str = "city", method: str = "shrink", seed: int = 0, applied: float = 1.0) -> Candidate:
    """A candidate as the stages make it, with noise of `applied` times the declared scale; 0 for none."""
    rng = np.random.default_rng(seed)
    grid, period, scale = policy.grid.build(), policy.period_of("2026-11-14"), policy.privacy.histogram_scale
    counts = city(rng, kind, (period.slices, grid.rows, grid.cols))
    noisy = counts + (laplace(rng, float(scale) * applied, counts.shape) if applied else 0)
    noisy = noisy.astype(np.int32)
    totals = measured_again(counts, policy.privacy.totals_scale, rng)
    better = settle_totals(DENOISERS[method](noisy, [], scale), totals.with_cells(noisy, scale))
    sample_size = int(totals.values.sum())
    measured = Measured(sample_size, 1_000_000, noise_variance(scale))
    refined = refine(better.values, better.deviation, noisy, measured, policy.refine)
    epsilon = str(policy.privacy.epsilon)
    return Candidate(
        policy=policy,
        period=period,
        entry="e1",
        grid=grid,
        scale=scale,
        noisy=noisy,
        denoised=better.values,
        deviation=better.deviation,
        refined=refined.values,
        refinement={"gamma": refined.gamma, "uniformity": refined.uniformity},
        sample_size=sample_size,
        event_count=1_000_000,
        denoise_facts={"method": method},
        model=None,
        budget=Budget(epsilon, "0", epsilon, "100", "2026-Q4", (("2026-11-14", epsilon),)),
    )


def judged(candidate: Candidate, docs: Path, last: np.ndarray | None = None, epsilon: str | None = None) -> Verdict:
    return judge_release(candidate, last, epsilon or str(candidate.policy.privacy.epsilon), docs)


def failed(verdict: Verdict) -> list[str]:
    assert verdict.passed == all(judgement.held for judgement in verdict.judgements)
    return [judgement.expectation for judgement in verdict.judgements if not judgement.held]


def files_of(docs: Path) -> str:
    return "\n".join(path.read_text() for path in docs.rglob("*") if path.suffix in (".html", ".json"))


@pytest.mark.parametrize(
    ("scale", "shape", "kind", "method"),
    [
        ("1/2", (1, 64, 64), "city", "none"),
        ("1/2", (1, 64, 64), "dense", "none"),
        ("1/2", (24, 64, 64), "empty", "shrink"),
        ("3", (96, 64, 64), "city", "shrink"),
        ("3", (4, 64, 96), "dense", "shrink"),
        ("3", (2, 8, 8), "empty", "none"),
        ("40", (8, 128, 64), "city", "shrink"),
        ("40", (1, 576, 576), "city", "none"),
        ("1000", (1, 64, 64), "empty", "shrink"),
        ("1000", (8, 64, 64), "dense", "none"),
        ("1000", (4, 64, 64), "city", "shrink"),
    ],
)
def test_a_good_night_passes(scale, shape, kind, method, tmp_path):
    policy = declared(scale, shape)
    last = night(policy, kind, method, seed=1).refined
    verdict = judged(night(policy, kind, method, seed=2), tmp_path, last)
    assert failed(verdict) == []
    require(verdict)


@pytest.fixture(scope="module")
def good() -> Candidate:
    return night(declared())


def without_a_slice(c: Candidate) -> dict[str, Any]:
    return {name: getattr(c, name)[:-1] for name in ("noisy", "denoised", "refined")}


def with_a_slice_more(c: Candidate) -> dict[str, Any]:
    return {name: getattr(c, name)[[0, 1, 1, 2, 3]] for name in ("noisy", "denoised", "refined")}


def with_a_slice_instead_of_another(c: Candidate) -> dict[str, Any]:
    return {name: getattr(c, name)[[0, 1, 1, 3]] for name in ("noisy", "denoised", "refined")}


def reshaped(c: Candidate) -> dict[str, Any]:
    return {name: getattr(c, name).reshape(4, 32, 128) for name in ("noisy", "denoised", "refined")}


def refined_reshaped(c: Candidate) -> dict[str, Any]:
    return {"refined": c.refined.reshape(4, 32, 128)}


def with_one(value: float) -> Edit:
    def edit(c: Candidate) -> dict[str, Any]:
        refined = c.refined.copy()
        refined[np.unravel_index(refined.argmin(), refined.shape)] = value
        return {"refined": refined}

    return edit


def denoised_not_finite(c: Candidate) -> dict[str, Any]:
    denoised = c.denoised.copy()
    denoised[0, 0, 0] = np.inf
    return {"denoised": denoised}


def total_too_large(c: Candidate) -> dict[str, Any]:
    return {"refined": c.refined * np.float32(1.4)}


def total_too_small(c: Candidate) -> dict[str, Any]:
    return {"refined": c.refined * np.float32(0.6)}


def factor_is_no_number(c: Candidate) -> dict[str, Any]:
    return {"refinement": {"gamma": float("nan")}}


def other_charge(c: Candidate) -> dict[str, Any]:
    return {"budget": dataclasses.replace(c.budget, charged="2.00000000000000000000000000000000000001")}


def other_scale(c: Candidate) -> dict[str, Any]:
    return {"scale": c.scale * 2}


@pytest.mark.parametrize(
    ("broken", "expectation"),
    [
        (without_a_slice, gate.SLICES),
        (with_a_slice_more, gate.SLICES),
        (with_a_slice_instead_of_another, gate.SLICES),
        (reshaped, gate.SHAPE),
        (refined_reshaped, gate.SHAPE),
        (with_one(np.nan), gate.FINITE),
        (with_one(np.inf), gate.FINITE),
        (denoised_not_finite, gate.FINITE),
        (with_one(-0.01), gate.NON_NEGATIVE),
        (total_too_large, gate.TOTAL),
        (total_too_small, gate.TOTAL),
        (factor_is_no_number, gate.TOTAL),
        (other_scale, gate.NOISE),
        (other_charge, gate.CHARGE),
    ],
)
def test_what_is_wrong_is_refused_by_its_own_expectation(broken: Edit, expectation, good, tmp_path):
    verdict = judged(dataclasses.replace(good, **broken(good)), tmp_path)
    assert failed(verdict) == [expectation]


def test_values_below_0_pass_where_the_policy_publishes_them(tmp_path):
    verdict = judged(night(declared(more="[refine]\nnon_negative = false\n")), tmp_path)
    assert failed(verdict) == [] and gate.NON_NEGATIVE not in [j.expectation for j in verdict.judgements]


@pytest.mark.parametrize("applied", [0, 0.5, 0.85, 1.15, 2])
@pytest.mark.parametrize("method", DENOISERS)
def test_other_noise_than_declared_is_refused(applied, method, tmp_path):
    assert failed(judged(night(declared(), "city", method, applied=applied), tmp_path)) == [gate.NOISE]


def test_one_slice_without_noise_among_many_is_refused(tmp_path):
    policy = declared("3", (96, 64, 64))
    candidate, bare = night(policy), night(policy, applied=0)
    candidate.noisy[50] = bare.noisy[50]
    verdict = judged(candidate, tmp_path)
    assert failed(verdict) == [gate.NOISE]
    assert "1 of 96 slices with other noise" in verdict.results


@pytest.mark.parametrize("kind", ["empty", "city", "dense"])
@pytest.mark.parametrize("scale", [0.5, 1, 3, 40, 1000])
def test_the_law_of_the_noise_accepts_its_scale_and_rejects_others(scale, kind):
    law, rng = NoiseLaw.of(scale), np.random.default_rng(7)
    counts = city(rng, kind, (1, 64, 64))
    noise = {
        applied: [laplace(rng, scale * applied, counts.shape) if applied else 0 for _ in range(20)] for applied in (1, 0, 0.5, 2)
    }
    chances = {applied: [law.chance(law.evidence(counts + draw)) for draw in draws] for applied, draws in noise.items()}
    assert min(chances[1]) > 1e-5
    if kind != "dense" or scale == 1000:
        assert max(max(chances[applied]) for applied in (0, 0.5, 2)) < gate.LEAST_CHANCE
    elif scale == 40:
        # No cell is cold, but the crowds are even: too little noise is seen, too much is not.
        assert max(max(chances[applied]) for applied in (0, 0.5)) < gate.LEAST_CHANCE


def test_the_chances_of_the_noise_are_as_frequent_as_they_say():
    law, rng = NoiseLaw.of(3), np.random.default_rng(3)
    counts = city(rng, "city", (1, 32, 32))
    chances = np.array([law.chance(law.evidence(counts + laplace(rng, 3, counts.shape))) for _ in range(2000)])
    assert 0.05 < np.mean(chances < 0.1) < 0.2 and np.mean(chances < 0.001) < 0.006


def test_a_dense_map_says_that_its_scale_is_unsure(tmp_path):
    verdict = judged(night(declared(), "dense"), tmp_path)
    assert "too few to be sure of the scale" in verdict.results


def test_drift_beyond_the_tolerance_is_refused(good, tmp_path):
    assert failed(judged(good, tmp_path / "a", good.refined * np.float32(1.3))) == []
    assert failed(judged(good, tmp_path / "b", good.refined * np.float32(3))) == [gate.DRIFT]
    assert failed(judged(good, tmp_path / "c", good.refined * np.float32(0.4))) == [gate.DRIFT]


def test_the_first_release_has_nothing_to_drift_from(good, tmp_path):
    seen = {j.expectation: j.seen for j in judged(good, tmp_path).judgements}
    assert seen[gate.DRIFT] == "no earlier release"


def test_the_announced_epsilon_is_compared_exactly(good, tmp_path):
    epsilon = str(good.policy.privacy.epsilon)
    assert failed(judged(good, tmp_path / "a", epsilon=epsilon + "00")) == []
    assert failed(judged(good, tmp_path / "b", epsilon=epsilon + "0" * 40 + "1")) == [gate.CHARGE]
    assert failed(judged(good, tmp_path / "c", epsilon="inf")) == [gate.CHARGE]


def test_a_failed_gate_says_what_failed_and_where_to_look(good, tmp_path):
    verdict = judged(good, tmp_path, epsilon="9")
    with pytest.raises(GateFailed) as caught:
        require(verdict)
    message = str(caught.value)
    assert caught.value.exit_code == REFUSED
    for part in ("the gate of the release", gate.CHARGE, "9 announced", str(tmp_path / "index.html"), "Nothing was published"):
        assert part in message
    assert "stays spent" in message and gate.TOTAL not in message


def test_a_verdict_survives_its_table(good, tmp_path):
    verdict = judged(good, tmp_path)
    row = {"gate": verdict.gate, "passed": verdict.passed, "results": verdict.results, "docs": verdict.docs}
    assert row.keys() <= set(VERDICTS.column_names)
    assert Verdict.of_row(json.loads(json.dumps(row))) == verdict


def test_the_pages_of_a_release_hold_no_cell(good, tmp_path):
    noisy, refined = good.noisy.copy(), good.refined.copy()
    noisy[0, 5, 5], refined[0, 5, 5] = 7654321, 0.7654321
    verdict = judged(dataclasses.replace(good, noisy=noisy, refined=refined), tmp_path, epsilon="9")
    pages = files_of(tmp_path)
    assert Path(verdict.docs).is_file() and gate.CHARGE in pages
    assert "7654321" not in pages + verdict.results and "7,654,321" not in pages + verdict.results


def test_a_gate_calls_nobody(good, tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise AssertionError("a gate opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    judge = gate._Judge(tmp_path)
    assert judge.context.variables.analytics_enabled is False
    judged(good, tmp_path)
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"


CANARIES = ("canary-user-8151", "40.0815162", "-73.9815162")
ROW = (CANARIES[0], datetime(2026, 11, 14), float(CANARIES[1]), float(CANARIES[2]))
EVENTS = "user_id string, event_time timestamp, lat double, lon double"


def test_events_of_the_right_shape_pass_and_leave_no_trace(spark: SparkSession, tmp_path):
    verdict = judge_events(spark.createDataFrame([ROW], EVENTS), tmp_path)
    assert failed(verdict) == [] and verdict.gate == "events" and Path(verdict.docs).is_file()
    assert not [canary for canary in CANARIES if canary in files_of(tmp_path) + verdict.results]


def test_no_row_of_the_events_is_read(spark: SparkSession, tmp_path):
    rows = spark.createDataFrame([ROW], EVENTS)
    bad = rows.selectExpr("raise_error('a row was read') AS user_id", "event_time", "lat", "lon")
    assert failed(judge_events(bad.selectExpr("CAST(user_id AS string) AS user_id", "event_time", "lat", "lon"), tmp_path)) == []


def test_a_missing_column_is_refused(spark: SparkSession, tmp_path):
    verdict = judge_events(spark.createDataFrame([ROW], EVENTS).drop("event_time"), tmp_path)
    assert failed(verdict) == [gate.COLUMNS] and "event_time missing" in verdict.results
    with pytest.raises(GateFailed, match="the gate of the events"):
        require(verdict)


def test_a_column_of_the_wrong_type_is_refused(spark: SparkSession, tmp_path):
    events = spark.createDataFrame([ROW], EVENTS).selectExpr("user_id", "event_time", "string(lat) lat", "lon")
    verdict = judge_events(events, tmp_path)
    assert failed(verdict) == [gate.TYPES] and "lat is StringType" in verdict.results
    assert not [canary for canary in CANARIES if canary in files_of(tmp_path) + verdict.results]


def test_names_that_may_be_values_are_not_repeated(spark: SparkSession, tmp_path):
    headless = spark.createDataFrame([ROW], EVENTS).withColumnsRenamed({"user_id": CANARIES[0], "lat": CANARIES[1]})
    verdict = judge_events(headless, tmp_path)
    assert failed(verdict) == [gate.COLUMNS]
    assert not [canary for canary in CANARIES if canary in files_of(tmp_path) + verdict.results]
