"""The report of one release: a single HTML file for the planner who reads the map and the engineer who signs for the noise.

Everything in it is made from the candidate, and the candidate holds noisy and later values only. The file asks nothing of the
network: pictures are PNGs in base64, and a content security policy forbids the rest.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from html import escape
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, ListedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from PIL import Image

from heathaze.grid import Grid, Period
from heathaze.learn.denoiser import noise_variance
from heathaze.policy import as_dict
from heathaze.release.candidate import Budget, Candidate
from heathaze.release.squares import Squares, unpack
from heathaze.statement import promise

INK, MUTED, RULE, GROUND = "#23262b", "#6d7178", "#dedad1", "#f5f2eb"
HEAT, SLATE, SAND = "#b5442e", "#3c5a6b", "#e3c9a4"

LEVELS = 64
"""Steps of the colour scale."""
RAMP = ListedColormap(
    LinearSegmentedColormap.from_list("heat", ["#f8e3bd", "#f3b96b", "#e07b43", "#b93a3c", "#762150", "#260c3a"])(
        np.linspace(0, 1, LEVELS)
    )
).with_extremes(under=GROUND, bad=GROUND)
PALETTE = np.rint(np.vstack([RAMP.get_under(), RAMP(np.arange(LEVELS))])[:, :3] * 255).astype(np.uint8)
"""Colour of each step; the first stands for everything below the scale."""

DECADES = 3
"""Length of a colour scale in powers of ten, at most."""
MAP_PIXELS, PANEL_PIXELS = 576, 380
"""Longest side of the map of the night, and of the two panels."""
PANEL_CELLS = 80
"""Longest side of the panels in cells: few enough to see each."""
LEFT, RIGHT, TOP, BOTTOM = 62, 92, 12, 30
"""Margins around a map, pixels."""

MOST_FRAMES = 96
"""Steps of the slider, at most; more slices than that are added up by neighbours."""
FEW_FRAMES = 12
"""Up to so many slices are also shown side by side."""
FRAME_BYTES, ALL_FRAME_BYTES = 150_000, 3_000_000
"""What one picture of the slider may take on average, and all of them together."""

BOXES = (100, 500, 2000)
"""Sides of the boxes whose error is shown, metres, besides the single cell."""
RELIABLE = 0.2
"""A box is reliable where its error is at most this share of its count."""
MOST, SOME = 0.5, 0.2
"""Shares of events in reliable boxes from which a size of box is good, or fair, to work with."""

SECURITY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(candidate: Candidate, release: str, gates: list[dict[str, Any]]) -> str:
    """The report as one HTML document. `gates` has one {"expectation", "held", "seen"} per expectation."""
    frames = _frames(candidate)
    errors = _errors(candidate)
    sections = [
        _head(candidate, release),
        _night(candidate, errors, gates, frames),
        _slices(candidate, frames),
        _before_and_after(candidate),
        _accuracy(candidate, errors),
        _squares(candidate),
        _budget(candidate.budget, candidate.period.name),
        _gates(gates),
        _model(candidate),
        _privacy(candidate),
        _method(candidate, release, gates),
        _policy(candidate),
    ]
    title = escape(f"{candidate.policy.dataset.name} {candidate.period.name}")
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{SECURITY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}: report</title><style>{STYLE}</style><script>{WATCH}</script></head>\n"
        f"<body><main>\n{body}\n</main><script>{SCRIPT}</script></body></html>\n"
    )


@dataclass(frozen=True)
class _Scale:
    """A logarithmic colour scale; what lies below it has the colour of the ground."""

    low: float
    high: float

    def steps(self, values: np.ndarray) -> np.ndarray:
        """The step of each value, 0 below the scale, as indices into PALETTE."""
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.log(np.maximum(values, 0) / self.low) / math.log(self.high / self.low)
        inside = np.clip(np.nan_to_num(place, neginf=-1) * LEVELS, 0, LEVELS - 1)
        return np.where(values >= self.low, inside + 1, 0).astype(np.uint8)

    @property
    def ticks(self) -> list[float]:
        """Powers of ten, with 2 and 5 between them where few lie on the scale."""
        powers = [10.0**n for n in range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)]
        steps = (1, 2, 5) if math.log10(self.high / self.low) < 2 else (1,)
        return [step * power for power in powers for step in steps if self.low <= step * power <= self.high * (1 + 1e-9)]


@dataclass(frozen=True)
class _Frames:
    """The pictures of the slider."""

    pictures: list[bytes]
    labels: list[str]
    totals: list[float]
    """Published events of each."""
    scale: _Scale
    side: int
    """Cells along the side of one displayed block."""
    slices: int
    """Slices that one picture stands for."""
    cover: tuple[float, float]
    """Width and height of a picture over those of the grid: blocks may reach beyond the northern and eastern edge."""

    @property
    def busiest(self) -> int:
        return int(np.argmax(self.totals))


@dataclass(frozen=True)
class _BoxError:
    """What noise does to the sum over one box in one slice."""

    label: str
    cells: tuple[int, int] | None
    """Rows and columns; None where the box is smaller than a cell or larger than the grid."""
    side: float = 0.0
    """Metres."""
    noisy: float = 0.0
    """Standard deviation of the sum of noisy counts, in published units."""
    denoised: float | None = None
    """The same for denoised counts, averaged over the boxes that are not empty."""
    typical: float | None = None
    """Median published count of the boxes that are not empty; None where all are."""

    reliable: float = 0.0
    """Share of published events that lie in boxes whose error is at most RELIABLE of their count."""

    @property
    def shares(self) -> tuple[float, float] | None:
        """Least and largest error over count.

        The denoised error holds for a single cell. In a larger box it takes cells to err independently, which neighbours do
        not: in two synthetic cities, boxes of 4 x 4 and 14 x 14 cells erred 1.1 to 2.6 times as much after shrink, and less than
        the noisy sum. So there the denoised error is taken as the least and the noisy one as the largest; no bound is proven.
        """
        if not self.typical or self.cells is None:
            return None
        known = [self.noisy] if self.denoised is None else [self.denoised, self.noisy]
        known = known[:1] if self.cells == (1, 1) else known
        return min(known) / self.typical, max(known) / self.typical


def _head(candidate: Candidate, release: str) -> str:
    grid, period, policy = candidate.grid, candidate.period, candidate.policy
    height, width = grid.height_metres / grid.rows, grid.width_metres / grid.cols
    kind = "whole number" if policy.refine.round else "number"
    return (
        f"<header><p class=eyebrow>Differentially private event density</p><h1>{escape(policy.dataset.name)}</h1>"
        f"<p class=when>{_days(period)} <span>{escape(period.zone)}</span></p>"
        f"<p class=lead>One {kind} is the estimated count of events in one cell of {height:,.0f} × {width:,.0f} m during "
        f"one slice of {_hours(period)}. Every number holds calibrated noise: it describes places, and hides "
        f"whether any one person was there.</p><p class=fine>Release {escape(release)}</p></header>"
    )


def _night(candidate: Candidate, errors: list[_BoxError], gates: list[dict[str, Any]], frames: _Frames) -> str:
    grid, budget = candidate.grid, candidate.budget
    night = candidate.refined.sum(0, dtype=np.float64)
    side = _display_side(night.shape, MAP_PIXELS)
    shown = _block_sums(night, side)
    scale = _scale_of(shown)
    rows, cols = _hottest_window(candidate)
    figure = _map_figure(shown, scale, grid, MAP_PIXELS, side, f"events, {_unit(side)}, all slices", mark=(rows, cols))
    good = next((box for box in errors if box.reliable >= MOST), None)
    failed = sum(not gate["held"] for gate in gates)
    verdict = "not judged" if not gates else f"{failed} of {len(gates)} failed" if failed else f"all {len(gates)} held"
    tiles = [
        ("Published events", _short(float(night.sum())), f"on {grid.rows:,} × {grid.cols:,} cells"),
        ("Busiest", frames.labels[frames.busiest] if night.any() else "no slice", f"{_short(max(frames.totals))} events"),
        (
            "Trust boxes from",
            _metres(good.side) if good else "none shown",
            f"{good.reliable:.0%} of events lie where noise is below {RELIABLE:.0%}"
            if good
            else "nothing was published above 0"
            if not night.any()
            else f"in every size, most events lie where noise is above {RELIABLE:.0%}",
        ),
        ("Gate", verdict, "expectations before publishing"),
        ("Privacy cost", f"ε {budget.charged}", f"{budget.left} of {budget.cap} left {_window(budget)}"),
    ]
    cards = "".join(
        f"<div class=tile><dt>{escape(name)}</dt><dd>{escape(value)}</dd><p>{escape(note)}</p></div>"
        for name, value, note in tiles
    )
    return (
        "<section class=hero><figure>"
        + _img(_png(figure), "Map of the published events of the whole period", "map")
        + f"<figcaption>All {len(candidate.refined)} slices together, logarithmic colours. The outlined quarter is enlarged "
        f"below.</figcaption></figure><dl class=tiles>{cards}</dl></section>"
    )


def _slices(candidate: Candidate, frames: _Frames) -> str:
    grid, count, first = candidate.grid, len(frames.pictures), frames.busiest
    size = _map_size(grid, MAP_PIXELS)
    frame = _png(_map_figure(None, frames.scale, grid, MAP_PIXELS, frames.side, f"events, {_unit(frames.side)}"))
    whole = (size[0] + LEFT + RIGHT, size[1] + TOP + BOTTOM)
    hole = f"left:{LEFT / whole[0]:.4%};top:{TOP / whole[1]:.4%};width:{size[0] / whole[0]:.4%};height:{size[1] / whole[1]:.4%}"
    cover = f"width:{frames.cover[0]:.4%};height:{frames.cover[1]:.4%}"
    most = max(max(frames.totals), 1e-9)
    bars = "".join(
        f'<i style="height:{max(total, 0) / most:.1%}" title="{escape(label)}: {_short(total)} events"></i>'
        for label, total in zip(frames.labels, frames.totals, strict=True)
    )
    small = "".join(
        f'<figure data-label="{escape(label)}" data-total="{_short(total)}">'
        f'<div class=cut style="aspect-ratio:{size[0]}/{size[1]}">'
        + _img(picture, f"Map, {label}", "frame", cover)
        + f"</div><figcaption>{escape(label)}</figcaption></figure>"
        for label, total, picture in zip(frames.labels, frames.totals, frames.pictures, strict=True)
    )
    joined = f" One step stands for {frames.slices} slices." if frames.slices > 1 else ""
    label = escape(frames.labels[first])
    return (
        "<section><h2>Slice by slice</h2>"
        f"<p>Local time, {escape(candidate.period.zone)}. All slices share one colour scale.{joined}</p>"
        f'<div class=player><div class=stage style="max-width:{whole[0]}px">'
        f'<div class=cut style="{hole}">{_img(frames.pictures[first], "Map of the chosen slice", "", cover, "shown")}</div>'
        + _img(frame, "Axes and colour scale", "over")
        + "</div><div class=controls>"
        f'<p class=clock id=clock aria-live="polite">{label}</p><p class=fine>'
        f"<span id=total>{_short(frames.totals[first])}</span> published events</p>"
        f'<div class="bars{" dense" if count > 2 * FEW_FRAMES else ""}" id=bars aria-hidden="true">{bars}</div>'
        f'<input type=range id=slider min=0 max={count - 1} step=1 value={first} aria-label="time slice" '
        f'aria-valuetext="{label}"><div class=ends><span>{escape(_start(frames.labels[0]))}</span>'
        f"<span>{escape(_start(frames.labels[-1]))}</span></div>"
        '<button id=play type=button aria-pressed="false">Play</button></div></div>'
        f"<div class=multiples id=frames{'' if count <= FEW_FRAMES else ' hidden'}>{small}</div></section>"
    )


def _before_and_after(candidate: Candidate) -> str:
    rows, cols = _hottest_window(candidate)
    number = _busiest_slice(candidate)
    noisy, denoised = candidate.noisy_cells[number, rows, cols], candidate.denoised[number, rows, cols]
    scale = _scale_of(denoised, float(noisy.max()))
    box = _part(candidate.grid, rows, cols)
    deviation = _sigma(candidate.scale)
    what = "cell" if candidate.side == 1 else f"block of {candidate.side} × {candidate.side} cells"
    method = str(candidate.denoise_facts.get("method", candidate.policy.denoise.method))
    panels = [
        (noisy, "Measured", f"Counts of the bounded sample with noise of standard deviation {deviation:.3g} on every {what}."),
        (denoised, "Denoised", f"The same cells after '{method}', which saw noisy counts and nothing else."),
    ]
    figures = "".join(
        f"<figure>{_img(_png(_map_figure(values, scale, box, PANEL_PIXELS, 1, 'sampled events, one cell')), name, 'map')}"
        f"<figcaption><b>{name}.</b> {escape(text)}</figcaption></figure>"
        for values, name, text in panels
    )
    return (
        f"<section><h2>What denoising did</h2><p>The hottest quarter of the busiest slice, "
        f"{escape(_labels(candidate.period, 1)[number])}, cell by cell. Both maps share one scale; cells at or below its "
        f"foot are blank.</p><div class=pair>{figures}</div></section>"
    )


def _accuracy(candidate: Candidate, errors: list[_BoxError]) -> str:
    rows = "".join(_error_row(box) for box in errors)
    chart = _error_chart([box for box in errors if box.cells])
    return (
        "<section><h2>How far to trust a number</h2><p>Noise is the same in every cell, so it drowns a single cell and averages "
        "out over a neighbourhood. For a box of each size, in one slice: what noise adds, beside what such a box typically "
        "holds.</p>"
        "<div class=wide><table><thead><tr><th>Box</th><th class=n>Cells</th><th class=n>Noisy sum, ±</th>"
        "<th class=n>Denoised sum, ±</th><th class=n>Typical count</th><th class=n>Error / count</th>"
        "<th class=n>Events in reliable boxes</th></tr>"
        f"</thead><tbody>{rows}</tbody></table></div>"
        f"<figure class=chart>{_img(_png(chart), 'Error and typical count by box size', 'map')}</figure>"
        "<p class=fine>± is one standard deviation, in published events; two of them hold about 19 of 20 boxes. The noisy one "
        "is exact: √cells × σ × γ. The denoised one adds up the denoiser's own deviations as if cells erred independently; "
        "neighbours err alike, so for more than one cell it is too small, the noisy one is our guess of the most (not a proven "
        "bound: scaling and cutting at 0 are in neither), and a box is called reliable where "
        f"even the larger is at most {RELIABLE:.0%} of its count. Typical: median of the boxes that are not empty. Neither holds "
        "what the bound on events per user left out. "
        f"A noisy sum over all slices errs by √{len(candidate.refined)} times as much.</p></section>"
    )


def _squares(candidate: Candidate) -> str:
    """What the networks of snh answer, at three sizes, and how sure they are at each size."""
    if candidate.squares is None:
        return ""
    squares, grid, gamma = Squares(unpack(candidate.squares)), candidate.grid, _gamma(candidate)
    settings = candidate.policy.denoise.snh
    side = _display_side((grid.rows, grid.cols), PANEL_PIXELS)
    rows, cols = (np.arange(0, length, side) + side / 2 for length in (grid.rows, grid.cols))
    lat = np.minimum(grid.south + rows / grid.rows_per_degree, grid.north - 1e-9)
    lon = np.minimum(grid.west + cols / grid.cols_per_degree, grid.east - 1e-9)
    figures = ""
    for metres in (settings.sides[0], settings.sides[len(settings.sides) // 2], settings.sides[-1]):
        found = gamma * squares.counts(np.repeat(lat, len(lon)), np.tile(lon, len(lat)), metres).count
        values = found.reshape(len(lat), len(lon))
        drawn = _png(_map_figure(values, _scale_of(values), grid, PANEL_PIXELS, side, "events in a square around"))
        words = f"<b>{metres:.0f} m.</b> Events in the square of this side around each place."
        figures += (
            f"<figure>{_img(drawn, f'Answers for squares of {metres:.0f} m', 'map')}<figcaption>{words}</figcaption></figure>"
        )
    table = "".join(_square_row(candidate, squares, metres) for metres in settings.sides)
    return (
        f"<section><h2>Squares of any size</h2><p>{len(settings.sides)} networks, one for each size, answer squares of "
        f"{settings.smallest:g} to {settings.largest:g} m anywhere; other sides are scaled by area.</p><div class=pair>{figures}"
        "</div><div class=wide><table><thead><tr><th>Side</th><th class=n>Typical count</th><th class=n>Networks, ±</th>"
        f"<th class=n>Noisy squares, ±</th></tr></thead><tbody>{table}</tbody></table></div><p class=fine>For squares around "
        "events, in published events. ± of the networks is half of their 90 % interval, learned on replicas of the noisy grid; ± "
        "of noisy squares is that of the noise alone, and of cells that the border cuts it says nothing.</p></section>"
    )


def _square_row(candidate: Candidate, squares: Squares, metres: float) -> str:
    grid, gamma, weights = candidate.grid, _gamma(candidate), np.maximum(candidate.refined[0], 0).ravel().astype(np.float64)
    total = np.cumsum(weights) if weights.sum() > 0 else np.arange(1.0, grid.cells + 1)
    chosen = np.searchsorted(total, np.random.default_rng(0).random(2_000) * total[-1])
    lat = grid.south + (chosen // grid.cols + 0.5) / grid.rows_per_degree
    lon = grid.west + (chosen % grid.cols + 0.5) / grid.cols_per_degree
    found = squares.counts(lat, lon, metres)
    cells = metres**2 / (grid.height_metres * grid.width_metres / grid.cells)
    numbers = (np.median(found.count), np.mean(found.high - found.low) / 2, 1.645 * math.sqrt(cells) * _sigma(candidate.scale))
    return f"<tr><th>{metres:.0f} m</th>" + "".join(f"<td class=n>{_short(gamma * float(x))}</td>" for x in numbers) + "</tr>"


def _error_row(box: _BoxError) -> str:
    if box.cells is None:
        return f"<tr class=off><th>{escape(box.label)}</th><td colspan=6>not a box of whole cells on this grid</td></tr>"
    mark = "good" if box.reliable >= MOST else "fair" if box.reliable >= SOME else "poor"
    low, high = (_percent(share) for share in box.shares) if box.shares else ("—", "—")
    return (
        f"<tr><th>{escape(box.label)}</th><td class=n>{box.cells[0]} × {box.cells[1]}</td><td class=n>{_short(box.noisy)}</td>"
        f"<td class=n>{'not known' if box.denoised is None else _short(box.denoised)}</td>"
        f"<td class=n>{'—' if box.typical is None else _short(box.typical)}</td>"
        f"<td class=n>{low if low == high else f'{low} to {high}'}</td>"
        f"<td class=n><span class='mark {mark}'>{box.reliable:.0%}</span></td></tr>"
    )


def _budget(budget: Budget, period: str) -> str:
    spent = Decimal(budget.spent) / Decimal(budget.cap)
    window = escape(_window(budget))
    return (
        "<section><h2>Privacy budget</h2><div class=figures>"
        f"<div><b>{escape(budget.charged)}</b> ε for this release</div><div><b>{escape(budget.spent)}</b> ε spent {window}</div>"
        f"<div><b>{escape(budget.left)}</b> ε left</div><div><b>{escape(budget.cap)}</b> ε is the cap</div></div>"
        f"<figure class=chart>{_img(_png(_budget_chart(budget, period)), 'Charges cumulated against the cap', 'map')}</figure>"
        f"<p class=fine>{float(spent):.0%} of the cap is spent, by {len(budget.charges)} "
        f"{'charge' if len(budget.charges) == 1 else 'charges'}. The ledger refuses a release that does not fit under the cap."
        "</p></section>"
    )


def _gates(gates: list[dict[str, Any]]) -> str:
    if not gates:
        return "<section><h2>Gate</h2><p>No expectation was judged.</p></section>"
    failed = sum(not gate["held"] for gate in gates)
    rows = "".join(
        f"<tr><td class={'held' if gate['held'] else 'broken'}>{'✓ held' if gate['held'] else '✗ failed'}</td>"
        f"<td>{escape(str(gate['expectation']))}</td><td>{escape(str(gate['seen']))}</td></tr>"
        for gate in gates
    )
    told = f"{failed} of {len(gates)} expectations did not hold." if failed else f"All {len(gates)} expectations held."
    return (
        f"<section><h2>Gate</h2><p>{told} Each was judged on noisy data, so judging cost no budget.</p><div class=wide>"
        f"<table><thead><tr><th>Result</th><th>Expectation</th><th>Seen</th></tr></thead><tbody>{rows}</tbody></table></div>"
        "</section>"
    )


def _model(candidate: Candidate) -> str:
    model = candidate.model
    if model is None:
        return ""
    epochs = len(model.get("curve") or [])
    picture = model.get("picture")
    drawn = _img(bytes(picture), "Learning curve", "map") if picture else "<p>No learning curve was kept.</p>"
    return (
        f"<section><h2>The model</h2><p>{escape(str(model.get('model', 'A model')))} learnt from noisy tensors only, in {epochs} "
        f"epochs.</p><figure class=chart>{drawn}</figure><details><summary>Lineage</summary>{_facts(model.get('lineage') or {})}"
        "</details></section>"
    )


def _privacy(candidate: Candidate) -> str:
    budget = candidate.budget
    sentences = [
        *promise(candidate.policy),
        f"So far {budget.spent} of epsilon {budget.cap} is spent {_window(budget)}; {budget.left} is left.",
    ]
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return f"<section><h2>What is promised</h2><ul class=promise>{items}</ul></section>"


def _method(candidate: Candidate, release: str, gates: list[dict[str, Any]]) -> str:
    privacy, grid, refine = candidate.policy.privacy, candidate.grid, candidate.policy.refine
    k, facts, gamma = privacy.max_events_per_user, candidate.denoise_facts, _gamma(candidate)
    values = candidate.noisy.size
    counted = (
        f"N is the declared constant {candidate.event_count:,}"
        if privacy.event_count_scale is None
        else f"N got noise of scale {float(privacy.event_count_scale):.4g} (sensitivity {privacy.max_counted_per_user:,}) "
        f"and reads {candidate.event_count:,}"
    )
    ends = [
        "values below 0 became 0 while the total was kept" if refine.non_negative else "values below 0 stayed",
        "values were rounded to whole numbers" if refine.round else "nothing was rounded",
    ]
    nights, method = facts.get("nights_used", 1), facts.get("method", candidate.policy.denoise.method)
    judged = sum(bool(gate["held"]) for gate in gates)
    stages = [
        (
            "Bound",
            f"At most {k} events of each user were kept, chosen by keyed hash.",
            f"one user changes the sample by at most {k} rows",
        ),
        (
            "Count",
            f"The sample was counted in {grid.rows:,} × {grid.cols:,} cells and {len(candidate.noisy)} slices.",
            f"one user changes the counts by at most {k} in sum (L1)",
        ),
        (
            "Noise",
            f"{_in_blocks(candidate)}All {values:,} counts, empty ones too, got exact discrete Laplace noise of scale "
            f"{float(candidate.scale):.4g}; so {_and_map(candidate)}did the totals of the slices, of scale "
            f"{float(privacy.totals_scale):.4g}, together n = {candidate.sample_size:,}; "
            f"{counted}.",
            f"L1 sensitivity {k} against scale {k} / (ε × share): together ε {candidate.budget.charged}",
        ),
        (
            "Denoise",
            "The noisy counts went on as they are."
            if method == "none"
            else f"'{method}' estimated the counts from {nights} noisy {'night' if nights == 1 else 'nights'}.",
            "",
        ),
        (
            "Refine",
            f"The estimate was scaled by γ = {gamma:.4g} from the sample to all events; {ends[0]}, and {ends[1]}.",
            "",
        ),
        ("Gate", f"{judged} of {len(gates)} expectations held, judged on noisy data.", ""),
        ("Publish", f"The refined tensor is release {release}, with its manifest and this report.", ""),
    ]
    items = "".join(
        f"<li><b>{name}</b><div>{escape(text)}"
        + (f" <span class=touch>Touches people's data. Sensitivity: {escape(touch)}.</span>" if touch else "")
        + "</div></li>"
        for name, text, touch in stages
    )
    return (
        f"<section><h2>How it was made</h2><ol class=method>{items}</ol><p class=fine>From denoise on, nothing reads people's "
        "data: what is computed from noisy counts is as private as they are.</p><details><summary>Figures of denoise and refine"
        f"</summary>{_facts({'denoise': facts, 'refine': candidate.refinement})}</details></section>"
    )


def _policy(candidate: Candidate) -> str:
    return (
        f"<section><h2>Policy</h2><details><summary>Every setting</summary>{_facts(as_dict(candidate.policy))}</details>"
        f"<p class=fine>Policy {escape(candidate.policy.hash)}, ledger entry {escape(candidate.entry)}.</p></section>"
    )


def _window(budget: Budget) -> str:
    return "in all" if budget.window == "ever" else f"for {budget.window}"


def _gamma(candidate: Candidate) -> float:
    return float(candidate.refinement["gamma"])


def _sigma(scale: Fraction) -> float:
    return noise_variance(scale) ** 0.5


def _busiest_slice(candidate: Candidate) -> int:
    return int(np.argmax(candidate.refined.sum((1, 2), dtype=np.float64)))


def _hottest_window(candidate: Candidate) -> tuple[slice, slice]:
    """Rows and columns of the window of a quarter of the grid, or of PANEL_CELLS, that holds most of the busiest slice."""
    image = candidate.refined[_busiest_slice(candidate)]
    height, width = (min(max(1, math.ceil(side / 2)), PANEL_CELLS) for side in image.shape)
    sums = np.pad(np.cumsum(np.cumsum(image, 0, dtype=np.float64), 1), ((1, 0), (1, 0)))
    inside = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    row, col = np.unravel_index(int(np.argmax(inside)), inside.shape)
    return slice(int(row), int(row) + height), slice(int(col), int(col) + width)


def _part(grid: Grid, rows: slice, cols: slice) -> Grid:
    """The grid of some rows and columns."""
    return Grid(
        grid.south + rows.start / grid.rows_per_degree,
        grid.west + cols.start / grid.cols_per_degree,
        grid.south + rows.stop / grid.rows_per_degree,
        grid.west + cols.stop / grid.cols_per_degree,
        rows.stop - rows.start,
        cols.stop - cols.start,
    )


def _in_blocks(candidate: Candidate) -> str:
    side = candidate.side
    return "" if side == 1 else f"In each slice, {side} × {side} cells were counted as one. "


def _and_map(candidate: Candidate) -> str:
    scale = candidate.policy.privacy.map_scale
    return "" if scale is None else f"did the map of the whole period, in every cell, of scale {float(scale):.4g}, and so "


def _errors(candidate: Candidate) -> list[_BoxError]:
    grid = candidate.grid
    cell = (grid.height_metres / grid.rows, grid.width_metres / grid.cols)
    side = math.sqrt(cell[0] * cell[1])
    found = [_box_error(candidate, f"1 cell ({cell[0]:,.0f} × {cell[1]:,.0f} m)", (1, 1), side)]
    for metres in BOXES:
        rows, cols = (round(metres / length) for length in cell)
        label = _metres(metres)
        fits = 1 <= rows <= grid.rows and 1 <= cols <= grid.cols and rows * cols > 1
        found.append(_box_error(candidate, label, (rows, cols), metres) if fits else _BoxError(label, None))
    return found


def _box_error(candidate: Candidate, label: str, cells: tuple[int, int], side: float) -> _BoxError:
    """The error of the sum over boxes of rows x cols cells that tile the grid, in one slice."""
    height, width = (length // step for length, step in zip(candidate.refined.shape[1:], cells, strict=True))
    gamma = _gamma(candidate)
    noisy = math.sqrt(math.prod(cells)) * _sigma(candidate.scale) / candidate.side * gamma
    counts, deviations = [], []
    for number, image in enumerate(candidate.refined):
        sums = _block_sums(image, cells)[:height, :width]
        filled = sums > 0
        counts.append(sums[filled])
        if candidate.deviation is not None:
            variances = _block_sums(np.square(candidate.deviation[number]), cells)[:height, :width]
            deviations.append(np.sqrt(variances[filled]) * gamma)
    held = np.concatenate(counts)
    if not held.size:
        return _BoxError(label, cells, side, noisy, None, None)
    own = np.concatenate(deviations) if deviations else None
    largest = noisy if own is None else own if cells == (1, 1) else np.maximum(own, noisy)
    return _BoxError(
        label,
        cells,
        side,
        noisy,
        None if own is None else math.sqrt(float(np.mean(np.square(own, dtype=np.float64)))),
        float(np.median(held)),
        float(held[largest <= RELIABLE * held].sum(dtype=np.float64) / held.sum(dtype=np.float64)),
    )


def _block_sums(image: np.ndarray, side: int | tuple[int, int]) -> np.ndarray:
    """Sums over blocks of `side` rows and columns; the last ones hold what is left."""
    rows, cols = (side, side) if isinstance(side, int) else side
    if rows == cols == 1:
        return image
    by_row = np.add.reduceat(image, np.arange(0, image.shape[0], rows), axis=0, dtype=np.float64)
    return np.add.reduceat(by_row, np.arange(0, image.shape[1], cols), axis=1)


def _display_side(shape: tuple[int, ...], pixels: int) -> int:
    return math.ceil(max(shape) / pixels)


def _scale_of(values: np.ndarray, highest: float = 0.0) -> _Scale:
    """A scale that ends at the largest value and begins where the values do, or DECADES below."""
    above = values[values > 0]
    high = max(float(above.max()) if above.size else 0.0, highest)
    if not high > 0:
        return _Scale(1.0, 10.0)
    low = max(float(np.quantile(above, 0.02)) if above.size else 0.0, high / 10**DECADES)
    return _Scale(min(low, high / 10), high)


def _frames(candidate: Candidate) -> _Frames:
    """One picture per slice, with the smallest blocks that keep the file small."""
    slices, rows, cols = candidate.refined.shape
    step = math.ceil(slices / MOST_FRAMES)
    starts = range(0, slices, step)
    images = [candidate.refined[start : start + step].sum(0, dtype=np.float64) for start in starts]
    totals = [float(image.sum()) for image in images]
    fullest = images[int(np.argmax(totals))]
    budget = min(ALL_FRAME_BYTES, FRAME_BYTES * len(images))
    side = _display_side((rows, cols), MAP_PIXELS)
    while side < max(rows, cols):
        sample = _block_sums(fullest, side)
        if len(_paint(sample, _scale_of(sample))) * len(images) <= budget:
            break
        side += 1
    while True:
        blocks = [_block_sums(image, side) for image in images]
        scale = _scale_of(np.stack(blocks))
        pictures = [_paint(block, scale) for block in blocks]
        if sum(len(picture) for picture in pictures) <= budget or side >= max(rows, cols):
            break
        side += 1
    return _Frames(
        pictures=pictures,
        labels=_labels(candidate.period, step),
        totals=totals,
        scale=scale,
        side=side,
        slices=step,
        cover=(blocks[0].shape[1] * side / cols, blocks[0].shape[0] * side / rows),
    )


def _paint(values: np.ndarray, scale: _Scale) -> bytes:
    """The values as a PNG of one pixel each, north up."""
    image = Image.fromarray(np.ascontiguousarray(scale.steps(values)[::-1]))
    image.putpalette(PALETTE.tobytes())
    out = io.BytesIO()
    image.save(out, format="PNG", compress_level=6)
    return out.getvalue()


def _map_size(grid: Grid, pixels: int) -> tuple[int, int]:
    """Width and height of a map in pixels, true to metres."""
    longest = max(grid.height_metres, grid.width_metres)
    return max(24, round(pixels * grid.width_metres / longest)), max(24, round(pixels * grid.height_metres / longest))


def _map_figure(
    values: np.ndarray | None,
    scale: _Scale,
    grid: Grid,
    pixels: int,
    side: int,
    unit: str,
    mark: tuple[slice, slice] | None = None,
) -> Figure:
    """A map with degrees, a scale bar and a colour bar; without values, the frame to lay over one."""
    width, height = _map_size(grid, pixels)
    whole = (width + LEFT + RIGHT, height + TOP + BOTTOM)
    figure = Figure(figsize=(whole[0] / 100, whole[1] / 100), dpi=100)
    figure.patch.set_alpha(0 if values is None else 1)
    place = (LEFT / whole[0], BOTTOM / whole[1], width / whole[0], height / whole[1])
    axes = figure.add_axes(place, facecolor="none" if values is None else GROUND)
    if values is not None:
        north = grid.south + values.shape[0] * side / grid.rows_per_degree
        east = grid.west + values.shape[1] * side / grid.cols_per_degree
        extent = (grid.west, east, grid.south, north)
        axes.imshow(PALETTE[scale.steps(values)], origin="lower", extent=extent, aspect="auto", interpolation="nearest")
    if mark is not None:
        quarter = _part(grid, *mark)
        size = (quarter.east - quarter.west, quarter.north - quarter.south)
        axes.add_patch(Rectangle((quarter.west, quarter.south), *size, fill=False, edgecolor=INK, linewidth=1))
    axes.set_xlim(grid.west, grid.east)
    axes.set_ylim(grid.south, grid.north)
    axes.xaxis.set_major_locator(MaxNLocator(max(1, width // 120)))
    axes.yaxis.set_major_locator(MaxNLocator(max(1, height // 90)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: _degrees(x, grid.east - grid.west, "EW")))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: _degrees(y, grid.north - grid.south, "NS")))
    _calm(axes)
    _scale_bar(axes, grid.width_metres / 1000, height)
    bar_place = ((LEFT + width + 10) / whole[0], place[1], 12 / whole[0], place[3])
    shades = ScalarMappable(LogNorm(scale.low, scale.high), RAMP)
    bar = figure.colorbar(shades, cax=figure.add_axes(bar_place), extend="min", extendfrac=min(0.04, 12 / height))
    bar.set_ticks(scale.ticks, labels=[_short(tick) for tick in scale.ticks])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=MUTED, length=3, width=0.6)
    if height >= 150:
        bar.set_label(unit, fontsize=8, color=MUTED)
    return figure


def _calm(axes: Any) -> None:
    axes.tick_params(labelsize=8, colors=MUTED, length=3, width=0.6)
    for spine in axes.spines.values():
        spine.set(color="#b9b4a9", linewidth=0.7)


def _scale_bar(axes: Any, width_km: float, height: int) -> None:
    longest = width_km * 0.3
    power = 10 ** math.floor(math.log10(longest))
    length = max(step * power for step in (1, 2, 5) if step * power <= longest * (1 + 1e-9))
    share, left, low, tall = length / width_km, 0.03, 14 / height, 6 / height
    if height < 60:
        return
    box = {"transform": axes.transAxes, "clip_on": False}
    axes.add_patch(Rectangle((left - 0.015, low - tall), share + 0.03, 28 / height, color="white", alpha=0.8, linewidth=0, **box))
    axes.plot([left, left, left + share, left + share], [low + tall * 0.7, low, low, low + tall * 0.7], color=INK, lw=1.2, **box)
    axes.text(left + share / 2, low + tall * 0.6, f"{length:g} km", ha="center", va="bottom", fontsize=8, color=INK, **box)


def _error_chart(boxes: Sequence[_BoxError]) -> Figure:
    figure = Figure(figsize=(7, 3), dpi=100, layout="constrained")
    axes = figure.subplots()
    sides = [box.side for box in boxes]
    lines: list[tuple[str, list[float | None], str, str]] = [
        ("noisy sum, ±", [box.noisy for box in boxes], SLATE, "--"),
        ("denoised sum, ±", [box.denoised for box in boxes], SLATE, "-"),
        ("typical count", [box.typical for box in boxes], HEAT, "-"),
    ]
    for name, values, colour, dash in lines:
        points = [(x, y) for x, y in zip(sides, values, strict=True) if y]
        if points:
            axes.plot(
                *zip(*points, strict=True), color=colour, linestyle=dash, marker="o", markersize=4, linewidth=1.5, label=name
            )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sides, [_metres(side) for side in sides])
    axes.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.tick_params(which="minor", length=0)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_xlabel("side of the box", fontsize=8, color=MUTED)
    axes.set_ylabel("published events", fontsize=8, color=MUTED)
    _calm(axes)
    _open(axes)
    axes.legend(fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _budget_chart(budget: Budget, period: str) -> Figure:
    figure = Figure(figsize=(7, 2.6), dpi=100, layout="constrained")
    axes = figure.subplots()
    charges = [float(epsilon) for _, epsilon in budget.charges]
    before = np.concatenate([[0.0], np.cumsum(charges)])[: len(charges)]
    places = np.arange(len(charges))
    colours = [HEAT if day == period else SLATE for day, _ in budget.charges]
    width = 0.8 if len(charges) > 8 else 0.5
    axes.bar(places, before, width, color=SAND, alpha=0.6)
    axes.bar(places, charges, width, bottom=before, color=colours)
    cap = float(budget.cap)
    axes.axhline(cap, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_ylim(0, cap * 1.15)
    axes.set_xlim(-0.75, max(len(charges), 8) - 0.25)
    axes.text(
        1, cap * 1.02, f"cap {budget.cap} ", transform=axes.get_yaxis_transform(), ha="right", va="bottom", fontsize=8, color=INK
    )
    shown = places[:: max(1, math.ceil(len(charges) / 8))]
    axes.set_xticks(shown, [budget.charges[i][0] for i in shown])
    axes.set_ylabel("ε, cumulated", fontsize=8, color=MUTED)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)
    handles = [Rectangle((0, 0), 1, 1, color=colour) for colour in (HEAT, SLATE, SAND)]
    figure.legend(
        handles, ["this period", "other periods", "spent before"], loc="outside upper left", ncols=3, fontsize=8, frameon=False
    )
    _calm(axes)
    _open(axes)
    return figure


def _open(axes: Any) -> None:
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _png(figure: Figure) -> bytes:
    """The figure as a PNG; without an alpha channel where nothing shines through."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    image = Image.open(drawn)
    out = io.BytesIO()
    (image if figure.patch.get_alpha() == 0 else image.convert("RGB")).save(out, format="PNG", optimize=True)
    return out.getvalue()


