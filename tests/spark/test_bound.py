from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from scipy import stats

from heathaze.collect import bound as bounding
from heathaze.collect import pipeline
from heathaze.collect.bound import (
    COLUMNS,
    PLACED,
    BoundSettings,
    bound,
    check_bound,
    counted_part,
    drop_hopeless,
    is_anyone_starved,
    thresholds,
)
from heathaze.collect.count import count, place
from heathaze.collect.entropy import KeyStore
from heathaze.collect.private import PrivateTables
from heathaze.errors import BoundViolated

K = 5
SALT = 0x5EED_5EED_5EED
MIDNIGHT = datetime(2026, 1, 5, tzinfo=timezone.utc)

Event = tuple[str, datetime, float, float]


def events_of_user(user: str, number: int) -> list[Event]:
    """Distinct events inside the toy box, one per second from midnight."""
    return [
        (user, MIDNIGHT + timedelta(seconds=i), 40.0 + 0.1 * (i % 97) / 97, -74.0 + 0.1 * (i % 89) / 89) for i in range(number)
    ]


def frame_of(spark: SparkSession, events: list[Event]) -> DataFrame:
    kinds = [pa.string(), pa.timestamp("us", "UTC"), pa.float64(), pa.float64()]
    columns = list(zip(*events, strict=True)) or [[], [], [], []]
    return spark.createDataFrame(pa.table([pa.array(c, k) for c, k in zip(columns, kinds, strict=True)], names=COLUMNS))


def rows_of(frame: DataFrame) -> list[Event]:
    """The events of a frame in a fixed order, duplicates kept."""
    return sorted(zip(*(column.to_pylist() for column in frame.select(*COLUMNS).toArrow().columns), strict=True))


def kept_of(sample: list[Event]) -> Counter[str]:
    return Counter(event[0] for event in sample)


@pytest.fixture(scope="module")
def power_law(spark: SparkSession) -> DataFrame:
    """300 users, of whom few make most of the events; the heaviest has about 4,000."""
    events: list[Event] = []
    for i in range(300):
        events += events_of_user(f"u{i}", math.ceil(4_000 / (i + 1) ** 1.1))
    frame = frame_of(spark, events).cache()
    yield frame
    frame.unpersist()


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
    return rows_of(bound(adversaries, BoundSettings(K, SALT)))


def test_every_user_keeps_exactly_k_events_or_all_of_fewer(adversaries_sample):
    assert kept_of(adversaries_sample) == {user: min(K, len(events)) for user, events in ADVERSARIES.items()}


def test_users_with_at_most_k_events_keep_every_one(adversaries_sample):
    for user in ("one", "below", "equal"):
        assert [event for event in adversaries_sample if event[0] == user] == sorted(ADVERSARIES[user])


def test_kept_events_are_those_of_the_k_smallest_hashes(adversaries, adversaries_sample):
    hashed = adversaries.select(*COLUMNS, F.xxhash64(F.lit(SALT), *COLUMNS).alias("hash")).toArrow().to_pylist()
    by_user = defaultdict(list)
    for row in hashed:
        by_user[row["user_id"]].append((row["hash"], *(row[name] for name in COLUMNS)))
    reference = sorted(event[1:] for events in by_user.values() for event in sorted(events)[:K])
    assert adversaries_sample == reference


def test_no_events_give_no_sample(spark):
    assert rows_of(bound(frame_of(spark, []), BoundSettings(K, SALT))) == []


def test_one_user_with_200_000_events_keeps_k_of_them(spark):
    heavy = spark.range(200_000).select(
        F.lit("heavy").alias("user_id"),
        F.timestamp_seconds(F.col("id") % 86_400).alias("event_time"),
        F.lit(40.05).alias("lat"),
        (-74 + F.col("id") / 1e7).alias("lon"),
    )
    sample = rows_of(bound(heavy, BoundSettings(K, SALT)))
    assert len(sample) == len(set(sample)) == K


def test_same_salt_chooses_the_same_events_however_they_are_laid_out(adversaries, adversaries_sample):
    shuffled = adversaries.repartition(3, "lon").sortWithinPartitions(F.desc("lat"))
    assert rows_of(bound(shuffled, BoundSettings(K, SALT))) == adversaries_sample


def test_another_salt_chooses_other_events(adversaries, adversaries_sample):
    other = rows_of(bound(adversaries, BoundSettings(K, SALT + 1)))
    assert kept_of(other) == kept_of(adversaries_sample)
    heavy = [[event for event in sample if event[0] == "thousand"] for sample in (adversaries_sample, other)]
    assert heavy[0] != heavy[1]


