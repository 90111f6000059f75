"""How the VQ-VAE learns from noisy slices, and how it denoises a slice by tiles."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as functional
from scipy.ndimage import uniform_filter

from heathaze.learn.distributed import Seam
from heathaze.learn.vqvae import MARGIN, STRIDE, VQVAE
from heathaze.policy import VQVAESettings

RESOLUTIONS = (1, 2, 4)
"""Multi-resolution learning: crops are also seen as means of blocks of this many cells."""

CHECK_CROPS = 8
"""Crops on which the score is measured, the same in every epoch."""


class Crops:
    """Random crops of noisy slices, in units of the noise's deviation: half anywhere, half where noisy counts are high."""

    def __init__(self, slices: np.ndarray, noise_variance: float, side: int):
        self._slices = slices
        self._deviation = noise_variance**0.5
        height, width = slices.shape[1:]
        block = STRIDE * max(RESOLUTIONS)
        self._rows = min(side, height) // block * block or height
        self._cols = min(side, width) // block * block or width
        heat = np.maximum(uniform_filter(slices.mean(0, dtype=np.float64), 15, mode="constant"), 0)
        even = np.full(heat.shape, 1 / heat.size)
        self._places = np.cumsum((0.5 * even + 0.5 * (heat / heat.sum() if heat.sum() > 0 else even)).ravel())

    def draw(self, random: np.random.Generator, count: int, resolutions: tuple[int, ...]) -> torch.Tensor:
        """`count` crops, each at one of the resolutions: as means of blocks, drawn at full size."""
        height, width = self._slices.shape[1:]
        rows, cols = self._rows, self._cols
        crops = np.empty((count, 1, rows, cols), dtype=np.float32)
        for crop in crops:
            centre = min(int(np.searchsorted(self._places, random.random() * self._places[-1])), height * width - 1)
            top = int(np.clip(centre // width - rows // 2, 0, height - rows))
            left = int(np.clip(centre % width - cols // 2, 0, width - cols))
            crop[0] = self._slices[random.integers(len(self._slices)), top : top + rows, left : left + cols]
            block = resolutions[random.integers(len(resolutions))]
            if block > 1 and rows % block == 0 and cols % block == 0:
                means = crop[0].reshape(rows // block, block, cols // block, block).mean((1, 3))
                crop[0] = np.repeat(np.repeat(means, block, 0), block, 1)
        return torch.from_numpy(crops / np.float32(self._deviation))


class VQVAELearner:
    """Trains a VQ-VAE on the noisy slices of one rank."""

    def __init__(self, slices: np.ndarray, noise_variance: float, settings: VQVAESettings, seam: Seam, seed: int):
        torch.manual_seed(seed)
        self.model = VQVAE(settings.codes, settings.code_size)
        self._settings = settings
        # Ranks must divide by the same variance, or their gradients weigh differently.
        moments = torch.tensor([float(np.mean(slices)), float(np.mean(np.square(slices, dtype=np.float64))), 1.0]).double()
        mean, square, ranks = seam.sum(moments, name="moments").tolist()
        self._variance = max(square / ranks - (mean / ranks) ** 2, 1e-9) / noise_variance
        self._batch = max(1, settings.batch // seam.size)
        self._crops = Crops(slices, noise_variance, settings.crop)
        self._check = check_crops(slices, noise_variance, settings, seed)
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None

    def batch(self, random: np.random.Generator) -> torch.Tensor:
        return self._crops.draw(random, self._batch, RESOLUTIONS)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        """Mean squared error over the variance of the noisy data, plus the commitment to the codes."""
        drawn, vectors, nearest = self.model(batch)
        self._last = (vectors.detach(), nearest)
        distance = functional.mse_loss(vectors, self.model.quantiser.codes[nearest])
        return functional.mse_loss(drawn, batch) / self._variance + float(self._settings.commitment) * distance

    def after_step(self, seam: Seam) -> None:
        """Codes follow the vectors of all ranks together; otherwise the ranks' codebooks drift apart."""
        assert self._last is not None
        counts, sums = self.model.quantiser.statistics(*self._last)
        both = seam.sum(torch.cat([counts.unsqueeze(1), sums], dim=1), name="codebook")
        self.model.quantiser.follow(both[:, 0], both[:, 1:])

    def after_epoch(self, seam: Seam, random: np.random.Generator) -> dict[str, float]:
        """Revive codes that nobody chooses, with vectors of rank 0, so that all ranks revive them alike."""
        assert self._last is not None
        vectors = self._last[0]
        chosen = vectors[torch.from_numpy(random.permutation(len(vectors))[: self._settings.codes])]
        if seam.rank > 0:
            chosen = torch.zeros_like(chosen)
        counts = self.model.quantiser.counts
        share = counts / counts.sum()
        used = float(torch.exp(-(share * (share + 1e-12).log()).sum()))
        revived = self.model.quantiser.revive(seam.sum(chosen, name="revive"))
        return {"codes_used": round(used, 1), "codes_revived": float(revived)}

    def score(self) -> tuple[float, float]:
        return blind_spot_error(self.model, self._check)


def check_crops(slices: np.ndarray, noise_variance: float, settings: VQVAESettings, seed: int) -> torch.Tensor:
    """The crops on which a model is judged, the same in every epoch."""
    return Crops(slices, noise_variance, settings.crop).draw(np.random.default_rng((seed, 7)), CHECK_CROPS, (1,))


@torch.no_grad()
def blind_spot_error(model: VQVAE, images: torch.Tensor) -> tuple[float, float]:
    """Sum and number of squared errors at cells hidden behind the mean of their neighbours and predicted from the rest.

    The hidden value carries noise of variance 1 (in units of the noise) that its prediction cannot know, so the mean squared
    difference less 1 estimates the error of the prediction against the truth, without the truth.
    """
    around = torch.tensor([[0.0, 0.25, 0.0], [0.25, 0.0, 0.25], [0.0, 0.25, 0.0]]).view(1, 1, 3, 3)
    filled = functional.conv2d(functional.pad(images, (1, 1, 1, 1), mode="replicate"), around)
    summed, number = 0.0, 0.0
    for row, col in ((1, 2), (3, 0)):
        hidden = torch.zeros_like(images, dtype=torch.bool)
        hidden[..., row::4, col::4] = True
        drawn = model(torch.where(hidden, filled, images))[0]
        summed += float(((drawn - images)[hidden] ** 2 - 1).sum())
        number += float(hidden.sum())
    return summed, number


@torch.no_grad()
def denoise_slice(model: VQVAE, image: np.ndarray, noise_variance: float, tile: int = 256) -> np.ndarray:
    """One noisy slice through the network, tile by tile with a margin: the same as in one piece, in bounded memory."""
    deviation = noise_variance**0.5
    height, width = image.shape
    out = np.empty((height, width), dtype=np.float32)
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            first_row, first_col = max(0, top - MARGIN), max(0, left - MARGIN)
            last_row, last_col = min(height, top + tile + MARGIN), min(width, left + tile + MARGIN)
            piece = torch.from_numpy(image[first_row:last_row, first_col:last_col].astype(np.float32) / np.float32(deviation))
            drawn = model(piece[None, None])[0][0, 0].numpy()
            inner = drawn[top - first_row :, left - first_col :][:tile, :tile]
            out[top : top + tile, left : left + tile] = inner * deviation
    return out
