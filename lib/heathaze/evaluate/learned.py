"""heathaze's own denoisers as methods of the yardstick: trained on the noisy tensor alone, finished as a release is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

from heathaze.errors import InputError
from heathaze.evaluate.meter import Meter, Method
from heathaze.learn.bayes import Context, ContextNet
from heathaze.learn.bayes_training import BayesLearner, estimate
from heathaze.learn.denoiser import Denoised, noise_variance
from heathaze.learn.distributed import alone
from heathaze.learn.families import season_of
from heathaze.learn.shrink import shrink
from heathaze.learn.training import Learner, TrainSettings, train
from heathaze.learn.vqvae_training import RESOLUTIONS, VQVAELearner, denoise_slice
from heathaze.policy import Policy
from heathaze.release.refine import finish

Denoise = Callable[[np.ndarray], Denoised]
"""A denoiser that is ready: trained where it needs to be."""


DENOISERS = ("shrink", "vqvae", "bayes")
"""Denoisers of the policy that can be put to the yardstick."""


def learned_methods(policy: Policy) -> dict[str, Method]:
    """heathaze's denoisers with the settings of a policy."""
    return {name: _method(policy, name) for name in DENOISERS}


def _method(policy: Policy, name: str) -> Method:
    def method(counts: np.ndarray, meter: Meter) -> np.ndarray:
        return finish(denoise(policy, name, counts, meter)[1].values, policy.refine)

    return method


def denoise(policy: Policy, name: str, counts: np.ndarray, meter: Meter) -> tuple[np.ndarray, Denoised]:
    """The noisy tensor, for all of the meter's epsilon, and what a denoiser makes of it."""
    noisy = meter.laplace(counts, meter.epsilon).astype(np.int32)
    return noisy, prepare(policy, name, noisy, Fraction(meter.unit) / meter.epsilon)(noisy)


def prepare(policy: Policy, name: str, noisy: np.ndarray, scale: Fraction) -> Denoise:
    """Train a denoiser on a noisy tensor; returns what then denoises it, or a rehearsal of it."""
    if name not in DENOISERS:
        raise InputError(f"a denoiser is one of {', '.join(DENOISERS)}, but '{name}' was asked for.")
    settings, variance = policy.denoise, noise_variance(scale)
    if name == "shrink":
        return lambda tensor: shrink(tensor, [], scale)
    if name == "vqvae":
        ours = settings.vqvae
        wanted = shrink(noisy, [], scale).values if ours.target == "shrink" else None
        vqvae = VQVAELearner(noisy, variance, ours, alone(), settings.seed, wanted)
        cells = noisy.size * len(RESOLUTIONS)
        steps = max(1, -(-cells // (ours.batch * min(ours.crop, noisy.shape[1]) * min(ours.crop, noisy.shape[2]))))
        _train(vqvae, TrainSettings(ours.epochs, steps, float(ours.learning_rate), settings.seed, ours.patience))
        return lambda tensor: Denoised(np.stack([denoise_slice(vqvae.model, image, variance) for image in tensor]))
    network = _trained_bayes(policy, noisy, scale)
    return lambda tensor: estimate(network, Context(tensor, variance, season=season_of(policy)), tensor, scale).denoised


def _trained_bayes(policy: Policy, noisy: np.ndarray, scale: Fraction) -> ContextNet:
    """The network alone: what it learned from is let go, so that it takes no room beside the tensors."""
    mine, seed = policy.denoise.bayes, policy.denoise.seed
    context = Context(noisy, noise_variance(scale), season=season_of(policy))
    learner = BayesLearner(context, noisy, scale, mine, alone(), seed)
    steps = max(1, -(-min(mine.cells, 4 * noisy.size) // mine.batch))
    _train(learner, TrainSettings(mine.epochs, steps, float(mine.learning_rate), seed, mine.patience))
    return learner.model


def _train(learner: Learner, schedule: TrainSettings) -> None:
    """Train, and leave the weights of the best epoch in the learner's model."""
    with tempfile.TemporaryDirectory() as folder:
        trained = train(alone(), learner, schedule, Path(folder))
    learner.model.load_state_dict(trained.weights)
    learner.model.eval()
