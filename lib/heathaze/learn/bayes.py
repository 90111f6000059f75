"""bayes: a network that says what a cell may hold from everything except the cell itself. Nothing but the model.

`Context` gathers what is known around a cell: its neighbours in the slice, the other slices, and earlier nights, each at several
widths and each in units of its own noise. `ContextNet` turns that into a prior over the ladder of rates.

A mean of values under Laplace noise throws half of what they tell away: far out, one value says no more than another. So other
slices and nights are also added up as evidence, the logarithm of how much likelier a value is if its cell holds events.

Blindness is exact, to the bit, for counts up to ten million. All sums are of whole numbers in float64, which do not round, so
taking a cell's own value out of a sum leaves no trace of it. The same slice comes in through one layer of sums with a hole in
the centre, and nothing after it mixes cells. Where weights of other slices are fitted to the slice itself, those of a cell come
from cells of the other colour of a chessboard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import sqrt
from os import cpu_count

import numpy as np
import torch
from torch import nn

from heathaze.learn.denoiser import noise_variance
from heathaze.learn.posterior import REACH, make_tables

WIDTHS = (2, 5, 13, 35, 99)
"""A sum of width w is a box of w cells passed over twice in each direction: a tent of deviation about 0.4 w."""

CLOSE = 2
"""So many of the widths are used of evidence."""

NARROW = 3
"""So many of the widths are also used of some slices only, such as the one before."""

FEW = 5
"""So many cells are added up one by one, which is faster than running sums of them."""

EXACT = 2**24
"""Whole numbers below it do not round in float32."""

WARM = 20_000
"""Cells of one colour, the warmest, on which the weights of other slices are fitted."""

TAUGHT = 112
"""Slices of earlier nights, the last ones, that are learned from beside tonight's; each costs the time of its features."""

ALIKE = 14
"""Earlier nights, the last ones, whose weights are fitted one by one."""

EVIDENT = 1.0
"""Events, in scales of the noise, that a cell of the evidence holds. Far fewer and far more are told apart less well by it."""

UNIT = 64
"""Evidence is a whole number: so many to a standard deviation of what noise alone gives, few enough for float32 not to round."""

LINES = ("north south", "east west", "rising", "falling")
"""Lines through a cell."""

SOURCES = ("history", "weekday", "last")
"""What earlier nights tell: the same slice of all of them, of those a whole number of weeks ago, and of the last one."""


class ContextNet(nn.Module):
    """Features of cells (features, cells) in, logits of the prior (cells, rates) out."""

    rates: torch.Tensor
    uses: torch.Tensor

    def __init__(self, features: int, rates: np.ndarray, hidden: int, sources: Sequence[str] = ()):
        super().__init__()
        self.register_buffer("rates", torch.from_numpy(np.asarray(rates, dtype=np.float64)))
        # Not booleans, which Horovod does not send.
        self.register_buffer("uses", torch.tensor([source in sources for source in SOURCES], dtype=torch.int32))
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, len(rates))

    @classmethod
    def of_weights(cls, weights: dict[str, torch.Tensor]) -> ContextNet:
        """The network whose state is `weights`."""
        hidden, features = weights["first.weight"].shape
        network = cls(features, weights["rates"].numpy(), hidden)
        network.load_state_dict(weights)
        return network.eval()

    @property
    def sources(self) -> tuple[str, ...]:
        """The kinds of earlier nights that this network was trained with."""
        return tuple(source for source, is_used in zip(SOURCES, self.uses.tolist(), strict=True) if is_used)

    @property
    def features(self) -> int:
        return self.first.in_features

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = features
        for layer in (self.first, self.second):
            x = nn.functional.gelu(torch.addmm(layer.bias[:, None], layer.weight, x))
        return torch.addmm(self.last.bias, x.t(), self.last.weight.t())


@dataclass(frozen=True)
class Earlier:
    """One earlier night: whole numbers, slices x rows x cols."""

    noisy: np.ndarray
    age: int
    """Periods before tonight."""


