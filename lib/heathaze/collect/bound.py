"""bound: keep at most k events of each user, by keyed hash.

A record's rank is its place in the order of hash(salt, user, record). The hash depends on nothing but the record and the
salt, so a task that Spark runs again chooses the same events (ordering by rand() would choose others, and a user could end
up with more than k). Identical records share their hash, and any k of the first ones are the same rows.

Of an event that is kept, its place on the public grid is all that is needed. So an event goes through the shuffle as one
number, its key: the leading bits of the hash, and the place in the bits below them. The k smallest numbers of a user need no
sort and no window: a queue of k for each user holds them, however many events the user has.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from heathaze.errors import BoundViolated
from heathaze.session import SPARK_ERRORS

COLUMNS = ("user_id", "event_time", "lat", "lon")
"""What makes an event the one it is: what its hash is made of."""

PARTITIONS_PER_CORE, QUEUES_PER_FILE = 32, 8
"""The queues of a partition stay in the processor's cache; a task fills several partitions' queues, and writes one file."""

KEYS_IN_MEMORY = 1_000_000
"""Keys that the queues of one task may hold; where there are more users, Spark sorts them, on disk if it must."""


@dataclass(frozen=True)
class BoundSettings:
    """What the choice of events depends on."""

    max_events_per_user: int
    """k."""
    salt: int
    """Salt of the hash; one per release."""
    places: int
    """Number of places, slices x cells: how many of a key's bits the place takes, 25 of 64 for 576 x 576 x 96."""
    partitions: int | None = None
    """Partitions of the shuffle; None leaves the number to Spark. Nothing of the choice depends on it."""


def bound(events: DataFrame, settings: BoundSettings) -> DataFrame:
    """user_id, places: for each user the places of the k events with the smallest keys; of all where there are no more than k.

    Sensitivity: the events of a user are chosen by looking at that user's events only, so adding or removing one user
    changes the output by that user's row, which has at most `max_events_per_user` places, and any histogram of the places
    has L1 sensitivity k.
    """
    keyed = events.select("user_id", F.xxhash64("user_id").alias("user_hash"), _key(settings.salt, settings.places).alias("key"))
    if settings.partitions is not None:
        keyed = keyed.repartition(settings.partitions, "user_hash")
    users = smallest_keys(keyed, settings.max_events_per_user)
    places = F.transform("keys", lambda key: key.bitwiseAND(F.lit(2 ** _bits(settings.places) - 1)))
    kept = users.select("user_id", places.alias("places"))
    return kept if settings.partitions is None else kept.coalesce(-(-settings.partitions // QUEUES_PER_FILE))


def make_room(spark: SparkSession, settings: BoundSettings) -> None:
    """Let a task keep queues for as many users as memory has room for; Spark's own limit of 128 users is for queues of any size.

    A cluster that does not let it be set chooses the same events, slower.
    """
    users = max(1, KEYS_IN_MEMORY // settings.max_events_per_user)
    try:
        spark.conf.set("spark.sql.objectHashAggregate.sortBased.fallbackThreshold", str(users))
    except SPARK_ERRORS:
        return


def check_bound(sample: DataFrame, k: int) -> None:
    """Raise where a user of a materialised sample has more than k events, in one row or in several."""
    kept = F.sum(F.coalesce(F.array_size("places"), F.lit(0))).alias("kept")
    most = sample.groupBy("user_id").agg(kept).agg(F.max("kept").alias("most")).first()
    assert most is not None
    if most["most"] is not None and most["most"] > k:
        raise BoundViolated(
            f"no user may have more than {k} events in the sample, but one has. No noise was drawn; do not release this sample."
        )


def _key(salt: int | Column, places: int) -> Column:
    """The leading bits of the event's hash, then its place: the order of hashes, and where these are equal, of places."""
    bits = _bits(places)
    hashed = F.xxhash64(F.lit(salt), *COLUMNS)
    return F.shiftleft(F.shiftright(hashed, bits), bits).bitwiseOR(F.col("place"))


def _bits(places: int) -> int:
    return (places - 1).bit_length()


def smallest_keys(keyed: DataFrame, k: int) -> DataFrame:
    """user_hash, user_id, keys: the k smallest keys of each user.

    Users are told apart by a 64-bit hash and the id: the hash is found faster, the id decides who is who. Spark has the queue for
    its own use only so far; where a cluster's Spark lacks it, a window finds the same keys, slower.
    """
    try:
        from pyspark.sql.internal import InternalFunction
    except ImportError:
        return _by_window(keyed, k)
    # The queue never holds more than k keys, whatever the user has.
    return keyed.groupBy("user_hash", "user_id").agg(InternalFunction.collect_top_k(F.col("key"), k, True).alias("keys"))


def _by_window(keyed: DataFrame, k: int) -> DataFrame:
    rank = F.row_number().over(Window.partitionBy("user_hash", "user_id").orderBy("key"))
    first = keyed.withColumn("rank", rank).where(F.col("rank") <= k)
    return first.groupBy("user_hash", "user_id").agg(F.collect_list("key").alias("keys"))
