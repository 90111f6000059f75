"""The gates: what must hold of the events' shape before they are read, and of a night before it is published.

Great Expectations judges two small tables and writes its Data Docs beside them. The gate of the events sees names and types of
columns, never a row. The gate of the release sees noisy, denoised and refined tensors, so its verdict may be shown to anyone.

**How the noise is recognised.** Counts are never below 0, and the left side of discrete Laplace noise has no memory. So a cell
that came out at or below 0 lies m below 0 with probability (1 - a) a^m, a = exp(-1 / scale), whatever the cell held before:
P(noisy = -m) = P(noise = 0) a^m E[a^count], and the counts cancel. Over these cold cells the sum of the depths has a negative
binomial law without any unknown in it, exact for one cell or for millions, for an empty city or a crowded one, and it needs no
denoiser. A histogram without noise has depth 0 in all its empty cells, half the scale half the depth, twice the scale twice.
A map of the whole period is judged in the same way, by its own scale.

Where no cell is cold there is no depth, and only a bound holds: two cells that get noise are at most as often within one scale
of each other as two equal counts would be. This refuses too little noise on a dense but even map.

Limits. From a scale of 0.5 on, 350 cold cells tell half the scale from the whole, and 200 tell twice the scale; where there are
fewer the judgement says so. Far below 0.5 the noise moves hardly a cell, and half of it looks the same. On a map where nearly
every cell holds many times the scale and neighbours differ by more than the noise, nobody can tell noise from people, and the
judgement passes. It looks at how much noise there is, not at whether it was drawn from good entropy.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, InvalidOperation
from math import exp, isfinite, log, sqrt
from pathlib import Path
from sys import float_info
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from scipy.special import betainc

from heathaze.errors import Refused
from heathaze.learn.denoiser import noise_variance
from heathaze.release.candidate import Candidate

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

EVENT_COLUMNS = {"user_id": "StringType", "event_time": "TimestampType", "lat": "DoubleType", "lon": "DoubleType"}
"""Columns of the events in order, with their Spark types."""

DEVIATIONS = 5
"""Standard deviations of a total that noise explains."""

LEAST_CHANCE = 1e-9
"""A noisy tensor that the declared noise makes less often than this was made by something else."""

ENOUGH_COLD = 350
"""Cold cells from which on half the declared scale is refused almost surely, whatever the scale."""

SLICES = "every slice is there, exactly once"
SHAPE = "every slice has the shape of the grid"
FINITE = "every value is finite"
NON_NEGATIVE = "no published value is below 0"
NOISE = "noise of the declared scale is in every slice"
TOTAL = "the published total agrees with the noisy total"
DRIFT = "the total is near that of the last release"
CHARGE = "the ledger's charge is the epsilon that is announced"
COLUMNS = f"the columns are {', '.join(EVENT_COLUMNS)}, in this order"
TYPES = "each column has its type"


@dataclass(frozen=True)
class Judgement:
    """One expectation of a gate."""

    expectation: str
    """In plain words."""
    held: bool
    seen: str
    """Noisy data or shape only."""


@dataclass(frozen=True)
class Verdict:
    """What a gate found."""

    gate: str
    """events or release."""
    passed: bool
    judgements: tuple[Judgement, ...]
    docs: str
    """Path of the Data Docs index page."""

    @property
    def results(self) -> str:
        """The judgements as JSON."""
        return json.dumps([asdict(judgement) for judgement in self.judgements])

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Verdict:
        """The verdict that a row of the table of verdicts holds."""
        judgements = tuple(Judgement(**judgement) for judgement in json.loads(row["results"]))
        return cls(row["gate"], row["passed"], judgements, row["docs"])


class GateFailed(Refused):
    """A gate withheld the night."""

    def __init__(self, verdict: Verdict):
        self.verdict = verdict
        failed = "; ".join(f"{j.expectation} (seen: {j.seen})" for j in verdict.judgements if not j.held)
        what_now = {
            "events": "No event was looked at. Epsilon that was charged for this night stays spent.",
            "release": "The epsilon of this night stays spent. What comes after the noise can be changed and run again for free.",
        }[verdict.gate]
        super().__init__(
            f"the gate of the {verdict.gate} must see all its expectations hold, but these do not: {failed}. "
            f"Nothing was published. {what_now} All that was judged: {verdict.docs}"
        )


def require(verdict: Verdict) -> None:
    """Raise GateFailed where a gate did not pass."""
    if not verdict.passed:
        raise GateFailed(verdict)


def judge_events(events: DataFrame, docs: Path) -> Verdict:
    """Judge names and types of the columns of `events`; Data Docs go into the folder `docs`.

    Great Expectations gets a frame of the same columns without a row, so no value can decide anything or reach a page. A column
    that is not expected is called by its place: in a file without a header the names are somebody's values.
    Sensitivity: 0, no row is read.
    """
    gxe = _expectations()
    shape = _shape_of(events)
    found = {field.name: type(field.dataType).__name__ for field in shape.schema}
    missing = [name for name in EVENT_COLUMNS if name not in found]
    wrong = [f"{name} is {found[name]}" for name, kind in EVENT_COLUMNS.items() if found.get(name, kind) != kind]
    judge = _Judge(docs)
    judge.expect(
        COLUMNS,
        f"{', '.join(missing)} missing" if missing else f"{len(found)} columns, {len(found) - len(EVENT_COLUMNS)} not expected",
        gxe.ExpectTableColumnsToMatchOrderedList(column_list=list(EVENT_COLUMNS)),
    )
    kinds = {name: kind for name, kind in EVENT_COLUMNS.items() if name in found}
    if kinds:
        judge.expect(
            TYPES,
            ", ".join(wrong) or ", ".join(f"{name} is {found[name]}" for name in kinds),
            *(gxe.ExpectColumnValuesToBeOfType(column=name, type_=kind) for name, kind in kinds.items()),
        )
    judge.run("events", shape)
    return judge.verdict("events")


def judge_release(candidate: Candidate, last: np.ndarray | None, manifest_epsilon: str, docs: Path) -> Verdict:
    """Judge one night before it is published; Data Docs go into the folder `docs`.

    `last` is the refined tensor of the last release of the same dataset and grid, None for the first; `manifest_epsilon` is what
    the release will announce. Reads nothing but noisy and later tensors.
    """
    gxe = _expectations()
    policy, grid = candidate.policy, candidate.grid
    slices = _slices_of(candidate)
    night = _night_of(candidate, slices, last, manifest_epsilon)
    facts = {str(name): value for name, value in night.iloc[0].items()}

    judge = _Judge(docs)
    last_slice = candidate.period.slices - 1
    judge.expect(
        SLICES,
        f"{slices['slice'].nunique()} different slices in {len(slices)}, {candidate.period.slices} declared",
        gxe.ExpectTableRowCountToEqual(value=candidate.period.slices),
        gxe.ExpectColumnValuesToBeUnique(column="slice"),
        gxe.ExpectColumnMinToBeBetween(column="slice", min_value=0, max_value=0),
        gxe.ExpectColumnMaxToBeBetween(column="slice", min_value=last_slice, max_value=last_slice),
        gxe.ExpectColumnMinToBeBetween(column="tensors", min_value=3, max_value=3),
    )
    shape = f"{grid.rows} x {grid.cols}"
    if candidate.side > 1:
        shape = f"{shape} of {grid.rows // candidate.side} x {grid.cols // candidate.side} blocks"
    judge.expect(
        SHAPE,
        f"{' and '.join(sorted(set(slices['shape'])))} cells, {shape} declared",
        gxe.ExpectColumnValuesToBeInSet(column="shape", value_set=[shape]),
    )
    judge.expect(
        FINITE,
        f"{slices['not_finite'].sum()} values that are not finite",
        gxe.ExpectColumnMaxToBeBetween(column="not_finite", max_value=0),
    )
    if policy.refine.non_negative:
        judge.expect(
            NON_NEGATIVE,
            f"{slices['below_0'].sum()} published values below 0",
            gxe.ExpectColumnMaxToBeBetween(column="below_0", max_value=0),
        )
    judge.expect(
        NOISE, _seen_of_noise(slices, facts), gxe.ExpectColumnMinToBeBetween(column="noise_chance", min_value=LEAST_CHANCE)
    )
    judge.run("slices", slices)

    judge.expect(
        NOISE,
        _seen_of_noise(slices, facts),
        gxe.ExpectColumnMinToBeBetween(column="noise_chance", min_value=LEAST_CHANCE),
        gxe.ExpectColumnValuesToBeInSet(column="scale", value_set=[str(policy.privacy.histogram_scale)]),
    )
    judge.expect(
        TOTAL,
        f"{facts['total_published']:,.1f} published, {facts['total_expected']:,.1f} from the noisy total, "
        f"{facts['total_noise']:,.1f} explained by noise",
        gxe.ExpectColumnMaxToBeBetween(column="total_difference", max_value=float(policy.gates.total_tolerance)),
    )
    judge.expect(
        DRIFT,
        "no earlier release"
        if last is None
        else f"{facts['total_published']:,.1f} after {facts['total_last']:,.1f}, {facts['drift_noise']:,.1f} explained by noise",
        gxe.ExpectColumnMaxToBeBetween(column="drift", max_value=float(policy.gates.drift_tolerance)),
    )
    epsilon = _exact(str(policy.privacy.epsilon))
    judge.expect(
        CHARGE,
        f"{facts['epsilon_charged']} charged, {facts['epsilon_announced']} announced, {epsilon} in the policy",
        gxe.ExpectColumnValuesToBeInSet(column="epsilon_charged", value_set=[epsilon]),
        gxe.ExpectColumnValuesToBeInSet(column="epsilon_announced", value_set=[epsilon]),
    )
    judge.run("night", night)
    return judge.verdict("release")


@dataclass(frozen=True)
class Evidence:
    """What a noisy tensor shows of its noise. Evidence of two tensors adds up."""

    cold: int
    """Cells at or below 0."""
    depth: int
    """Sum of their distances from 0."""
    pairs: int
    """Pairs of neighbours, no cell in two pairs."""
    alike: int
    """Pairs that differ by at most the scale."""

    def __add__(self, other: Evidence) -> Evidence:
        return Evidence(self.cold + other.cold, self.depth + other.depth, self.pairs + other.pairs, self.alike + other.alike)


@dataclass(frozen=True)
class NoiseLaw:
    """What discrete Laplace noise of one scale must show, whatever the counts under it are."""

    ratio: float
    """a = exp(-1 / scale): P(noise = x) is (1 - a) / (1 + a) a^|x|."""
    reach: int
    """Largest difference of two cells that counts as alike."""
    equal: float
    """Chance that two independent draws are equal."""
    alike: float
    """Chance that two independent draws differ by at most `reach`; with different counts under them it is smaller."""

    @classmethod
    def of(cls, scale: float) -> NoiseLaw:
        a, reach = exp(-1 / scale), int(scale)
        x = np.arange(reach + 1)
        difference = ((1 - a) / (1 + a)) ** 2 * a**x * (x + 1 + 2 * a * a / (1 - a * a))
        return cls(a, reach, float(difference[0]), float(2 * difference.sum() - difference[0]))

    @property
    def depth(self) -> float:
        """Expected distance from 0 of a cell at or below 0."""
        return self.ratio / (1 - self.ratio)

    def evidence(self, noisy: np.ndarray) -> Evidence:
        cells = noisy.ravel().astype(np.int64)
        even = cells.size - cells.size % 2
        alike = np.abs(cells[0:even:2] - cells[1:even:2]) <= self.reach
        return Evidence(int(np.count_nonzero(cells <= 0)), int(-np.minimum(cells, 0).sum()), even // 2, int(alike.sum()))

    def chance(self, seen: Evidence) -> float:
        """Chance that this noise shows what was seen or something stranger; at most a bound where it depends on the counts."""
        chances = [1.0]
        if seen.cold:
            chances.append(2 * betainc(seen.cold, seen.depth + 1, 1 - self.ratio))
        if seen.cold and seen.depth:
            chances.append(2 * betainc(seen.depth, seen.cold, self.ratio))
        if seen.alike:
            chances.append(betainc(seen.alike, seen.pairs - seen.alike + 1, self.alike))
        return float(min(chances))


def _slices_of(candidate: Candidate) -> pd.DataFrame:
    """One row of facts per slice. A slice whose noise is that of an earlier one gets the number of the earlier one."""
    law = NoiseLaw.of(float(candidate.policy.privacy.histogram_scale))
    tensors = (candidate.noisy, candidate.denoised, candidate.refined)
    known: dict[bytes, int] = {}
    rows = []
    for number in range(max(len(tensor) for tensor in tensors)):
        images = [tensor[number] for tensor in tensors if number < len(tensor)]
        noisy, refined = (tensor[number] if number < len(tensor) else np.zeros((0, 0)) for tensor in tensors[::2])
        seen = law.evidence(noisy)
        # Two draws of a whole slice are never equal, unless it has a handful of cells; empty slices without noise are.
        is_telling = noisy.size * log(law.equal) < log(LEAST_CHANCE) - 2 * log(len(candidate.noisy)) and noisy.any()
        digest = hashlib.sha256(noisy.tobytes()).digest()
        rows.append(
            {
                "slice": known.setdefault(digest, number) if is_telling else number,
                "tensors": len(images),
                "shape": _shape_told(images, candidate.side),
                "not_finite": sum(int(np.count_nonzero(~np.isfinite(image))) for image in images),
                "below_0": int(np.count_nonzero(refined < 0)),
                "noisy_total": _total(noisy),
                "published_total": _total(refined),
                **asdict(seen),
                "noise_chance": law.chance(seen),
            }
        )
    return pd.DataFrame(rows)


def _shape_told(images: Sequence[np.ndarray], side: int) -> str:
    """The shapes of a slice's tensors, of which the first, the noisy one, may be in blocks."""
    told = [f"{image.shape[0]} x {image.shape[1]}" for image in images]
    published = " and ".join(sorted(set(told if side == 1 else told[1:])))
    return published if side == 1 else f"{published} of {told[0]} blocks"


