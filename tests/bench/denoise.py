"""Denoisers: error beside the answers that need no thought, and the speed of a training step beside a plain one."""

from __future__ import annotations

import dataclasses
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from heathaze.evaluate.learned import prepare
from heathaze.evaluate.synthetic import City, batches
from heathaze.evaluate.workloads import draw_workload, score
from heathaze.grid import Grid
from heathaze.learn.bayes import Context, Earlier, lessons
from heathaze.learn.bayes_training import BayesLearner, Estimate, estimate, fit, schedule_of
from heathaze.learn.denoiser import Denoised, discrete_laplace, noise_variance
from heathaze.learn.distributed import alone
from heathaze.learn.maps import Estimate as NightEstimate
from heathaze.learn.maps import Scales, estimate_night, measure_again
from heathaze.learn.shrink import shrink
from heathaze.learn.totals import measured_again, settle_totals
from heathaze.learn.training import TrainSettings, train
from heathaze.policy import BayesSettings, PeriodSettings, VQVAESettings, load_policy
from heathaze.release.rehearsal import rehearse
from heathaze.rho import Measuring, block_sums, select_measuring, spread_evenly

CABS = Path(__file__).parents[3] / "shared" / "data" / "sf_cabs_trip_ends.parquet"
SCALE = Fraction(5)
"""Event level, epsilon 0.2."""
KINDS = ("mean_absolute", "relative")
SHOWN = ("small at records: relative", "cell at records: absolute", "middle at records: relative", "small anywhere: absolute")
SHOWN += ("large at records: absolute", "whole slice: absolute")
GRID = Grid(37.70007, -122.53380, 37.87993, -122.30620, 576, 576)
SMALL = BayesSettings(epochs=10, cells=400_000)
AGED = BayesSettings(epochs=10, cells=800_000)
SHORT = BayesSettings(epochs=8, cells=1_000_000)


def error() -> list[dict[str, Any]]:
    """One-cell queries at records, event level, epsilon 0.2, 24 daily slices: absolute error, and relative error at psi 20."""
    rows = []
    for name, truth in _cities():
        noisy = truth + discrete_laplace(np.random.default_rng(0), float(SCALE), truth.shape)
        mean, variance = noisy.mean(0), noise_variance(SCALE)
        signal = np.maximum(noisy.var(0, ddof=1) - variance, 0)
        began = time.perf_counter()
        shrunk = shrink(noisy, [], SCALE).values
        seconds = time.perf_counter() - began
        answers = {
            "identity": noisy,
            "zero": np.zeros_like(noisy),
            "clipped": np.maximum(noisy, 0),
            "mean over time": np.broadcast_to(mean, noisy.shape),
            "shrinkage in three lines": mean + signal / (signal + variance) * (noisy - mean),
            f"shrink ({seconds:.1f} s)": shrunk,
        }
        reference: tuple[float, float] | None = None
        for method, answer in answers.items():
            absolute, relative = _errors(answer, truth)
            reference = reference or (absolute, relative)
            rows.append(
                {
                    "city": name,
                    "method": method,
                    "mean_absolute": round(absolute, 3),
                    "relative": round(relative, 4),
                    "of_identity": f"{absolute / reference[0]:.3f} / {relative / reference[1]:.3f}",
                    "all_cells_rms": round(float(np.sqrt(np.mean((answer - truth) ** 2))), 3),
                }
            )
    return rows


