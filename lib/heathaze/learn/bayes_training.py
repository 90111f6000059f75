"""How the context network learns from noisy tensors alone, and how it denoises a night.

It maximises the likelihood of each cell's noisy value under the prior that it made without that value. Nothing is compared with
a truth: the law of the noise is known, so the likelihood says it all. How large weights may become is decided by it, too: of
networks that were trained with dear and with cheap weights that is kept under which noisy cells that none of them has learned
from are likeliest.

Cells are drawn for training by a heat that is blind to them as well. Drawing them by a heat that holds their own noise would pick
cold cells whose noise is high, and teach the network that cold cells hold people.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate
from math import sqrt
from os import cpu_count
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from heathaze.learn.bayes import Context, ContextNet, Lesson, turns
from heathaze.learn.denoiser import Denoised, noise_variance
from heathaze.learn.distributed import Seam
from heathaze.learn.posterior import Posterior, Tables, deconvolve, ladder, log_evidence, make_tables, posterior
from heathaze.learn.training import Quiet, Trained, TrainSettings, train
from heathaze.learn.tree import settle
from heathaze.policy import BayesSettings

Batch = tuple[torch.Tensor, torch.Tensor]

CHUNK = 8_192
"""Cells that go through the network at once: few enough to stay in the cache."""

CHECKED = 100_000
"""Cells on which networks are compared, the same in every epoch."""

HELD = 10
"""One of so many places is not learned from, in no slice of no night: what other slices of a place are taught would tell of its
own value, because it is among what surrounds them."""

SMALL, LARGE = 0.08, 0.3
"""Deviations of a network's weights before it has seen a cell, of features that vary by 1. Where noise drowns cells, large
weights learn it by heart; where counts stand above it, small ones cannot follow them."""

DOUBT = 2.0
"""Standard errors by which large weights must do better than small ones to be kept."""

MOST_OFTEN = 4
"""So many cells are drawn, at most, for each cell that there is."""

GROUPS = 16
"""Groups of like heat whose own best prior the network starts from."""

WARM_UP = 400
"""Steps in which the network learns the priors of the groups."""

FEWEST_STEPS = 30
"""Of an epoch: on a small map, passes over its few cells would end before anything is learned."""


class BayesLearner(Quiet):
    """Trains a context network on the noisy slices of one rank, with the context of all of them.

    It also learns from earlier nights, with their own context: what surroundings say of a cell is much the same every night, and
    the noise of each is another.
    """

    def __init__(
        self,
        context: Context,
        tonight: np.ndarray,
        scale: Fraction,
        settings: BayesSettings,
        seam: Seam,
        seed: int,
        earlier: Sequence[Lesson] = (),
    ):
        self._noise = noise_variance(scale)
        self.size = tonight.size
        """Cells of the night."""
        most = max(float(night.max()) for night in (tonight, *(lesson.noisy for lesson in earlier)))
        highest = max(4 * float(scale), 20.0, 1.5 * most)
        self._tables = make_tables(float(scale), ladder(float(scale), highest, settings.rates))
        self._batch = max(1, settings.batch // seam.size)
        numbers = range(seam.rank, len(tonight), seam.size) if len(tonight) >= seam.size else range(len(tonight))
        random = np.random.default_rng((seed, 11, seam.rank))
        held = _held(tonight[0].size, seed)
        cells = settings.cells // seam.size
        # Tonight weighs as much as all the others: a city that has changed must be able to say so.
        own = cells if not earlier else cells - cells // 2
        share = (cells - own) // max(1, len(earlier))
        nights = [Lesson(tonight, lambda: context), *earlier]
        counts = [_drawn(share if night else own, numbers, lesson.noisy) for night, lesson in enumerate(nights)]
        # One room for all of it: put together from parts, the largest thing there is would be there twice.
        room = _Cells.empty(sum(counts), len(context.names))
        for lesson, first, stop in zip(nights, [0, *accumulate(counts)], accumulate(counts), strict=False):
            _draw(lesson.context(), lesson.noisy, random, numbers, ~held, room.part(first, stop))
        self._features, self._noisy, self._heat = room
        self._check = _draw_some(context, tonight, np.random.default_rng((seed, 7, seam.rank)), numbers, ~held)
        self.unseen = len(numbers) * int(held.sum())
        self._unseen = _draw_some(context, tonight, np.random.default_rng((seed, 19, seam.rank)), numbers, held)
        self._turns = turns(context.names)
        self._names, self._hidden, self._seed = context.sources, settings.hidden, seed
        self._deviation = self._features.std(0) + 1e-3
        # Few cells are drawn again and again, which tells nothing new.
        self._known = min(own * seam.size, tonight.size) + min(share * seam.size, tonight.size) * len(earlier)
        self._group, self._priors = self._groups(random)
        self.begin(SMALL)

    def begin(self, spread: float) -> None:
        """Begin anew with weights of such a spread."""
        torch.manual_seed(self._seed)
        self.model = ContextNet(self._features.shape[1], self._tables.rates, self._hidden, self._names)
        self._weighty = 2 * spread**2 * self._known
        self._start(np.random.default_rng((self._seed, 13)))

    @property
    def cells(self) -> int:
        return len(self._noisy)

    def batch(self, random: np.random.Generator) -> Batch:
        """Each of its cells seen from one of four sides: no side of a city is the right one, and a small map is soon known."""
        chosen = torch.from_numpy(random.integers(0, len(self._noisy), self._batch))
        sides = zip(self._features[chosen].chunk(len(self._turns)), self._turns, strict=False)
        return torch.cat([part[:, turn] for part, turn in sides]), self._noisy[chosen]

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean of -log P(noisy value | context), and a little for large weights: few cells must not be learned by heart."""
        features, noisy = batch
        layers = (self.model.first.weight * self._deviation, self.model.second.weight, self.model.last.weight)
        squares = torch.stack([layer.square().sum() for layer in layers]).sum()
        return squares / self._weighty - log_evidence(self.model(features.t()), noisy, self._tables).mean()

    def score(self) -> tuple[float, float]:
        return blind_error(self.model, *self._check, self._noise)

    @torch.no_grad()
    def surprise(self) -> torch.Tensor:
        """-log P(noisy value | context) of cells that were not learned from."""
        features, noisy = self._unseen
        parts = [slice(start, start + CHUNK) for start in range(0, len(noisy), CHUNK)]
        return torch.cat([-log_evidence(self.model(features[part].t()), noisy[part], self._tables).double() for part in parts])

    def _groups(self, random: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """The group of like heat of each cell, and the likeliest prior of each group."""
        some = self._heat[torch.from_numpy(random.integers(0, len(self._heat), 100_000))]
        edges = torch.quantile(some, torch.linspace(0, 1, GROUPS + 1)[1:-1]).unique()
        group = torch.bucketize(self._heat, edges)
        return group, torch.stack([self._prior_of(self._noisy[group == number]) for number in range(len(edges) + 1)])

    def _start(self, random: np.random.Generator) -> None:
        """Start from the priors of the groups; from a flat start the cold cells would take for ever."""
        mean = self._features.mean(0)
        with torch.no_grad():
            self.model.first.weight.div_(self._deviation)
            self.model.first.bias.sub_(self.model.first.weight @ mean)
            self.model.last.weight.mul_(0.1)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        for _ in range(WARM_UP):
            chosen = torch.from_numpy(random.integers(0, len(self._noisy), 2_048))
            wanted = self._priors[self._group[chosen]]
            loss = torch.nn.functional.cross_entropy(self.model(self._features[chosen].t()), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _prior_of(self, noisy: torch.Tensor) -> torch.Tensor:
        values, counts = np.unique(noisy.numpy() if len(noisy) else self._noisy.numpy(), return_counts=True)
        return torch.from_numpy(deconvolve(values, counts, self._tables)).float()


def schedule_of(settings: BayesSettings, cells: int, seed: int) -> TrainSettings:
    """How long to learn for a night of so many cells; the same on every rank. Not longer with earlier nights to learn from: what
    surrounds a place is much the same on all of them, and a small map would be learned by heart."""
    steps = max(FEWEST_STEPS, -(-min(settings.cells, MOST_OFTEN * cells) // settings.batch))
    return TrainSettings(settings.epochs, steps, float(settings.learning_rate), seed, settings.patience)


def fit(seam: Seam, learner: BayesLearner, schedule: TrainSettings, work: Path) -> Trained:
    """Train with small weights and with large ones, and keep the large ones only where cells that nobody has learned from are
    clearly likelier under them."""

    def trained(name: str) -> tuple[Trained, torch.Tensor]:
        found = train(seam, learner, schedule, work, name)
        learner.model.load_state_dict(found.weights)
        return found, learner.surprise()

    small, surprise = trained("small-weights")
    learner.begin(LARGE)
    large, other_surprise = trained("large-weights")
    gain = surprise - other_surprise
    facts = [float(gain.sum()), float(gain.square().sum()), len(gain), learner.unseen]
    total, squares, drawn, unseen = seam.sum(torch.tensor(facts, dtype=torch.float64), name="gain").tolist()
    # A cell that was drawn twice tells no more than once.
    doubt = sqrt(max(squares / drawn - (total / drawn) ** 2, 0) / min(drawn, unseen))
    if total / drawn > DOUBT * doubt:
        return replace(large, before={"small weights": small.curve})
    return replace(small, before={"large weights": large.curve})


def _held(places: int, seed: int) -> np.ndarray:
    """Which places are not learned from, as booleans; at least one. The same on every rank."""
    return np.random.default_rng((seed, 17)).permutation(places) < max(1, places // HELD)


class _Cells(NamedTuple):
    """Drawn cells."""

    features: torch.Tensor
    """(cell, feature)."""
    noisy: torch.Tensor
    heat: torch.Tensor

    @classmethod
    def empty(cls, cells: int, features: int) -> _Cells:
        return cls(torch.empty((cells, features)), torch.empty(cells, dtype=torch.int64), torch.empty(cells))

    def part(self, first: int, stop: int) -> _Cells:
        """Some of the cells, in the same room."""
        return _Cells(*(values[first:stop] for values in self))


def _drawn(cells: int, numbers: Sequence[int], night: np.ndarray) -> int:
    """How many cells are drawn where about so many are wanted: as many of every slice, and of a small one not too often."""
    return len(numbers) * max(1, min(cells // len(numbers), MOST_OFTEN * night[0].size))


def _draw(
    context: Context, tonight: np.ndarray, random: np.random.Generator, numbers: Sequence[int], allowed: np.ndarray, into: _Cells
) -> None:
    """Fill `into` with cells of some slices at allowed places: a third anywhere, the others where much goes on."""
    each = len(into.noisy) // len(numbers)
    for place, number in enumerate(numbers):
        heat = context.heat(number)
        level = heat + 1e-6
        chosen = []
        for weight, count in ((1.0, each - 2 * (each // 3)), (level, each // 3), (np.sqrt(level), each // 3)):
            places = np.cumsum(weight * allowed, dtype=np.float64)
            chosen.append(np.minimum(np.searchsorted(places, random.random(count) * places[-1], side="right"), heat.size - 1))
        index = np.concatenate(chosen)
        here = into.part(place * each, (place + 1) * each)
        here.features[:] = context.features(number)[:, torch.from_numpy(index)].t()
        here.noisy[:] = torch.from_numpy(tonight[number].ravel()[index])
        here.heat[:] = torch.from_numpy(heat[index])


def _draw_some(
    context: Context, tonight: np.ndarray, random: np.random.Generator, numbers: Sequence[int], allowed: np.ndarray
) -> Batch:
    """Features and noisy values of CHECKED cells."""
    cells = _Cells.empty(_drawn(CHECKED, numbers, tonight), len(context.names))
    _draw(context, tonight, random, numbers, allowed, cells)
    return cells.features, cells.noisy


@torch.no_grad()
def blind_error(model: ContextNet, features: torch.Tensor, noisy: torch.Tensor, noise: float) -> tuple[float, float]:
    """Sum and number of squared errors of the blind prediction, in units of the noise variance, less the noise's own."""
    rates = model.rates.to(torch.float32)
    summed = 0.0
    for start in range(0, len(noisy), CHUNK):
        part = slice(start, start + CHUNK)
        expected = torch.softmax(model(features[part].t()), 1) @ rates
        summed += float(((noisy[part] - expected) ** 2 / noise - 1).double().sum())
    return summed, float(len(noisy))


def check_cells(context: Context, tonight: np.ndarray, seed: int) -> Batch:
    """Cells of another night on which a model's drift is measured."""
    everywhere = np.ones(tonight[0].size, dtype=bool)
    return _draw_some(context, tonight, np.random.default_rng((seed, 7)), range(len(tonight)), everywhere)


@dataclass(frozen=True)
class Estimate:
    """Everything that the network says about a night; tensors are slices x rows x cols, float32."""

    prior: np.ndarray
    """Mean of the prior, before the cell's own value is seen."""
    mean: np.ndarray
    """Mean of the posterior of each cell."""
    variance: np.ndarray
    """Variance of the posterior of each cell."""
    settled: np.ndarray
    """The mean brought together with noisy sums of blocks."""

    @property
    def denoised(self) -> Denoised:
        return Denoised(self.settled, np.sqrt(self.variance))


def estimate(model: ContextNet, context: Context, tonight: np.ndarray, scale: Fraction) -> Estimate:
    """Prior, posterior and settled estimate of every cell of a night."""
    tables = make_tables(float(scale), model.rates.numpy())
    prior, mean, variance = (np.empty(tonight.shape, dtype=np.float32) for _ in range(3))

    def one_slice(number: int) -> None:
        for part, found in _parts(model, context, tonight, number, tables):
            prior[number].reshape(-1)[part] = found.prior_mean.numpy()
            mean[number].reshape(-1)[part] = found.mean.numpy()
            variance[number].reshape(-1)[part] = (found.square - found.mean**2).clamp(min=0).numpy()

    _each_slice(one_slice, len(tonight))
    settled, _ = settle(mean, variance, tonight, noise_variance(scale))
    return Estimate(prior, mean, variance, settled)


@torch.no_grad()
def _parts(
    model: ContextNet, context: Context, tonight: np.ndarray, number: int, tables: Tables
) -> list[tuple[slice, Posterior]]:
    features, noisy = context.features(number), torch.from_numpy(tonight[number].ravel().astype(np.int64))
    parts = [slice(start, start + CHUNK) for start in range(0, len(noisy), CHUNK)]
    return [(part, posterior(model(features[:, part]), noisy[part], tables)) for part in parts]


def _each_slice(work: Callable[[int], None], slices: int) -> None:
    """Slices side by side, one thread each: numpy and torch leave the interpreter to the others."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(max_workers=min(slices, cpu_count() or 1)) as pool:
            list(pool.map(work, range(slices)))
    finally:
        torch.set_num_threads(threads)
