from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy import stats

from heathaze.collect import bound as bounding
from heathaze.collect import pipeline
from heathaze.collect.bound import COLUMNS, BoundSettings, bound, check_bound, make_room
from heathaze.collect.count import count, place
from heathaze.collect.entropy import KeyStore
from heathaze.collect.private import PrivateTables
from heathaze.errors import BoundViolated

K = 5
SALT = 0x5EED_5EED_5EED
MIDNIGHT = datetime(2026, 1, 5, tzinfo=timezone.utc)

PLACES = 200_000
"""As many places as a user has events at most, so that a place names its event."""

FALLBACK = "spark.sql.objectHashAggregate.sortBased.fallbackThreshold"

Event = tuple[str, datetime, float, float]
Kept = tuple[str, int]
"""User and place."""


def events_of_user(user: str, number: int) -> list[Event]:
    """Distinct events inside the toy box, one per second from midnight."""
    return [
        (user, MIDNIGHT + timedelta(seconds=i), 40.0 + 0.1 * (i % 97) / 97, -74.0 + 0.1 * (i % 89) / 89) for i in range(number)
    ]


def frame_of(spark: SparkSession, events: list[Event]) -> DataFrame:
    """The events, and for a place each the second of the day."""
    kinds = [pa.string(), pa.timestamp("us", "UTC"), pa.float64(), pa.float64(), pa.int64()]
    columns = list(zip(*((*event, (event[1] - MIDNIGHT).seconds) for event in events), strict=True)) or [[]] * 5
    names = [*COLUMNS, "place"]
    return spark.createDataFrame(pa.table([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], names=names))


def settings_of(salt: int = SALT, k: int = K) -> BoundSettings:
    return BoundSettings(k, salt, PLACES)


def rows_of(sample: DataFrame) -> list[Kept]:
    """User and place of every event that is kept, in a fixed order; no user may have two rows."""
    rows = sample.toArrow().to_pylist()
    assert len({row["user_id"] for row in rows}) == len(rows)
    return sorted((row["user_id"], place) for row in rows for place in row["places"])


def kept_of(sample: list[Kept]) -> Counter[str]:
    return Counter(user for user, _ in sample)


ADVERSARIES = {
    "one": events_of_user("one", 1),
    "below": events_of_user("below", K - 1),
    "equal": events_of_user("equal", K),
    "above": events_of_user("above", K + 1),
    "thousand": events_of_user("thousand", 1_000),
    "twins": events_of_user("twins", 1) * 50,
    "pairs": events_of_user("pairs", 4) * 2,
    "": events_of_user("", 12),
    " ": events_of_user(" ", 12),
    "\u00fcn\u00efc\u00f6d\u00e9 \U0001f464": events_of_user("\u00fcn\u00efc\u00f6d\u00e9 \U0001f464", 12),
    "u\u0308": events_of_user("u\u0308", 12),
    "long" * 5_000: events_of_user("long" * 5_000, 12),
}


@pytest.fixture(scope="module")
def adversaries(spark: SparkSession) -> DataFrame:
    return frame_of(spark, [event for events in ADVERSARIES.values() for event in events])


@pytest.fixture(scope="module")
def adversaries_sample(adversaries: DataFrame) -> list[Event]:
    return rows_of(bound(adversaries, settings_of()))


def test_every_user_keeps_exactly_k_events_or_all_of_fewer(adversaries_sample):
    assert kept_of(adversaries_sample) == {user: min(K, len(events)) for user, events in ADVERSARIES.items()}


def test_users_with_at_most_k_events_keep_every_one(adversaries_sample):
    for user in ("one", "below", "equal"):
        assert [place for name, place in adversaries_sample if name == user] == list(range(len(ADVERSARIES[user])))


def test_kept_events_are_those_of_the_k_smallest_hashes(adversaries, adversaries_sample):
    hashed = adversaries.select("user_id", "place", F.xxhash64(F.lit(SALT), *COLUMNS).alias("hash")).toArrow().to_pylist()
    by_user = defaultdict(list)
    for row in hashed:
        by_user[row["user_id"]].append((row["hash"], row["place"]))
    reference = sorted((user, place) for user, events in by_user.items() for _, place in sorted(events)[:K])
    assert adversaries_sample == reference


