"""The private tables. Only code in `heathaze.collect` can name them."""

from __future__ import annotations

from heathaze.schemas import PUBLIC, TableSchema
from heathaze.tables import Tables

SAMPLE = TableSchema("sample", "entry string, user_id string, places array<bigint>", partition="entry", indexed=False)
"""One row per user: the places, slice x cells + cell of the public grid, of at most k events. `entry` is the ledger entry."""

HISTOGRAM = TableSchema("histogram", "entry string, slice int, cell int, count bigint", partition="entry", indexed=False)
"""Exact counts of the cells that are not empty."""

COUNTERS = TableSchema("counters", "entry string, name string, value bigint", partition="entry", indexed=False)
"""Operational counters: rows read, rows dropped and why, exact n and N."""


class PrivateTables(Tables):
    """The tables of one deployment, private ones included: in `private/` of a folder, in `schema_private` of a catalog."""

    schemas = {**PUBLIC, **{table.name: table for table in (SAMPLE, HISTOGRAM, COUNTERS)}}

    def address(self, name: str) -> str:
        if name in PUBLIC:
            return super().address(name)
        return f"{self.root}_private.{name}" if self.in_catalog else f"{self.root}/private/{name}"

    def default_key_directory(self) -> str:
        """Where noise keys wait for their noisy table to be committed."""
        return f"/Volumes/{self.root.replace('.', '/')}_private/keys" if self.in_catalog else f"{self.root}/private/keys"
