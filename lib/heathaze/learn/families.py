"""The denoisers that are trained: for each, how a rank trains it, how it denoises a night, and how it has aged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from heathaze.learn import denoiser
from heathaze.learn.bayes import Context, ContextNet, Earlier, lessons
from heathaze.learn.bayes_training import BayesLearner, blind_error, check_cells, estimate, schedule_of
from heathaze.learn.bayes_training import fit as fit_bayes
from heathaze.learn.denoiser import Denoised
from heathaze.learn.handoff import Night, read_map, read_night, read_slices, shared_out
from heathaze.learn.shrink import shrink
from heathaze.learn.snh_places import look
from heathaze.learn.snh_training import Task, fit
from heathaze.learn.totals import Totals
from heathaze.learn.training import Trained, TrainSettings, train
from heathaze.learn.vqvae import VQVAE
from heathaze.learn.vqvae_training import RESOLUTIONS, VQVAELearner, check_crops, denoise_slice, second_look_error
from heathaze.policy import Denoise, Policy

if TYPE_CHECKING:
    from heathaze.learn.distributed import Seam

Weights = dict[str, torch.Tensor]

MAP = "map."
"""What the names of the weights begin with that belong to the network of maps."""

NO_ERROR = 0.01
"""An estimated error below a hundredth of the noise variance is measured as noise; a ratio of two such says nothing."""


@dataclass(frozen=True)
class Nights:
    """The noisy nights that a denoiser works with, by name; it reads what it needs."""

    storage: str
    """Where the noisy table's files are."""
    named: tuple[Night, ...]
    """Oldest first; the last one is tonight."""
    days: int
    """Length of a period."""
    season: int
    """Slices after which days or weeks repeat within a period; 0: not."""
    cell: tuple[float, float]
    """Height and width of a cell, metres."""
    map_shape: tuple[int, int] | None = None
    """Rows and cols of the maps of whole periods; None where there are none."""
    is_map: bool = False
    """Whether the tensor of a night is its map, as one slice."""

    def maps(self) -> Nights:
        """The same nights, each with its map of the whole period as its only slice."""
        return replace(self, season=0, is_map=True)

    @property
    def scale(self) -> Fraction:
        scale = self.named[-1].map_scale if self.is_map else self.named[-1].scale
        assert scale is not None
        return scale

    def tonight(self) -> np.ndarray:
        return self._read(self.named[-1])

    def totals(self) -> Totals:
        """The totals of tonight's slices, as they were measured."""
        return Totals(np.array(self.named[-1].totals), denoiser.noise_variance(self.named[-1].total_scale))

    def earlier(self) -> list[Earlier]:
        last = date.fromisoformat(self.named[-1].period)
        ages = [(last - date.fromisoformat(night.period)).days // self.days for night in self.named[:-1]]
        return [Earlier(self._read(night), age) for night, age in zip(self.named, ages, strict=False)]

    def _read(self, night: Night) -> np.ndarray:
        if not self.is_map:
            return read_night(self.storage, night)
        assert self.map_shape is not None
        return read_map(self.storage, night, self.map_shape)


def season_of(policy: Policy) -> int:
    """Slices after which the days of a period repeat, or its weeks where a slice is a day; 0 where neither fits twice."""
    days, slices = policy.period.days, policy.period.slices
    per_day = slices // days
    if per_day > 1:
        return per_day if days > 1 and slices % days == 0 else 0
    return 7 if slices == days and days >= 14 else 0


@dataclass(frozen=True)
class Family:
    """One kind of trained denoiser."""

    train_rank: Callable[[Seam, Nights, Denoise, str], Trained]
    """What every rank does: read its own slices, and train."""
    denoise: Callable[[Weights, Nights, np.ndarray, Denoise], Denoised]
    """The estimate of a tensor of tonight's shape, with the weights of a trained model."""
    error: Callable[[Weights, Nights, np.ndarray, Denoise], float | None]
    """Estimated error of a model on tonight's noisy tensor, as its score at training; None where it does not fit the nights."""


def train_vqvae(seam: Seam, nights: Nights, settings: Denoise, work: str) -> Trained:
    share, ours = shared_out(list(nights.named), seam.rank, seam.size), settings.vqvae
    slices = read_slices(nights.storage, share)
    wanted = _shrunk(nights, share) if ours.target == "shrink" else None
    learner = VQVAELearner(slices, denoiser.noise_variance(nights.scale), ours, seam, settings.seed, wanted)
    cells = sum(one.slices for one in nights.named) * slices.shape[1] * slices.shape[2] * len(RESOLUTIONS)
    steps = max(1, -(-cells // (ours.batch * min(ours.crop, slices.shape[1]) * min(ours.crop, slices.shape[2]))))
    schedule = TrainSettings(ours.epochs, steps, float(ours.learning_rate), settings.seed, ours.patience)
    return train(seam, learner, schedule, Path(work))


def _shrunk(nights: Nights, share: list[tuple[str, int]]) -> np.ndarray:
    """What shrink makes of the named slices, each with the help of its own night and of the others."""
    noisy = {night.entry: read_night(nights.storage, night) for night in nights.named}
    made = {
        entry: shrink(noisy[entry], [other for name, other in noisy.items() if name != entry], nights.scale).values
        for entry in {entry for entry, _ in share}
    }
    return np.stack([made[entry][number] for entry, number in share])


def _denoise_vqvae(weights: Weights, nights: Nights, tensor: np.ndarray, settings: Denoise) -> Denoised:
    network, variance = _vqvae(weights, settings), denoiser.noise_variance(nights.scale)
    return Denoised(np.stack([denoise_slice(network, image, variance) for image in tensor]))


def _vqvae_error(weights: Weights, nights: Nights, tensor: np.ndarray, settings: Denoise) -> float:
    crops = check_crops(tensor, denoiser.noise_variance(nights.scale), settings.vqvae, seed=0)
    summed, weight = second_look_error(_vqvae(weights, settings), crops)
    return summed / weight


def _vqvae(weights: Weights, settings: Denoise) -> VQVAE:
    network = VQVAE(settings.vqvae.codes, settings.vqvae.code_size)
    network.load_state_dict(weights)
    return network.eval()


def train_bayes(seam: Seam, nights: Nights, settings: Denoise, work: str) -> Trained:
    """One network for the slices, and, where there is a map of the whole period, another for it, which learns first."""
    if nights.map_shape is None:
        return _train_bayes(seam, nights, settings, work)
    place = Path(work) / "map"
    place.mkdir(parents=True, exist_ok=True)
    of_map = _train_bayes(seam, nights.maps(), settings, str(place))
    of_slices = _train_bayes(seam, nights, settings, work)
    weights = of_slices.weights | {f"{MAP}{name}": value for name, value in of_map.weights.items()}
    before = {"map": of_map.curve, **{f"map, {name}": curve for name, curve in of_map.before.items()}, **of_slices.before}
    return replace(of_slices, weights=weights, before=before)


def _train_bayes(seam: Seam, nights: Nights, settings: Denoise, work: str) -> Trained:
    learner = _learner(seam, nights, settings)
    return fit_bayes(seam, learner, schedule_of(settings.bayes, learner.size, settings.seed), Path(work))


def _learner(seam: Seam, nights: Nights, settings: Denoise) -> BayesLearner:
    """Ready to learn; tensors and what surrounds their cells are let go, so that they take no room while it does."""
    tonight, earlier = nights.tonight(), nights.earlier()
    context = Context(tonight, nights.scale, earlier, nights.season)
    taught = lessons(tonight, nights.scale, earlier, nights.season, context.sources)
    return BayesLearner(context, tonight, nights.scale, settings.bayes, seam, settings.seed, taught)


def _denoise_bayes(weights: Weights, nights: Nights, tensor: np.ndarray, settings: Denoise) -> Denoised:
    network = _bayes(weights, nights)
    return estimate(network, _context(network, nights, tensor), tensor, nights.scale).denoised


def _bayes_error(weights: Weights, nights: Nights, tensor: np.ndarray, settings: Denoise) -> float | None:
    network = _bayes(weights, nights)
    context = _context(network, nights, tensor)
    if len(context.names) != network.features:
        return None
    summed, weight = blind_error(network, *check_cells(context, tensor, settings.seed), denoiser.noise_variance(nights.scale))
    return summed / weight


def _bayes(weights: Weights, nights: Nights) -> ContextNet:
    """The network of the slices, or that of the maps."""
    chosen = {name.removeprefix(MAP): value for name, value in weights.items() if name.startswith(MAP) == nights.is_map}
    return ContextNet.of_weights(chosen)


def _context(network: ContextNet, nights: Nights, tensor: np.ndarray) -> Context:
    """The context that a network was trained with: kinds of earlier nights that it does not know wait for the next training."""
    earlier = nights.earlier() if network.sources else []
    return Context(tensor, nights.scale, earlier, nights.season, network.sources)


def train_snh(seam: Seam, nights: Nights, settings: Denoise, work: str) -> Trained:
    return fit(seam, Task(nights.tonight()[0], nights.scale, nights.cell, settings.snh, settings.seed), Path(work))


def _denoise_snh(weights: Weights, nights: Nights, tensor: np.ndarray, settings: Denoise) -> Denoised:
    """What the cell network makes of each cell; the paper's networks speak of squares only, and leave the grid as it is."""
    if settings.snh.architecture == "paper":
        return denoiser.none(tensor, [], nights.scale)
    cells = look(tensor[0], nights.scale, {name: value.numpy() for name, value in weights.items()})[0]
    spread = np.sqrt(np.maximum(cells.square - cells.mean**2, 0))
    return Denoised(cells.mean[None], spread[None])


def _snh_error(weights: Weights, nights: Nights, tensor: np.ndarray, settings: Denoise) -> None:
    """The networks are of one grid: every night trains its own."""
    return None


FAMILIES = {
    "vqvae": Family(train_vqvae, _denoise_vqvae, _vqvae_error),
    "bayes": Family(train_bayes, _denoise_bayes, _bayes_error),
    "snh": Family(train_snh, _denoise_snh, _snh_error),
}