class Context:
    """What is known of each cell of tonight without looking at the cell.

    `season` is the number of slices after which days or weeks repeat, 0 where they do not: a fact of the policy.
    """

    def __init__(
        self,
        tonight: np.ndarray,
        scale: Fraction,
        earlier: Sequence[Earlier] = (),
        season: int = 0,
        sources: Sequence[str] = SOURCES,
    ):
        self._tonight = tonight
        self._noise = noise_variance(scale)
        self.slices, self._height, self._width = tonight.shape
        self._widths = [min(width, max(2, min(self._height, self._width))) for width in WIDTHS]
        self._kernels = {width: _Tent(width, self._height, self._width) for width in set(self._widths)}
        self._sum = tonight.sum(0, dtype=np.float64)
        self._squares = np.zeros(tonight.shape[1:])
        for image in tonight:
            self._squares += np.square(image, dtype=np.float64)
        self._wide_sums = {width: kernel.sums(self._sum) for width, kernel in self._kernels.items()}
        self._season = season if self.slices >= 2 * season else 0
        self._narrow = self._widths[:NARROW]
        # Of every slice by width, 0 for the cells themselves; and of all slices of one phase of the season.
        self._images = {0: tonight}
        if self.slices > 2:
            self._images |= {width: _sums_of_slices(self._kernels[width], tonight) for width in self._narrow}
        self._exact = {width for width, sums in self._images.items() if width and _farthest(sums) < EXACT}
        self._phases = {width: _sums_of_phases(sums, self._season) for width, sums in self._images.items()}
        kinds = _kinds([night for night in earlier if night.noisy.shape == tonight.shape])
        self._earlier = {name: _added(nights) for name, nights in kinds.items() if name in sources}
        self._nights = [night.noisy for night in kinds["history"][:ALIKE]] if "history" in self._earlier else []
        self._flat = tonight.reshape(self.slices, -1).astype(np.float32)
        evidence = Evidence.of(scale)
        self._doubt = evidence.variance
        self._proof = evidence(tonight)
        self._proof_sum = self._proof.sum(0, dtype=np.float64)
        self._proof_phases = _sums_of_phases(self._proof, self._season)
        self._proven = {name: _Added(_total(nights, evidence), len(nights)) for name, nights in kinds.items() if name in sources}
        self._chess = np.add.outer(np.arange(self._height), np.arange(self._width)) % 2 == 0
        self.names = [name for name, _, _ in self._gather(0)]

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(self._earlier)

    def features(self, number: int) -> torch.Tensor:
        """(features, cells) of one slice, float32: each value over its own noise, large ones on a logarithmic scale."""
        gathered = self._gather(number)
        out = torch.empty((len(gathered), self._height * self._width), dtype=torch.float32)
        size = torch.empty(out.shape[1], dtype=torch.float32)
        for row, (_, value, variance) in zip(out, gathered, strict=True):
            torch.mul(torch.from_numpy(np.ascontiguousarray(value)).reshape(-1), 1 / sqrt(variance), out=row)
            torch.abs(row, out=size)
            torch.copysign(size.log1p_(), row, out=row)
        return out

    def heat(self, number: int) -> np.ndarray:
        """How much is going on around each cell of a slice, at least 0, in units of its noise; blind to the cell's own value."""
        if self.slices > 1:
            image, width = self._wide_sums[self._widths[1]] - self._kernels[self._widths[1]].sums(self._tonight[number]), 1
        else:
            kernel = self._kernels[self._widths[2]]
            image, width = kernel.sums(self._tonight[number]) - kernel.centre * self._tonight[number], 2
        kernel = self._kernels[self._widths[width]]
        spread = sqrt(self._noise * max(1, self.slices - 1) * kernel.squares)
        return np.maximum(image / spread - 1, 0).ravel()

    def _own(self, width: int, number: int) -> np.ndarray:
        """Sums of one slice, without rounding."""
        if width in self._exact:
            return self._images[width][number].astype(np.float64)
        return self._kernels[width].sums(self._tonight[number])

    def _gather(self, number: int) -> list[tuple[str, np.ndarray, float]]:
        """Name, value and noise variance of each feature of one slice."""
        noise, own = self._noise, self._tonight[number].astype(np.float64)
        found: list[tuple[str, np.ndarray, float]] = []
        own_sums = {width: self._own(width, number) for width in self._kernels}
        for place, width in enumerate(self._widths):
            kernel = self._kernels[width]
            found.append(
                (
                    f"own {place}",
                    kernel.mean(own_sums[width] - kernel.centre * own, hole=True),
                    noise * kernel.variance(hole=True),
                )
            )
        found += _pairs("own", own, noise)
        others = self.slices - 1
        if others:
            rest, share = (self._sum - own) / others, noise / others
            found.append(("others", rest, share))
            for place, width in enumerate(self._widths):
                kernel = self._kernels[width]
                found.append(
                    (
                        f"others {place}",
                        kernel.mean((self._wide_sums[width] - own_sums[width]) / others),
                        share * kernel.variance(),
                    )
                )
            found += _pairs("others", rest, share)
            spread = (self._squares - own * own) / others - rest * rest - noise
            found.append(("others vary", spread, 5 * noise * noise / others))
        if others + len(self._nights) > 1:
            found += self._alike(number)
        if others > 1:
            near = [q for q in (number - 1, number + 1) if 0 <= q < self.slices]
            found += self._slices("near", len(near), lambda width: sum(self._images[width][q] for q in near), 2)
            first, stop = max(0, number - 6), min(self.slices, number + 7)
            weights = np.where(np.arange(first, stop) == number, 0, 0.75 ** np.abs(np.arange(first, stop) - number))
            weights /= weights.sum()
            # The slice itself has the weight 0, which leaves no trace of it.
            decayed = _combined(weights, self._flat[first:stop])
            found.append(("decayed", decayed, noise * float(np.sum(weights**2))))
        if self._season:
            phase = number % self._season
            count = len(range(phase, self.slices, self._season)) - 1
            found += self._slices("season", count, lambda width: self._phases[width][phase] - self._images[width][number], 3)
        for name, nights in self._earlier.items():
            found += self._before(name, nights, number)
        return found + self._evidence(number)

    def _evidence(self, number: int) -> list[tuple[str, np.ndarray, float]]:
        """Evidence of other slices and nights: at the centre, and of all of them also around it."""
        own, others = self._proof[number], self.slices - 1
        found: list[tuple[str, np.ndarray, float]] = []
        if others:
            found += self._around("evidence others", (self._proof_sum - own) / others, self._doubt / others)
        if others > 1:
            near = [self._proof[q] for q in (number - 1, number + 1) if 0 <= q < self.slices]
            found.append(("evidence near", np.sum(near, axis=0) / len(near), self._doubt / len(near)))
        if self._season:
            phase = number % self._season
            count = len(range(phase, self.slices, self._season)) - 1
            found.append(("evidence season", (self._proof_phases[phase] - own) / count, self._doubt / count))
        for name, nights in self._proven.items():
            mean, share = nights.total[number] / nights.nights, self._doubt / nights.nights
            found += self._around(f"evidence {name}", mean, share)[: None if name == "history" else 1]
        return found

    def _around(self, name: str, image: np.ndarray, noise: float) -> list[tuple[str, np.ndarray, float]]:
        """An image of other slices at the centre, along lines through it, and close around it."""
        found = [(name, image, noise), *_pairs(name, image, noise)]
        for place, width in enumerate(self._widths[:CLOSE]):
            kernel = self._kernels[width]
            found.append((f"{name} {place}", kernel.mean(kernel.sums(image, np.float32)), noise * kernel.variance()))
        return found

    def _alike(self, number: int) -> list[tuple[str, np.ndarray, float]]:
        """The slice as the sum of others that fits it best by least squares where events are, at the centre and at narrow widths.

        The others are those of tonight and the same slice of earlier nights. Weekdays are alike, and so are weekends; how alike
        is read off the warmest cells.
        """
        nights = [night[number].reshape(-1) for night in self._nights]
        count = self.slices - 1 + len(nights)
        share = self._noise / count
        mean = (self._sum - self._tonight[number]).ravel()
        for image in nights:
            mean = mean + image
        heat = np.maximum(mean / count - 2 * sqrt(share), 0)
        others = np.delete(np.arange(self.slices), number)
        images = []
        for colour in (self._chess, ~self._chess):
            warm = _warmest(np.where(colour.ravel(), 0, heat))
            seen = np.concatenate([self._flat[others[:, None], warm], *(image[None, warm] for image in nights)])
            weights = _fitted(self._tonight[number].ravel()[warm], seen, heat[warm])
            # The slice itself has the weight 0, which leaves no trace of it.
            image = _combined(np.insert(weights[: self.slices - 1], number, 0), self._flat)
            for weight, other in zip(weights[self.slices - 1 :], nights, strict=True):
                image += np.float32(weight) * other
            noise = sqrt(max(self._noise * float(weights @ weights), 1e-3 * share))
            images.append(image.reshape(self._height, self._width) / np.float32(noise))
        found = [("alike", np.where(self._chess, *images), 1.0)]
        for place, width in enumerate(self._narrow):
            kernel = self._kernels[width]
            sums = [kernel.sums(image, np.float32) for image in images]
            found.append((f"alike {place}", kernel.mean(np.where(self._chess, *sums)), kernel.variance()))
        return found

    def _slices(
        self, name: str, count: int, total: Callable[[int], np.ndarray], widths: int
    ) -> list[tuple[str, np.ndarray, float]]:
        """The mean of so many other slices, at the centre and at narrow widths, from what they add up to at a width."""
        share = self._noise / count
        found = [(name, total(0) / count, share)]
        for place, width in enumerate(self._narrow[:widths]):
            kernel = self._kernels[width]
            found.append((f"{name} {place}", kernel.mean(total(width)) / count, share * kernel.variance()))
        return found

    def _before(self, name: str, history: _Added, number: int) -> list[tuple[str, np.ndarray, float]]:
        """The same slice of earlier nights, and, of all nights together, all of their slices."""
        share = self._noise / history.nights
        mean = history.total[number] / history.nights
        found = [(name, mean, share)]
        for place, width in enumerate(self._widths):
            kernel = self._kernels[width]
            found.append((f"{name} {place}", kernel.mean(kernel.sums(mean)), share * kernel.variance()))
        if name == "history":
            found += _pairs(name, mean, share)
            always, kernel = history.always, self._kernels[self._widths[0]]
            found.append((f"{name} always", always, share / self.slices))
            found.append((f"{name} always 0", kernel.mean(kernel.sums(always)), share / self.slices * kernel.variance()))
        return found


