"""The model, and denoising by tiles."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from tests.train.ranks import noisy_slices

from heathaze.learn.denoiser import discrete_laplace, noise_variance
from heathaze.learn.distributed import alone
from heathaze.learn.shrink import shrink
from heathaze.learn.training import TrainSettings, train
from heathaze.learn.vqvae import VQVAE
from heathaze.learn.vqvae_training import VQVAELearner, check_crops, denoise_slice, second_look_error
from heathaze.policy import VQVAESettings


def test_the_model_has_the_published_size() -> None:
    assert sum(parameter.numel() for parameter in VQVAE().parameters()) == 185_857


def test_sizes_that_are_no_multiple_of_four_are_padded() -> None:
    model = VQVAE()
    for height, width in ((64, 64), (61, 62), (5, 7), (1, 1)):
        assert model(torch.zeros(1, 1, height, width))[0].shape == (1, 1, height, width)


def test_tiles_equal_the_whole_image() -> None:
    torch.manual_seed(0)
    model = VQVAE().eval()
    image = noisy_slices(1, 203)[0]
    whole = denoise_slice(model, image, 50.0, tile=1000)
    tiled = denoise_slice(model, image, 50.0, tile=64)
    assert np.abs(tiled - whole).max() < 1e-4
    assert np.abs(whole).max() > 1e-3, "an empty image would equal anything"


def test_codes_follow_their_vectors_and_dead_codes_are_revived() -> None:
    torch.manual_seed(0)
    quantiser = VQVAE(codes=8, code_size=2).quantiser
    vectors = torch.tensor([[10.0, 0.0]] * 50 + [[-10.0, 0.0]] * 50)
    for _ in range(200):
        quantiser.follow(*quantiser.statistics(vectors, quantiser(vectors)[1]))
    nearest = quantiser(vectors)[1]
    assert torch.allclose(quantiser.codes[nearest], vectors, atol=0.1)
    assert quantiser.revive(vectors[:8]) >= 5
    assert quantiser.counts.min() > 0


def test_gradients_pass_straight_through_the_codes() -> None:
    model = VQVAE(codes=8, code_size=4)
    drawn, _, _ = model(torch.randn(2, 1, 16, 16))
    drawn.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in model.encoder.parameters())


def test_the_second_look_estimates_the_error_without_the_truth() -> None:
    random = np.random.default_rng(0)
    truth = np.full((4, 160, 160), 30)
    slices = truth + discrete_laplace(random, 7.0, truth.shape)
    variance = noise_variance(Fraction(7))
    check = check_crops(slices, variance, VQVAESettings(), seed=0)

    class Off(torch.nn.Module):
        """Predicts the truth, wrong by a constant."""

        def __init__(self, by: float):
            super().__init__()
            self.by = by

        def forward(self, image: torch.Tensor) -> tuple[torch.Tensor]:
            return (torch.full_like(image, 30 / variance**0.5 + self.by),)

    for by in (0.0, 0.5, 1.0):
        summed, number = second_look_error(Off(by), check)  # type: ignore[arg-type]
        assert abs(summed / number - by**2) < 0.1

    class Same(torch.nn.Module):
        """Predicts what it sees: errs by the noise and a quarter more."""

        def forward(self, image: torch.Tensor) -> tuple[torch.Tensor]:
            return (image,)

    summed, number = second_look_error(Same(), check)  # type: ignore[arg-type]
    assert abs(summed / number - 1.25) < 0.1


def test_drawing_what_shrink_makes_of_a_slice_teaches_more_than_drawing_its_noise(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    truth = random.poisson(random.gamma(0.02, 40, (96, 96)), (8, 96, 96))
    noisy = (truth + discrete_laplace(random, 7.0, truth.shape)).astype(np.int32)
    settings, variance = VQVAESettings(codes=32, code_size=16, crop=48, batch=8), noise_variance(Fraction(7))
    errors = {}
    for name, wanted in (("noisy", None), ("shrink", shrink(noisy, [], Fraction(7)).values)):
        learner = VQVAELearner(noisy, variance, settings, alone(), seed=0, wanted=wanted)
        (tmp_path / name).mkdir()
        trained = train(alone(), learner, TrainSettings(6, 40, 2e-3, 0, 6), tmp_path / name)
        learner.model.load_state_dict(trained.weights)
        drawn = np.stack([denoise_slice(learner.model, image, variance) for image in noisy])
        errors[name] = float(np.average(np.abs(drawn - truth), weights=truth))
    assert errors["shrink"] < 0.9 * errors["noisy"]
