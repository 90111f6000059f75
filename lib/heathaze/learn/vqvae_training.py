"""How the VQ-VAE learns from noisy slices, and how it denoises a slice by tiles.

The paper's network learns to draw the noisy slice that it sees, and spends its few codes on noise: almost all of what varies in a
slice. Ours sees the same, but learns to draw what shrinkage makes of the slice with the help of the others: then codes are spent
on streets. Both come from the noisy tensors alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as functional
from scipy.ndimage import uniform_filter

from heathaze.learn.distributed import Seam
from heathaze.learn.vqvae import MARGIN, STRIDE, VQVAE
from heathaze.policy import VQVAESettings

RESOLUTIONS = (1, 2, 4)
"""Multi-resolution learning: crops are also seen as means of blocks of this many cells."""

CHECK_CROPS = 256
"""Crops on which the score is measured, the same in every epoch."""
REVIVE_EVERY = 20
"""Steps after which codes that nobody chooses are put onto vectors; few codes are ever chosen without it."""
SECOND_LOOK = 0.5
"""Deviations of noise that crops get on top before they are judged; less would make the judging look noisier."""


Batch = tuple[torch.Tensor, torch.Tensor]
"""What the network sees, and what it should draw."""

HOT, COARSE = 0.9, 0.2
"""Shares of the crops that lie where noisy counts are high, and that are seen as means of blocks."""


class Crops:
    """Random crops of noisy slices and of what should be drawn of them, in units of the noise's deviation."""

    def __init__(self, slices: np.ndarray, wanted: np.ndarray, noise_variance: float, side: int):
        self._slices, self._wanted = slices, wanted
        self._deviation = noise_variance**0.5
        height, width = slices.shape[1:]
        block = STRIDE * max(RESOLUTIONS)
        self._rows = min(side, height) // block * block or height
        self._cols = min(side, width) // block * block or width
        heat = np.maximum(uniform_filter(slices.mean(0, dtype=np.float64), 15, mode="constant"), 0)
        even = np.full(heat.shape, 1 / heat.size)
        self._places = np.cumsum(((1 - HOT) * even + HOT * (heat / heat.sum() if heat.sum() > 0 else even)).ravel())

    def draw(self, random: np.random.Generator, count: int, coarse: float = COARSE) -> Batch:
        """`count` crops, a share of them at a coarser resolution: as means of blocks, drawn at full size."""
        height, width = self._slices.shape[1:]
        rows, cols = self._rows, self._cols
        pairs = np.empty((count, 2, rows, cols), dtype=np.float32)
        for pair in pairs:
            centre = min(int(np.searchsorted(self._places, random.random() * self._places[-1])), height * width - 1)
            # Whole places of the code map: a slice is always denoised from its corner on, so no other shift need be learned.
            top = int(np.clip(centre // width - rows // 2, 0, height - rows)) // STRIDE * STRIDE
            left = int(np.clip(centre % width - cols // 2, 0, width - cols)) // STRIDE * STRIDE
            number = random.integers(len(self._slices))
            for crop, images in zip(pair, (self._slices, self._wanted), strict=True):
                crop[:] = images[number, top : top + rows, left : left + cols]
            block = RESOLUTIONS[random.integers(1, len(RESOLUTIONS))] if random.random() < coarse else 1
            if block > 1 and rows % block == 0 and cols % block == 0:
                means = pair.reshape(2, rows // block, block, cols // block, block).mean((2, 4))
                pair[:] = np.repeat(np.repeat(means, block, 1), block, 2)
        seen, wanted = torch.from_numpy(pairs / np.float32(self._deviation)).split(1, dim=1)
        return seen, wanted


class VQVAELearner:
    """Trains a VQ-VAE on the noisy slices of one rank; `wanted` is what it should draw of them, None: the slices themselves."""

    def __init__(
        self,
        slices: np.ndarray,
        noise_variance: float,
        settings: VQVAESettings,
        seam: Seam,
        seed: int,
        wanted: np.ndarray | None = None,
    ):
        torch.manual_seed(seed)
        self.model = VQVAE(settings.codes, settings.code_size)
        self._settings = settings
        # Ranks must divide by the same variance, or their gradients weigh differently.
        moments = torch.tensor([float(np.mean(slices)), float(np.mean(np.square(slices, dtype=np.float64))), 1.0]).double()
        mean, square, ranks = seam.sum(moments, name="moments").tolist()
        self._variance = max(square / ranks - (mean / ranks) ** 2, 1e-9) / noise_variance
        self._batch = max(1, settings.batch // seam.size)
        self._crops = Crops(slices, slices if wanted is None else wanted, noise_variance, settings.crop)
        self._check = check_crops(slices, noise_variance, settings, seed)
        self._last: tuple[torch.Tensor, torch.Tensor] | None = None
        self._steps = self._revived = 0

    def batch(self, random: np.random.Generator) -> Batch:
        return self._crops.draw(random, self._batch)

    def loss(self, batch: Batch) -> torch.Tensor:
        """Mean squared error over the variance of the noisy data, plus the commitment to the codes."""
        seen, wanted = batch
        drawn, vectors, nearest = self.model(seen)
        self._last = (vectors.detach(), nearest)
        distance = functional.mse_loss(vectors, self.model.quantiser.codes[nearest])
        return functional.mse_loss(drawn, wanted) / self._variance + float(self._settings.commitment) * distance

    def after_step(self, seam: Seam) -> None:
        """Codes follow the vectors of all ranks together; otherwise the ranks' codebooks drift apart."""
        assert self._last is not None
        counts, sums = self.model.quantiser.statistics(*self._last)
        both = seam.sum(torch.cat([counts.unsqueeze(1), sums], dim=1), name="codebook")
        self.model.quantiser.follow(both[:, 0], both[:, 1:])
        self._steps += 1
        if self._steps % REVIVE_EVERY == 0:
            self._revived += self._revive(seam, np.random.default_rng((self._steps, seam.rank)))

    def after_epoch(self, seam: Seam, random: np.random.Generator) -> dict[str, float]:
        """How many codes are in use, and how many had to be revived since the last epoch."""
        share = self.model.quantiser.counts / self.model.quantiser.counts.sum()
        used = float(torch.exp(-(share * (share + 1e-12).log()).sum()))
        self._revived += self._revive(seam, random)
        facts = {"codes_used": round(used, 1), "codes_revived": float(self._revived)}
        self._steps = self._revived = 0
        return facts

    def _revive(self, seam: Seam, random: np.random.Generator) -> int:
        """Put codes that nobody chooses onto vectors of rank 0, so that all ranks revive them alike."""
        assert self._last is not None
        vectors = self._last[0]
        chosen = vectors[torch.from_numpy(random.permutation(len(vectors))[: self._settings.codes])]
        if seam.rank > 0:
            chosen = torch.zeros_like(chosen)
        return self.model.quantiser.revive(seam.sum(chosen, name="revive"))

    def score(self) -> tuple[float, float]:
        return second_look_error(self.model, self._check)


@dataclass(frozen=True)
class Check:
    """Noisy crops seen twice, with noise that is uncorrelated between the two looks."""

    seen: torch.Tensor
    """Crops with a little more noise, which a model is given."""
    judge: torch.Tensor
    """The same crops with other noise, which it is held against."""
    weight: torch.Tensor
    """How much each cell counts: as many events as the first look shows around it, since people ask where events are."""


def check_crops(slices: np.ndarray, noise_variance: float, settings: VQVAESettings, seed: int) -> Check:
    """The crops on which a model is judged, the same in every epoch.

    With w of the noise's own variance, noise + a w and noise - w / a are uncorrelated: what a model makes of the first cannot
    follow the noise of the second. Hiding cells instead would judge how well a cell is foretold from its neighbours, which an
    autoencoder unlearns as it learns to draw what it sees.
    """
    random = np.random.default_rng((seed, 7))
    crops, _ = Crops(slices, slices, noise_variance, settings.crop).draw(random, CHECK_CROPS, coarse=0)
    more = torch.from_numpy(random.laplace(0, 0.5**0.5, crops.shape).astype(np.float32))
    seen = crops + SECOND_LOOK * more
    around = functional.avg_pool2d(seen, 5, stride=1, padding=2, count_include_pad=False)
    return Check(seen, crops - more / SECOND_LOOK, around.clamp(min=0.02))


@torch.no_grad()
def second_look_error(model: VQVAE, check: Check) -> tuple[float, float]:
    """Sum and weight of squared errors against the second look, less what its noise alone makes: an estimate of the error
    against the truth where events are, in noise variances, without the truth."""
    drawn = torch.cat([model(part)[0] for part in check.seen.split(8)])
    squared = (drawn - check.judge) ** 2 - (1 + SECOND_LOOK**-2)
    return float((check.weight * squared).sum()), float(check.weight.sum())


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
