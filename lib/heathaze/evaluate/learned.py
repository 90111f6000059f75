"""heathaze's own denoisers as methods of the yardstick: trained on the noisy tensor alone, finished as a release is."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from heathaze.errors import InputError
from heathaze.evaluate.meter import Meter, Method
from heathaze.learn.bayes import Context, ContextNet
from heathaze.learn.bayes_training import BayesLearner, estimate, schedule_of
from heathaze.learn.denoiser import Denoised, noise_variance
from heathaze.learn.distributed import alone
from heathaze.learn.families import season_of
from heathaze.learn.shrink import shrink
from heathaze.learn.totals import Totals, settle_totals
from heathaze.learn.training import Learner, TrainSettings, train
from heathaze.learn.vqvae_training import RESOLUTIONS, VQVAELearner, denoise_slice
from heathaze.policy import Policy
from heathaze.release.refine import finish
from heathaze.rho import block_sums, select_block, select_totals, spread_evenly

Denoise = Callable[[np.ndarray], Denoised]
"""A denoiser that is ready: trained where it needs to be."""


DENOISERS = ("shrink", "vqvae", "bayes")
"""Denoisers of the policy that can be put to the yardstick."""


BLOCKS = "bayes_blocks"
"""bayes as `heathaze policy check` advises to measure: blocks of cells and a share for totals that follow from public numbers."""


TOTALLED = ("bayes", BLOCKS)
"""Denoisers that also measure the totals of slices, as a release does; the others measure cells alone, as their papers do."""


@dataclass(frozen=True)
class Plan:
    """What a denoiser measures, for how much."""

    side: int
    """Of the blocks that stand for cells, in cells."""
    scale: Fraction
    """Of the noise of one of them."""
    total_scale: Fraction | None
    """Of the noise of the total of one slice; None where totals are not measured."""


@dataclass(frozen=True)
class Look:
    """One measurement, and what a denoiser makes of it."""

    plan: Plan
    noisy: np.ndarray
    found: Denoised
    again: Callable[[np.ndarray, Totals | None], Denoised]
    """The same denoising of other measurements; totals are None where none are measured."""


def learned_methods(policy: Policy) -> dict[str, Method]:
    """heathaze's denoisers with the settings of a policy."""
    return {name: _method(policy, name) for name in (*DENOISERS, BLOCKS)}


def _method(policy: Policy, name: str) -> Method:
    def method(counts: np.ndarray, meter: Meter) -> np.ndarray:
        look = denoise(policy, name, counts, meter)
        return spread_evenly(finish(look.found.values, policy.refine), look.plan.side)

    return method


def plan_of(policy: Policy, name: str, epsilon: Fraction, unit: int) -> Plan:
    """What a method measures for an epsilon. N is public here, so that all of it goes to cells and totals.

    BLOCKS measures as `heathaze policy check` advises from public numbers, bayes as the policy says.
    """
    cells, side = policy.grid.fine(), 1
    shares = policy.privacy.shares
    totals = Fraction(shares.totals) / (Fraction(shares.totals) + Fraction(shares.histogram))
    if name == BLOCKS:
        declared = policy.privacy.declared_event_count
        if declared is None:
            raise InputError(f"{BLOCKS} needs privacy.declared_event_count in the policy: blocks follow from public numbers.")
        side = select_block(declared, float(epsilon), unit, (cells.rows, cells.cols))
        totals = Fraction(select_totals(side))
    if name not in TOTALLED:
        return Plan(side, unit / epsilon, None)
    return Plan(side, unit / (epsilon * (1 - totals)), unit / (epsilon * totals))


def denoise(policy: Policy, name: str, counts: np.ndarray, meter: Meter) -> Look:
    """Measure for all of the meter's epsilon, train, and denoise what was measured."""
    plan = plan_of(policy, name, meter.epsilon, meter.unit)
    noisy, totals = _measured(plan, counts, meter)
    ready = prepare(policy, "bayes" if name == BLOCKS else name, noisy, plan.scale)

    def again(tensor: np.ndarray, totals: Totals | None) -> Denoised:
        found = ready(tensor)
        if plan.total_scale is None or totals is None:
            return found
        return settle_totals(found, totals.with_cells(tensor, plan.scale))

    return Look(plan, noisy, again(noisy, totals), again)


def look_again(look: Look, counts: np.ndarray, meter: Meter) -> Look:
    """Measure anew and denoise that as before, without another training: as nights do that use the model of an earlier one."""
    noisy, totals = _measured(look.plan, counts, meter)
    return replace(look, noisy=noisy, found=look.again(noisy, totals))


def _measured(plan: Plan, counts: np.ndarray, meter: Meter) -> tuple[np.ndarray, Totals | None]:
    """Every event lies in one cell, one block and one slice, so that each of these costs what cells cost."""
    noisy = meter.laplace(block_sums(counts, plan.side), meter.unit / plan.scale).astype(np.int32)
    if plan.total_scale is None:
        return noisy, None
    return noisy, Totals(meter.laplace(counts.sum((1, 2)), meter.unit / plan.total_scale), noise_variance(plan.total_scale))


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
    return lambda tensor: estimate(network, Context(tensor, scale, season=season_of(policy)), tensor, scale).denoised


def _trained_bayes(policy: Policy, noisy: np.ndarray, scale: Fraction) -> ContextNet:
    """The network alone: what it learned from is let go, so that it takes no room beside the tensors."""
    mine, seed = policy.denoise.bayes, policy.denoise.seed
    context = Context(noisy, scale, season=season_of(policy))
    learner = BayesLearner(context, noisy, scale, mine, alone(), seed)
    _train(learner, schedule_of(mine, noisy.size, seed))
    return learner.model


def _train(learner: Learner, schedule: TrainSettings) -> None:
    """Train, and leave the weights of the best epoch in the learner's model."""
    with tempfile.TemporaryDirectory() as folder:
        trained = train(alone(), learner, schedule, Path(folder))
    learner.model.load_state_dict(trained.weights)
    learner.model.eval()
