"""How the networks of snh learn, from one noisy grid and nothing else.

The shipped networks learn in two steps. The cell network says what each cell may hold from everything around it, and is judged by
how likely it finds noisy values that it has not seen: their noise is independent of all it was shown. Its answers then make
replicas of the city: counts as the noise leaves them possible, looked at from twice as far, so that what lies within a cell is
known there, and with fresh noise. Cities look alike at neighbouring scales, so on replicas, whose truth is at hand, the
square networks learn how a count follows from what the noisy grid shows, and are judged on replicas that they have not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from math import exp, log
from pathlib import Path

import numpy as np
import torch

from heathaze.learn.denoiser import noise_variance
from heathaze.learn.distributed import Seam, alone
from heathaze.learn.snh import CellNetwork, PaperNetworks, SquareNetworks
from heathaze.learn.snh_places import (
    CELL_FEATURES,
    PART,
    QUANTILES,
    SQUARE_FEATURES,
    WELL_KNOWN,
    Places,
    Seen,
    Weights,
    look,
    prefix,
    see,
    see_wider,
    surroundings,
    unevenness,
)
from heathaze.learn.training import Epoch, Learner, Quiet, Trained, TrainSettings, train
from heathaze.policy import SNHSettings

HELD_OUT = 0.1
"""Share of cells whose noisy values only judge."""
HEAT = 15
"""Side of the block, in cells, whose noisy mean says whether a cell is trained on often."""

REPLICAS, JUDGES = 6, 1
"""Replicas that a rank learns from, and such that only judge."""
QUESTIONS = 24_000
"""Squares of each size asked on a replica."""
MOST_LIFTED = 1.6
"""By what is measured of crowding, squares are lifted at most by this."""
LEAST_SIDE = 8
"""A grid with a side of fewer cells has no replica; its square networks stay as they begin."""

SECOND_LOOK = 0.25
"""The paper's networks learn from labels with so much more noise (in deviations), and are judged by labels whose noise is
uncorrelated to theirs."""


Extents = Sequence[tuple[float, float]]
"""Height and width, in cells, of the squares of each size."""


@dataclass(frozen=True)
class Task:
    """What is learned from, and how."""

    noisy: np.ndarray
    """rows x cols, whole numbers."""
    scale: Fraction
    """Of the discrete Laplace noise of a cell."""
    cell: tuple[float, float]
    """Height and width of a cell, metres."""
    settings: SNHSettings
    seed: int = 0
    """Of weights, batches and replicas."""

    @property
    def extents(self) -> Extents:
        return [(side / self.cell[0], side / self.cell[1]) for side in self.settings.sides]

    @property
    def least(self) -> float:
        """psi: errors are relative to the count or to this, whichever is larger: 0.1 % of all events, by their noisy sum."""
        return max(1.0, 0.001 * float(self.noisy.sum()))


def fit(seam: Seam, task: Task, work: Path) -> Trained:
    """Learn from a noisy grid; `work` holds checkpoints and progress."""
    if task.settings.architecture == "paper":
        return _fit_paper(seam, task, work)
    cells = _fit_cells(seam, task, work)
    return _fit_squares(seam, task, cells, work)


def augment(noisy: np.ndarray, extents: Extents) -> np.ndarray:
    """Noisy counts of squares around every corner of the grid, (sizes, rows + 1, cols + 1): unbiased, so never cut at 0."""
    corners = Places(np.arange(noisy.shape[0] + 1.0), np.arange(noisy.shape[1] + 1.0), lattice=True)
    total = prefix(noisy)
    return np.stack([corners.sums(total, height, width).astype(np.float32) for height, width in extents])


def ladder(scale: Fraction) -> np.ndarray:
    """Counts that a cell may have: steps that the noise can hardly tell apart, up to where a noisy value is taken as it is."""
    step, top = max(1, round(float(scale) / 10)), 1.25 * WELL_KNOWN * float(scale)
    wide = np.geomspace(12 * step, max(top, 24 * step), 30)
    return np.unique(np.concatenate([step * np.arange(12), np.round(wide)]).astype(np.int64))


def prior_of_all(noisy: np.ndarray, counts: np.ndarray, scale: Fraction, rounds: int = 200) -> np.ndarray:
    """The share of each count that makes the noisy values likeliest (expectation maximisation, every share above 0)."""
    values, number = np.unique(noisy, return_counts=True)
    likelihood = np.exp(-np.abs(values[:, None] - counts) / float(scale))
    likelihood /= likelihood.max(1, keepdims=True)
    share = np.full(len(counts), 1 / len(counts))
    for _ in range(rounds):
        joint = likelihood * share
        share = number @ (joint / joint.sum(1, keepdims=True)) / number.sum()
    share = np.maximum(share, 1e-7)
    return share / share.sum()


class CellLearner(Quiet):
    """Trains the cell network: blind likelihood of noisy values, hot and cold cells alike."""

    def __init__(self, task: Task, seam: Seam):
        noisy, scale, settings = task.noisy, task.scale, task.settings
        self._noisy, self._scale = noisy.ravel(), float(scale)
        self.counts = ladder(scale)
        torch.manual_seed(task.seed)
        self.model = CellNetwork(CELL_FEATURES, torch.from_numpy(prior_of_all(noisy, self.counts, scale)).float())
        self._features = torch.from_numpy(surroundings(noisy, noise_variance(scale) ** 0.5))
        self._batch = max(1, 2 * settings.batch // seam.size)

        order = np.random.default_rng((task.seed, 1)).permutation(noisy.size)
        judges = round(HELD_OUT * noisy.size)
        self._judges, self._learned = order[:judges][seam.rank :: seam.size], order[judges:]
        heat = _heat(noisy)
        self._weight = 0.5 + 0.5 * heat[self._judges]
        self._chance = np.cumsum(0.5 + 0.5 * heat[self._learned])
        self._law = log((1 - exp(-1 / self._scale)) / (1 + exp(-1 / self._scale)))

    def batch(self, random: np.random.Generator) -> np.ndarray:
        return self._learned[np.searchsorted(self._chance, random.random(self._batch) * self._chance[-1])]

    def loss(self, batch: np.ndarray) -> torch.Tensor:
        return self._surprise(batch).mean()

    @torch.no_grad()
    def score(self) -> tuple[float, float]:
        """Surprise, in nats, at noisy values of cells that were never learned from, half by area and half by heat."""
        parts = [self._judges[start : start + PART] for start in range(0, len(self._judges), PART)]
        surprise = np.concatenate([self._surprise(part).numpy() for part in parts]) if parts else np.zeros(0)
        return float(surprise @ self._weight), float(self._weight.sum())

    def _surprise(self, cells: np.ndarray) -> torch.Tensor:
        apart = np.abs(self._noisy[cells][:, None] - self.counts).astype(np.float32) / np.float32(self._scale)
        prior = self.model(self._features[torch.from_numpy(cells)])
        return -torch.logsumexp(prior + (self._law - torch.from_numpy(apart)), 1)


def _heat(noisy: np.ndarray) -> np.ndarray:
    """The noisy mean around each cell without the cell, none below 0, with mean 1; 1 everywhere where there is no mass."""
    centres = Places(np.arange(noisy.shape[0]) + 0.5, np.arange(noisy.shape[1]) + 0.5, lattice=True)
    heat = np.maximum(centres.sums(prefix(noisy), HEAT, HEAT) - noisy, 0).ravel()
    return heat / heat.mean() if heat.sum() > 0 else np.ones(noisy.size)


def calibrate(noisy: np.ndarray, scale: Fraction, weights: Weights) -> dict[str, np.ndarray]:
    """What cells of each expected level hold in truth, as a share of what was expected, as far as it is beyond doubt.

    A count is never below 0, so a network that sees noise expects too much of empty cells. A cell's own noise is independent of
    what was expected of it, so the mean noisy value of a level is honest.
    """
    even = {"cells.level": np.zeros(1), "cells.held": np.ones(1)}
    expected = look(noisy, scale, {**weights, **even})[0].prior.ravel()
    order = np.argsort(expected, kind="stable")
    shares = np.concatenate([np.linspace(0, 0.8, 12), 1 - 0.2 * 0.85 ** np.arange(1, 30)])
    edges = np.unique((shares * noisy.size).astype(np.int64))
    edges = edges[edges <= max(0, noisy.size - 50)]
    number = np.diff(np.append(edges, noisy.size))
    values = noisy.ravel()[order].astype(np.float64)
    level = np.maximum(np.add.reduceat(expected[order].astype(np.float64), edges) / number, 1e-6)
    mean, square = (np.add.reduceat(values**power, edges) / number for power in (1, 2))
    doubt = (square - mean**2) / number
    off = np.maximum(_rising(mean, number), 0) - level
    return {"cells.level": np.log(level), "cells.held": np.minimum(1 + off / level * off**2 / (off**2 + doubt), 2)}


def _rising(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The nearest series that never falls (pool adjacent violators)."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values, weights, strict=True):
        pool = (float(value), float(weight), 1)
        while pools and pools[-1][0] > pool[0]:
            mean, mass, count = pools.pop()
            pool = ((mean * mass + pool[0] * pool[1]) / (mass + pool[1]), mass + pool[1], count + pool[2])
        pools.append(pool)
    return np.concatenate([np.full(count, mean) for mean, _, count in pools])


def _fit_cells(seam: Seam, task: Task, work: Path) -> Trained:
    learner = CellLearner(task, seam)
    how = TrainSettings(task.settings.epochs, 60, 3e-3, task.seed, task.settings.patience)
    trained = train(seam, learner, how, work, "cells")
    weights = {f"cells.{name}": value.numpy() for name, value in trained.weights.items()}
    weights["cells.counts"] = learner.counts
    return replace(trained, weights=_tensors(weights | calibrate(task.noisy, task.scale, weights)))


@dataclass(frozen=True)
class Questions:
    """Squares of each size on replicas, and how many events each holds; the first axis is the size."""

    features: torch.Tensor
    plain: torch.Tensor
    spread: torch.Tensor
    truth: torch.Tensor


class SquareLearner(Quiet):
    """Trains the square networks of some sizes on replicas: quantiles by pinball loss, relative to the count or to psi."""

    def __init__(self, task: Task, weights: Weights, sizes: Sequence[int]):
        noisy, scale, settings = task.noisy, task.scale, task.settings
        extents = [task.extents[size] for size in sizes]
        torch.manual_seed(task.seed)
        whole = SquareNetworks(len(task.extents), SQUARE_FEATURES).state_dict()
        self.model = SquareNetworks(len(sizes), SQUARE_FEATURES)
        self.model.load_state_dict(_of_sizes(whole, sizes))
        self._least, self._batch = task.least, settings.batch
        random = np.random.default_rng((task.seed, 2))
        possible = look(noisy, scale, weights, random, REPLICAS + JUDGES)[1]
        uneven = unevenness(noisy, noise_variance(scale))
        lifts = self.lifts = lift(noisy, split(possible[0], uneven, random), scale, extents)
        at_events = float(settings.at_events)
        asked = [ask(counts, scale, extents, uneven, lifts, weights, at_events, random) for counts in possible]
        self._learned, self._judges = _joined(asked[:REPLICAS]), _joined(asked[REPLICAS:])
        self._quantiles = torch.tensor(QUANTILES)

    def batch(self, random: np.random.Generator) -> Questions:
        chosen = torch.from_numpy(random.integers(0, self._learned.truth.shape[1], self._batch))
        everything = self._learned
        return Questions(
            *(part[:, chosen] for part in (everything.features, everything.plain, everything.spread, everything.truth))
        )

    def loss(self, batch: Questions) -> torch.Tensor:
        return self._errors(batch).mean()

    @torch.no_grad()
    def score(self) -> tuple[float, float]:
        """Error on replicas that were never learned from."""
        errors = self._errors(self._judges)
        return float(errors.sum()), float(errors.numel())

    def _errors(self, questions: Questions) -> torch.Tensor:
        answers = self.model(questions.features, questions.plain, questions.spread)
        off = questions.truth.unsqueeze(-1) - answers
        pinball = torch.maximum(self._quantiles * off, (self._quantiles - 1) * off).sum(-1)
        return 2 * pinball / questions.truth.clamp(min=self._least)


def ask(
    counts: np.ndarray,
    scale: Fraction,
    extents: Extents,
    uneven: float,
    lifts: np.ndarray,
    weights: Weights,
    at_events: float,
    random: np.random.Generator,
) -> Questions:
    """Questions to one replica: a possible city under fresh noise. Its truth is known, also within cells."""
    noise = random.geometric(1 - exp(-1 / float(scale)), (2, *counts.shape))
    cells = look(counts + noise[0] - noise[1], scale, weights)[0]
    fine = split(counts, uneven, random)
    total = np.cumsum(fine, dtype=np.float64)
    events = round(at_events * QUESTIONS) if total[-1] else 0
    place = np.concatenate(
        [
            np.searchsorted(total, random.random(events) * total[-1], side="right"),
            random.integers(0, fine.size, QUESTIONS - events),
        ]
    )
    row, col = place // fine.shape[1] + random.random(QUESTIONS), place % fine.shape[1] + random.random(QUESTIONS)
    within, places = Places(row, col), Places(row / 2, col / 2)
    exact, wider = prefix(fine), see_wider(cells, places)
    seen, truth = [], []
    for (height, width), raised in zip(extents, lifts, strict=True):
        seen.append(see(cells, places, height, width, wider))
        held = within.sums(exact, 2 * height, 2 * width)
        held[:events] *= raised
        truth.append(held)
    return _questions(seen, truth)


def split(counts: np.ndarray, uneven: float, random: np.random.Generator) -> np.ndarray:
    """Each count dealt out to 2 x 2 parts of its cell, as unevenly as `uneven` says."""
    parts = np.zeros((*counts.shape, 4), dtype=np.int64)
    some = counts > 0
    # Of a Dirichlet law of concentration a, the variance of the difference of two halves is 1 / (4 a + 1) of the square.
    shares = random.gamma((1 / np.clip(uneven, 0.02, 0.98) - 1) / 4, size=(int(some.sum()), 4)) + 1e-12
    parts[some] = random.multinomial(counts[some], shares / shares.sum(1, keepdims=True))
    return parts.reshape(*counts.shape, 2, 2).transpose(0, 2, 1, 3).reshape(2 * counts.shape[0], 2 * counts.shape[1])


def _blocks(counts: np.ndarray, side: int = 2) -> np.ndarray:
    """Sums of blocks of side x side cells, as many as fit."""
    rows, cols = counts.shape[0] // side, counts.shape[1] // side
    return counts[: rows * side, : cols * side].reshape(rows, side, cols, side).sum((1, 3))


def _questions(seen: Sequence[Seen], truth: Sequence[np.ndarray]) -> Questions:
    return Questions(
        torch.from_numpy(np.stack([one.features for one in seen])),
        torch.from_numpy(np.stack([one.plain for one in seen])),
        torch.from_numpy(np.stack([one.spread for one in seen])),
        torch.from_numpy(np.stack(truth).astype(np.float32)),
    )


def _joined(asked: Sequence[Questions]) -> Questions:
    names = ("features", "plain", "spread", "truth")
    return Questions(*(torch.cat([getattr(one, name) for one in asked], dim=1) for name in names))


def lift(noisy: np.ndarray, possible: np.ndarray, scale: Fraction, extents: Extents) -> np.ndarray:
    """By how much squares around events hold more in the city than in its replicas, for each size.

    A replica spreads the events of a cell evenly and draws cells independently, so its events crowd less. How much they crowd in
    the city is measured on the noisy grid at twice the side of its cells, and corrected by how much of such crowding is
    seen from there at four times the side. The more doubtful the difference, the less of it is used.
    """
    variance = noise_variance(scale)
    lifts = np.ones(len(extents))
    halved = _blocks(noisy)
    for number, (height, width) in enumerate(extents):
        twice, doubt = crowding(noisy, variance, height, width, 2)
        four, _ = crowding(noisy, variance, height, width, 4)
        four_seen, _ = crowding(halved, 4 * variance, height, width, 2)
        there, _ = crowding(possible, 0.0, height, width, 2)
        hidden = float(np.clip(four / four_seen, 1, 2)) if four_seen > 2 * doubt else 1.0
        lacking = twice * hidden - there
        trust = lacking**2 / (lacking**2 + (hidden * doubt) ** 2) if lacking > 0 else 0.0
        lifts[number] = min(1 + trust * lacking / (1 + there), MOST_LIFTED)
    return lifts


def crowding(counts: np.ndarray, variance: float, height: float, width: float, times: int) -> tuple[float, float]:
    """How much more squares around events hold than blocks of times x times cells say, as a share, and its standard error.

    Squares are `times` (height x width) cells large. Products of a noisy value with itself are rid of the variance of the noise.
    The error is a jackknife over bands of rows. 0 where there is too little to say anything.
    """
    blocks = _blocks(counts, times)
    rows, cols = blocks.shape[0] * times, blocks.shape[1] * times
    if min(blocks.shape) < LEAST_SIDE:
        return 0.0, np.inf
    counts = counts[:rows, :cols]
    row, col = np.arange(rows) + 0.5, np.arange(cols) + 0.5
    coarse = Places(row / times, col / times, lattice=True)
    held = Places(row, col, lattice=True).sums(prefix(counts), times * height, times * width)
    said = coarse.sums(prefix(blocks), height, width)
    own = min(1.0, times * height) * min(1.0, times * width)
    bands = np.linspace(0, rows, 17).astype(np.int64)[:-1]
    both = [
        np.add.reduceat((counts * held).sum(1) - own * variance * cols, bands),
        np.add.reduceat((counts * said - variance * coarse.cover(height, width)).sum(1), bands),
    ]
    top, bottom = (band.sum() - band for band in both)
    if both[1].sum() <= 0 or (bottom <= 0).any():
        return 0.0, np.inf
    left_out = top / bottom
    doubt = float(np.sqrt((len(bands) - 1) * np.var(left_out)))
    return float(both[0].sum() / both[1].sum() - 1), doubt


def _fit_squares(seam: Seam, task: Task, cells: Trained, work: Path) -> Trained:
    if min(task.noisy.shape) < LEAST_SIDE:
        torch.manual_seed(task.seed)
        squares = SquareNetworks(len(task.extents), SQUARE_FEATURES).state_dict()
        return replace(cells, weights={**cells.weights, **{f"squares.{name}": value for name, value in squares.items()}})
    known = {name: value.numpy() for name, value in cells.weights.items()}
    how = TrainSettings(task.settings.epochs, 100, 3e-3, task.seed, task.settings.patience)
    trained = _share_out(seam, len(task.extents), lambda sizes: SquareLearner(task, known, sizes), how, work, "squares")
    weights = {**cells.weights, **{f"squares.{name}": value for name, value in trained.weights.items()}}
    return replace(trained, weights=weights, before={"cells": cells.curve})


class PaperLearner(Quiet):
    """Trains the paper's networks on labels at the corners of the grid.

    What the paper weighs by public points is weighed here by the heat of the noisy grid. Labels get a little more noise, w times
    SECOND_LOOK, and the judging labels - w / SECOND_LOOK: with w of the law of the noise, the two noises are uncorrelated.
    """

    def __init__(self, task: Task, sizes: Sequence[int]):
        noisy, scale, settings = task.noisy, task.scale, task.settings
        extents = [task.extents[size] for size in sizes]
        torch.manual_seed(task.seed)
        whole = PaperNetworks(len(task.extents)).state_dict()
        self.model = PaperNetworks(len(sizes))
        self.model.load_state_dict(_of_sizes(whole, sizes))
        self._least, self._batch = task.least, settings.batch
        random = np.random.default_rng((task.seed, 3))
        noise = random.geometric(1 - exp(-1 / float(scale)), (2, *noisy.shape))
        extra = (noise[0] - noise[1]).astype(np.float64)
        self._labels = torch.from_numpy(augment(noisy + SECOND_LOOK * extra, extents).reshape(len(extents), -1))
        self._judges = torch.from_numpy(augment(noisy - extra / SECOND_LOOK, extents).reshape(len(extents), -1))
        self._variance = noise_variance(scale) * (1 + SECOND_LOOK**-2) * _squared_shares(noisy.shape, extents)
        heat = _heat(noisy).reshape(noisy.shape)
        corners = np.pad(heat, ((0, 1), (0, 1)), mode="edge") + np.pad(heat, ((1, 0), (1, 0)), mode="edge")
        self._chance = np.cumsum(0.2 + 0.4 * corners.ravel())
        rows, cols = np.meshgrid(*(np.linspace(-5, 5, side + 1, dtype=np.float32) for side in noisy.shape), indexing="ij")
        self._centres = torch.from_numpy(np.stack([rows.ravel(), cols.ravel()], axis=1))
        self._checked = self.batch(np.random.default_rng((task.seed, 4)), 16)
        self.deviations = np.zeros(len(extents))

    def batch(self, random: np.random.Generator, times: int = 1) -> torch.Tensor:
        chance = random.random(times * self._batch) * self._chance[-1]
        return torch.from_numpy(np.minimum(np.searchsorted(self._chance, chance), len(self._centres) - 1))

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        labels = self._labels[:, batch]
        off = self._predict(batch) - labels
        return (off**2 / labels.clamp(min=self._least)).mean() / self._least

    @torch.no_grad()
    def score(self) -> tuple[float, float]:
        """Squared error against the judging labels, less what their noise alone makes."""
        predicted = torch.cat([self._predict(part) for part in self._checked.split(4_096)], dim=1)
        squared = (predicted - self._judges[:, self._checked]) ** 2 - torch.from_numpy(self._variance[:, self._checked.numpy()])
        self.deviations = np.sqrt(np.maximum(squared.mean(1).numpy(), 0))
        weighted = squared / predicted.clamp(min=self._least) / self._least
        return float(weighted.sum()), float(weighted.numel())

    def _predict(self, corners: torch.Tensor) -> torch.Tensor:
        return self.model(self._centres[corners].expand(len(self._labels), -1, -1))


def _squared_shares(shape: tuple[int, ...], extents: Extents) -> np.ndarray:
    """Around every corner, the sum over cells of their squared share in the square: (sizes, corners)."""
    shares = []
    for height, width in extents:
        tall, wide = (_squares_along(side, extent) for side, extent in zip(shape, (height, width), strict=True))
        shares.append((tall[:, None] * wide).ravel())
    return np.stack(shares)


def _squares_along(cells: int, extent: float) -> np.ndarray:
    corner, cell = np.arange(cells + 1.0)[:, None], np.arange(cells)
    share = np.minimum(corner + extent / 2, cell + 1) - np.maximum(corner - extent / 2, cell)
    return (np.clip(share, 0, 1) ** 2).sum(1)


def _fit_paper(seam: Seam, task: Task, work: Path) -> Trained:
    how = TrainSettings(task.settings.epochs, 50, 1e-3, task.seed, task.settings.patience)
    trained = _share_out(seam, len(task.extents), lambda sizes: PaperLearner(task, sizes), how, work, "paper")
    learner = PaperLearner(task, range(len(task.extents)))
    learner.model.load_state_dict(trained.weights)
    learner.score()
    state = {name: value.numpy() for name, value in trained.weights.items()}
    depth = len(learner.model.hidden)
    weights: dict[str, np.ndarray] = {
        **{f"paper.{layer}.{part}": state[f"{layer}.{part}"] for layer in ("first", "last") for part in ("weight", "bias")},
        **{f"paper.hidden.{part}": np.stack([state[f"hidden.{i}.{part}"] for i in range(depth)]) for part in ("weight", "bias")},
        "paper.deviations": learner.deviations,
    }
    return replace(trained, weights=_tensors(weights))


def _of_sizes(weights: Mapping[str, torch.Tensor], sizes: Sequence[int]) -> dict[str, torch.Tensor]:
    """The networks of some sizes, which begin as they would among all of them."""
    return {name: value[list(sizes)] for name, value in weights.items()}


def _share_out(
    seam: Seam, sizes: int, learner_of: Callable[[Sequence[int]], Learner], how: TrainSettings, work: Path, step_name: str
) -> Trained:
    """Each rank trains the networks of some sizes by itself, which is faster than sharing batches; then all have all of them.

    A rank keeps its own checkpoint, and where it finds none it ends at the same networks.
    """
    mine = list(range(seam.rank, sizes, seam.size)) or [0]
    name = step_name if seam.size == 1 else f"{step_name}-{seam.rank}"
    trained = train(alone(), learner_of(mine), how, work, name, is_silent=seam.rank > 0)
    share = len(mine) / sizes if seam.rank < sizes else 0.0
    weights = {}
    for key, value in trained.weights.items():
        whole = torch.zeros((sizes, *value.shape[1:]), dtype=value.dtype)
        if share:
            whole[mine] = value
        weights[key] = seam.sum(whole, name=f"{step_name} {key}")
    # A rank that stopped early stays at its last point.
    points = trained.curve + [trained.curve[-1]] * (how.epochs - len(trained.curve))
    facts = torch.tensor([[share * point.loss, share * point.score, point.seconds / seam.size] for point in points]).double()
    longest = int(seam.sum(torch.eye(how.epochs)[len(trained.curve) - 1], name=f"{step_name} epochs").nonzero().max()) + 1
    agreed = seam.sum(facts, name=f"{step_name} curve")[:longest].tolist()
    curve = [Epoch(number, loss, score, seconds, {}) for number, (loss, score, seconds) in enumerate(agreed, 1)]
    return Trained(weights, curve, min(curve, key=lambda point: point.score).epoch)


def _tensors(weights: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.as_tensor(value) for name, value in weights.items()}
