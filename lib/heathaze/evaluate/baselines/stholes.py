"""STHoles under differential privacy: the histogram of Bruno, Chaudhuri, Gravano 2001, "STHoles: a multidimensional
workload-aware histogram" (SIGMOD), in the private form that Zeighami et al. 2022 (SNH, PVLDB) compare with.

Queries of a public workload drill holes into buckets, nested boxes whose own region is the box without its holes. As in that
form, holes depend on the workload alone, buckets are never merged, and counts are measured once at the end: regions are
disjoint, so all of epsilon goes to them. Each total is spread evenly over its region. The workload is random boxes, drawn anew
with each seed; all slices share the buckets.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from heathaze.evaluate.baselines.parts import measure_parts
from heathaze.evaluate.meter import Meter

QUERIES = 400
SIDES = (1 / 64, 1 / 8)
"""Sides of the queries, as shares of the map's."""

Box = tuple[int, int, int, int]
"""Top, left, past the bottom, past the right."""


@dataclass(eq=False)
class _Bucket:
    box: Box
    holes: list[_Bucket] = field(default_factory=list)


def stholes(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """Buckets drilled by random boxes."""
    slices, rows, cols = counts.shape
    root = _Bucket((0, 0, rows, cols))
    for query in _workload(rows, cols, meter):
        _drill(root, query)
    labels = np.zeros((rows, cols), dtype=np.int64)
    _paint(root, labels, 0)
    # A bucket that its holes cover has no region left: numbers are made dense.
    regions, dense = np.unique(labels, return_inverse=True)
    everywhere = dense.reshape(1, rows, cols) + len(regions) * np.arange(slices)[:, None, None]
    return measure_parts(counts, everywhere, meter.epsilon, meter)


def _workload(rows: int, cols: int, meter: Meter) -> list[Box]:
    """Random boxes inside the map."""
    extent = np.array([rows, cols])
    side = np.ceil(meter.random.uniform(*SIDES, (QUERIES, 2)) * extent).astype(int)
    corner = meter.random.integers(0, extent - side + 1)
    return [(int(top), int(left), int(bottom), int(right)) for top, left, bottom, right in np.hstack([corner, corner + side])]


def _drill(bucket: _Bucket, query: Box) -> None:
    """A hole where the query meets the bucket's own region, shrunk until it cuts no other hole; then the same in its holes."""
    met = [hole for hole in bucket.holes if not _is_empty(_overlap(hole.box, query))]
    hole = _shrink(_overlap(bucket.box, query), [other.box for other in met])
    for other in met:
        if _overlap(other.box, query) != other.box:
            _drill(other, query)
    if _is_empty(hole) or hole == bucket.box or any(_overlap(hole, other.box) == hole for other in met):
        return
    swallowed = [other for other in met if _overlap(hole, other.box) == other.box]
    bucket.holes = [other for other in bucket.holes if other not in swallowed] + [_Bucket(hole, swallowed)]


def _shrink(hole: Box, others: list[Box]) -> Box:
    """The hole without the rows or columns in which it cuts another one in part; the cheapest cut first."""
    while not _is_empty(hole):
        cuts = [cut for other in others if _cross(hole, other) for cut in _cuts(hole, other)]
        if not cuts:
            break
        hole = max(cuts, key=_area)
    return hole


def _cuts(hole: Box, other: Box) -> list[Box]:
    """The largest boxes within the hole beside the other one: above, left of, below, right of it."""
    top, left, bottom, right = hole
    return [
        (top, left, min(bottom, other[0]), right),
        (top, left, bottom, min(right, other[1])),
        (max(top, other[2]), left, bottom, right),
        (top, max(left, other[3]), bottom, right),
    ]


def _cross(one: Box, other: Box) -> bool:
    shared = _overlap(one, other)
    return not _is_empty(shared) and shared not in (one, other)


def _overlap(one: Box, other: Box) -> Box:
    return max(one[0], other[0]), max(one[1], other[1]), min(one[2], other[2]), min(one[3], other[3])


def _area(box: Box) -> int:
    return max(0, box[2] - box[0]) * max(0, box[3] - box[1])


def _is_empty(box: Box) -> bool:
    return _area(box) == 0


def _paint(bucket: _Bucket, labels: np.ndarray, number: int) -> int:
    """Numbers the bucket's region and those of its holes; the next free number."""
    top, left, bottom, right = bucket.box
    labels[top:bottom, left:right] = number
    number += 1
    for hole in bucket.holes:
        number = _paint(hole, labels, number)
    return number