def test_no_events_give_no_sample(spark):
    assert rows_of(bound(frame_of(spark, []), settings_of())) == []


def heavy_user(spark: SparkSession, events: int) -> DataFrame:
    return spark.range(events).select(
        F.lit("heavy").alias("user_id"),
        F.timestamp_seconds(F.col("id") % 86_400).alias("event_time"),
        F.lit(40.05).alias("lat"),
        (-74 + F.col("id") / 1e8).alias("lon"),
        (F.col("id") % PLACES).alias("place"),
    )


def test_one_user_with_200_000_events_keeps_k_of_them(spark):
    sample = rows_of(bound(heavy_user(spark, 200_000), settings_of()))
    assert len(sample) == len(set(sample)) == K


def test_one_user_with_10_000_000_events_in_one_partition_keeps_k_of_them(spark):
    sample = bound(heavy_user(spark, 10_000_000), BoundSettings(K, SALT, PLACES, partitions=4))
    assert list(kept_of(rows_of(sample)).values()) == [K]


@pytest.mark.parametrize("places", [1, 2, PLACES, 2**28 * 8_784])
def test_the_choice_takes_a_place_out_of_a_key_as_it_was_put_in(spark, places):
    last = frame_of(spark, events_of_user("u", 20)).withColumn("place", F.lit(places - 1).cast("bigint"))
    assert rows_of(bound(last, BoundSettings(K, SALT, places))) == [("u", places - 1)] * K


def test_same_salt_chooses_the_same_events_however_they_are_laid_out(adversaries, adversaries_sample):
    shuffled = adversaries.repartition(3, "lon").sortWithinPartitions(F.desc("lat"))
    assert rows_of(bound(shuffled, settings_of())) == adversaries_sample
    assert rows_of(bound(shuffled, BoundSettings(K, SALT, PLACES, partitions=9))) == adversaries_sample


