"""Commands of heathaze in processes that can be killed, and in this one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from tests.e2e.nights import Run

from heathaze import cli


@pytest.fixture(scope="module")
def start(quick: dict[str, str]) -> Iterator[Callable[..., Run]]:
    """Starts `heathaze` with these arguments; whatever is still going at the end is killed."""
    runs: list[Run] = []

    def start_one(*arguments: str) -> Run:
        words = [sys.executable, "-m", "heathaze.cli", *arguments]
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        runs.append(Run(subprocess.Popen(words, start_new_session=True, env=quick, **pipes)))
        return runs[-1]

    try:
        yield start_one
    finally:
        for run in runs:
            run.kill()


@pytest.fixture(scope="module")
def command(spark) -> Iterator[Callable[..., int]]:
    """`heathaze` in this process and the session that is there: the same code without the start of a JVM."""
    partitions = spark.conf.get("spark.sql.shuffle.partitions")
    yield lambda *arguments: cli.main(list(arguments))
    spark.conf.set("spark.sql.shuffle.partitions", partitions)
