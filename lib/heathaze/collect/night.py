"""The arguments of the private jobs, and the night that they describe."""

from __future__ import annotations

import argparse
from datetime import datetime, timezone

from heathaze.collect.entropy import KeyStore
from heathaze.collect.ledger import Entry
from heathaze.collect.pipeline import Collection
from heathaze.collect.private import PrivateTables
from heathaze.console import Progress
from heathaze.errors import InputError
from heathaze.night import add_public_arguments, files_of
from heathaze.policy import load_policy
from heathaze.session import start_spark


def add_arguments(parser: argparse.ArgumentParser, events: bool) -> argparse.ArgumentParser:
    """The arguments that every private job takes; `events` for those that read the events."""
    add_public_arguments(parser)
    if events:
        parser.add_argument("--events", required=True, help="Delta table, Parquet or CSV: a path or catalog.schema.table")
    parser.add_argument("--keys", metavar="DIR", help="private folder for noise keys (default: among the private tables)")
    return parser


def open_night(arguments: argparse.Namespace, say: Progress) -> Collection:
    """The night that the arguments describe, with a Spark session. Nothing is read or charged yet."""
    policy = load_policy(arguments.policy)
    period = policy.period_of(arguments.period)
    if period.end > datetime.now(timezone.utc):
        raise InputError(
            f"the period must be over before it is released, but {period.name} ends at {period.end:%Y-%m-%d %H:%M} UTC. "
            "Released early, it would be charged again when it is complete."
        )
    tables = PrivateTables(arguments.tables)
    keys = KeyStore(arguments.keys or tables.default_key_directory())
    say("starting Spark")
    spark = start_spark(policy.dataset.timezone)
    return Collection(spark, policy, period, tables, keys, say, files_of(arguments, tables))


def charged(night: Collection) -> Entry:
    """The ledger entry of this night, which `bound` has made."""
    entry = night.ledger.find(night.policy, night.period.name)
    if entry is None:
        raise InputError(f"{night.policy.dataset.name}/{night.period.name} has not been charged yet: run bound first.")
    return entry
