"""PrivBayes: Zhang, Cormode, Procopiuc, Srivastava, Xiao 2014 (SIGMOD) and 2017 (TODS), "PrivBayes: private data release via
Bayesian networks".

Slice, row and column are three attributes; a Bayesian network over them is chosen privately, its marginals are measured, and
the product of its conditionals, times the noisy number of events, is the estimate. The full joint of three attributes at full
size is nothing but the histogram, so it runs on blocks (the paper generalises attributes to 16 values or so): totals of blocks
are spread evenly over their cells.

The degree is the largest at which a marginal's mean count is USEFUL times its noise (the paper's theta-usefulness): at degree 2
one marginal is the joint of all three and there is nothing to choose; at degree 1 two edges are chosen and two pairs measured;
at degree 0 three single marginals. Epsilon: 1/50 for the number of events; at degree 1 a share of 3/10 of the rest for the
edges (half for each); what is left in equal parts to the marginals.

The score of an edge is the paper's R, the distance of the pair from independence, as a count: 1/2 sum |c(x, y) - c(x) c(y) /
n|. Adding an event moves c(x, y) by 1 in all and the product by less than 3, so its sensitivity is 2, with no use of n. In
place of sampled records the estimate is the expected count.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from heathaze.evaluate.baselines.parts import SMALL, block_sums, per_event, spread_blocks
from heathaze.evaluate.meter import Meter

MOST = (24, 64, 64)
"""At most so many values of slice, row and column."""

RUNS_AT = "24 x 64 x 64 blocks at most"
USEFUL = 4
NETWORK = Fraction(3, 10)
SENSITIVITY = 2


def privbayes(counts: np.ndarray, meter: Meter) -> np.ndarray:
    """The network of the degree that its noisy number of events allows."""
    joint = block_sums(counts, MOST)
    share = meter.epsilon * SMALL
    total = max(0.0, float(meter.laplace(np.atleast_1d(counts.sum()), share)[0]))
    rest = meter.epsilon - share
    sides = sorted(joint.shape)
    if _is_useful(total, joint.size, rest, meter):
        shares = _distribution(meter.laplace(joint, rest))
    elif _is_useful(total, sides[1] * sides[2], rest * (1 - NETWORK) / 2, meter):
        shares = _tree(joint, rest, meter)
    else:
        single = [_distribution(meter.laplace(_marginal(joint, (axis,)), rest / 3)) for axis in range(3)]
        shares = single[0] * single[1] * single[2]
    return spread_blocks(total * shares, counts.shape)


def _is_useful(total: float, cells: int, epsilon: Fraction, meter: Meter) -> bool:
    return total / cells >= USEFUL / per_event(epsilon, meter)


def _tree(joint: np.ndarray, epsilon: Fraction, meter: Meter) -> np.ndarray:
    """Two edges, chosen one after the other from a first attribute drawn by lot, and the product of their conditionals."""
    reached = [int(meter.random.integers(3))]
    edges: list[tuple[int, int]] = []
    while len(reached) < 3:
        candidates = [(parent, child) for parent in reached for child in range(3) if child not in reached]
        scores = np.array([_dependence(_marginal(joint, edge), edge) for edge in candidates])
        edges.append(candidates[meter.choose(scores, epsilon * NETWORK / 2, SENSITIVITY)])
        reached.append(edges[-1][1])
    each = epsilon * (1 - NETWORK) / 2
    pairs = [_distribution(meter.laplace(_marginal(joint, edge), each)) for edge in edges]
    child = edges[1][1]
    of_parent = pairs[1].sum(child, keepdims=True)
    given_parent = np.where(of_parent > 0, pairs[1] / np.where(of_parent > 0, of_parent, 1), 1 / joint.shape[child])
    return pairs[0] * given_parent


def _marginal(joint: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """Sums over the other attributes, which stay as axes of length 1."""
    return joint.sum(tuple(axis for axis in range(3) if axis not in axes), keepdims=True)


def _distribution(noisy: np.ndarray) -> np.ndarray:
    kept = np.maximum(noisy, 0).astype(float)
    return kept / kept.sum() if kept.any() else np.full(kept.shape, 1 / kept.size)


def _dependence(pair: np.ndarray, edge: tuple[int, int]) -> float:
    """1/2 sum |c(x, y) - c(x) c(y) / n|."""
    independent = pair.sum(edge[0], keepdims=True) * pair.sum(edge[1], keepdims=True) / max(pair.sum(), 1)
    return float(np.abs(pair - independent).sum() / 2)