def kept_by_salt(spark: SparkSession, salts: list[int], events: int) -> np.ndarray:
    """Which of a user's events are kept under each salt: salts x events, in one job."""
    frame = frame_of(spark, events_of_user("heavy", events)).crossJoin(spark.createDataFrame(pa.table({"salt": salts})))
    hashed = frame.select("salt", "event_time", bounding._hash(F.col("salt")).alias("hash")).toArrow()
    hashes = hashed.sort_by([("salt", "ascending"), ("event_time", "ascending")])["hash"].to_numpy()
    return hashes.reshape(len(salts), events).argsort(axis=1).argsort(axis=1) < K


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


@pytest.mark.parametrize("counted_share", [1, 4])
def test_filter_before_the_shuffle_changes_nothing_of_the_sample(power_law, counted_share):
    settings = BoundSettings(K, SALT)
    counted = power_law.where(F.pmod(F.xxhash64("event_time"), F.lit(counted_share)) == 0)
    heavy = thresholds(counted, settings).cache()
    filtered = drop_hopeless(power_law, heavy, settings)
    sample = bound(filtered, settings)
    assert rows_of(sample) == rows_of(bound(power_law, settings))
    assert not is_anyone_starved(sample, heavy, settings)
    assert filtered.count() < power_law.count() / 2, "the filter must be worth having"
    heavy.unpersist()


def test_heavy_users_are_looked_for_in_some_whole_files_where_there_are_many_and_in_all_where_there_are_few(spark, tmp_path):
    kinds = [pa.string(), pa.timestamp("us", "UTC"), pa.float64(), pa.float64()]
    for i in range(12):
        events = zip(*events_of_user(f"file{i}", 3), strict=True)
        pq.write_table(
            pa.table([pa.array(c, k) for c, k in zip(events, kinds, strict=True)], names=COLUMNS), tmp_path / f"{i}.parquet"
        )
    many = spark.read.parquet(str(tmp_path)).select(*COLUMNS).where(F.col("lat") > 0)
    counted = kept_of(rows_of(counted_part(many)))
    assert 0 < len(counted) < 12 and set(counted.values()) == {3}
    assert kept_of(rows_of(counted_part(many))) == counted
    few = spark.read.parquet(*(str(tmp_path / f"{i}.parquet") for i in range(3))).select(*COLUMNS)
    assert len(kept_of(rows_of(counted_part(few)))) == 3


def starving(k: int, kept: tuple[str, ...] = COLUMNS) -> BoundSettings:
    """Settings whose filter keeps about a tenth of k events of every user."""
    return BoundSettings(k, SALT, margin=-0.9 * math.sqrt(k), kept=kept)


def test_filter_that_starves_users_is_found_out(power_law):
    settings = starving(K)
    heavy = thresholds(power_law, settings).cache()
    sample = bound(drop_hopeless(power_law, heavy, settings), settings)
    assert max(kept_of(rows_of(sample)).values()) <= K
    assert is_anyone_starved(sample, heavy, settings)
    heavy.unpersist()


def test_sample_is_made_again_from_all_events_where_the_filter_starved_a_user(spark, toy_policy, tmp_path):
    policy = toy_policy(k=K)
    tables = PrivateTables(str(tmp_path))
    night = pipeline.Collection(
        spark, policy, policy.period_of("2026-01-05"), tables, KeyStore(tmp_path / "keys"), lambda step: None
    )
    entry, _ = night.ledger.charge(policy, night.period.name, "files:1:1")
    events = frame_of(spark, [event for i in range(6) for event in events_of_user(f"u{i}", 30 * i)]).cache()

    pipeline._write_sample(night, entry, events, starving(K, PLACED))
    kept = Counter(tables.load("sample")["entry"].to_pylist())
    assert kept[f"{entry.entry}.filtered"] < kept[f"{entry.entry}.whole"] == 5 * K

    pipeline.run_count(night, entry)
    exact = count(place(bound(events, BoundSettings(K, SALT)), night.grid, night.period))
    written = tables.load("histogram").select(["slice", "cell", "count"])
    order = [("slice", "ascending"), ("cell", "ascending")]
    assert written.sort_by(order).to_pylist() == exact.toArrow().sort_by(order).to_pylist()
    events.unpersist()


def test_a_sample_with_k_events_of_a_user_passes_the_check(spark):
    check_bound(frame_of(spark, events_of_user("u1", K) + events_of_user("u2", 1)), K)
    check_bound(frame_of(spark, []), K)


def test_a_sample_with_one_event_too_many_is_refused_without_naming_the_user(spark):
    sample = frame_of(spark, events_of_user("CANARY-7", K + 1) + events_of_user("u2", 1))
    with pytest.raises(BoundViolated, match=f"more than {K} events") as caught:
        check_bound(sample, K)
    assert "CANARY" not in str(caught.value) and str(K + 1) not in str(caught.value)
