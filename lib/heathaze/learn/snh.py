"""The networks of snh: nothing but the models.

`PaperNetworks` is the method as published (Zeighami, Ahuja, Ghinita, Shahabi, PVLDB 2022): one deep network per size of square,
from coordinates to a count. `CellNetwork` and `SquareNetworks` are what is shipped. They are given what the noisy grid shows
around a place instead of its coordinates, so that they need not spend their weights on remembering a city: the first
says what a cell may hold from everything but the cell itself, the second what a square holds given its cells.

The K networks of a size each are one module with a leading axis, so that a step is a few large products instead of K small ones.
"""

from __future__ import annotations

import torch
import torch.nn.functional as functional
from torch import nn

from heathaze.learn.snh_places import QUANTILES, SHIFT, STRETCH


class Stacked(nn.Module):
    """`count` linear layers side by side: (count, n, inputs) to (count, n, outputs)."""

    def __init__(self, count: int, inputs: int, outputs: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(count, inputs, outputs).uniform_(-1, 1) * (6 / inputs) ** 0.5)
        self.bias = nn.Parameter(torch.zeros(count, 1, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.baddbmm(self.bias, x, self.weight)


class PaperNetworks(nn.Module):
    """One network per size: the centre of a square, scaled to [-5, 5], to its count. 129,921 weights each."""

    def __init__(self, sizes: int, width: int = 80, depth: int = 20):
        super().__init__()
        self.first = Stacked(sizes, 2, width)
        self.hidden = nn.ModuleList(Stacked(sizes, width, width) for _ in range(depth))
        self.last = Stacked(sizes, width, 1)

    def forward(self, centres: torch.Tensor) -> torch.Tensor:
        """(sizes, n, 2) to (sizes, n)."""
        x = torch.sin(self.first(centres))
        for layer in self.hidden:
            x = functional.silu(layer(x))
        return self.last(x).squeeze(-1)


class CellNetwork(nn.Module):
    """What is seen around a cell (n, features) to the logarithm of its prior over a ladder of counts (n, counts)."""

    def __init__(self, features: int, prior: torch.Tensor, hidden: int = 32):
        super().__init__()
        self.first = nn.Linear(features, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, len(prior))
        # It begins as the prior of all cells together, and learns in what cells differ.
        with torch.no_grad():
            self.last.weight.mul_(0.1)
            self.last.bias.copy_(torch.log(prior))

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = functional.silu(self.first(features))
        return torch.log_softmax(self.last(functional.silu(self.second(x))), -1)


class SquareNetworks(nn.Module):
    """One network per size: what is seen of a square to the quantiles of its count, as corrections of the plain answer."""

    def __init__(self, sizes: int, features: int, hidden: int = 32):
        super().__init__()
        self.first = Stacked(sizes, features, hidden)
        self.second = Stacked(sizes, hidden, hidden)
        self.last = Stacked(sizes, hidden, 2 * len(QUANTILES))
        # It begins as the plain answer, 1.96 spreads on both sides.
        with torch.no_grad():
            self.last.weight.zero_()
            self.last.bias.copy_(torch.tensor([0.0, 0.0, 0.0, -1.96 / SHIFT, 0.0, 1.96 / SHIFT]).expand_as(self.last.bias))

    def forward(self, features: torch.Tensor, plain: torch.Tensor, spread: torch.Tensor) -> torch.Tensor:
        """(sizes, n, features), (sizes, n) and (sizes, n) to (sizes, n, quantiles)."""
        out = self.last(functional.relu(self.second(functional.relu(self.first(features)))))
        stretch, shift = out.chunk(2, -1)
        return plain.unsqueeze(-1) * torch.exp(STRETCH * stretch) + SHIFT * spread.unsqueeze(-1) * shift
