"""bound: keep at most k events of each user, by keyed hash.

A record's rank is its place in the order of hash(salt, user, record). The hash depends on nothing but the record and the
salt, so a task that Spark runs again chooses the same events (ordering by rand() would choose others, and a user could end
up with more than k). Identical records share their hash, and any k of the first ones are the same rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from heathaze.errors import BoundViolated

COLUMNS = ("user_id", "event_time", "lat", "lon")
"""What makes an event the one it is: what its hash is made of."""

PLACED = ("user_id", "slice", "cell")
"""What the sample keeps of an event: its place is shuffled, written and read again faster than time and coordinates."""

HEAVIEST = 100_000
"""Users that get a threshold: a bound on what is broadcast, whatever the data."""

PARTITIONS_PER_CORE, SORTS_PER_TASK = 32, 8
"""Small sorts stay in the processor's cache; a task does several of them, one after the other, and writes one file."""

COUNTED_SHARE = 4
"""One file in this many is counted to find heavy users."""

HALF = "is_first_half"
"""Column that tells the two halves of what is counted apart."""

OTHER_FILES = 4.5
"""Events of a user thought to be in files that were not counted, for each in the smaller half; were all files alike, 6."""


@dataclass(frozen=True)
class BoundSettings:
    """What the choice of events depends on."""

    max_events_per_user: int
    """k."""
    salt: int
    """Salt of the hash; one per release."""
    margin: float = 8.0
    """Standard deviations of slack of the filter before the shuffle; see `thresholds`."""
    kept: tuple[str, ...] = COLUMNS
    """Columns that are kept of an event."""
    partitions: int | None = None
    """Partitions of the shuffle; None leaves the number to Spark. Many small sorts that fit the cache beat few large ones."""

    @property
    def ample(self) -> float:
        """Events that a filtered user keeps on average: k plus the slack."""
        return self.max_events_per_user + self.margin * math.sqrt(self.max_events_per_user)


def bound(events: DataFrame, settings: BoundSettings) -> DataFrame:
    """The k events of each user with the smallest hashes; all of them where there are no more than k.

    Sensitivity: the events of a user are chosen by looking at that user's events only, so adding or removing one user
    changes the output by at most `max_events_per_user` rows, and any histogram of it has L1 sensitivity k.
    """
    # Sorting by a 64-bit hash of the user first is faster than by the id; the id still decides who is who.
    first_k = Window.partitionBy("user_hash", "user_id").orderBy("hash", *settings.kept[1:])
    hashed = events.select(*settings.kept, F.xxhash64("user_id").alias("user_hash"), _hash(settings.salt).alias("hash"))
    if settings.partitions is not None:
        hashed = hashed.repartition(settings.partitions, "user_hash")
    ranked = hashed.withColumn("rank", F.row_number().over(first_k))
    kept = ranked.where(F.col("rank") <= settings.max_events_per_user).select(*settings.kept)
    return kept if settings.partitions is None else kept.coalesce(-(-settings.partitions // SORTS_PER_TASK))


def thresholds(counted: DataFrame, settings: BoundSettings) -> DataFrame:
    """user_hash, threshold: for heavy users, a hash above which an event is hardly among the k smallest.

    `counted` holds some of the events, so its count c of a user is a lower bound of that user's events e. Where it comes in
    two halves that hold about as much of the user, the rest of the events will hold as much again: e is taken as c plus
    `OTHER_FILES` of the smaller half. Of e uniform hashes, those below (k + 8 sqrt(k)) / e of the range are more than k but for a
    chance of about 1e-8; `is_anyone_starved` finds out who had that chance, or had fewer events than was thought. Only users
    with e well above the ample number are worth a threshold.

    Sensitivity: a user's threshold depends on that user's events only, and changes nothing of what `bound` returns.
    """
    events = F.count(F.lit(1))
    if HALF in counted.columns:
        events += OTHER_FILES * F.least(F.count_if(F.col(HALF)), F.count_if(~F.col(HALF)))
    heavy = (
        counted.groupBy(F.xxhash64("user_id").alias("user_hash"))
        .agg(events.alias("e"))
        .where(F.col("e") > 1.2 * settings.ample)
        .orderBy(F.desc("e"), "user_hash")
        .limit(HEAVIEST)
    )
    threshold = F.lit(-(2.0**63)) + F.lit(2.0**64) * settings.ample / F.col("e")
    return heavy.select("user_hash", threshold.cast("bigint").alias("threshold"))


def drop_hopeless(events: DataFrame, heavy: DataFrame, settings: BoundSettings) -> DataFrame:
    """The events without those above their user's threshold, before anything is shuffled.

    Sensitivity: row by row, by the user's own threshold.
    """
    marked = events.withColumn("user_hash", F.xxhash64("user_id")).join(F.broadcast(heavy), on="user_hash", how="left")
    keep = F.col("threshold").isNull() | (_hash(settings.salt) <= F.col("threshold"))
    return marked.where(keep).select(*events.columns)


def counted_part(events: DataFrame) -> DataFrame:
    """A quarter of the files, evenly spread by name, in two halves; all of the events where there are few files."""
    names = sorted({path.rpartition("/")[2] for path in events.inputFiles()})
    if len(names) < 2 * COUNTED_SHARE:
        return events
    step = 2 * COUNTED_SHARE
    name, halves = F.col("_metadata.file_name"), (names[::step], names[COUNTED_SHARE::step])
    return events.withColumn(HALF, name.isin(halves[0])).where(name.isin(halves[0] + halves[1]))


def check_bound(sample: DataFrame, k: int) -> None:
    """Raise where a user of a materialised sample has more than k events."""
    most = sample.groupBy("user_id").agg(F.count(F.lit(1)).alias("kept")).agg(F.max("kept").alias("most")).first()
    assert most is not None
    if most["most"] is not None and most["most"] > k:
        raise BoundViolated(
            f"no user may have more than {k} events in the sample, but one has. No noise was drawn; do not release this sample."
        )


def is_anyone_starved(sample: DataFrame, heavy: DataFrame, settings: BoundSettings) -> bool:
    """Whether a user with a threshold may have ended below k events: then the sample must be made again without thresholds.

    Two users who share a 64-bit hash also answer yes, to be safe.
    """
    theirs = sample.withColumn("user_hash", F.xxhash64("user_id")).join(F.broadcast(heavy), on="user_hash", how="left_semi")
    per_user = theirs.groupBy("user_hash", "user_id").agg(F.count(F.lit(1)).alias("kept"))
    return per_user.where(F.col("kept") == settings.max_events_per_user).count() != heavy.count()


def _hash(salt: int) -> Column:
    return F.xxhash64(F.lit(salt), "user_id", "event_time", "lat", "lon")
