"""The arguments of the jobs right of the noise, and the night that they describe: noisy tables only."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from heathaze.console import Progress
from heathaze.policy import load_policy
from heathaze.tables import Tables

if TYPE_CHECKING:
    from heathaze.learn.pipeline import Denoising


def add_public_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The arguments that every job right of the noise takes."""
    parser.add_argument("--policy", required=True, metavar="FILE", help="policy file (TOML)")
    parser.add_argument("--period", required=True, metavar="DAY", help="first day of the period, as 2026-11-14")
    parser.add_argument("--tables", required=True, metavar="PLACE", help="folder, URI or catalog.schema of heathaze's tables")
    parser.add_argument("--work", metavar="DIR", help="folder for checkpoints, shared by the ranks (default: beside the tables)")
    return parser


def open_denoising(arguments: argparse.Namespace, say: Progress) -> Denoising:
    """The denoising that the arguments describe; Spark is started only for tables in a catalog."""
    from heathaze.learn.pipeline import Denoising

    policy = load_policy(arguments.policy)
    tables = Tables(arguments.tables)
    spark = None
    if tables.in_catalog:
        from heathaze.session import start_spark

        say("starting Spark")
        spark = start_spark(policy.dataset.timezone)
    default = f"/Volumes/{tables.root.replace('.', '/')}/training" if tables.in_catalog else f"{tables.root}/training"
    work = Path(arguments.work or default)
    return Denoising(policy, policy.period_of(arguments.period).name, tables, work, say, say.note, spark)