@dataclass(frozen=True)
class Lesson:
    """A night to learn from."""

    noisy: np.ndarray
    context: Callable[[], Context]
    """Made when it is needed, and let go: it is several times as large as the night."""


def lessons(
    tonight: np.ndarray, scale: Fraction, earlier: Sequence[Earlier], season: int, sources: Sequence[str]
) -> list[Lesson]:
    """Earlier nights as nights to learn from, the last ones first, each with all the others, later ones too, as its context.

    Those whose others do not tell the same as tonight's (`sources`) are left out.
    """
    nights = sorted((*earlier, Earlier(tonight, 0)), key=lambda night: night.age)
    usable = [night for night in nights if night.noisy.shape == tonight.shape]
    found = []
    for night in usable[1:]:
        others = [Earlier(other.noisy, abs(other.age - night.age)) for other in usable if other is not night]
        if set(_kinds(others)) == set(sources):
            found.append(Lesson(night.noisy, partial(Context, night.noisy, scale, others, season)))
    return found[: TAUGHT // len(tonight)]


def _kinds(earlier: Sequence[Earlier]) -> dict[str, list[Earlier]]:
    """The nights behind each of `SOURCES`, the last ones first; without those that have none."""
    nights = sorted(earlier, key=lambda night: night.age)
    kinds = {"history": nights, "weekday": [night for night in nights if night.age % 7 == 0], "last": nights[:1]}
    return {name: chosen for name, chosen in kinds.items() if chosen}


def _warmest(heat: np.ndarray) -> np.ndarray:
    """The cells with most heat, of those that have any."""
    warm = np.flatnonzero(heat)
    return warm if len(warm) <= WARM else np.sort(warm[np.argpartition(heat[warm], -WARM)[-WARM:]])


def _fitted(image: np.ndarray, seen: np.ndarray, heat: np.ndarray) -> np.ndarray:
    """Weights with which others (other, cell) add up to an image, by least squares; equal where cells are few."""
    if len(image) < 10 * len(seen):
        return np.full(len(seen), 1 / len(seen))
    known = torch.from_numpy(seen.astype(np.float64))
    weighted = known * torch.from_numpy(heat)
    moments = weighted @ known.t()
    moments.diagonal().mul_(1.01)
    wanted = weighted @ torch.from_numpy(image.astype(np.float64))
    return np.asarray(torch.linalg.solve(moments, wanted).numpy())


def _combined(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """The weighted sum of images (image, cell). By torch: slices work side by side, and numpy's threads would be in their way."""
    return np.asarray(torch.mv(torch.from_numpy(images).t(), torch.from_numpy(weights.astype(np.float32))).numpy())


@dataclass(frozen=True)
class Evidence:
    """What a noisy value says for a cell with EVIDENT scales of events against an empty one, as a whole number."""

    first: int
    """The lowest noisy value of the table; what is further out says the same as its ends."""
    table: np.ndarray
    """float32, one per noisy value, with the mean 0 under noise alone."""
    variance: float
    """Under noise alone."""

    @classmethod
    def of(cls, scale: Fraction) -> Evidence:
        tables = make_tables(float(scale), np.array([0.0, EVIDENT * float(scale)]))
        reach = min(-tables.first, int(REACH * float(scale)))
        values = np.arange(-reach, reach + 1)
        likelihood = tables.log_likelihood[tables.rows(torch.from_numpy(values))].numpy().astype(np.float64)
        chance = np.exp(-np.abs(values) / float(scale))
        chance /= chance.sum()
        ratio = likelihood[:, 1] - likelihood[:, 0]
        ratio -= chance @ ratio
        table = np.rint(ratio * (UNIT / sqrt(chance @ ratio**2)))
        return cls(-reach, table.astype(np.float32), float(chance @ table**2))

    def __call__(self, noisy: np.ndarray) -> np.ndarray:
        def of_slice(image: np.ndarray, into: np.ndarray) -> None:
            np.take(self.table, np.clip(image, self.first, -self.first) - self.first, out=into)

        return _slice_by_slice(of_slice, noisy)


@dataclass(frozen=True)
class _Added:
    """Earlier nights, added up."""

    total: np.ndarray
    """slices x rows x cols."""
    nights: int

    @property
    def always(self) -> np.ndarray:
        """The mean over all slices and nights."""
        return self.total.mean(0) / self.nights


def _added(nights: list[Earlier]) -> _Added:
    total = np.zeros(nights[0].noisy.shape, dtype=np.float32 if len(nights) == 1 else np.float64)
    for night in nights:
        total += night.noisy
    return _Added(total, len(nights))


def _total(nights: list[Earlier], evidence: Evidence) -> np.ndarray:
    """Evidence of nights, added up: whole numbers that float32 does not round."""
    total = evidence(nights[0].noisy)
    for night in nights[1:]:
        total += evidence(night.noisy)
    return total


def _pairs(name: str, image: np.ndarray, noise: float) -> list[tuple[str, np.ndarray, float]]:
    """Means of the two neighbours along each of four lines through the cell: streets run along one of them."""
    p = np.pad(image, 1)
    ends = (
        p[:-2, 1:-1] + p[2:, 1:-1],
        p[1:-1, :-2] + p[1:-1, 2:],
        p[:-2, :-2] + p[2:, 2:],
        p[:-2, 2:] + p[2:, :-2],
    )
    return [(f"{name} {line}", total / 2, noise / 2) for line, total in zip(LINES, ends, strict=True)]


def turns(names: Sequence[str]) -> list[torch.Tensor]:
    """Orders of features in which a place could have been seen as well: as it is, mirrored along a diagonal, mirrored from left
    to right, and turned by a quarter.

    Only lines through the cell tell such cities apart. A mirror along a diagonal swaps the upright ones, one from left to right
    the slanting ones, and a quarter turn does both.
    """
    upright, slanting = LINES[:2], LINES[2:]
    orders = []
    for swapped in ((), upright, slanting, LINES):
        other = {line: pair[1 - pair.index(line)] for pair in (upright, slanting) for line in pair if line in swapped}
        seen = [
            next((name.removesuffix(line) + other[line] for line in other if name.endswith(f" {line}")), name) for name in names
        ]
        orders.append(torch.tensor([names.index(name) for name in seen]))
    return orders


class _Tent:
    """Sums over a tent-shaped neighbourhood; whole numbers in, whole numbers out, without rounding."""

    def __init__(self, width: int, height: int, breadth: int):
        self._width = width
        self.centre = float(width * width)
        """Weight of the cell itself."""
        line = np.convolve(np.ones(width), np.ones(width))
        self._mass = float(line.sum()) ** 2
        self.squares = float((line**2).sum()) ** 2
        """Sum of the squared weights."""
        inside = self.sums(np.ones((height, breadth)))
        self._parts = 1 / inside, 1 / np.maximum(inside - self.centre, 1.0)

    def sums(self, image: np.ndarray, kind: type = np.float64) -> np.ndarray:
        """Without rounding only as float64."""
        total: np.ndarray = np.asarray(image, dtype=kind)
        for axis in (0, 1):
            total = _tent(total, self._width, axis)
        return total

    def exact_kind(self, largest: float) -> type:
        """The faster type in which sums of whole numbers up to `largest` do not round; running sums need room for whole lines."""
        return np.float32 if self._width <= FEW and largest * self._mass < EXACT else np.float64

    def mean(self, sums: np.ndarray, hole: bool = False) -> np.ndarray:
        """Sums as means over the part of the neighbourhood that lies on the grid."""
        return np.asarray(sums * self._parts[hole])

    def variance(self, hole: bool = False) -> float:
        """Noise variance of a mean, in units of one cell's."""
        squares, mass = self.squares, self._mass
        if hole:
            squares, mass = squares - self.centre**2, mass - self.centre
        return squares / mass**2


def _sums_of_slices(kernel: _Tent, tensor: np.ndarray) -> np.ndarray:
    """Sums of every slice, float32."""
    kind = kernel.exact_kind(_farthest(tensor))

    def of_slice(image: np.ndarray, into: np.ndarray) -> None:
        into[:] = kernel.sums(image, kind)

    return _slice_by_slice(of_slice, tensor)


def _slice_by_slice(work: Callable[[np.ndarray, np.ndarray], None], tensor: np.ndarray) -> np.ndarray:
    """What `work` makes of each slice, float32; several at a time: numpy leaves the interpreter to the others."""
    made = np.empty(tensor.shape, dtype=np.float32)
    with ThreadPoolExecutor(max_workers=cpu_count() or 1) as pool:
        list(pool.map(work, tensor, made))
    return made


def _farthest(tensor: np.ndarray) -> float:
    """The largest distance from 0; of int32, that of its lowest value would not fit."""
    return max(float(tensor.max()), -float(tensor.min()))


def _sums_of_phases(images: np.ndarray, season: int) -> np.ndarray:
    """Sums of the slices of each phase of a season: whole numbers, which do not round."""
    return np.stack([images[phase::season].sum(0, dtype=np.float64) for phase in range(season)]) if season else images[:0]


def _tent(image: np.ndarray, width: int, axis: int) -> np.ndarray:
    """Sums along an axis over `width` cells, of sums over `width` cells."""
    few = width <= FEW
    for pad in ((width - 1, width - 1), (0, 0)) if few else ((width, width - 1), (1, 0)):
        size = image.shape[axis] + sum(pad) - width + few
        shape = [size + width - few if place == axis else side for place, side in enumerate(image.shape)]
        padded = np.zeros(shape, image.dtype)
        _along(padded, axis, pad[0], pad[0] + image.shape[axis])[:] = image
        if few:
            image = _along(padded, axis, 0, size).copy()
            for start in range(1, width):
                image += _along(padded, axis, start, start + size)
        else:
            np.cumsum(padded, axis=axis, out=padded)
            image = _along(padded, axis, width, size + width) - _along(padded, axis, 0, size)
    return image


def _along(image: np.ndarray, axis: int, start: int, stop: int) -> np.ndarray:
    return image[start:stop] if axis == 0 else image[:, start:stop]
