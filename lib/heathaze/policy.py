"""The policy: one TOML file that declares everything the guarantee depends on.

Numbers that matter to privacy are parsed as exact decimals and never become floats. Unknown keys are refused,
because a misspelt key is a promise that was not made.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import re
import tomllib
import types
import typing
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from zoneinfo import ZoneInfo

from heathaze.errors import PolicyError
from heathaze.grid import METRES_PER_DEGREE, Grid, Period

MAX_CELLS = 2**28
"""Cells of one slice; a slice is one binary value, and one task holds a few copies of it."""

MAX_SCALE = 20_000
"""Largest k / epsilon of the histogram: beyond it a cell says nothing and the sampler's table grows past memory."""

MAX_EVENTS = 10**15
"""Largest number of events that a policy may speak of."""

MAX_SNH_CELLS = 2**23
"""Cells of the grid of snh: learning takes up to 600 bytes for each, so about 5 GB."""

METHODS = ("vdr", "snh")

WITH_MAP = ("none", "shrink", "bayes")
"""Denoisers that can tell by a map of the whole period where in a block the events of a slice are."""
DENOISERS = ("none", "shrink", "vqvae", "bayes", "snh")
ARCHITECTURES = ("local", "paper")
LAUNCHERS = ("auto", "horovod", "torch", "horovod-spark", "torch-spark")
WINDOWS = ("month", "quarter", "year", "ever")


def _must(holds: bool, key: str, rule: str, found: object) -> None:
    if not holds:
        raise PolicyError(f"{key} must be {rule}, but it is {found}.")


