"""The columns of every table that may be read right of the noise, and of the ledger.

The private tables are described in `heathaze.collect.private`: nothing here can name them.
"""

from __future__ import annotations

from dataclasses import dataclass

SCHEMA_VERSION = 6
"""Raised whenever a column changes its name, type or meaning."""


@dataclass(frozen=True)
class TableSchema:
    """One Delta table."""

    name: str
    columns: str
    """Columns in order, as Spark DDL."""
    partition: str = ""
    """Column by which the table is partitioned; empty: none."""
    indexed: bool = True
    """Whether Delta keeps the smallest and largest values of its columns in its log."""
    serializable: bool = False
    """Whether writers of it always conflict with each other, also those that only add rows."""

    @property
    def column_names(self) -> list[str]:
        return [column.split()[0] for column in self.columns.split(", ")]


LEDGER = TableSchema(
    "ledger",
    "sequence bigint, entry string, idempotency_key string, dataset string, period string, time_window string, unit string, "
    "window_kind string, epsilon string, delta string, cap string, delta_cap string, measurement string, input_version string, "
    "charged_at string",
    serializable=True,
)
"""One row per charge; decimals as strings, so that no engine rounds them. The row of sequence 0 is the table's beginning."""

NOISY = TableSchema(
    "noisy",
    "entry string, dataset string, period string, measurement string, slice int, starts_at timestamp, rows int, cols int, "
    "scale string, noisy_total bigint, total_scale string, noisy_event_count bigint, statements string, values binary, "
    "map_scale string, map binary",
    partition="entry",
    indexed=False,
)
"""One row per time slice: rows x cols little-endian int32 counts with noise, row 0 in the south.

`scale` is the rational scale of the noise of a cell. `noisy_total` is the number of events of the slice with noise of its own
scale, and n the sum over all slices. `noisy_event_count` is the declared N where N is declared.
Where the policy has a map of the whole period, slice 0 carries it: `map`, on the published grid, with noise of `map_scale`.
`statements` (JSON) says for each stage that touched the data what it did and with which sensitivity.
"""

MODELS = TableSchema(
    "models",
    "model string, dataset string, measurement string, method string, settings string, trained_until string, created_at string, "
    "score double, lineage string, curve string, picture binary, weights binary",
    indexed=False,
)
"""One row per trained model. `settings` is the hash of the denoise settings, `lineage` (JSON) what it was made from and by,
`curve` (JSON) and `picture` (PNG) how it learnt, `score` its estimated error on noisy data, in units of the noise variance."""

DENOISED = TableSchema(
    "denoised",
    "entry string, settings string, method string, model string, facts string, slice int, rows int, cols int, "
    "values binary, deviation binary",
    partition="entry",
    indexed=False,
)
"""One row per time slice: rows x cols little-endian float32; `deviation` likewise, null where the denoiser does not know it.
`facts` (JSON) is what the denoiser says about itself, such as its drift."""

REFINED = TableSchema(
    "refined",
    "entry string, settings string, facts string, slice int, rows int, cols int, values binary",
    partition="entry",
    indexed=False,
)
"""One row per time slice: rows x cols little-endian float32, what is published. `settings` is the hash of the policy,
`facts` (JSON) the factor and the totals before and after."""

VERDICTS = TableSchema(
    "verdicts",
    "dataset string, period string, entry string, gate string, policy string, passed boolean, judged_at string, "
    "results string, docs string",
)
"""One row per judgement of a gate; `entry` is empty for the gate before the charge. `results` (JSON): each expectation, whether
it held, and what was seen, which is noisy data or shape only. `docs`: the Data Docs page."""

RELEASES = TableSchema(
    "releases",
    "release string, entry string, dataset string, period string, published_at string, slice int, starts_at timestamp, rows int, "
    "cols int, values binary, noisy binary, deviation binary, checksum string, squares binary, manifest string, "
    "report string",
    partition="release",
    indexed=False,
)
"""One row per time slice, and all rows of a release in one commit: readers see all of it or none. `values` float32 is the answer,
`noisy` int32 the measurement behind it. Slice 0 carries the manifest (JSON), the report (HTML), and, of the
method snh, `squares`: the networks with the grid that they came from."""

PUBLIC = {table.name: table for table in (LEDGER, NOISY, MODELS, DENOISED, REFINED, VERDICTS, RELEASES)}