def test_a_spark_without_the_queue_chooses_the_same_events(adversaries, adversaries_sample, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark.sql.internal", None)
    assert rows_of(bound(adversaries, settings_of())) == adversaries_sample


def test_users_beyond_the_room_in_memory_keep_the_same_events(adversaries, adversaries_sample, monkeypatch):
    before = adversaries.sparkSession.conf.get(FALLBACK)
    monkeypatch.setattr(bounding, "KEYS_IN_MEMORY", 2 * K)
    make_room(adversaries.sparkSession, settings_of())
    try:
        assert adversaries.sparkSession.conf.get(FALLBACK) == "2"
        assert rows_of(bound(adversaries, settings_of())) == adversaries_sample
    finally:
        adversaries.sparkSession.conf.set(FALLBACK, before)


@pytest.mark.parametrize("partitions", [None, 1])
def test_users_who_share_a_hash_are_told_apart_by_their_ids(adversaries, adversaries_sample, monkeypatch, partitions):
    """Everybody's hash is 0 for the queues; events keep the hashes that choose them."""
    hash_of = F.xxhash64
    monkeypatch.setattr(F, "xxhash64", lambda *columns: F.lit(0).cast("bigint") if len(columns) == 1 else hash_of(*columns))
    assert rows_of(bound(adversaries, BoundSettings(K, SALT, PLACES, partitions))) == adversaries_sample


def test_another_salt_chooses_other_events(adversaries, adversaries_sample):
    other = rows_of(bound(adversaries, settings_of(SALT + 1)))
    assert kept_of(other) == kept_of(adversaries_sample)
    heavy = [[place for user, place in sample if user == "thousand"] for sample in (adversaries_sample, other)]
    assert heavy[0] != heavy[1]


def kept_by_salt(spark: SparkSession, salts: list[int], events: int) -> np.ndarray:
    """Which of a user's events are kept under each salt: salts x events, in one job."""
    frame = frame_of(spark, events_of_user("heavy", events)).crossJoin(spark.createDataFrame(pa.table({"salt": salts})))
    keyed = frame.select("salt", "event_time", bounding._key(F.col("salt"), PLACES).alias("key")).toArrow()
    keys = keyed.sort_by([("salt", "ascending"), ("event_time", "ascending")])["key"].to_numpy()
    return keys.reshape(len(salts), events).argsort(axis=1).argsort(axis=1) < K


def p_of_singles(kept: np.ndarray) -> float:
    """Chi-square p-value of: every event is kept equally often. Kept events exclude each other, hence the factor."""
    salts, events = kept.shape
    p = K / events
    statistic = np.sum((kept.sum(axis=0) - salts * p) ** 2) / (salts * p * (1 - p)) * (events - 1) / events
    return float(stats.chi2.sf(statistic, events - 1))


def z_of_pairs(kept: np.ndarray) -> float:
    """How far the spread of the pairs' counts lies from that of fair choices, in standard deviations of the latter."""
    rng = np.random.default_rng(1)
    fair = [pair_spread(rng.random(kept.shape).argsort(axis=1).argsort(axis=1) < K) for _ in range(300)]
    return float((pair_spread(kept) - np.mean(fair)) / np.std(fair))


def pair_spread(kept: np.ndarray) -> float:
    together = kept.T.astype(int) @ kept.astype(int)
    return float(np.var(together[np.triu_indices(kept.shape[1], k=1)]))


def test_every_event_and_every_pair_of_a_heavy_user_is_kept_equally_often(spark):
    numbers = random.Random(2026)
    kept = kept_by_salt(spark, [numbers.getrandbits(64) - 2**63 for _ in range(400)], 20)
    assert set(kept.sum(axis=1)) == {K}
    assert p_of_singles(kept) > 0.001
    assert abs(z_of_pairs(kept)) < 4


def test_the_check_of_fairness_catches_a_favourite_event_and_a_fixed_pattern():
    rng = np.random.default_rng(0)
    hashes = rng.random((400, 20))
    hashes[:, 0] *= 0.7
    assert p_of_singles(hashes.argsort(axis=1).argsort(axis=1) < K) < 0.001
    neighbours = np.array([[(j - i) % 20 < K for j in range(20)] for i in range(400)])
    assert p_of_singles(neighbours) > 0.001
    assert z_of_pairs(neighbours) > 4


def test_the_sample_is_written_once_and_counted_as_it_was_written(spark, toy_policy, tmp_path):
    policy = toy_policy(k=K)
    tables = PrivateTables(str(tmp_path))
    night = pipeline.Collection(
        spark, policy, policy.period_of("2026-01-05"), tables, KeyStore(tmp_path / "keys"), lambda step: None
    )
    entry, _ = night.ledger.charge(policy, night.period.name, "files:1:1")
    events = frame_of(spark, [event for i in range(6) for event in events_of_user(f"u{i}", 30 * i)]).drop("place").cache()
    settings = BoundSettings(K, SALT, night.grid.cells * night.period.slices)
    pipeline._write_sample(night, entry, events, settings)
    pipeline._write_sample(night, entry, events, settings)
    assert sum(len(places) for places in tables.load("sample")["places"].to_pylist()) == 5 * K

    pipeline.run_count(night, entry)
    exact = count(bound(place(events, night.grid, night.period), settings), night.grid)
    written = tables.load("histogram").select(["slice", "cell", "count"])
    order = [("slice", "ascending"), ("cell", "ascending")]
    assert written.sort_by(order).to_pylist() == exact.toArrow().sort_by(order).to_pylist()
    events.unpersist()


def sample_of(spark: SparkSession, *users: tuple[str, list[int] | None]) -> DataFrame:
    return spark.createDataFrame(users, "user_id string, places array<bigint>")


def test_a_sample_with_k_events_of_a_user_passes_the_check(spark):
    check_bound(sample_of(spark, ("u1", [0] * K), ("u2", [1])), K)
    check_bound(sample_of(spark, ("u1", [0] * K), ("u1", []), ("u1", None)), K)
    check_bound(sample_of(spark), K)


@pytest.mark.parametrize("rows", [[K + 1], [K, 1], [K, None, 1], [K, 1, 0]])
def test_a_sample_with_one_event_too_many_is_refused_without_naming_the_user(spark, rows):
    sample = sample_of(spark, ("u2", [1]), *(("CANARY-7", None if kept is None else [0] * kept) for kept in rows))
    with pytest.raises(BoundViolated, match=f"more than {K} events") as caught:
        check_bound(sample, K)
    assert "CANARY" not in str(caught.value) and str(K + 1) not in str(caught.value)
