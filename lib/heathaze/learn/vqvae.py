"""The convolutional VQ-VAE of VDR (Ahuja, Ghinita, Shahabi, Zeighami, SIGMOD 2023): nothing but the model.

One time slice is one image of noisy counts. The encoder halves it twice, each place of the small image is replaced by the nearest
of a few codes, and the decoder draws the image again: what the few codes cannot say, most of the noise, is gone.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import nn

MARGIN = 32
"""Cells around a tile that can reach into it: a tile denoised with this margin equals the whole image there."""

STRIDE = 4
"""Cells of the image per place of the code map, in each direction."""


class Residual(nn.Module):
    """Adds a small correction to its input."""

    def __init__(self, channels: int, hidden: int):
        super().__init__()
        self.wide = nn.Conv2d(channels, hidden, 3, padding=1)
        self.narrow = nn.Conv2d(hidden, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow(functional.relu(self.wide(functional.relu(x))))


class Quantiser(nn.Module):
    """Replaces vectors by their nearest codes; codes follow the vectors by moving averages, not by gradients."""

    codes: torch.Tensor
    counts: torch.Tensor
    sums: torch.Tensor
    weight: torch.Tensor

    def __init__(self, count: int, size: int, decay: float = 0.99, smoothing: float = 1e-5):
        super().__init__()
        self.decay, self.smoothing = decay, smoothing
        self.register_buffer("codes", torch.randn(count, size) / size**0.5)
        self.register_buffer("counts", torch.zeros(count))
        self.register_buffer("sums", torch.zeros(count, size))
        self.register_buffer("weight", torch.zeros(()))

    def forward(self, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes for vectors (n, size), with the gradient passed straight through, and the number of each one's code."""
        with torch.no_grad():
            distance = torch.addmm((self.codes**2).sum(1), vectors, self.codes.t(), beta=1, alpha=-2)
            nearest = distance.argmin(1)
            chosen = self.codes[nearest]
        return vectors + (chosen - vectors).detach(), nearest

    @torch.no_grad()
    def statistics(self, vectors: torch.Tensor, nearest: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """How many vectors chose each code, and their sums: what ranks add up before `follow`."""
        sums = torch.zeros_like(self.sums).index_add_(0, nearest, vectors)
        return torch.bincount(nearest, minlength=len(self.counts)).to(sums.dtype), sums

    @torch.no_grad()
    def follow(self, counts: torch.Tensor, sums: torch.Tensor) -> None:
        """Move each code towards the mean of its vectors (zero-debiased moving averages)."""
        for average, value in ((self.counts, counts), (self.sums, sums), (self.weight, torch.ones_like(self.weight))):
            average.mul_(self.decay).add_(value, alpha=1 - self.decay)
        unbiased = self.counts / self.weight
        total = unbiased.sum()
        smoothed = (unbiased + self.smoothing) / (total + len(unbiased) * self.smoothing) * total
        self.codes.copy_(self.sums / self.weight / smoothed.unsqueeze(1))

    @torch.no_grad()
    def revive(self, vectors: torch.Tensor, least: float = 1e-3) -> int:
        """Put codes that less than `least` of an even share chose onto given vectors; returns how many."""
        share = self.counts / self.counts.sum().clamp(min=1e-12) * len(self.counts)
        dead = torch.nonzero(share < least).flatten()
        dead = dead[: len(vectors)]
        mean = self.counts.mean()
        self.codes[dead] = vectors[: len(dead)]
        self.counts[dead] = mean
        self.sums[dead] = vectors[: len(dead)] * mean
        return len(dead)


class VQVAE(nn.Module):
    """Noisy image in, denoised image out. Sizes need not be multiples of 4: the image is padded and cut again."""

    def __init__(self, codes: int = 128, code_size: int = 64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 64, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(64, 64, 3, padding=1),
            nn.ReLU(),
            Residual(64, 32),
            nn.ReLU(),
            nn.Conv2d(64, code_size, 1),
        )
        self.quantiser = Quantiser(codes, code_size)
        self.decoder = nn.Sequential(
            nn.Conv2d(code_size, 64, 3, padding=1),
            Residual(64, 32),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, stride=2, padding=1),
        )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The image drawn from codes, the encoder's vectors (n, code_size), and the code of each."""
        height, width = image.shape[-2:]
        padded = functional.pad(image, (0, -width % STRIDE, 0, -height % STRIDE))
        encoded = self.encoder(padded).permute(0, 2, 3, 1)
        vectors = encoded.reshape(-1, encoded.shape[-1])
        quantised, nearest = self.quantiser(vectors)
        drawn = self.decoder(quantised.view_as(encoded).permute(0, 3, 1, 2))
        return drawn[..., :height, :width], vectors, nearest