def _night_of(candidate: Candidate, slices: pd.DataFrame, last: np.ndarray | None, manifest_epsilon: str) -> pd.DataFrame:
    """One row of facts about the whole night; differences are relative and beyond what noise explains."""
    privacy = candidate.policy.privacy
    law = NoiseLaw.of(float(privacy.histogram_scale))
    seen = Evidence(*(int(slices[name].sum()) for name in ("cold", "depth", "pairs", "alike")))
    map_chance = 1.0
    if privacy.map_scale is not None:
        of_map = NoiseLaw.of(float(privacy.map_scale))
        map_chance = 0.0 if candidate.map is None else of_map.chance(of_map.evidence(candidate.map))
    gamma = float(candidate.refinement["gamma"])
    noise = DEVIATIONS * sqrt(candidate.noisy.size * noise_variance(privacy.histogram_scale))
    published, expected = float(slices["published_total"].sum()), gamma * float(slices["noisy_total"].sum())
    before = published if last is None else _total(last)
    drift_noise = 0.0 if last is None else _noise_of_drift(candidate, noise, max(published, before))
    return pd.DataFrame(
        [
            {
                "scale": str(candidate.scale),
                **asdict(seen),
                "depth_declared": law.depth,
                "noise_chance": min(law.chance(seen), map_chance),
                "map_chance": map_chance,
                "total_published": published,
                "total_expected": expected,
                "total_noise": gamma * noise,
                "total_difference": _relative(published, expected, gamma * noise),
                "total_last": before,
                "drift_noise": drift_noise,
                "drift": _relative(published, before, drift_noise),
                "epsilon_charged": _exact(candidate.budget.charged),
                "epsilon_announced": _exact(manifest_epsilon),
            }
        ]
    )


