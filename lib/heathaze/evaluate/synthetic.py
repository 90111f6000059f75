"""A synthetic city: events of made-up users, as many as wanted, with the traits of a real feed that matter here.

Activity has a power-law tail, a few venues are crowded while most cells are empty, users come back to the same
places night after night, and some points lie outside the box. Nothing is taken from real people, so everything
made here may be looked at without a budget.

The plan of the city depends on (seed, shape, box), a user's places on the plan and the user's number, and the
events of a day on (seed, block of users, day). So fourteen cities of one day are the same as one city of fourteen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from heathaze.errors import InputError
from heathaze.grid import METRES_PER_DEGREE, Grid
from heathaze.tables import append_arrow

SCHEMA = pa.schema(
    [("user_id", pa.string()), ("event_time", pa.timestamp("us", tz="UTC")), ("lat", pa.float64()), ("lon", pa.float64())]
)
FORMATS = ("parquet", "delta")

BLOCK_USERS = 2_048
"""Users that are drawn together; part of the seed, so another value makes other users."""
ROWS_PER_FILE = 2_000_000
"""Rows that are held before they are written."""

ACTIVE_DAYS = 0.75
"""Share of days on which a user appears at all."""
OUTSIDE = 0.01
"""Share of events beyond the box."""
JITTER_METRES = 20.0
"""Standard deviation of a position around its place, north and east."""
COMMUTERS = 0.6
"""Share of users with a place of work."""
FAVOURITES = 6
"""Venues that a user goes to."""

STREET_METRES = 100.0
ARTERIAL_METRES = 500.0
EDGE_METRES = 120.0
"""Places keep this far from the edge of the box, so that jitter alone puts nothing outside."""

HOMES_PER_KM2, OFFICES_PER_KM2, VENUES_PER_KM2 = 60, 8, 10

HOME, WORK, VENUE, TRAVEL = range(4)

# First hour, events per hour, and where they happen: home, work, venue, on the way.
_COMMUTER = (
    (0, 0.3, 0.97, 0.00, 0.03, 0.00),
    (6, 0.8, 0.80, 0.00, 0.05, 0.15),
    (7, 1.2, 0.30, 0.20, 0.05, 0.45),
    (9, 1.1, 0.05, 0.85, 0.07, 0.03),
    (12, 1.3, 0.05, 0.60, 0.30, 0.05),
    (14, 1.1, 0.05, 0.83, 0.07, 0.05),
    (17, 1.5, 0.20, 0.15, 0.25, 0.40),
    (19, 1.6, 0.50, 0.02, 0.40, 0.08),
    (23, 0.8, 0.85, 0.00, 0.10, 0.05),
)
_AT_LEISURE = (
    (0, 0.3, 0.95, 0.00, 0.05, 0.00),
    (7, 0.7, 0.85, 0.00, 0.10, 0.05),
    (10, 1.1, 0.50, 0.00, 0.38, 0.12),
    (18, 1.5, 0.48, 0.00, 0.42, 0.10),
    (23, 0.8, 0.85, 0.00, 0.10, 0.05),
)
_WEEKEND = (
    (0, 0.6, 0.70, 0.00, 0.25, 0.05),
    (3, 0.2, 0.96, 0.00, 0.03, 0.01),
    (9, 0.9, 0.60, 0.02, 0.28, 0.10),
    (13, 1.4, 0.28, 0.02, 0.58, 0.12),
    (19, 1.8, 0.25, 0.01, 0.64, 0.10),
)

Scatter = Callable[[np.random.Generator, int, float], np.ndarray]
Snap = Callable[[np.ndarray, float], np.ndarray]


def _must(holds: bool, name: str, rule: str, found: object) -> None:
    if not holds:
        raise InputError(f"{name} of a synthetic city must be {rule}, but it is {found}.")


@dataclass(frozen=True)
class City:
    """What the synthetic city is like. The defaults make a box of 20 x 20 km and about 400,000 events."""

    users: int = 20_000
    """Users of the city; user number i is the same whatever the number of users."""
    events_per_user: float = 20.0
    """Mean number of events of one user in one day, over all users, those without events included."""
    first_day: date = date(2026, 11, 14)
    """First day of events, UTC."""
    days: int = 1
    """Number of days."""
    south: float = 37.70
    """Southern edge, degrees."""
    west: float = -122.52
    """Western edge, degrees."""
    north: float = 37.88
    """Northern edge, degrees."""
    east: float = -122.292
    """Eastern edge, degrees."""
    tail: float = 1.5
    """Exponent of the power law of activity, P(more than x) ~ x^-tail; smaller is heavier."""
    max_events_per_user: int = 20_000
    """Most events of one user in one day: where the power law is cut."""
    weekly: bool = True
    """Whether weekends differ from weekdays: leisure instead of commuting."""
    seed: int = 0
    """Seed of everything random."""
    shape: str = "rings"
    """rings (one centre), corridors (bands along lines) or polycentric (many centres)."""

    def __post_init__(self) -> None:
        _must(self.users >= 1, "users", "at least 1", self.users)
        _must(0 < self.events_per_user <= 1_000, "events_per_user", "above 0, at most 1000", self.events_per_user)
        _must(1 <= self.days <= 366, "days", "between 1 and 366", self.days)
        _must(1970 <= self.first_day.year <= 2260, "first_day", "between 1970 and 2260", self.first_day)
        # Leaves room for the points beyond the box on the globe, and keeps the plane a fair picture of the sphere.
        _must(-80 <= self.south < self.north <= 80, "south < north", "within -80..80", (self.south, self.north))
        _must(-179 <= self.west < self.east <= 179, "west < east", "within -179..179", (self.west, self.east))
        sides = (self.plane.height_metres, self.plane.width_metres)
        _must(
            min(sides) >= 1_000 and max(sides) <= 200_000,
            "each side",
            "between 1 and 200 km",
            f"{sides[0] / 1000:.1f} x {sides[1] / 1000:.1f} km",
        )
        _must(0.5 <= self.tail <= 10, "tail", "between 0.5 and 10", self.tail)
        _must(
            2 * self.events_per_user <= self.max_events_per_user <= 1_000_000,
            "max_events_per_user",
            "between twice events_per_user and 1000000",
            self.max_events_per_user,
        )
        _must(self.seed >= 0, "seed", "at least 0", self.seed)
        _must(self.shape in SHAPES, "shape", f"one of {', '.join(SHAPES)}", repr(self.shape))

    @property
    def plane(self) -> Grid:
        """The box as one cell, for its sides in metres."""
        return Grid(self.south, self.west, self.north, self.east, 1, 1)

    def random(self, *stream: int) -> np.random.Generator:
        """The generator of one stream: what is drawn from one stream never moves another."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=stream))


