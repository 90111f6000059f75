"""What the tree methods share: regular trees over a grid, made consistent or cut at their leaves.

A tree is a list of arrays, cells first; each next level sums up blocks of `fan` nodes along each axis (ragged at the far edge,
so every shape works). A fan of 1 along the slices gives a tree of its own to every slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from heathaze.evaluate.meter import Meter

Fan = tuple[int, ...]


def coarsen(values: np.ndarray, fan: Fan) -> np.ndarray:
    """Sums over blocks of `fan`."""
    for axis, width in enumerate(fan):
        if width > 1 and values.shape[axis] > 1:
            values = np.add.reduceat(values, np.arange(0, values.shape[axis], width), axis=axis)
    return values


def refine(values: np.ndarray, fan: Fan, shape: tuple[int, ...]) -> np.ndarray:
    """Each parent's value at all of its children, which have this shape."""
    for axis, width in enumerate(fan):
        if width > 1 and shape[axis] > 1:
            values = np.repeat(values, width, axis=axis)
            values = values[(slice(None),) * axis + (slice(0, shape[axis]),)]
    return values


def pyramid(counts: np.ndarray, fan: Fan) -> list[np.ndarray]:
    """All levels of the tree, cells first, up to the root."""
    levels = [counts]
    while any(side > 1 and width > 1 for side, width in zip(levels[-1].shape, fan, strict=True)):
        levels.append(coarsen(levels[-1], fan))
    return levels


def measure_levels(levels: Sequence[np.ndarray], weights: Sequence[Fraction], fan: Fan, meter: Meter) -> np.ndarray:
    """Cells of a tree whose levels are all measured: epsilon is divided by the weights, and consistency uses every level."""
    shares = [meter.epsilon * weight / sum(weights) for weight in weights]
    noisy = [meter.laplace(level, share) for level, share in zip(levels, shares, strict=True)]
    # Only ratios of variances matter here: the scale of the noise cancels.
    return consistent(noisy, [float(sum(weights) / weight) ** 2 for weight in weights], fan).astype(np.float32)


def consistent(measured: Sequence[np.ndarray], variances: Sequence[float], fan: Fan) -> np.ndarray:
    """The cells of the least-squares tree in which children add up to their parents (Hay et al. 2010, two passes).

    Weighted by the variance of each level's noise; ragged blocks are treated exactly. Levels above the last one are free.
    """
    # Doubt does not depend on the slice where slices have trees of their own: one is kept for all.
    places = tuple(1 if width == 1 else side for width, side in zip(fan, measured[0].shape, strict=True))
    best: list[np.ndarray] = [measured[0].astype(float)]
    doubt: list[np.ndarray] = [np.full(places, variances[0], dtype=float)]
    children: list[np.ndarray] = []
    for level, variance in zip(measured[1:], variances[1:], strict=True):
        total, total_doubt = coarsen(best[-1], fan), coarsen(doubt[-1], fan)
        weight = total_doubt / (total_doubt + variance)
        children.append(total)
        best.append(total + weight * (level - total))
        doubt.append(weight * variance)
    answer = best.pop()
    for own, own_doubt, total in zip(reversed(best), reversed(doubt[:-1]), reversed(children), strict=True):
        share = own_doubt / refine(coarsen(own_doubt, fan), fan, own_doubt.shape)
        answer = own + share * refine(answer - total, fan, own.shape)
    return answer


def find_leaves(splits: Sequence[np.ndarray], fan: Fan, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Where each level, cells first, has leaves; `splits`: whether a node would split, one array per level above the cells.

    A node is in the tree when all nodes above it split; cells never do.
    """
    shapes = [shape, *(split.shape for split in splits)]
    leaves: list[np.ndarray] = []
    present = np.ones(shapes[-1], dtype=bool)
    for split, children in zip(reversed(splits), reversed(shapes[:-1]), strict=True):
        leaves.append(present & ~split)
        present = refine(present & split, fan, children)
    return [present, *reversed(leaves)]


def measure_leaves(
    levels: Sequence[np.ndarray], leaves: Sequence[np.ndarray], fan: Fan, epsilon: Fraction, meter: Meter
) -> np.ndarray:
    """The totals of the leaves with noise, each spread evenly over its cells. Leaves are disjoint, so they are charged once."""
    noisy = meter.laplace(np.concatenate([level[leaf] for level, leaf in zip(levels, leaves, strict=True)]), epsilon)
    shape = levels[0].shape
    places = tuple(1 if width == 1 else side for width, side in zip(fan, shape, strict=True))
    sizes = pyramid(np.ones(places, dtype=np.int32), fan)
    ends = np.cumsum([int(leaf.sum()) for leaf in leaves])
    estimate = np.zeros(levels[-1].shape, dtype=np.float32)
    for number in reversed(range(len(levels))):
        estimate = refine(estimate, fan, levels[number].shape).copy()
        leaf = leaves[number]
        size = np.broadcast_to(sizes[number], leaf.shape)[leaf]
        estimate[leaf] = noisy[ends[number] - len(size) : ends[number]] / size
    return estimate