def _noise_of_drift(candidate: Candidate, noise: float, total: float) -> float:
    """How far noise alone moves two published totals apart: the noise of the cells, and that of n and N in the factor."""
    privacy = candidate.policy.privacy
    n = max(candidate.sample_size, 1)
    big_n = max(candidate.event_count, n)
    of_factor = len(candidate.noisy) * noise_variance(privacy.totals_scale) / n**2
    if privacy.event_count_scale is not None:
        of_factor += noise_variance(privacy.event_count_scale) / big_n**2
    return sqrt(2) * (big_n / n * noise + DEVIATIONS * total * sqrt(of_factor))


def _relative(value: float, reference: float, noise: float) -> float:
    """How far `value` is from `reference` beyond the noise, as a share of it; of numbers that are none, as far as can be."""
    share = (abs(value - reference) - noise) / max(abs(reference), 1.0)
    return max(share, 0.0) if isfinite(share) else float_info.max


def _total(tensor: np.ndarray) -> float:
    return float(np.sum(tensor, dtype=np.float64, where=np.isfinite(tensor)))


def _exact(number: str) -> str:
    """A decimal in the one way to write it, no digit lost; text that is no number stays as it is."""
    try:
        text = f"{Decimal(number):f}"
    except InvalidOperation:
        return number
    return text.rstrip("0").rstrip(".") if "." in text else text


