"""The published VQ-VAE carried over to PyTorch line by line, to be measured against: no crops, no shortcuts."""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import nn


class PlainVQVAE(nn.Module):
    """Encoder, quantiser with one-hot codes and moving averages, decoder, as in the authors' code."""

    codes: torch.Tensor
    counts: torch.Tensor
    sums: torch.Tensor

    def __init__(self, codes: int = 128, size: int = 64):
        super().__init__()
        self.halves = nn.ModuleList([nn.Conv2d(1, 32, 4, 2, 1), nn.Conv2d(32, 64, 4, 2, 1)])
        self.flat = nn.Conv2d(64, 64, 3, padding=1)
        self.wide, self.narrow = (nn.ModuleList([one(), one()]) for one in (lambda: nn.Conv2d(64, 32, 3, padding=1), _narrow))
        self.to_code, self.from_code = nn.Conv2d(64, size, 1), nn.Conv2d(size, 64, 3, padding=1)
        self.doubles = nn.ModuleList([nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ConvTranspose2d(32, 1, 4, 2, 1)])
        self.register_buffer("codes", torch.randn(codes, size))
        self.register_buffer("counts", torch.zeros(codes))
        self.register_buffer("sums", torch.zeros(codes, size))
        self.steps = 0

    def loss(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for layer in self.halves:
            x = functional.relu(layer(x))
        x = self.to_code(functional.relu(self._residual(0, functional.relu(self.flat(x)))))
        vectors = x.permute(0, 2, 3, 1).contiguous().view(-1, x.shape[1])
        distance = (vectors**2).sum(1, keepdim=True) - 2 * vectors @ self.codes.t() + (self.codes**2).sum(1)
        one_hot = functional.one_hot(distance.argmin(1), len(self.codes)).float()
        quantised = (one_hot @ self.codes).view(x.shape[0], *x.shape[2:], -1).permute(0, 3, 1, 2)
        self._follow(one_hot, vectors.detach())
        commitment = functional.mse_loss(x, quantised.detach())
        y = self._residual(1, self.from_code(x + (quantised - x).detach()))
        y = self.doubles[1](functional.relu(self.doubles[0](functional.relu(y))))
        return functional.mse_loss(y, images) / images.var() + 0.25 * commitment

    def _residual(self, number: int, x: torch.Tensor) -> torch.Tensor:
        return x + self.narrow[number](functional.relu(self.wide[number](functional.relu(x))))

    @torch.no_grad()
    def _follow(self, one_hot: torch.Tensor, vectors: torch.Tensor, decay: float = 0.99) -> None:
        self.steps += 1
        self.counts.mul_(decay).add_(one_hot.sum(0), alpha=1 - decay)
        self.sums.mul_(decay).add_(one_hot.t() @ vectors, alpha=1 - decay)
        debias = 1 - decay**self.steps
        counts = self.counts / debias
        total = counts.sum()
        counts = (counts + 1e-5) / (total + len(counts) * 1e-5) * total
        self.codes.copy_(self.sums / debias / counts.unsqueeze(1))


def _narrow() -> nn.Conv2d:
    return nn.Conv2d(32, 64, 1)
