"""One Spark session for all tests, and the smallest policy that works."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from heathaze.policy import Policy, parse_policy

os.environ["PYSPARK_PYTHON"] = sys.executable
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"  # processes of tests side by side would fight for the cores
ROOT = Path(__file__).resolve().parents[1]

POLICY = """
[dataset]
name = "{name}"
[period]
days = 1
slices = {slices}
[grid]
south = 40.0
west = -74.0
north = 40.1
east = -73.9
rows = {rows}
cols = {cols}
[denoise]
method = "shrink"
[privacy]
epsilon = {epsilon}
max_events_per_user = {k}
declared_event_count = 1000
[budget]
cap = {cap}
window = "quarter"
"""


def policy_text(
    name: str = "toy", slices: int = 4, rows: int = 8, cols: int = 8, epsilon: str = "1.0", k: int = 3, cap: str = "5"
) -> str:
    """A policy over a small box around 40.05, -73.95, as TOML."""
    return POLICY.format(name=name, slices=slices, rows=rows, cols=cols, epsilon=epsilon, k=k, cap=cap)


@pytest.fixture
def toy_policy() -> Callable[..., Policy]:
    """A factory of toy policies."""
    return lambda **settings: parse_policy(policy_text(**settings))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one local session."""
    from heathaze.session import java_options, start_spark

    session = start_spark(
        **{
            "spark.sql.shuffle.partitions": "2",
            "spark.default.parallelism": "2",
            "spark.driver.extraJavaOptions": f"-XX:TieredStopAtLevel=1 {java_options()}",
        }
    )
    yield session
    session.stop()


@pytest.fixture(scope="session")
def quick(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the many short processes of these tests start fast."""
    from heathaze.session import java_options

    java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC {java_options()}"
    return {
        **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
        "PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{java}' pyspark-shell",
        "SPARK_LOCAL_DIRS": str(tmp_path_factory.mktemp("scratch")),
        "OMP_NUM_THREADS": "1",
    }