@dataclass(frozen=True)
class Dataset:
    """Which events, and what their columns are called."""

    name: str
    """Name of the dataset in the ledger and in every release: letters, digits, dot, dash, underscore."""
    user: str = "user_id"
    """Column with the id whose records are protected together."""
    time: str = "event_time"
    """Column with the time of the event."""
    lat: str = "lat"
    """Column with the latitude, degrees."""
    lon: str = "lon"
    """Column with the longitude, degrees."""
    timezone: str = "UTC"
    """Zone of the period's midnight, and of times that carry no offset."""
    partition: str = ""
    """Column that holds the period's first day and by which the events are partitioned; empty: none."""

    def __post_init__(self) -> None:
        _must(
            bool(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", self.name)),
            "dataset.name",
            "1 to 100 letters, digits, dots, dashes or underscores",
            repr(self.name),
        )
        try:
            ZoneInfo(self.timezone)
        except (OSError, ValueError, KeyError):
            raise PolicyError(
                f"dataset.timezone must be a time zone such as 'Europe/Paris', but it is {self.timezone!r}."
            ) from None
        columns = [self.user, self.time, self.lat, self.lon]
        _must(len(set(columns)) == 4 and all(columns), "dataset columns", "four different names", columns)


@dataclass(frozen=True)
class PeriodSettings:
    """The stretch of time that one release speaks of."""

    days: int = 1
    """Length of the period in local days."""
    slices: int = 8
    """Number of equal time slices of the period."""

    def __post_init__(self) -> None:
        _must(1 <= self.days <= 366, "period.days", "between 1 and 366", self.days)
        _must(1 <= self.slices <= 24 * 366, "period.slices", "between 1 and 8784", self.slices)
        _must(
            (self.days * 86_400) % self.slices == 0,
            "period.slices",
            f"a divisor of the {self.days * 86_400} seconds of the period",
            self.slices,
        )


@dataclass(frozen=True)
class GridSettings:
    """The public grid: never taken from the data."""

    south: Decimal
    """Southern edge, degrees; part of the grid."""
    west: Decimal
    """Western edge, degrees; part of the grid."""
    north: Decimal
    """Northern edge, degrees; not part of the grid."""
    east: Decimal
    """Eastern edge, degrees; not part of the grid."""
    rows: int | None = None
    """Cells from south to north. Give rows and cols, or cell_metres."""
    cols: int | None = None
    """Cells from west to east."""
    cell_metres: Decimal | None = None
    """Side of a cell in metres, from which rows and cols follow."""
    rho: str = ""
    """"auto" in place of cell_metres: the side follows from epsilon, k and the declared number of events, by ParamSelect."""
    block: int = 1
    """Cells are measured and published in square blocks of so many cells a side, as if the grid were that much coarser. "auto" in
    the file: the side follows from epsilon, k and the declared number of events; so do slice_block and the shares of epsilon,
    where neither is given."""
    slice_block: int = 0
    """Side, in cells, of the larger blocks in which single slices are measured; where in them the events are is told by a map of
    the whole period in blocks of `block` cells, which is measured apart (privacy.shares.map). 0: slices are measured as they are
    published, and there is no such map."""

    def __post_init__(self) -> None:
        _must(self.rho in ("", "auto"), "grid.rho", "a number of metres or 'auto'", repr(self.rho))
        _must(-90 <= self.south < self.north <= 90, "grid.south < grid.north", "within -90..90", (self.south, self.north))
        _must(-180 <= self.west < self.east <= 180, "grid.west < grid.east", "within -180..180", (self.west, self.east))
        given = (self.rows is not None, self.cols is not None, self.cell_metres is not None)
        _must(given in ((True, True, False), (False, False, True)), "grid", "given rows and cols, or cell_metres alone", given)
        is_side = self.cell_metres is None or (self.cell_metres.is_finite() and Decimal("0.01") <= self.cell_metres <= 10**6)
        _must(is_side, "grid.cell_metres", "between 0.01 and 1000000", self.cell_metres)
        edges = [float(edge) for edge in (self.south, self.north, self.west, self.east)]
        _must(edges[0] < edges[1] and edges[2] < edges[3], "grid", "a box with an area", edges)
        _must(self.rows is None or self.rows >= 1, "grid.rows", "at least 1", self.rows)
        _must(self.cols is None or self.cols >= 1, "grid.cols", "at least 1", self.cols)
        _must(self.block >= 1, "grid.block", "at least 1, or 'auto'", self.block)
        cells = self.fine()
        is_whole = cells.rows % self.block == 0 and cells.cols % self.block == 0
        _must(is_whole, "grid.block", f"a divisor of the {cells.rows} rows and the {cells.cols} cols", self.block)
        is_larger = self.slice_block == 0 or (self.slice_block > self.block and self.slice_block % self.block == 0)
        _must(is_larger, "grid.slice_block", "0, or a multiple of grid.block and larger", self.slice_block)
        is_whole = self.slice_block == 0 or (cells.rows % self.slice_block == 0 and cells.cols % self.slice_block == 0)
        _must(
            is_whole, "grid.slice_block", f"0, or a divisor of the {cells.rows} rows and the {cells.cols} cols", self.slice_block
        )
        grid = self.build()
        _must(grid.cells <= MAX_CELLS, "grid", f"at most {MAX_CELLS} cells", f"{grid.rows} x {grid.cols}")

    def build(self) -> Grid:
        """The grid that is published."""
        return self._in_blocks(self.block)

    def of_slices(self) -> Grid:
        """The grid on which single slices are measured: the published one, or a coarser one beside a map."""
        return self._in_blocks(self.slice_block or self.block)

    @property
    def coarser(self) -> int:
        """Side, in published cells, of what is measured as one in a slice."""
        return self.slice_block // self.block or 1

    def _in_blocks(self, side: int) -> Grid:
        cells = self.fine()
        return dataclasses.replace(cells, rows=cells.rows // side, cols=cells.cols // side)

    def fine(self) -> Grid:
        """The grid as if every cell were measured by itself."""
        south, west, north, east = (float(x) for x in (self.south, self.west, self.north, self.east))
        if self.cell_metres is None:
            assert self.rows is not None and self.cols is not None
            return Grid(south, west, north, east, self.rows, self.cols)
        side = float(self.cell_metres)
        height = (north - south) * METRES_PER_DEGREE
        width = (east - west) * METRES_PER_DEGREE * math.cos(math.radians((south + north) / 2))
        return Grid(south, west, north, east, max(1, round(height / side)), max(1, round(width / side)))


@dataclass(frozen=True)
class Shares:
    """How epsilon is divided between what is measured. The shares add up to 1, exactly."""

    histogram: Decimal = Decimal("0.98")
    """The counts of all cells; L1 sensitivity max_events_per_user."""
    totals: Decimal = Decimal("0.02")
    """The number of events of each slice after bounding, whose sum is n; L1 sensitivity max_events_per_user."""
    event_count: Decimal = Decimal(0)
    """N, the number of events before bounding; sensitivity max_counted_per_user. 0 where N is declared."""
    map: Decimal = Decimal(0)
    """The map of the whole period, all slices together; L1 sensitivity max_events_per_user. 0 where grid.slice_block is 0."""

    def __post_init__(self) -> None:
        for name in ("histogram", "totals", "event_count", "map"):
            _must(0 <= getattr(self, name) < 1, f"privacy.shares.{name}", "between 0 and 1", getattr(self, name))
        _must(self.histogram > 0, "privacy.shares.histogram", "above 0", self.histogram)
        _must(self.totals > 0, "privacy.shares.totals", "above 0", self.totals)
        with localcontext(prec=1000):
            total = self.histogram + self.totals + self.event_count + self.map
        _must(total == 1, "privacy.shares", "exactly 1 in total", total)


@dataclass(frozen=True)
class Privacy:
    """The promise of one release."""

    epsilon: Decimal
    """Epsilon of the whole release of one period."""
    max_events_per_user: int
    """k: at most this many events of one user are looked at in one period."""
    unit: str = "user"
    """What is protected: all records of one user id in one period."""
    delta: Decimal = Decimal(0)
    """Delta of the whole release; 0 for every mechanism of the method vdr."""
    declared_event_count: int | None = None
    """N as a public constant, known without looking at the data. Give it, or max_counted_per_user."""
    max_counted_per_user: int | None = None
    """Cap per user on the events that are counted into N, when N is measured."""
    shares: Shares = field(default_factory=Shares)
    """How epsilon is divided."""

    def __post_init__(self) -> None:
        _must(self.unit == "user", "privacy.unit", "'user'", repr(self.unit))
        _must(self.epsilon.is_finite() and 0 < self.epsilon <= 100, "privacy.epsilon", "above 0, at most 100", self.epsilon)
        _must(self.delta == 0, "privacy.delta", "0 for the method vdr, whose noise is Laplace", self.delta)
        _must(
            1 <= self.max_events_per_user <= 100_000,
            "privacy.max_events_per_user",
            "between 1 and 100000",
            self.max_events_per_user,
        )
        _must(
            (self.declared_event_count is None) != (self.max_counted_per_user is None),
            "privacy",
            "given exactly one of declared_event_count (N is public) and max_counted_per_user (N is measured): "
            "the refinement needs N, and the exact N is private",
            "both or neither",
        )
        if self.declared_event_count is not None:
            count = self.declared_event_count
            _must(1 <= count <= MAX_EVENTS, "privacy.declared_event_count", f"between 1 and {MAX_EVENTS}", count)
            _must(self.shares.event_count == 0, "privacy.shares.event_count", "0 where N is declared", self.shares.event_count)
        else:
            cap = self.max_counted_per_user
            assert cap is not None
            k = self.max_events_per_user
            _must(k <= cap <= MAX_EVENTS, "privacy.max_counted_per_user", f"between max_events_per_user and {MAX_EVENTS}", cap)
            _must(
                self.shares.event_count > 0, "privacy.shares.event_count", "above 0 where N is measured", self.shares.event_count
            )
        for name, scale in (("histogram", self.histogram_scale), ("map", self.map_scale)):
            _must(
                scale is None or scale <= MAX_SCALE,
                f"max_events_per_user / (epsilon * shares.{name})",
                f"at most {MAX_SCALE}",
                f"about 10^{len(str((scale or 0).__floor__())) - 1}",
            )

    def _scale(self, sensitivity: int, share: Decimal) -> Fraction:
        return Fraction(sensitivity) / (Fraction(self.epsilon) * Fraction(share))

    @property
    def histogram_scale(self) -> Fraction:
        """Scale of the discrete Laplace noise of one cell: k / (epsilon * share)."""
        return self._scale(self.max_events_per_user, self.shares.histogram)

    @property
    def totals_scale(self) -> Fraction:
        """Scale of the noise of the total of one slice."""
        return self._scale(self.max_events_per_user, self.shares.totals)

    @property
    def map_scale(self) -> Fraction | None:
        """Scale of the noise of one cell of the map of the whole period; None where there is none."""
        return self._scale(self.max_events_per_user, self.shares.map) if self.shares.map else None

    @property
    def event_count_scale(self) -> Fraction | None:
        """Scale of the noise of N; None where N is declared."""
        if self.max_counted_per_user is None:
            return None
        return self._scale(self.max_counted_per_user, self.shares.event_count)


@dataclass(frozen=True)
class Budget:
    """What the ledger lets one user lose over many releases."""

    cap: Decimal
    """Largest sum of epsilon over all releases of the dataset in one window."""
    window: str = "quarter"
    """month, quarter, year or ever. A period belongs to the window of its first day."""
    delta_cap: Decimal = Decimal(0)
    """Largest sum of delta in one window."""

    def __post_init__(self) -> None:
        _must(self.cap.is_finite() and self.cap > 0, "budget.cap", "above 0 and finite", self.cap)
        _must(self.window in WINDOWS, "budget.window", f"one of {', '.join(WINDOWS)}", repr(self.window))
        _must(0 <= self.delta_cap < 1, "budget.delta_cap", "between 0 and 1", self.delta_cap)

    def window_of(self, day: date) -> tuple[str, str]:
        """Name of the window that `day` belongs to, and the first day of the next one."""
        if self.window == "month":
            return f"{day:%Y-%m}", date(day.year + day.month // 12, day.month % 12 + 1, 1).isoformat()
        if self.window == "quarter":
            quarter = (day.month - 1) // 3 + 1
            return f"{day.year}-Q{quarter}", date(day.year + quarter // 4, quarter % 4 * 3 + 1, 1).isoformat()
        if self.window == "year":
            return str(day.year), date(day.year + 1, 1, 1).isoformat()
        return "ever", "a new dataset"


@dataclass(frozen=True)
class Release:
    """Which method measures and rebuilds."""

    method: str = "vdr"
    """vdr: a 3-D tensor of counts. snh: networks that answer squares, from one 2-D grid."""

    def __post_init__(self) -> None:
        _must(self.method in METHODS, "release.method", f"one of {', '.join(METHODS)}", repr(self.method))


@dataclass(frozen=True)
class VQVAESettings:
    """Sizes and training of the VQ-VAE. Sizes as in the paper, but for crops instead of whole slices."""

    codes: int = 128
    """Entries of the codebook."""
    code_size: int = 64
    """Dimension of a code."""
    target: str = "shrink"
    """What it learns to draw of a noisy slice: what shrink makes of it, or, as published, the noisy slice itself (noisy)."""
    crop: int = 48
    """Side of a training crop in cells."""
    batch: int = 64
    """Crops of one step, over all ranks."""
    epochs: int = 40
    """Passes over the noisy slices and their coarser versions, at most."""
    patience: int = 15
    """Epochs without a better score after which training stops."""
    learning_rate: Decimal = Decimal("0.002")
    """Of Adam, at its highest."""
    commitment: Decimal = Decimal("0.25")
    """Weight of the distance between the encoder's vectors and their codes."""

    def __post_init__(self) -> None:
        for name in ("codes", "code_size", "batch", "epochs", "patience"):
            _must(1 <= getattr(self, name) <= 100_000, f"denoise.vqvae.{name}", "between 1 and 100000", getattr(self, name))
        _must(self.target in ("shrink", "noisy"), "denoise.vqvae.target", "shrink or noisy", repr(self.target))
        _must(16 <= self.crop <= 1024 and self.crop % 16 == 0, "denoise.vqvae.crop", "a multiple of 16, 16 to 1024", self.crop)
        _must(0 < self.learning_rate < 1, "denoise.vqvae.learning_rate", "between 0 and 1", self.learning_rate)
        _must(0 <= self.commitment <= 10, "denoise.vqvae.commitment", "between 0 and 10", self.commitment)


@dataclass(frozen=True)
class BayesSettings:
    """Sizes and training of the context network of bayes."""

    rates: int = 40
    """Rungs of the ladder of rates that the prior is a mixture of; more are put between where counts would be drawn to them."""
    hidden: int = 64
    """Units of each of the two hidden layers."""
    cells: int = 4_000_000
    """Cells that are drawn for training, over all ranks, at most."""
    batch: int = 2_048
    """Cells of one step, over all ranks."""
    epochs: int = 10
    """Passes over the drawn cells, at most."""
    patience: int = 10
    """Epochs without a better score after which training stops."""
    learning_rate: Decimal = Decimal("0.003")
    """Of Adam, at its highest."""

    def __post_init__(self) -> None:
        for name in ("hidden", "cells", "batch", "epochs", "patience"):
            value = getattr(self, name)
            _must(1 <= value <= 100_000_000, f"denoise.bayes.{name}", "between 1 and 100000000", value)
        _must(4 <= self.rates <= 256, "denoise.bayes.rates", "between 4 and 256", self.rates)
        _must(0 < self.learning_rate < 1, "denoise.bayes.learning_rate", "between 0 and 1", self.learning_rate)


@dataclass(frozen=True)
class SNHSettings:
    """Sizes and training of the networks of snh."""

    architecture: str = "local"
    """local: networks that see what is around a place; paper: networks that see coordinates, as published."""
    sizes: int = 8
    """Networks, each for one size of square."""
    smallest: Decimal = Decimal(25)
    """Side of the smallest square that the networks are for, metres."""
    largest: Decimal = Decimal(100)
    """Side of the largest."""
    at_events: Decimal = Decimal("0.75")
    """Share of the squares learned from that lie where events are; the others lie anywhere."""
    epochs: int = 20
    """At most, for each step of the learning."""
    patience: int = 4
    """Epochs without a better score after which a step stops."""
    batch: int = 2_048
    """Cells or squares of each size in one step, over all ranks."""

    def __post_init__(self) -> None:
        rule = f"one of {', '.join(ARCHITECTURES)}"
        _must(self.architecture in ARCHITECTURES, "denoise.snh.architecture", rule, repr(self.architecture))
        _must(2 <= self.sizes <= 64, "denoise.snh.sizes", "between 2 and 64", self.sizes)
        for name in ("epochs", "patience", "batch"):
            _must(1 <= getattr(self, name) <= 10_000_000, f"denoise.snh.{name}", "between 1 and 10000000", getattr(self, name))
        _must(0 < self.smallest < self.largest <= 100_000, "denoise.snh.smallest", "above 0 and below largest", self.smallest)
        _must(0 <= self.at_events <= 1, "denoise.snh.at_events", "between 0 and 1", self.at_events)

    @property
    def sides(self) -> tuple[float, ...]:
        """The side of each network's squares, metres: the middles of equal steps from smallest to largest."""
        step = float(self.largest - self.smallest) / self.sizes
        return tuple(float(self.smallest) + step * (i + 0.5) for i in range(self.sizes))


@dataclass(frozen=True)
class Denoise:
    """How the noisy tensor is made better, from noisy tensors alone."""

    method: str = "bayes"
    """bayes (a posterior, its prior trained), shrink (classical, no training), vqvae (the paper's network) or none; snh
    where the release is made by snh."""
    history: int = 28
    """Earlier nights that are used, at most; 0: tonight alone."""
    retrain_every: int = 7
    """Nights that a trained model is used for before another one is trained."""
    max_drift: Decimal = Decimal("1.5")
    """A model whose estimated error on tonight's noisy tensor is this many times that of its training is trained anew."""
    ranks: int = 1
    """Training processes, one per GPU where there are GPUs."""
    launcher: str = "auto"
    """auto (Horovod where installed), horovod, torch, and horovod-spark or torch-spark inside a Spark job."""
    seed: int = 0
    """Seed of weights and batches. It protects nobody, so it is public."""
    vqvae: VQVAESettings = field(default_factory=VQVAESettings)
    """Settings of the method vqvae."""
    bayes: BayesSettings = field(default_factory=BayesSettings)
    """Settings of the method bayes."""
    snh: SNHSettings = field(default_factory=SNHSettings)
    """Settings of the method snh."""

    def __post_init__(self) -> None:
        _must(self.method in DENOISERS, "denoise.method", f"one of {', '.join(DENOISERS)}", repr(self.method))
        _must(0 <= self.history <= 366, "denoise.history", "between 0 and 366", self.history)
        _must(1 <= self.retrain_every <= 366, "denoise.retrain_every", "between 1 and 366", self.retrain_every)
        _must(self.max_drift > 1, "denoise.max_drift", "above 1", self.max_drift)
        _must(1 <= self.ranks <= 1024, "denoise.ranks", "between 1 and 1024", self.ranks)
        _must(self.launcher in LAUNCHERS, "denoise.launcher", f"one of {', '.join(LAUNCHERS)}", repr(self.launcher))
        _must(self.seed >= 0, "denoise.seed", "at least 0", self.seed)


@dataclass(frozen=True)
class Refine:
    """What happens to the denoised tensor before it is published."""

    uniformity: Decimal | None = None
    """C of the paper's refinement factor; absent: none where the denoiser's estimate is shrunk already, else chosen from the
    noisy tensor."""
    non_negative: bool = True
    """Whether values below 0 are published as 0."""
    round: bool = False
    """Whether values are published as whole numbers."""

    def __post_init__(self) -> None:
        _must(self.uniformity is None or 0 < self.uniformity <= 1, "refine.uniformity", "above 0, at most 1", self.uniformity)


@dataclass(frozen=True)
class Gates:
    """What must hold before a release is published; all of it is judged on noisy data."""

    total_tolerance: Decimal = Decimal("0.1")
    """Largest relative difference of the refined and the noisy total, beyond what the noise explains."""
    drift_tolerance: Decimal = Decimal("0.5")
    """Largest relative difference of the total from the last release's, beyond what the noise explains."""

    def __post_init__(self) -> None:
        for name in ("total_tolerance", "drift_tolerance"):
            value = getattr(self, name)
            _must(value.is_finite() and value > 0, f"gates.{name}", "above 0 and finite", value)


@dataclass(frozen=True)
class Policy:
    """Everything that one dataset's releases promise."""

    dataset: Dataset
    grid: GridSettings
    privacy: Privacy
    budget: Budget
    period: PeriodSettings = field(default_factory=PeriodSettings)
    release: Release = field(default_factory=Release)
    denoise: Denoise = field(default_factory=Denoise)
    refine: Refine = field(default_factory=Refine)
    gates: Gates = field(default_factory=Gates)

    def __post_init__(self) -> None:
        _must(
            self.privacy.epsilon <= self.budget.cap,
            "privacy.epsilon",
            f"at most budget.cap ({self.budget.cap}), or nothing can ever be released",
            self.privacy.epsilon,
        )
        has_map = self.grid.slice_block > 0
        _must(
            has_map == (self.privacy.shares.map > 0),
            "privacy.shares.map",
            "above 0 where grid.slice_block is given, and only there",
            self.privacy.shares.map,
        )
        _must(
            not has_map or self.denoise.method in WITH_MAP,
            "denoise.method",
            f"one of {', '.join(WITH_MAP)} where grid.slice_block is given",
            repr(self.denoise.method),
        )
        is_snh = self.release.method == "snh"
        _must((self.denoise.method == "snh") == is_snh, "denoise.method", "snh where release.method is, and only there", "not")
        if is_snh:
            grid = self.grid.build()
            _must(self.period.slices == 1, "period.slices", "1 for the method snh, which releases one grid", self.period.slices)
            found = f"{grid.rows} x {grid.cols} = {grid.cells:,}"
            _must(grid.cells <= MAX_SNH_CELLS, "grid", f"at most {MAX_SNH_CELLS:,} cells for the method snh", found)

    def period_of(self, text: str) -> Period:
        """The period that begins on the day `text` (YYYY-MM-DD), or, for before:YYYY-MM-DD, that ends as this day begins.

        A scheduler knows the day on which it starts a job, not the night that is over by then.
        """
        try:
            first = date.fromisoformat(text.removeprefix("before:"))
            first = first - timedelta(days=self.period.days) if text.startswith("before:") else first
            last = first + timedelta(days=self.period.days + 366)
        except (ValueError, OverflowError):
            raise PolicyError(
                f"a period is named by its first day, as 2026-11-14, or by before:2026-11-15, but {text!r} was given."
            ) from None
        if not 1970 <= first.year <= last.year <= 2261:
            raise PolicyError(f"a period must lie between 1970 and 2260, but {text!r} was given.")
        return Period(first, self.period.days, self.period.slices, self.dataset.timezone)

    @property
    def hash(self) -> str:
        """Hash of the whole policy: two releases with the same hash were made by the same rules."""
        return _hash(as_dict(self))

    @property
    def denoise_hash(self) -> str:
        """Hash of how the noisy tensor is denoised; where it runs does not count."""
        settings = as_dict(self.denoise)
        return _hash({name: value for name, value in settings.items() if name not in ("ranks", "launcher")})

    @property
    def measurement_hash(self) -> str:
        """Hash of what the private side reads. A change right of the noise is not a new measurement and costs nothing."""
        whole = as_dict(self)
        return _hash({name: whole[name] for name in ("dataset", "grid", "privacy", "period", "release")})


def as_dict(value: object) -> typing.Any:
    """The policy as plain JSON values; decimals as strings, so that nothing is rounded."""
    if dataclasses.is_dataclass(value):
        return {f.name: as_dict(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return _exact_text(value) if isinstance(value, Decimal) else value


def _exact_text(value: Decimal) -> str:
    """All digits of a decimal: equal numbers give equal texts, and different ones different texts."""
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") or "0" if "." in text else text


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]


def load_policy(path: str | Path) -> Policy:
    """Read and check a policy file."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"the policy file {path} cannot be read: {error}.") from None
    try:
        return parse_policy(text)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None


def parse_policy(text: str) -> Policy:
    """The policy that `text` (TOML) declares."""
    try:
        values = tomllib.loads(text, parse_float=Decimal)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"this is not valid TOML: {error}.") from None
    _fill_in_snh(values)
    _fill_in_block(values)
    return typing.cast(Policy, _build(Policy, values, ""))


def _fill_in_snh(values: dict[str, typing.Any]) -> None:
    """What the method snh implies, and the side of its cells where it is to be chosen."""
    release, grid, privacy = (_table(values.get(name)) for name in ("release", "grid", "privacy"))
    if release.get("method") == "snh":
        for name, key, implied in (("denoise", "method", "snh"), ("period", "slices", 1)):
            _table(values.setdefault(name, {})).setdefault(key, implied)
    rho = grid.get("rho")
    if rho is not None and {"cell_metres", "rows", "cols"} & set(grid):
        raise PolicyError(
            "the grid must be given rho alone, or rows and cols, or cell_metres, but it has more than one of these."
        )
    if isinstance(rho, (int, Decimal)) and not isinstance(rho, bool):
        grid["cell_metres"] = grid.pop("rho")
    elif rho == "auto":
        grid["cell_metres"] = _chosen_side(privacy)


def _fill_in_block(values: dict[str, typing.Any]) -> None:
    """The sides of the blocks that are measured, where they are to be chosen; the shares of epsilon where they are not given."""
    grid, privacy, period = (_table(values.get(name)) for name in ("grid", "privacy", "period"))
    if grid.get("block") != "auto":
        return
    from heathaze.rho import select_measuring

    sizes: typing.Any = (grid.get("rows"), grid.get("cols"))
    if not all(type(size) is int and 0 < size <= MAX_CELLS for size in sizes):
        raise PolicyError('grid.block = "auto" needs rows and cols in [grid], all above 0: blocks are made of whole cells.')
    given = [period.get(name, getattr(PeriodSettings, name)) for name in ("slices", "days")]
    slices, days = (max(1, number) if type(number) is int else 1 for number in given)
    chosen = select_measuring(*_public_numbers(privacy, "block"), sizes, slices, days)
    grid["block"] = chosen.block
    if "slice_block" not in grid and "shares" not in privacy and _table(values.get("denoise")).get("method", "bayes") in WITH_MAP:
        grid["slice_block"] = chosen.slice_block
        privacy["shares"] = {"histogram": chosen.histogram, "totals": chosen.totals, "map": chosen.map}


def _table(value: object) -> dict[str, typing.Any]:
    """A table of the policy; what is none is refused later, with its name."""
    return value if isinstance(value, dict) else {}


def _chosen_side(privacy: dict[str, typing.Any]) -> Decimal:
    from heathaze.rho import select_rho

    return Decimal(str(round(select_rho(*_public_numbers(privacy, "rho")), 1)))


def _public_numbers(privacy: dict[str, typing.Any], key: str) -> tuple[float, float, int]:
    """Events, epsilon and k as the policy declares them."""
    needed = ("declared_event_count", "epsilon", "max_events_per_user")
    given = [privacy.get(name) for name in needed]
    if not all(isinstance(value, (int, Decimal)) and 0 < value <= MAX_EVENTS for value in given):
        raise PolicyError(
            f'grid.{key} = "auto" needs {", ".join(needed)} in [privacy], all above 0: it is chosen from public '
            f"numbers alone. Give them, or give {key} as a number."
        )
    count, epsilon, k = (float(typing.cast(Decimal, value)) for value in given)
    return max(1, count), epsilon, max(1, round(k))


def _build(kind: type, values: dict[str, object], prefix: str) -> object:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    types_of = typing.get_type_hints(kind)
    for key in values:
        if key not in fields:
            near = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
            hint = f", did you mean '{near[0]}'?" if near else f"; known keys: {', '.join(fields)}."
            raise PolicyError(f"unknown key '{prefix}{key}'{hint}")
    for f in fields.values():
        required = f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
        if required and f.name not in values:
            raise PolicyError(f"the key '{prefix}{f.name}' is missing.")
    return kind(**{key: _convert(types_of[key], value, f"{prefix}{key}") for key, value in values.items()})


def _convert(kind: typing.Any, value: object, key: str) -> object:
    if isinstance(kind, types.UnionType):
        kind = next(t for t in typing.get_args(kind) if t is not type(None))
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            raise PolicyError(f"'{key}' must be a table ([{key}]), but it is {value!r}.")
        return _build(typing.cast(type, kind), value, f"{key}.")
    if kind is Decimal and isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        number = Decimal(value)
        if number.is_nan():
            raise PolicyError(f"'{key}' must be a number, but it is nan.")
        return number
    if type(value) is not kind:
        name = {int: "a whole number", Decimal: "a number", str: "a string", bool: "true or false"}[kind]
        raise PolicyError(f"'{key}' must be {name}, but it is {value!r}.")
    return value