def vqvae() -> list[dict[str, Any]]:
    """The VQ-VAE on the last of the cities above, trained to the end: its error beside identity's, and its learning curve."""
    from heathaze.learn.vqvae_training import RESOLUTIONS, VQVAELearner, denoise_slice

    name, truth = _cities()[-1]
    noisy = truth + discrete_laplace(np.random.default_rng(0), float(SCALE), truth.shape)
    settings, variance = VQVAESettings(), noise_variance(SCALE)
    learner = VQVAELearner(noisy, variance, settings, alone(), seed=0, wanted=shrink(noisy, [], SCALE).values)
    steps = -(-noisy.size * len(RESOLUTIONS) // (settings.batch * settings.crop**2))
    schedule = TrainSettings(settings.epochs, steps, float(settings.learning_rate), 0, settings.patience)
    with tempfile.TemporaryDirectory() as work:
        trained = train(alone(), learner, schedule, Path(work))
    learner.model.load_state_dict(trained.weights)
    drawn = np.stack([denoise_slice(learner.model, image, variance) for image in noisy])
    reference, ours = _errors(noisy, truth), _errors(drawn, truth)
    rows: list[dict[str, Any]] = [
        {"epoch": point.epoch, "minutes": round(point.seconds / 60, 1), "estimated_error": round(point.score, 4)}
        for point in trained.curve[:: max(1, len(trained.curve) // 10)]
    ]
    ratios = {f"{kind}_of_identity": round(mine / theirs, 3) for kind, mine, theirs in zip(KINDS, ours, reference, strict=True)}
    return [*rows, {"city": name, "minutes": round(trained.curve[-1].seconds / 60, 1), **ratios}]


def size() -> list[dict[str, Any]]:
    """12 days of 576 x 576 x 8 cells, k / epsilon 20: minutes to learn and denoise them, to denoise others, and memory at most;
    then how long rehearsing the others takes, and memory at most with that.

    The VQ-VAE learns for one epoch only: its memory does not grow with epochs.
    """
    rows = []
    for name in ("bayes", "vqvae"):
        code = f"from tests.bench.denoise import _learn_much; print(_learn_much({name!r}))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        rows.append({"denoiser": name, **json.loads(done.stdout.splitlines()[-1])})
    return rows


def _learn_much(name: str) -> str:
    """What one process needs for 96 slices, as JSON."""
    policy = load_policy(Path(__file__).parents[2] / "conf" / "public" / "cabs.toml")
    settings = dataclasses.replace(policy.denoise, vqvae=VQVAESettings(epochs=1))
    policy = dataclasses.replace(policy, period=PeriodSettings(days=12, slices=96), denoise=settings)
    scale, random = Fraction(20), np.random.default_rng(0)
    heat = (random.gamma(0.02, 40, (576, 576)) * random.uniform(0.5, 1.5, (8, 1, 1))).astype(np.float32)
    nights = [np.empty((96, 576, 576), dtype=np.int32) for _ in range(2)]
    for night in nights:
        for number, image in enumerate(night):
            image[:] = random.poisson(heat[number % 8]) + discrete_laplace(random, float(scale), image.shape)

    def night_of(slices: Denoised) -> NightEstimate:
        return NightEstimate(slices, None, 1)

    began = time.perf_counter()
    denoise = prepare(policy, name, nights[0], scale)
    denoise(nights[0])
    learned = time.perf_counter() - began
    other = night_of(denoise(nights[1]))
    found = {"learn_minutes": learned / 60, "other_night_seconds": time.perf_counter() - began - learned}
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    began = time.perf_counter()
    scales = Scales(scale, scale)
    rehearse(other, nights[1], scales, lambda measured: night_of(denoise(measured.slices)), policy.refine, seed=0)
    found["rehearsing_seconds"] = time.perf_counter() - began
    found["peak_gb_rehearsed"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return json.dumps({key: round(value, 2) for key, value in found.items()})


def ablation() -> list[dict[str, Any]]:
    """What carries bayes on the last of the cities: its parts, what it sees, and its size, all after a short training."""
    name, truth = _cities()[-1]
    workload = draw_workload(truth, GRID, 7, 5_000, seed=0)
    noisy = (truth + discrete_laplace(np.random.default_rng(0), float(SCALE), truth.shape)).astype(np.int32)
    found = _bayes(noisy, [], SCALE, SHORT, season=7)
    answers = {"noise as it is": noisy, "prior alone": found.prior, "posterior": found.mean, "posterior, settled": found.settled}
    # Of epsilon, one part of fifty goes to the totals of slices.
    totals = measured_again(truth, 49 * SCALE, np.random.default_rng(1))
    answers["settled, with totals of slices"] = settle_totals(found.denoised, totals.with_cells(noisy, SCALE)).values
    unseen = {
        "tonight's slice": ("own",),
        "all other slices": ("others", "alike", "near", "decayed", "season", "evidence"),
        "evidence": ("evidence",),
        "the best sum of other slices": ("alike",),
        "the same weekday": ("season", "evidence season"),
    }
    for what, names in unseen.items():
        answers[f"settled, without {what}"] = _bayes(noisy, [], SCALE, SHORT, season=7, without=names).settled
    for hidden in (16, 128):
        settings = dataclasses.replace(SHORT, hidden=hidden)
        answers[f"settled, {hidden} hidden units instead of 64"] = _bayes(noisy, [], SCALE, settings, season=7).settled
    rule = select_measuring(int(truth.sum()), float(1 / SCALE), 1, truth.shape[1:], len(truth), len(truth))
    advised = f"slices in blocks of {rule.slice_block} x {rule.slice_block} and a map, as advised"
    answers[advised] = _by_rule([truth], SCALE, rule, SHORT, season=7)
    rows = []
    for what, answer in answers.items():
        errors = score(answer, truth, workload)
        rows.append({"city": name, "what": what, **{kind: f"{errors[kind]:.4g}" for kind in SHOWN}})
    return rows


def blocks() -> list[dict[str, Any]]:
    """Which blocks bayes should measure, on synthetic cities of three shapes: the error of each side, and of the rule's choice.

    The sides are of blocks that are measured in all slices alike, without a map of the whole period.
    """
    from heathaze.evaluate.synthetic import SHAPES

    grid, slices = Grid(37.70, -122.52, 37.88, -122.292, 576, 576), 8
    rows = []
    for shape, users, scale in product(SHAPES, (5_000, 40_000), (Fraction(5), Fraction(20), Fraction(80))):
        counts = np.zeros((slices, grid.cells), dtype=np.int64)
        first = datetime(2026, 11, 2, tzinfo=timezone.utc).timestamp()
        for table in batches(City(users=users, events_per_user=10, first_day=date(2026, 11, 2), shape=shape)):
            seconds = table["event_time"].cast("int64").to_numpy() / 1e6 - first
            _add(counts, grid, (seconds // 10_800).astype(int), table["lat"].to_numpy(), table["lon"].to_numpy())
        truth = counts.reshape(slices, 576, 576)
        workload = draw_workload(truth, grid, 0, 5_000, seed=0)
        found = {}
        for side in (1, 2, 4, 8, 16, 32):
            measured = block_sums(truth, side)
            noisy = (measured + discrete_laplace(np.random.default_rng(0), float(scale), measured.shape)).astype(np.int32)
            errors = score(spread_evenly(_bayes(noisy, [], scale, SMALL).settled, side), truth, workload)
            found[side] = _small_and_middle(errors)
        rule = select_measuring(int(truth.sum()), float(1 / scale), 1, (576, 576), slices)
        error = _small_and_middle(score(_by_rule([truth], scale, rule, SMALL), truth, workload))
        told = {f"side_{side}": round(value, 4) for side, value in found.items()}
        row = {"shape": shape, "events": int(truth.sum()), "scale": int(scale), **told}
        row |= {"rule": f"{rule.block}, slices {rule.slice_block or rule.block}", "by_rule": round(error, 4)}
        rows.append({**row, "of_the_best": round(error / min(found.values()), 3)})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def _small_and_middle(errors: dict[str, float]) -> float:
    return float((errors["small at records: relative"] * errors["middle at records: relative"]) ** 0.5)


def _by_rule(
    nights: list[np.ndarray], scale: Fraction, rule: Measuring, settings: BayesSettings, season: int = 0, draw: int = 0
) -> np.ndarray:
    """The answer of bayes about the last of some nights where all of epsilon is spent as the rule says."""
    cells, totals, whole = (scale / Fraction(share) if share else None for share in (rule.histogram, rule.totals, rule.map))
    assert cells is not None and totals is not None
    scales = Scales(cells, totals, whole, max(1, rule.slice_block // rule.block))
    # Seeds count back from the last night, so that its noise is the same with other nights before it.
    ages = range(len(nights) - 1, -1, -1)
    measured = [
        measure_again(block_sums(night, rule.block), scales, np.random.default_rng((draw, age)))
        for night, age in zip(nights, ages, strict=True)
    ]
    before = list(zip(measured, ages, strict=True))[:-1]
    of_slices = [Earlier(night.slices, age) for night, age in before]
    of_maps = [Earlier(night.map, age) for night, age in before if night.map is not None]
    found = estimate_night(
        measured[-1],
        scales,
        lambda slices: _bayes(slices, of_slices, cells, settings, season).denoised,
        lambda image: _bayes(image, of_maps, whole or cells, settings).denoised,
    )
    return spread_evenly(np.maximum(found.published().values, 0), rule.block)


class _Partial(Context):
    """A context without the features whose names begin in some ways."""

    def __init__(self, *arguments: Any, without: tuple[str, ...]):
        super().__init__(*arguments)
        self._kept = [number for number, name in enumerate(self.names) if not name.startswith(without)]
        self.names = [self.names[number] for number in self._kept]

    def features(self, number: int) -> Any:
        return super().features(number)[self._kept]


def history() -> list[dict[str, Any]]:
    """Night 14 of a synthetic city at user level (k 20, epsilon 1), by bayes with and without the 13 nights before it: in
    cells, and measured as `heathaze policy check` advises. Mean of three draws of noise."""
    rows: list[dict[str, Any]] = []

    def add(what: str, errors: dict[str, float]) -> None:
        rows.append({"what": what, **errors})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)

    ways, draws = {"in cells": _in_cells, "as advised": _as_advised}, range(3)
    for day, first in (("a Sunday", date(2026, 11, 2)), ("a Tuesday", date(2026, 11, 4))):
        nights = [_bounded_night(first + timedelta(days=number)) for number in range(14)]
        truth = nights[-1]
        for measured, way in ways.items():
            alone, helped = (_mean([_box_errors(way(used, draw), truth) for draw in draws]) for used in (nights[-1:], nights))
            add(f"{day}, measured {measured}, without history", alone)
            add(f"{day}, measured {measured}, with history", helped)
            add(f"{day}, measured {measured}, ratio", {name: round(helped[name] / alone[name], 2) for name in alone})
    moved = truth.copy()
    moved[:, 60:64, 60:64] += 40  # an event where there was none on any night before
    closed = int(np.argmax(np.sum(nights[:-1], axis=(0, 1, 3)) * (np.arange(truth.shape[1]) != 62)))
    moved[:, closed, :] = 0  # a street that is closed tonight
    for how, before in (("without history", []), ("with history", nights[:-1])):
        for measured, way in ways.items():
            answers = [way([*before, moved], draw) for draw in draws]
            kept = {
                "event_kept": sum(answer[:, 60:64, 60:64].sum() for answer in answers) / moved[:, 60:64, 60:64].sum(),
                "closed_street_left": sum(answer[:, closed].sum() for answer in answers) / truth[:, closed].sum(),
            }
            add(
                f"changed city, measured {measured}, {how}", {name: round(float(of) / len(draws), 3) for name, of in kept.items()}
            )
    return rows


AGED_SCALE = Fraction(20)
"""Of the noise of those nights where all of epsilon is spent on one thing."""


def _in_cells(nights: list[np.ndarray], draw: int) -> np.ndarray:
    """The answer of bayes about the last of some nights, all measured in cells."""
    ages = range(len(nights) - 1, -1, -1)
    noisy = [
        (night + discrete_laplace(np.random.default_rng((draw, age)), float(AGED_SCALE), night.shape)).astype(np.int32)
        for night, age in zip(nights, ages, strict=True)
    ]
    earlier = [Earlier(night, age) for night, age in zip(noisy, ages, strict=True)][:-1]
    return _bayes(noisy[-1], earlier, AGED_SCALE, AGED).settled


def _as_advised(nights: list[np.ndarray], draw: int) -> np.ndarray:
    """The same, measured as `heathaze policy check` advises."""
    rule = select_measuring(410_000, 1.0, 20, (144, 144), 8)
    return _by_rule(nights, AGED_SCALE, rule, AGED, draw=draw)


def _mean(errors: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(float(np.mean([one[name] for one in errors])), 3) for name in errors[0]}


def _bayes(
    noisy: np.ndarray,
    earlier: list[Earlier],
    scale: Fraction,
    settings: BayesSettings,
    season: int = 0,
    without: tuple[str, ...] = (),
) -> Estimate:
    context = _Partial(noisy, scale, earlier, season, without=without)
    taught = lessons(noisy, scale, earlier, season, context.sources)
    learner = BayesLearner(context, noisy, scale, settings, alone(), 0, [] if without else taught)
    with tempfile.TemporaryDirectory() as work:
        trained = fit(alone(), learner, schedule_of(settings, noisy.size, 0), Path(work))
    learner.model.load_state_dict(trained.weights)
    return estimate(learner.model, context, noisy, scale)


def _box_errors(answer: np.ndarray, truth: np.ndarray) -> dict[str, float]:
    """Mean absolute error at records of cells, and of blocks of 2 x 2, 4 x 4 and 16 x 16 cells."""
    found = {"cells": _errors(answer, truth)[0]}
    for side in (2, 4, 16):
        sums = [block_sums(tensor, side) for tensor in (answer, truth)]
        found[f"blocks of {side}"] = float(np.average(np.abs(sums[0] - sums[1]), weights=sums[1]))
    return {name: round(value, 3) for name, value in found.items()}


def _bounded_night(first: date) -> np.ndarray:
    """Counts of at most 20 events of each user of one night, 8 slices of 144 x 144 cells."""
    grid = Grid(37.70, -122.52, 37.88, -122.292, 144, 144)
    counts = np.zeros((8, grid.cells), dtype=np.int64)
    random = np.random.default_rng(first.toordinal())
    for table in batches(City(users=20_000, events_per_user=20, first_day=first)):
        user = table["user_id"].combine_chunks().dictionary_encode().indices.to_numpy()
        order = np.lexsort((random.random(len(user)), user))
        starts = np.flatnonzero(np.r_[True, np.diff(user[order]) != 0])
        rank = np.arange(len(user)) - np.repeat(starts, np.diff(np.r_[starts, len(user)]))
        kept = order[rank < 20]
        midnight = datetime(first.year, first.month, first.day, tzinfo=timezone.utc).timestamp()
        slices = ((table["event_time"].cast("int64").to_numpy()[kept] / 1e6 - midnight) // 10_800).astype(int)
        _add(counts, grid, slices, table["lat"].to_numpy()[kept], table["lon"].to_numpy()[kept])
    return counts.reshape(8, 144, 144)


def step() -> list[dict[str, Any]]:
    """One training step of the VQ-VAE, in pixels per second: crops as we train, beside a plain port of the authors' code."""
    import torch

    from heathaze.learn.vqvae_training import VQVAELearner
    from tests.bench.plain_vqvae import PlainVQVAE

    slices = np.random.default_rng(0).integers(-20, 20, (8, 576, 576)).astype(np.int32)
    plain = PlainVQVAE()
    images = torch.from_numpy(slices[:, None].astype(np.float32) / 7)
    steps: dict[str, tuple[Callable[[], object], int]] = {
        "plain port, 8 whole slices": (_stepper(plain, lambda: plain.loss(images)), images.numel())
    }
    for crop, batch in ((48, 1152), (48, 64)):
        learner = VQVAELearner(slices, 50.0, VQVAESettings(crop=crop, batch=batch), alone(), seed=0)
        data = learner.batch(np.random.default_rng(0))
        one = _stepper(
            learner.model, lambda learner=learner, data=data: learner.loss(data), lambda x=learner: x.after_step(alone())
        )
        steps[f"heathaze, {batch} crops of {crop}"] = (one, data[0].numel())
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(4):  # in turns, so that a slow minute of the machine hits all
        for name, (one, _) in steps.items():
            began = time.perf_counter()
            one()
            seconds[name].append(time.perf_counter() - began)
    speeds = {name: pixels / min(seconds[name]) / 1e6 for name, (_, pixels) in steps.items()}
    port = next(iter(speeds.values()))
    return [
        {"what": name, "million_pixels_per_second": round(speed, 2), "of_the_port": round(speed / port, 2)}
        for name, speed in speeds.items()
    ]


def _stepper(model: Any, loss: Callable[[], Any], after: Callable[[], object] = lambda: None) -> Callable[[], None]:
    """One step of Adam, as a call without arguments."""
    import torch

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        after()

    return step


def _errors(answer: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """Mean absolute error, and relative error at psi 20, of one-cell queries at records."""
    records = np.repeat(np.arange(truth.size), truth.ravel())
    at_records = truth.ravel()[records]
    off = np.abs(answer.ravel()[records] - at_records)
    return float(off.mean()), float((off / np.maximum(at_records, 20)).mean())


def _cities() -> list[tuple[str, np.ndarray]]:
    """Exact daily counts on 576 x 576 cells: a synthetic city, and the San Francisco cabs where they are at hand."""
    grid = Grid(37.70, -122.52, 37.88, -122.292, 576, 576)
    city = City(users=2_000, events_per_user=20, first_day=date(2026, 11, 2), days=24, seed=1)
    truth = np.zeros((24, grid.cells), dtype=np.int64)
    first = datetime(2026, 11, 2, tzinfo=timezone.utc).timestamp()
    for table in batches(city):
        seconds = table["event_time"].cast("int64").to_numpy() / 1e6 - first
        _add(truth, grid, (seconds // 86_400).astype(int), table["lat"].to_numpy(), table["lon"].to_numpy())
    found = [("synthetic", truth.reshape(24, 576, 576))]
    if CABS.exists():
        import pandas as pd

        cabs = pd.read_parquet(CABS)
        day = ((cabs.ts - pd.Timestamp("2008-05-17", tz="UTC")) / pd.Timedelta(days=1)).astype(int).to_numpy()
        height, width = 10_000 / 111_195, 10_000 / 111_195 / np.cos(np.radians(37.79))
        box = Grid(37.79 - height, -122.42 - width, 37.79 + height, -122.42 + width, 576, 576)
        counts = np.zeros((24, box.cells), dtype=np.int64)
        _add(counts, box, day, cabs.lat.to_numpy(), cabs.lon.to_numpy())
        found.append(("cabs", counts.reshape(24, 576, 576)))
    return found


def _add(counts: np.ndarray, grid: Grid, day: np.ndarray, lat: np.ndarray, lon: np.ndarray) -> None:
    cell = grid.cells_of(lat, lon)
    inside = (cell >= 0) & (day >= 0) & (day < len(counts))
    np.add.at(counts, (day[inside], cell[inside]), 1)
