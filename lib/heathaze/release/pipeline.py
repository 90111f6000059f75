"""The stages right of denoise: refine, gate, publish."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from heathaze.errors import InputError
from heathaze.policy import Policy
from heathaze.release import publish as publishing
from heathaze.release.candidate import Candidate, load_candidate, tensor_of
from heathaze.release.gate import Verdict, judge_release, require
from heathaze.release.manifest import make_manifest, release_name
from heathaze.release.refine import Measured, refine
from heathaze.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Releasing:
    """What one night's release works with."""

    policy: Policy
    period: str
    tables: Tables
    files: Path
    """Folder for what people open: Data Docs, manifests, reports."""
    say: Callable[[str], None]
    spark: SparkSession | None = None
    """Needed only where the tables are in a catalog."""


def run_refine(night: Releasing) -> None:
    """Scale, clip and round the denoised tensor of one night."""
    from heathaze.learn.denoiser import Denoised, noise_variance
    from heathaze.learn.handoff import nights_until
    from heathaze.learn.maps import Estimate, Scales
    from heathaze.learn.pipeline import Denoising, denoise_again, measured_of
    from heathaze.release.rehearsal import rehearse

    policy, tables = night.policy, night.tables
    nights = nights_until(tables, policy.dataset.name, policy.measurement_hash, night.period, night.spark)
    if not nights or nights[-1].period != night.period:
        raise InputError(f"{policy.dataset.name}/{night.period} has no noisy tensor yet: run collect first.")
    entry = nights[-1].entry
    token = f"{entry}:refined:{policy.hash}"
    if tables.is_committed("refined", token, night.spark):
        return
    night.say("refining")
    noisy = tables.load("noisy", pc.field("entry") == entry, spark=night.spark).sort_by("slice")
    chosen = (pc.field("entry") == entry) & (pc.field("settings") == policy.denoise_hash)
    denoised = tables.load("denoised", chosen, spark=night.spark).sort_by("slice")
    if not len(denoised):
        raise InputError(f"{policy.dataset.name}/{night.period} is not denoised yet: run denoise first.")
    measured = Measured(
        sum(nights[-1].totals),
        noisy["noisy_event_count"][0].as_py(),
        noise_variance(nights[-1].scale),
    )
    deviation = None if denoised["deviation"].null_count else tensor_of(denoised, "deviation", "<f4")
    values, tensor = tensor_of(denoised, "values", "<f4"), tensor_of(noisy, "values", "<i4")
    result = refine(values, deviation, tensor, measured, policy.refine)
    night.say("rehearsing the night, to know how sure its answers are")
    denoising = Denoising(policy, night.period, tables, night.files / "training", night.say, night.say, night.spark)
    again = denoise_again(denoising, denoised["model"][0].as_py())
    scales = Scales(nights[-1].scale, nights[-1].total_scale, nights[-1].map_scale, policy.grid.coarser)
    # Blocks and map are not kept apart: where there is a map they are made again, to the same numbers.
    found = again(measured_of(denoising)) if policy.grid.slice_block else Estimate(Denoised(values, deviation), None, 1)
    errors = rehearse(found, tensor, scales, again, policy.refine, seed=int(entry, 16) % 2**32)
    facts = {name: value for name, value in asdict(result).items() if name != "values"} | {"uncertainty": errors.to_json()}
    rows = [
        {
            "entry": entry,
            "settings": policy.hash,
            "facts": json.dumps(facts),
            "slice": number,
            "rows": image.shape[0],
            "cols": image.shape[1],
            "values": image.astype("<f4").tobytes(),
        }
        for number, image in enumerate(result.values)
    ]
    tables.append_rows_once("refined", rows, token, night.spark)


def run_gate(night: Releasing) -> None:
    """Judge the refined night on noisy data alone; a night that fails goes no further."""
    candidate = load_candidate(night.tables, night.policy, night.period, night.spark)
    if _passed(night, candidate) is not None or publishing.is_published(night.tables, release_name(candidate), night.spark):
        return
    night.say("judging the release")
    last = publishing.last_values(night.tables, candidate, night.spark)
    docs = night.files / "gates" / f"{release_name(candidate)}"
    verdict = judge_release(candidate, last, candidate.budget.charged, docs)
    record(night.tables, night.policy, night.period, verdict, candidate.entry, night.spark)
    require(verdict)


def run_publish(night: Releasing) -> tuple[str, Path, bool]:
    """Publish a night that passed its gate; returns the release, the folder of its files, and whether it is new."""
    from heathaze.release.report import render

    candidate = load_candidate(night.tables, night.policy, night.period, night.spark)
    name = release_name(candidate)
    is_new = False
    if not publishing.is_published(night.tables, name, night.spark):
        gates = _passed(night, candidate)
        if gates is None:
            raise InputError(f"{name} has not passed its gate: run gate_release first.")
        night.say("publishing")
        is_new = publishing.publish(
            night.tables, candidate, make_manifest(candidate, gates), render(candidate, name, gates), night.spark
        )
    return name, publishing.export(night.tables, name, night.files / "releases", night.spark), is_new


def record(
    tables: Tables, policy: Policy, period: str, verdict: Verdict, entry: str = "", spark: SparkSession | None = None
) -> None:
    """Keep a verdict, whatever it is."""
    judged_at = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    row = {
        "dataset": policy.dataset.name,
        "period": period,
        "entry": entry,
        "gate": verdict.gate,
        "policy": policy.hash,
        "passed": verdict.passed,
        "judged_at": judged_at,
        "results": json.dumps([asdict(judgement) for judgement in verdict.judgements]),
        "docs": verdict.docs,
    }
    tables.append_rows_once("verdicts", [row], f"verdict:{verdict.gate}:{entry}:{judged_at}", spark)


def _passed(night: Releasing, candidate: Candidate) -> list[dict[str, Any]] | None:
    """What the release gate saw of this night under this policy where it passed, None where it has not."""
    same = (pc.field("entry") == candidate.entry) & (pc.field("policy") == night.policy.hash) & pc.field("passed")
    rows = night.tables.load("verdicts", same & (pc.field("gate") == "release"), spark=night.spark).to_pylist()
    return json.loads(max(rows, key=lambda row: row["judged_at"])["results"]) if rows else None
