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
from heathaze.learn.bayes_training import BayesLearner, estimate, fit, schedule_of
from heathaze.learn.denoiser import Denoised, noise_variance
from heathaze.learn.distributed import alone
from heathaze.learn.families import season_of
from heathaze.learn.maps import Estimate, Measurement, Scales, estimate_night
from heathaze.learn.shrink import shrink
from heathaze.learn.totals import Totals
from heathaze.learn.training import Learner, Trained, TrainSettings, train
from heathaze.learn.vqvae_training import RESOLUTIONS, VQVAELearner, denoise_slice
from heathaze.policy import Policy
from heathaze.release.refine import finish
from heathaze.rho import Measuring, block_sums, select_measuring, spread_evenly

Denoise = Callable[[np.ndarray], Denoised]
"""A denoiser that is ready: trained where it needs to be."""


DENOISERS = ("shrink", "vqvae", "bayes")
"""Denoisers of the policy that can be put to the yardstick."""


BLOCKS = "bayes_blocks"
"""bayes as `heathaze policy check` advises to measure: blocks of cells, shares of epsilon and, where single cells
would drown, a map of the whole period, which all follow from public numbers."""


TOTALLED = ("bayes", BLOCKS)
"""Denoisers that also measure the totals of slices, as a release does; the others measure cells alone, as their papers do."""


@dataclass(frozen=True)
class Plan:
    """What a denoiser measures, for how much."""

    side: int
    """Of the blocks that stand for cells, in cells."""
    scales: Scales
    """Of the noise of what is measured."""
    has_totals: bool
    """Whether the totals of slices are measured."""


@dataclass(frozen=True)
class Look:
    """One measurement, and what a denoiser makes of it."""

    plan: Plan
    measured: Measurement
    estimate: Estimate
    found: Denoised
    """The estimate on the grid of blocks that stand for cells."""
    again: Callable[[Measurement], Estimate]
    """The same denoising of other measurements."""


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
    shares = policy.privacy.shares
    if name not in TOTALLED:
        return Plan(1, Scales(unit / epsilon, unit / epsilon), False)
    if name != BLOCKS:
        totals = Fraction(shares.totals) / (Fraction(shares.totals) + Fraction(shares.histogram))
        return Plan(1, Scales(unit / (epsilon * (1 - totals)), unit / (epsilon * totals)), True)
    chosen = chosen_measuring(policy, epsilon, unit)
    whole = unit / (epsilon * Fraction(chosen.map)) if chosen.map else None
    cells, slices = (unit / (epsilon * Fraction(share)) for share in (chosen.histogram, chosen.totals))
    return Plan(chosen.block, Scales(cells, slices, whole, max(1, chosen.slice_block // chosen.block)), True)


def chosen_measuring(policy: Policy, epsilon: Fraction, unit: int) -> Measuring:
    """How BLOCKS measures."""
    declared, cells = policy.privacy.declared_event_count, policy.grid.fine()
    if declared is None:
        raise InputError(f"{BLOCKS} needs privacy.declared_event_count in the policy: blocks follow from public numbers.")
    shape, period = (cells.rows, cells.cols), policy.period
    return select_measuring(declared, float(epsilon), unit, shape, period.slices, period.days)


def denoise(policy: Policy, name: str, counts: np.ndarray, meter: Meter) -> Look:
    """Measure for all of the meter's epsilon, train, and denoise what was measured."""
    plan = plan_of(policy, name, meter.epsilon, meter.unit)
    measured, scales = _measured(plan, counts, meter), plan.scales
    method = "bayes" if name == BLOCKS else name
    slices = prepare(policy, method, measured.slices, scales.cell)
    whole = slices if measured.map is None or scales.map is None else prepare(policy, method, measured.map, scales.map)

    def again(measured: Measurement) -> Estimate:
        if not plan.has_totals:
            return Estimate(slices(measured.slices), None, 1)
        return estimate_night(measured, scales, slices, whole)

    estimate = again(measured)
    return Look(plan, measured, estimate, estimate.published(), again)


def look_again(look: Look, counts: np.ndarray, meter: Meter) -> Look:
    """Measure anew and denoise that as before, without another training: as nights do that use the model of an earlier one."""
    measured = _measured(look.plan, counts, meter)
    estimate = look.again(measured)
    return replace(look, measured=measured, estimate=estimate, found=estimate.published())


def _measured(plan: Plan, counts: np.ndarray, meter: Meter) -> Measurement:
    """Every event lies in one cell, one block and one slice, so that each of these costs what cells cost."""
    scales, sums = plan.scales, counts.sum((1, 2))

    def noisy(values: np.ndarray, scale: Fraction) -> np.ndarray:
        return meter.laplace(values, meter.unit / scale)

    slices = noisy(block_sums(counts, plan.side * scales.side), scales.cell).astype(np.int32)
    totals = Totals(noisy(sums, scales.total) if plan.has_totals else sums, noise_variance(scales.total))
    if scales.map is None:
        return Measurement(slices, totals)
    return Measurement(slices, totals, noisy(block_sums(counts.sum(0, keepdims=True), plan.side), scales.map).astype(np.int32))


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
        schedule = TrainSettings(ours.epochs, steps, float(ours.learning_rate), settings.seed, ours.patience)
        _leave_best(vqvae, lambda work: train(alone(), vqvae, schedule, work))
        return lambda tensor: Denoised(np.stack([denoise_slice(vqvae.model, image, variance) for image in tensor]))
    network = _trained_bayes(policy, noisy, scale)
    return lambda tensor: estimate(network, Context(tensor, scale, season=season_of(policy)), tensor, scale).denoised


def _trained_bayes(policy: Policy, noisy: np.ndarray, scale: Fraction) -> ContextNet:
    """The network alone: what it learned from is let go, so that it takes no room beside the tensors."""
    mine, seed = policy.denoise.bayes, policy.denoise.seed
    learner = BayesLearner(Context(noisy, scale, season=season_of(policy)), noisy, scale, mine, alone(), seed)
    _leave_best(learner, lambda work: fit(alone(), learner, schedule_of(mine, learner.size, seed), work))
    return learner.model


def _leave_best(learner: Learner, learn: Callable[[Path], Trained]) -> None:
    """Train, and leave the best weights in the learner's model."""
    with tempfile.TemporaryDirectory() as folder:
        trained = learn(Path(folder))
    learner.model.load_state_dict(trained.weights)
    learner.model.eval()
