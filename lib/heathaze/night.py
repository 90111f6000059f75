"""The arguments of the jobs right of the noise, and the night that they describe: noisy tables only."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from heathaze.console import Progress
from heathaze.policy import load_policy
from heathaze.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from heathaze.learn.pipeline import Denoising
    from heathaze.policy import Policy
    from heathaze.release.pipeline import Releasing


def add_public_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The arguments that every job right of the noise takes."""
    parser.add_argument("--policy", required=True, metavar="FILE", help="policy file (TOML)")
    parser.add_argument("--period", required=True, metavar="DAY", help="first day of the period, as 2026-11-14")
    parser.add_argument("--tables", required=True, metavar="PLACE", help="folder, URI or catalog.schema of heathaze's tables")
    parser.add_argument("--files", metavar="DIR", help="folder for reports, gates and checkpoints (default: beside the tables)")
    return parser


def files_of(arguments: argparse.Namespace, tables: Tables) -> Path:
    """Where files for people and checkpoints go: a folder that all machines see."""
    default = f"/Volumes/{tables.root.replace('.', '/')}/files" if tables.in_catalog else f"{tables.root}/files"
    return Path(arguments.files or default)


def open_denoising(arguments: argparse.Namespace, say: Progress) -> Denoising:
    """The denoising that the arguments describe."""
    from heathaze.learn.pipeline import Denoising

    policy, tables, spark = _open(arguments, say)
    work = files_of(arguments, tables) / "training"
    return Denoising(policy, policy.period_of(arguments.period).name, tables, work, say, say.note, spark)


def open_releasing(arguments: argparse.Namespace, say: Progress) -> Releasing:
    """The release that the arguments describe."""
    from heathaze.release.pipeline import Releasing

    policy, tables, spark = _open(arguments, say)
    return Releasing(policy, policy.period_of(arguments.period).name, tables, files_of(arguments, tables), say, spark)


def _open(arguments: argparse.Namespace, say: Progress) -> tuple[Policy, Tables, SparkSession | None]:
    """Policy, tables, and a session, which is started only for tables in a catalog."""
    policy = load_policy(arguments.policy)
    tables = Tables(arguments.tables)
    if not tables.in_catalog:
        return policy, tables, None
    from heathaze.session import start_spark

    say("starting Spark")
    return policy, tables, start_spark(policy.dataset.timezone)