@dataclass(frozen=True)
class Weighted:
    """Points of the plane, metres east and north of the box's corner, with the odds to be chosen."""

    points: np.ndarray
    """(n, 2): east, north."""
    cumulative: np.ndarray
    """(n,): running sum of the odds, ending in 1."""

    def draw(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> np.ndarray:
        chosen = np.searchsorted(self.cumulative, rng.random(size), side="right")
        return self.points[np.minimum(chosen, len(self.points) - 1)]


@dataclass(frozen=True)
class Plan:
    """What is built: it stays while users come and nights pass."""

    homes: Weighted
    """Buildings that people live in."""
    offices: Weighted
    """Buildings that people work in, nearer to the centres."""
    venues: Weighted
    """Places that people go to; the popular ones are shared by many."""
    snap: Snap
    """Moves points to the nearest street of a spacing, staying in the box."""


@dataclass(frozen=True)
class Block:
    """The users of one block."""

    first: int
    """Number of the first user."""
    places: np.ndarray
    """(users, 2 + FAVOURITES, 2): home, work, favourites. Without work, the place of work is the home."""
    activity: np.ndarray
    """(users,): expected events of a day on which the user is active."""
    commutes: np.ndarray
    """(users,): whether the user works."""


def synthesize(
    city: City, out: str | Path, file_format: str = "parquet", progress: Callable[[int, int], None] | None = None
) -> int:
    """Write the events of `city` into the folder `out`, and return how many there are.

    `progress(done, all)` is called as users are done; a user counts once per day of the city.
    """
    if file_format not in FORMATS:
        raise InputError(f"the format must be one of {', '.join(FORMATS)}, but it is {file_format!r}.")
    folder = _empty_folder(Path(out))
    write = _write_parquet if file_format == "parquet" else _write_delta
    rows = 0
    for number, (done, table) in enumerate(_gathered(_pieces(city), ROWS_PER_FILE)):
        write(table, folder, number)
        rows += table.num_rows
        if progress is not None:
            progress(done, city.users * city.days)
    return rows


def batches(city: City) -> Iterator[pa.Table]:
    """The events of `city`, day after day and block of users after block, each table in order of time."""
    return (table for _, table in _pieces(city))


def _empty_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"a synthetic city needs a new or empty folder, but {folder} is in use. Remove it or name another.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _write_parquet(table: pa.Table, folder: Path, number: int) -> None:
    # Positions and times hardly repeat: a dictionary of them would be built and thrown away.
    pq.write_table(table, folder / f"part-{number:05d}.parquet", compression="snappy", use_dictionary=["user_id"])


def _write_delta(table: pa.Table, folder: Path, number: int) -> None:
    append_arrow(str(folder), table)


def _gathered(pieces: Iterable[tuple[int, pa.Table]], rows: int) -> Iterator[tuple[int, pa.Table]]:
    """Tables of at least `rows` rows but for the last; one empty table where there are no rows at all."""
    held: list[pa.Table] = []
    done, holding, wrote = 0, 0, False
    for done, table in pieces:
        held.append(table)
        holding += table.num_rows
        if holding >= rows:
            yield done, pa.concat_tables(held)
            held, holding, wrote = [], 0, True
    if held or not wrote:
        yield done, pa.concat_tables(held)


def _pieces(city: City) -> Iterator[tuple[int, pa.Table]]:
    """Each table with the number of user-days that are done after it."""
    plan = _plan(city)
    for night in range(city.days):
        day = city.first_day + timedelta(days=night)
        for first in range(0, city.users, BLOCK_USERS):
            users = min(BLOCK_USERS, city.users - first)
            yield night * city.users + first + users, _day(city, plan, _block(city, plan, first, users), day)


def _plan(city: City) -> Plan:
    rng = city.random(0, list(SHAPES).index(city.shape))
    height, width = city.plane.height_metres, city.plane.width_metres
    scatter, onto_streets = SHAPES[city.shape](rng, width, height)

    def snap(points: np.ndarray, spacing: float) -> np.ndarray:
        return _fold(onto_streets(points, spacing), width, height)

    def build(per_km2: int, spread: float, zipf: float, shift: float) -> Weighted:
        count = max(50, round(per_km2 * width * height / 1e6))
        points = snap(_fold(scatter(rng, count, spread), width, height), STREET_METRES)
        odds = (np.arange(count) + shift) ** -zipf
        return Weighted(points, np.cumsum(odds) / odds.sum())

    return Plan(
        homes=build(HOMES_PER_KM2, 1.0, 0.4, 50.0),
        offices=build(OFFICES_PER_KM2, 0.45, 0.8, 10.0),
        # Zipf-Mandelbrot: the shift keeps the first venue from swallowing a tenth of all visits.
        venues=build(VENUES_PER_KM2, 0.65, 1.0, 10.0),
        snap=snap,
    )


def _fold(points: np.ndarray, width: float, height: float) -> np.ndarray:
    """Mirror points at the edges until they lie inside; cutting them off would build a wall of places there."""
    inner = np.array([width, height]) - 2 * EDGE_METRES
    around = np.mod(points - EDGE_METRES, 2 * inner)
    return EDGE_METRES + np.minimum(around, 2 * inner - around)


def _rings(rng: np.random.Generator, width: float, height: float) -> tuple[Scatter, Snap]:
    """A centre with ring roads and boulevards."""
    middle, size = np.array([width, height]) / 2, min(width, height)
    radii, weights = size * np.array([0.03, 0.13, 0.25, 0.37]), np.array([0.25, 0.3, 0.27, 0.18])
    turn = rng.uniform(0, 2 * np.pi)

    def scatter(rng: np.random.Generator, count: int, spread: float) -> np.ndarray:
        odds = weights * spread ** np.arange(4)
        radius = radii[rng.choice(4, count, p=odds / odds.sum())] + rng.normal(0, 0.025 * size * spread, count)
        # More on one side than on the other, as a city by the sea.
        angle = turn + rng.vonmises(0, 0.7, count)
        return middle + radius[:, None] * _directions(angle)

    def snap(points: np.ndarray, spacing: float) -> np.ndarray:
        away = points - middle
        radius, angle = np.hypot(away[:, 0], away[:, 1]), np.arctan2(away[:, 1], away[:, 0])
        ring = np.maximum(1, np.round(radius / spacing)) * spacing
        # Boulevards fork outwards, so that blocks keep their size and every boulevard goes on.
        step = np.pi / 4 * 2.0 ** -np.floor(np.log2(np.maximum(1, np.pi / 4 * ring / spacing)))
        boulevard = np.round(angle / step) * step
        on_ring = np.abs(radius - ring) <= np.abs(angle - boulevard) * radius
        return middle + np.where(on_ring, ring, radius)[:, None] * _directions(np.where(on_ring, angle, boulevard))

    return scatter, snap


def _corridors(rng: np.random.Generator, width: float, height: float) -> tuple[Scatter, Snap]:
    """Bands along three lines, as in valleys."""
    box, size = np.array([width, height]), min(width, height)
    tilt = rng.uniform(0.2, 0.5)
    along = _directions(np.array([tilt, tilt + 0.15, tilt + np.pi / 2]))
    across = along[:, ::-1] * np.array([-1, 1])
    middles = box * (np.array([[0.5, 0.3], [0.5, 0.7], [0.5, 0.5]]) + rng.uniform(-0.08, 0.08, (3, 2)))

    def scatter(rng: np.random.Generator, count: int, spread: float) -> np.ndarray:
        line = rng.choice(3, count, p=[0.4, 0.35, 0.25])
        far = rng.uniform(-0.45, 0.45, count) * size * spread
        aside = rng.laplace(0, 0.025 * size * spread, count)
        return middles[line] + far[:, None] * along[line] + aside[:, None] * across[line]

    return scatter, _lattice(tilt)


def _polycentric(rng: np.random.Generator, width: float, height: float) -> tuple[Scatter, Snap]:
    """A dozen towns that grew together."""
    towns, size = 12, min(width, height)
    middles = np.array([width, height]) * rng.uniform(0.1, 0.9, (towns, 2))
    sigmas = size * rng.uniform(0.02, 0.07, towns)
    weights = 1 / (np.arange(towns) + 2.0)

    def scatter(rng: np.random.Generator, count: int, spread: float) -> np.ndarray:
        town = rng.choice(towns, count, p=weights / weights.sum())
        return middles[town] + rng.normal(0, 1, (count, 2)) * (sigmas[town] * spread)[:, None]

    return scatter, _lattice(rng.uniform(0, 0.2))


SHAPES = {"rings": _rings, "corridors": _corridors, "polycentric": _polycentric}


def _directions(angle: np.ndarray) -> np.ndarray:
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


def _lattice(tilt: float) -> Snap:
    """Streets at right angles, turned by `tilt`."""
    turn = np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])

    def snap(points: np.ndarray, spacing: float) -> np.ndarray:
        turned = points @ turn
        street = np.round(turned / spacing) * spacing
        off = np.abs(turned - street)
        nearer = off <= off[:, ::-1]
        return np.where(nearer, street, turned) @ turn.T

    return snap


