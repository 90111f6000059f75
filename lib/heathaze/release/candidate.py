"""A candidate: everything about one night that the gate judges, the release carries and the report shows."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from heathaze.errors import InputError
from heathaze.grid import Grid, Period
from heathaze.policy import Policy
from heathaze.rho import spread_evenly
from heathaze.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Budget:
    """The ledger's side of one night."""

    charged: str
    """Epsilon of this night."""
    delta: str
    spent: str
    """Epsilon of the whole window so far."""
    cap: str
    window: str
    charges: tuple[tuple[str, str], ...]
    """(period, epsilon) of every charge of the window, oldest first."""

    @property
    def left(self) -> str:
        return str(Decimal(self.cap) - Decimal(self.spent))


@dataclass(frozen=True)
class Candidate:
    """One night after refine, before the gate. Tensors are slices x rows x cols."""

    policy: Policy
    period: Period
    entry: str
    """Ledger entry of the measurement."""
    grid: Grid
    scale: Fraction
    """Scale of the noise of one cell."""
    noisy: np.ndarray
    """int32; on the grid of slices, which is coarser than the published one where there is a map of the whole period."""
    denoised: np.ndarray
    """float32."""
    deviation: np.ndarray | None
    """float32, where the denoiser knows it."""
    refined: np.ndarray
    """float32; what is published."""
    refinement: dict[str, Any]
    """gamma, C, totals."""
    sample_size: int
    """Noisy n."""
    event_count: int
    """N, noisy or declared."""
    denoise_facts: dict[str, Any]
    """Method, nights used, drift, model age."""
    model: dict[str, Any] | None
    """name, lineage, curve (list of epochs), picture (PNG bytes); None where the method has no model."""
    budget: Budget
    statements: tuple[dict[str, str], ...] = ()
    """stage, does, sensitivity of every stage that touched people's data."""
    map: np.ndarray | None = None
    """Noisy counts of the whole period on the published grid, int32, where the policy measures them; None elsewhere."""
    squares: bytes | None = None
    """The networks of snh with the grid they came from, as `squares.pack` packs them; None for other methods."""

    @property
    def side(self) -> int:
        """Of what is measured as one in a slice, in published cells."""
        return self.policy.grid.coarser

    @property
    def noisy_cells(self) -> np.ndarray:
        """What was measured, on the published grid: the cells of a block share its count evenly."""
        return spread_evenly(self.noisy, self.side)


def load_candidate(tables: Tables, policy: Policy, period: str, spark: SparkSession | None = None) -> Candidate:
    """Read one refined night with all that led to it, from noisy and later tables only."""
    ledger = sorted(tables.load("ledger", spark=spark).to_pylist(), key=lambda row: row["sequence"])
    wanted = (policy.dataset.name, period, policy.measurement_hash)
    mine = [row for row in ledger if (row["dataset"], row["period"], row["measurement"]) == wanted]
    if not mine:
        raise InputError(f"{policy.dataset.name}/{period} has not been collected yet: run collect first.")
    charge = mine[-1]
    entry = charge["entry"]
    noisy = _slices(tables, "noisy", pc.field("entry") == entry, spark)
    chosen = (pc.field("entry") == entry) & (pc.field("settings") == policy.denoise_hash)
    denoised = _slices(tables, "denoised", chosen, spark)
    refined = _slices(tables, "refined", (pc.field("entry") == entry) & (pc.field("settings") == policy.hash), spark)
    first = noisy.slice(0, 1).to_pylist()[0]
    deviation = None if denoised["deviation"].null_count else tensor_of(denoised, "deviation", "<f4")
    window = [row for row in ledger if (row["dataset"], row["time_window"]) == (charge["dataset"], charge["time_window"])]
    name = denoised["model"][0].as_py()
    squares = (
        _squares(tables, policy, tensor_of(noisy, "values", "<i4")[0], name, spark) if policy.release.method == "snh" else None
    )
    return Candidate(
        policy=policy,
        period=policy.period_of(period),
        entry=entry,
        grid=policy.grid.build(),
        scale=Fraction(first["scale"]),
        noisy=tensor_of(noisy, "values", "<i4"),
        denoised=tensor_of(denoised, "values", "<f4"),
        deviation=deviation,
        refined=tensor_of(refined, "values", "<f4"),
        refinement=json.loads(refined["facts"][0].as_py()),
        sample_size=sum(noisy["noisy_total"].to_pylist()),
        event_count=first["noisy_event_count"],
        denoise_facts=json.loads(denoised["facts"][0].as_py()),
        model=_model(tables, name, spark) if name else None,
        budget=Budget(
            charged=charge["epsilon"],
            delta=charge["delta"],
            spent=str(sum((Decimal(row["epsilon"]) for row in window), Decimal(0))),
            cap=str(min(Decimal(row["cap"]) for row in window)),
            window=charge["time_window"],
            charges=tuple((row["period"], row["epsilon"]) for row in window),
        ),
        statements=tuple(json.loads(first["statements"])),
        map=_map(first["map"], policy),
        squares=squares,
    )


def tensor_of(rows: pa.Table, column: str, kind: str) -> np.ndarray:
    """The slices of a table, in order, as one array."""
    height, width = rows["rows"][0].as_py(), rows["cols"][0].as_py()
    return np.stack([np.frombuffer(value.as_buffer(), dtype=kind).reshape(height, width) for value in rows[column]])


def _map(content: bytes | None, policy: Policy) -> np.ndarray | None:
    grid = policy.grid.build()
    return None if content is None else np.frombuffer(content, "<i4").reshape(grid.rows, grid.cols)


def _squares(tables: Tables, policy: Policy, noisy: np.ndarray, model: str, spark: SparkSession | None) -> bytes:
    """The networks of a model with the grid that they learned from."""
    from heathaze.learn import models
    from heathaze.release.squares import SquareRelease, pack

    ours = policy.denoise.snh
    weights = {name: value.numpy() for name, value in models.load(tables, model, spark).weights.items()}
    sizes = (ours.sides, float(ours.smallest), float(ours.largest))
    return pack(SquareRelease(policy.grid.build(), policy.privacy.histogram_scale, noisy, ours.architecture, *sizes, weights))


def _slices(tables: Tables, name: str, where: pc.Expression, spark: SparkSession | None) -> pa.Table:
    rows = tables.load(name, where, spark=spark).sort_by("slice")
    if not len(rows):
        raise InputError(f"this night is not in the table '{name}' yet: run the stage that writes it first.")
    return rows


def _model(tables: Tables, name: str, spark: SparkSession | None) -> dict[str, Any]:
    columns = ["model", "lineage", "curve", "picture", "score"]
    row = tables.load("models", pc.field("model") == name, columns, spark).to_pylist()[0]
    return {**row, "lineage": json.loads(row["lineage"]), "curve": json.loads(row["curve"])}