def _seen_of_noise(slices: pd.DataFrame, facts: Mapping[str, Any]) -> str:
    refused = int((slices["noise_chance"] < LEAST_CHANCE).sum())
    mean = facts["depth"] / max(facts["cold"], 1)
    words = [
        f"{facts['cold']:,} cells at or below 0, {mean:.4g} below on average where {facts['depth_declared']:.4g} is declared"
    ]
    if facts["cold"] < ENOUGH_COLD:
        words.append("too few to be sure of the scale")
    if refused:
        words.append(f"{refused} of {len(slices)} slices with other noise")
    if facts["map_chance"] < LEAST_CHANCE:
        words.append("the map of the whole period is missing or has other noise")
    return "; ".join(words)


class _Judge:
    """Runs expectations on tables with Great Expectations, and gathers what held by its plain words."""

    def __init__(self, docs: Path):
        import great_expectations as gx
        from great_expectations.data_context.types.base import DataContextConfig, InMemoryStoreBackendDefaults, ProgressBarsConfig

        site = {
            "class_name": "SiteBuilder",
            "show_how_to_buttons": False,
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs.resolve())},
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        }
        config = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
            data_docs_sites={"gate": site},
            analytics_enabled=False,
            progress_bars=ProgressBarsConfig(globally=False),
        )
        self.context = gx.get_context(mode="ephemeral", project_config=config)
        self._docs = docs
        self._pending: list[Any] = []
        self._seen: dict[str, str] = {}
        self._held: dict[str, bool] = {}

    def expect(self, words: str, seen: str, *expectations: Any) -> None:
        """Ask for `expectations` of the next table, all of which `words` stand for."""
        self._seen[words] = seen
        for expectation in expectations:
            expectation.meta = {"words": words}
            expectation.notes = words
            self._pending.append(expectation)

    def run(self, name: str, table: Any) -> None:
        """Judge one table by what was asked since the last."""
        import great_expectations as gx

        sources = self.context.data_sources
        is_small = isinstance(table, pd.DataFrame)
        source: Any = sources.add_pandas(name) if is_small else sources.add_spark(name, persist=False)
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe("all")
        suite = self.context.suites.add(gx.ExpectationSuite(name=name, expectations=self._pending))
        definition = self.context.validation_definitions.add(gx.ValidationDefinition(name=name, data=batch, suite=suite))
        checkpoint = self.context.checkpoints.add(
            gx.Checkpoint(
                name=name,
                validation_definitions=[definition],
                # Anything more puts values of the table into results and pages.
                result_format={"result_format": "BASIC", "partial_unexpected_count": 0},
            )
        )
        (run,) = checkpoint.run(batch_parameters={"dataframe": table}).run_results.values()
        for result in run.results:
            assert result.expectation_config is not None
            words = result.expectation_config.meta["words"]
            self._held[words] = self._held.get(words, True) and bool(result.success)
        self._pending = []

    def verdict(self, gate: str) -> Verdict:
        """Write the Data Docs, and say what held."""
        self.context.build_data_docs()
        judgements = tuple(Judgement(words, self._held[words], seen) for words, seen in self._seen.items())
        return Verdict(gate, all(self._held.values()), judgements, str(self._docs / "index.html"))


def _expectations() -> Any:
    """Great Expectations' expectations; it takes seconds to import, so it is imported only where a gate is judged."""
    os.environ["GX_ANALYTICS_ENABLED"] = "false"
    from great_expectations import expectations

    return expectations


def _shape_of(events: DataFrame) -> DataFrame:
    """A frame with the columns of `events` and no row."""
    from pyspark.sql import types as T

    fields: dict[str, T.StructField] = {}
    for place, field in enumerate(events.schema, start=1):
        is_known = field.name in EVENT_COLUMNS and field.name not in fields
        name = field.name if is_known else f"column_{place}"
        fields[name] = T.StructField(name, field.dataType)
    return events.sparkSession.createDataFrame([], T.StructType(list(fields.values())))