def _block(city: City, plan: Plan, first: int, users: int) -> Block:
    """The users first .. first + users - 1. A whole block is drawn and cut, so a user does not depend on how many follow."""
    rng = city.random(1, first // BLOCK_USERS)
    home = plan.homes.draw(rng, BLOCK_USERS)
    commutes = rng.random(BLOCK_USERS) < COMMUTERS
    work = np.where(commutes[:, None], plan.offices.draw(rng, BLOCK_USERS), home)
    # Of three venues that people talk about, the one nearest to home becomes a favourite.
    offers = plan.venues.draw(rng, (BLOCK_USERS, FAVOURITES, 3))
    nearest = np.argmin(np.sum((offers - home[:, None, None]) ** 2, axis=-1), axis=-1)
    favourites = np.take_along_axis(offers, nearest[..., None, None], axis=2)[:, :, 0]
    activity = np.minimum(_activity_scale(city) * rng.pareto(city.tail, BLOCK_USERS), city.max_events_per_user)
    places = np.concatenate([home[:, None], work[:, None], favourites], axis=1)
    return Block(first, places[:users], activity[:users], commutes[:users])


def _activity_scale(city: City) -> float:
    """Scale s of the Lomax activity X with E[min(s X, cap)] = events_per_user / ACTIVE_DAYS.

    E[min(s X, c)] = s / (a - 1) * (1 - (1 + c / s)^(1 - a)), which rises with s from 0 to c.
    """
    cap, excess, wanted = float(city.max_events_per_user), city.tail - 1, city.events_per_user / ACTIVE_DAYS
    low, high = 1e-12, 1e9 * cap
    for _ in range(200):
        scale = (low * high) ** 0.5
        logarithm = float(np.log1p(cap / scale))
        mean = scale * (-np.expm1(-excess * logarithm) / excess if abs(excess) > 1e-9 else logarithm)
        low, high = (scale, high) if mean < wanted else (low, scale)
    return scale


def _day(city: City, plan: Plan, block: Block, day: date) -> pa.Table:
    """The events of one block on one day."""
    rng = city.random(2, block.first // BLOCK_USERS, day.toordinal())
    users = len(block.activity)
    active = rng.random(users) < ACTIVE_DAYS
    counts = np.minimum(rng.poisson(block.activity * active), city.max_events_per_user)
    user = np.repeat(np.arange(users, dtype=np.int32), counts)

    table = _habits(block.commutes, city.weekly and day.weekday() >= 5)[user]
    hour, doing = np.divmod(_HABITS[table, rng.integers(0, _HABIT_STEPS, len(user), dtype=np.uint16)], 4)
    moment = hour * np.int64(3_600_000_000) + rng.integers(0, 3_600_000_000, len(user), dtype=np.uint32)

    points = _positions(rng, plan, block, user, hour, doing)
    points += JITTER_METRES * rng.standard_normal(points.shape, dtype=np.float32)
    _send_outside(rng, points, city.plane.width_metres, city.plane.height_metres)
    return _table(city, day, block.first, user, moment, points)


def _habits(commutes: np.ndarray, is_weekend: bool) -> np.ndarray:
    """The row of _HABITS that each user follows."""
    return np.where(is_weekend, 2, np.where(commutes, 0, 1))


def _spread_out(habit: tuple[tuple[float, ...], ...]) -> np.ndarray:
    """A habit as equally likely outcomes 4 * hour + what is done, so that one draw and one look-up give an event both."""
    hours = np.arange(24)
    rows = np.array(habit)[np.searchsorted([row[0] for row in habit], hours, side="right") - 1]
    odds = (rows[:, 1:2] * rows[:, 2:]).ravel()
    return np.searchsorted(np.cumsum(odds) / odds.sum(), (np.arange(_HABIT_STEPS) + 0.5) / _HABIT_STEPS)


_HABIT_STEPS = 4_096
_HABITS = np.stack([_spread_out(habit) for habit in (_COMMUTER, _AT_LEISURE, _WEEKEND)]).astype(np.int8)


def _positions(
    rng: np.random.Generator, plan: Plan, block: Block, user: np.ndarray, hour: np.ndarray, doing: np.ndarray
) -> np.ndarray:
    """Where each event happens, before jitter. A user goes to one favourite by day and one by night."""
    odds = 0.6 ** np.arange(FAVOURITES)
    today = 2 + rng.choice(FAVOURITES, (len(block.places), 2), p=odds / odds.sum())
    visited = today[user, (hour >= 18).astype(np.int8)]
    place = np.where(doing == VENUE, visited, np.where(doing == WORK, WORK, HOME))
    points = block.places[user, place]

    travels = np.flatnonzero(doing == TRAVEL)
    rider = user[travels]
    to_work = block.commutes[rider] & (rng.random(len(travels)) < 0.7)
    target = block.places[rider, np.where(to_work, WORK, visited[travels])]
    way = points[travels] + rng.random((len(travels), 1)) * (target - points[travels])
    points[travels] = plan.snap(way, ARTERIAL_METRES)
    return points


def _send_outside(rng: np.random.Generator, points: np.ndarray, width: float, height: float) -> None:
    """Move a few points beyond a side of the box, by up to a tenth of it."""
    chosen = rng.integers(0, max(1, len(points)), rng.binomial(len(points), OUTSIDE))
    box = np.array([width, height])
    axis = rng.integers(0, 2, len(chosen))
    past = rng.uniform(0, 0.1, len(chosen)) * box[axis]
    points[chosen, axis] = np.where(rng.random(len(chosen)) < 0.5, -past, box[axis] + past)


def _table(city: City, day: date, first: int, user: np.ndarray, moment: np.ndarray, points: np.ndarray) -> pa.Table:
    """The events in order of time, in SCHEMA."""
    order = np.argsort(moment)
    midnight = int(datetime(day.year, day.month, day.day, tzinfo=timezone.utc).timestamp()) * 1_000_000
    points = points[order]
    east_degree = city.plane.width_metres / (city.east - city.west)
    ids = pa.array([f"u{first + i:07d}" for i in range(int(user.max(initial=0)) + 1)])
    columns = [
        ids.take(pa.array(user[order])),
        pa.array(moment[order] + midnight).cast(SCHEMA.field("event_time").type),
        pa.array(city.south + points[:, 1] / METRES_PER_DEGREE),
        pa.array(city.west + points[:, 0] / east_degree),
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
