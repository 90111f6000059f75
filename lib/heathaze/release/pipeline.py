"""refine, stage by stage right of denoise; the gate and publish follow."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from heathaze.errors import InputError
from heathaze.policy import Policy
from heathaze.release.candidate import tensor_of
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
    say: Callable[[str], None]
    spark: SparkSession | None = None
    """Needed only where the tables are in a catalog."""


def run_refine(night: Releasing) -> None:
    """Scale, clip and round the denoised tensor of one night."""
    from heathaze.learn.denoiser import noise_variance
    from heathaze.learn.handoff import nights_until

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
        noisy["noisy_sample_size"][0].as_py(),
        noisy["noisy_event_count"][0].as_py(),
        noise_variance(Fraction(noisy["scale"][0].as_py())),
    )
    deviation = None if denoised["deviation"].null_count else tensor_of(denoised, "deviation", "<f4")
    result = refine(tensor_of(denoised, "values", "<f4"), deviation, tensor_of(noisy, "values", "<i4"), measured, policy.refine)
    facts = {name: value for name, value in asdict(result).items() if name != "values"}
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
