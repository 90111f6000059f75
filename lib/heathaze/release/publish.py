"""publish: one immutable release per measurement and policy; readers see all of it or none.

A release is one commit to the table `releases`: its slices, its manifest and its report. The same release published twice is one
release. Files for people (manifest.json, report.html) are copies, written after the commit and written again if they are missing.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from heathaze.errors import InputError
from heathaze.release.candidate import Candidate, tensor_of
from heathaze.release.manifest import checksum, digest
from heathaze.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = ["release", "dataset", "period", "published_at", "manifest"]


@dataclass(frozen=True)
class Published:
    """A release as it is listed."""

    release: str
    dataset: str
    period: str
    published_at: str
    manifest: dict[str, Any]


def publish(
    tables: Tables, candidate: Candidate, manifest: dict[str, Any], report: str, spark: SparkSession | None = None
) -> bool:
    """Write the release in one commit; returns whether this call wrote it, and not another before it or at the same time."""
    name, edges = manifest["release"], candidate.period.edges
    if is_published(tables, name, spark):
        return False
    rows = [
        {
            "release": name,
            "entry": candidate.entry,
            "dataset": manifest["dataset"],
            "period": manifest["period"],
            "published_at": manifest["published_at"],
            "slice": number,
            "starts_at": edges[number],
            "rows": image.shape[0],
            "cols": image.shape[1],
            "values": image.astype("<f4").tobytes(),
            "noisy": candidate.noisy[number].astype("<i4").tobytes(),
            "deviation": None if candidate.deviation is None else candidate.deviation[number].astype("<f4").tobytes(),
            "checksum": manifest["checksums"][number],
            "squares": candidate.squares if number == 0 else None,
            "manifest": json.dumps(manifest) if number == 0 else None,
            "report": report if number == 0 else None,
        }
        for number, image in enumerate(candidate.refined)
    ]
    return tables.append_rows_once("releases", rows, f"release:{name}", spark)


def is_published(tables: Tables, release: str, spark: SparkSession | None = None) -> bool:
    return tables.is_committed("releases", f"release:{release}", spark)


def releases(tables: Tables, spark: SparkSession | None = None) -> list[Published]:
    """Every release, by dataset and period, the newest of a period last."""
    rows = tables.load("releases", pc.field("slice") == 0, COLUMNS, spark).to_pylist()
    listed = [Published(**{**row, "manifest": json.loads(row["manifest"])}) for row in rows]
    return sorted(listed, key=lambda one: (one.dataset, one.period, one.published_at))


def find_release(tables: Tables, name: str, spark: SparkSession | None = None) -> Published:
    """A release by its name, or the newest of all for `latest`."""
    listed = releases(tables, spark)
    found = [one for one in listed if one.release == name]
    if name == "latest" and listed:
        found = [max(listed, key=lambda one: (one.period, one.published_at))]
    if not found:
        known = ", ".join(one.release for one in listed[-5:]) or "none"
        raise InputError(f"there is no release '{name}' in {tables.root}; published are: {known}.")
    return found[0]


def values_of(tables: Tables, release: str, spark: SparkSession | None = None) -> np.ndarray:
    """The published tensor: slices x rows x cols, float32."""
    columns = ["slice", "rows", "cols", "values"]
    return tensor_of(tables.load("releases", pc.field("release") == release, columns, spark).sort_by("slice"), "values", "<f4")


def last_values(tables: Tables, candidate: Candidate, spark: SparkSession | None = None) -> np.ndarray | None:
    """The published tensor of the newest release of an earlier period, None where there is none of the same shape."""
    earlier = [
        one
        for one in releases(tables, spark)
        if one.dataset == candidate.policy.dataset.name and one.period < candidate.period.name
    ]
    if not earlier:
        return None
    values = values_of(tables, earlier[-1].release, spark)
    return values if values.shape == candidate.refined.shape else None


def squares_of(tables: Tables, release: str, spark: SparkSession | None = None) -> bytes | None:
    """The networks of snh with the grid that they came from; None for a release of another method."""
    where = (pc.field("release") == release) & (pc.field("slice") == 0)
    content = tables.load("releases", where, ["squares"], spark)["squares"][0].as_py()
    return None if content is None else bytes(content)


def export(tables: Tables, release: str, folder: Path, spark: SparkSession | None = None) -> Path:
    """Write a release's manifest.json, report.html and, of snh, squares.npz for people to open; returns the folder."""
    where = (pc.field("release") == release) & (pc.field("slice") == 0)
    row = tables.load("releases", where, ["manifest", "report", "squares"], spark).to_pylist()[0]
    files = {"manifest.json": json.dumps(json.loads(row["manifest"]), indent=2).encode(), "report.html": row["report"].encode()}
    if row["squares"] is not None:
        files["squares.npz"] = bytes(row["squares"])
    target = folder / release
    target.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        fresh = target / f".{name}.{os.getpid()}"
        fresh.write_bytes(content)
        os.replace(fresh, target / name)
    return target


def verify(tables: Tables, release: Published, spark: SparkSession | None = None) -> list[tuple[str, bool]]:
    """Check a release against itself and against the ledger: what was checked, and whether it held."""
    manifest = release.manifest
    values = values_of(tables, release.release, spark)
    charge = tables.load("ledger", pc.field("entry") == manifest["entry"], spark=spark).to_pylist()
    sums = [checksum(image) for image in values]
    squares = squares_of(tables, release.release, spark)
    shape = (len(manifest["slices"]) - 1, manifest["grid"]["rows"], manifest["grid"]["cols"])
    return [
        ("every slice of the grid is there", values.shape == shape),
        ("every slice has the checksum of the manifest", sums == manifest["checksums"]),
        ("the networks are those of the manifest", (squares and digest(squares)) == (manifest["squares"] or {}).get("checksum")),
        ("the ledger holds the charge", len(charge) == 1),
        ("the ledger's epsilon is the manifest's", bool(charge) and charge[0]["epsilon"] == manifest["epsilon"]["spent"]),
        ("the ledger's period is the manifest's", bool(charge) and charge[0]["period"] == manifest["period"]),
        ("every gate held", all(gate["held"] for gate in manifest["gates"])),
    ]