def _img(picture: bytes, text: str, kind: str, style: str = "", name: str = "") -> str:
    data = base64.b64encode(picture).decode()
    more = (f' class="{kind}"' if kind else "") + (f' style="{style}"' if style else "") + (f' id="{name}"' if name else "")
    return f'<img{more} alt="{escape(text)}" src="data:image/png;base64,{data}">'


def _facts(values: dict[str, Any]) -> str:
    rows = "".join(f"<tr><th>{escape(key)}</th><td>{escape(text)}</td></tr>" for key, text in _flat(values, ""))
    return f"<div class=wide><table class=facts><tbody>{rows}</tbody></table></div>"


def _flat(values: dict[str, Any], prefix: str) -> Iterable[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            yield f"{prefix}{key}", ", ".join(v if isinstance(v, str) else json.dumps(v) for v in value)
        else:
            yield f"{prefix}{key}", "—" if value is None else value if isinstance(value, str) else json.dumps(value)


def _days(period: Period) -> str:
    last = period.first + timedelta(days=period.days - 1)
    first = f"{period.first:%A} {period.first.day} {period.first:%B %Y}"
    return first if period.days == 1 else f"{first} to {last:%A} {last.day} {last:%B %Y}"


def _hours(period: Period) -> str:
    minutes = period.days * 1440 / period.slices
    if minutes >= 60:
        return f"{minutes / 60:g} {'hour' if minutes == 60 else 'hours'}"
    return f"{minutes:g} {'minute' if minutes == 1 else 'minutes'}"


def _labels(period: Period, step: int) -> list[str]:
    """When every run of `step` slices is, on the local clock; with the day where the period has several."""
    zone = ZoneInfo(period.zone)
    edges = [edge.astimezone(zone) for edge in period.edges]
    labels = []
    for first in range(0, period.slices, step):
        start, end = edges[first], edges[min(first + step, period.slices)]
        ends_day = (end.hour, end.minute) == (0, 0)
        day = f"{start:%a} {start.day} {start:%b}, " if period.days > 1 else ""
        last = end - timedelta(days=ends_day)
        until = f"{last:%a} {last.day} {last:%b}, " if last.date() > start.date() else ""
        labels.append(f"{day}{start:%H:%M}–{until}{'24:00' if ends_day else f'{end:%H:%M}'}")
    return labels


def _start(label: str) -> str:
    return label.split("–")[0]


def _unit(side: int) -> str:
    return "one cell" if side == 1 else f"blocks of {side} × {side} cells"


def _degrees(value: float, span: float, names: str) -> str:
    decimals = max(0, math.ceil(-math.log10(span)) + 1)
    return f"{abs(value):.{decimals}f}°{names[0] if value >= 0 else names[1]}"


def _metres(side: float) -> str:
    return f"{side:,.0f} m" if side < 1000 else f"{side / 1000:.3g} km"


def _short(value: float) -> str:
    """A number with as many digits as it deserves."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 1 else f"{value:.2g}"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.1 else f"{share:,.0%}"


STYLE = """
*{box-sizing:border-box}
body{margin:0;background:#fbfaf7;color:#23262b;
 font:16px/1.55 system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif}
main{max-width:1120px;margin:0 auto;padding:40px 28px 72px}
h1,h2,.when,.clock,.tile dd,.figures b{font-family:Charter,"Iowan Old Style","Source Serif 4",Georgia,"DejaVu Serif",serif;
 font-weight:600;letter-spacing:-.01em}
h1{font-size:44px;line-height:1.1;margin:0}
h2{font-size:25px;line-height:1.2;margin:0 0 8px}
p{margin:0 0 14px;max-width:72ch}
.eyebrow{font-size:12px;letter-spacing:.09em;text-transform:uppercase;color:#b5442e;margin:0 0 8px;font-weight:600}
.when{font-size:21px;margin:6px 0 14px}.when span{color:#6d7178;font-weight:400;font-size:16px;margin-left:6px}
.lead{font-size:18px;line-height:1.5;margin-bottom:8px}
.fine{font-size:13.5px;line-height:1.5;color:#6d7178}
section{border-top:1px solid #dedad1;padding-top:30px;margin-top:40px}
section.hero{border:0;margin-top:22px;padding:0;display:grid;grid-template-columns:minmax(0,740px) minmax(200px,1fr);gap:28px}
figure{margin:0}figcaption{font-size:13.5px;line-height:1.45;color:#6d7178;margin-top:6px;max-width:68ch}
figcaption b{color:#23262b}
img{display:block}img.map{max-width:100%;height:auto}
.hero figure,.chart,.pair figure,.stage{background:#fff;border:1px solid #e8e4dc;border-radius:6px;padding:10px}
.hero figcaption,.pair figcaption{padding:0 6px 4px}.hero .map,.pair .map,.chart .map{margin:0 auto}
.tiles{margin:0;display:flex;flex-direction:column}
.tile{padding:16px 0;border-top:1px solid #dedad1}.tile:first-child{border-top:2px solid #23262b}
.tile dt{font-size:12px;letter-spacing:.07em;text-transform:uppercase;color:#6d7178}
.tile dd{margin:2px 0 0;font-size:28px;line-height:1.2}.tile p{margin:2px 0 0;font-size:13.5px;color:#6d7178}
.player{display:grid;grid-template-columns:minmax(0,740px) minmax(200px,1fr);gap:28px;align-items:start}
.stage{position:relative;padding:0;width:100%;justify-self:start}
.stage .over{position:relative;width:100%;height:auto;pointer-events:none}
.cut{position:relative;overflow:hidden;background:#f5f2eb}.stage .cut{position:absolute}
.cut img{position:absolute;left:0;bottom:0}.stage .cut img{image-rendering:pixelated}
.controls{padding-top:8px}.clock{font-size:28px;line-height:1.2;margin:0}
.bars{display:flex;align-items:flex-end;height:110px;gap:2px;margin:22px 0 0;padding:0 1px}
.bars.dense{gap:0}.bars i{flex:1;background:#e3c9a4;min-height:2px;cursor:pointer}.bars i.now{background:#b5442e}
input[type=range]{width:100%;margin:8px 0 0;accent-color:#b5442e}
.ends{display:flex;justify-content:space-between;font-size:12.5px;color:#6d7178;font-variant-numeric:tabular-nums}
button{margin-top:14px;font:inherit;font-size:14px;padding:6px 18px;border:1px solid #b9b4a9;border-radius:4px;background:#fff;
 color:#23262b;cursor:pointer}
button:hover{border-color:#23262b}
.multiples{display:grid;grid-template-columns:repeat(4,1fr);gap:16px;margin-top:22px}
.multiples[hidden]{display:none}.multiples figure{cursor:pointer}.multiples .cut{outline:1px solid #e8e4dc}
.multiples figure.now .cut{outline:2px solid #b5442e}.multiples figcaption{font-size:12.5px;font-variant-numeric:tabular-nums}
.pair{display:grid;grid-template-columns:1fr 1fr;gap:20px}
.chart{max-width:740px;margin:18px 0 12px}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14.5px;line-height:1.4}
th,td{text-align:left;padding:8px 14px 8px 0;border-bottom:1px solid #e8e4dc;vertical-align:top;font-weight:400}
thead th{font-size:12px;letter-spacing:.04em;text-transform:uppercase;color:#6d7178;border-bottom:1px solid #23262b;
 vertical-align:bottom}
tbody th{font-weight:600;white-space:nowrap}
.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
.off,.off th{color:#8b8e94;font-weight:400}
.mark{white-space:nowrap;padding-left:16px;position:relative}
.mark::before{content:"";position:absolute;left:0;top:.42em;width:8px;height:8px;border-radius:50%;background:#b9b4a9}
.mark.good::before{background:#4d7c5a}.mark.fair::before{background:#d9a441}.mark.poor::before{background:#b5442e}
.held{color:#3f6e4c;white-space:nowrap;font-weight:600}.broken{color:#b5442e;white-space:nowrap;font-weight:600}
.figures{display:flex;flex-wrap:wrap;gap:8px 44px;margin:6px 0 0;color:#6d7178;font-size:14.5px}
.figures b{font-size:24px;color:#23262b;margin-right:4px}
.promise{padding-left:20px;margin:0;max-width:76ch}.promise li{margin-bottom:7px}
.method{list-style:none;padding:0;margin:0 0 14px;max-width:920px}
.method li{display:grid;grid-template-columns:104px 1fr;padding:9px 0;border-bottom:1px solid #e8e4dc}
.touch{display:block;font-size:13.5px;color:#3c5a6b}
details{margin:12px 0}summary{cursor:pointer;color:#3c5a6b;font-weight:600}
.facts{font-size:13.5px;margin-top:8px}.facts th{font-weight:400;color:#6d7178;width:1%;padding-right:28px}
.facts td{overflow-wrap:anywhere;font-family:ui-monospace,Menlo,Consolas,monospace;font-size:12.5px}
@media (max-width:860px){main{padding:24px 16px 48px}h1{font-size:34px}.lead{font-size:17px}
section.hero,.player,.pair{grid-template-columns:minmax(0,1fr)}
.tiles{flex-direction:row;flex-wrap:wrap;gap:0 24px}.tile{flex:1 1 130px}.tile:first-child{border-top:1px solid #dedad1}
.tile dd{font-size:23px}.hero figure,.pair figure,.chart{padding:4px}.bars{height:70px}
.multiples{grid-template-columns:repeat(2,1fr)}.method li{grid-template-columns:1fr}}
@media print{body{background:#fff}.controls button,input[type=range]{display:none}section{break-inside:avoid}}
"""

WATCH = """
window.onerror=function(message){document.documentElement.dataset.error=message};
document.addEventListener("securitypolicyviolation",function(e){document.documentElement.dataset.error="refused: "+e.blockedURI});
"""

SCRIPT = """
(function(){
"use strict";
var pick=function(id){return document.getElementById(id)};
var slider=pick("slider"),shown=pick("shown"),clock=pick("clock"),total=pick("total"),play=pick("play");
var frames=Array.from(pick("frames").children),bars=Array.from(pick("bars").children),timer=null;
function show(i){
  var frame=frames[i];
  slider.value=i;
  shown.src=frame.querySelector("img").src;
  clock.textContent=frame.dataset.label;
  total.textContent=frame.dataset.total;
  slider.setAttribute("aria-valuetext",frame.dataset.label);
  frames.forEach(function(f,n){f.classList.toggle("now",n===i)});
  bars.forEach(function(b,n){b.classList.toggle("now",n===i)});
}
function stop(){clearInterval(timer);timer=null;play.textContent="Play";play.setAttribute("aria-pressed","false")}
slider.addEventListener("input",function(){stop();show(+slider.value)});
[frames,bars].forEach(function(all){all.forEach(function(one,i){one.addEventListener("click",function(){stop();show(i)})})});
play.addEventListener("click",function(){
  if(timer){stop();return}
  play.textContent="Pause";play.setAttribute("aria-pressed","true");
  timer=setInterval(function(){show((+slider.value+1)%frames.length)},Math.max(150,Math.min(900,20000/frames.length)));
});
show(+slider.value);
window.addEventListener("load",function(){
  var images=Array.from(document.images);
  var decoded=images.filter(function(i){return i.complete&&i.naturalWidth>0});
  document.documentElement.dataset.images=decoded.length+" of "+images.length;
  document.documentElement.dataset.ready="yes";
});
})();
"""
