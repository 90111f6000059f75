"""Pictures of single queries: a map with what was asked, a series with its interval, a forecast after its past."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from heathaze.release.query import Answers, Forecast, Hotspots, Release, count
from heathaze.release.report import DECADES, GROUND, HEAT, INK, MUTED, RAMP, RULE, SAND, SLATE

MARGIN = 0.75
"""How far a map reaches beyond a box, in sides of it."""


def plot_range(release: Release, answers: Answers, noisy: bool, path: str | Path) -> None:
    """The box on the map of its slices, and its count slice by slice with the 90 % interval."""
    boxes = answers.boxes
    (first, *_), (beyond, *_) = (met[0] for met in boxes.cells_met(release.shape))
    figure, (left, right) = _panels(f"{answers.answer[0]:,.1f} events, 90 %: {answers.low[0]:,.1f} to {answers.high[0]:,.1f}")
    corner, size = (boxes.lon[0, 0], boxes.lat[0, 0]), (np.ptp(boxes.lon[0]), np.ptp(boxes.lat[0]))
    _draw_map(figure, left, release, _tensor(release, noisy)[first:beyond].sum(0))
    left.add_patch(Rectangle(corner, *size, fill=False, edgecolor=INK, linewidth=1.2))
    _show_around(left, release, boxes.lat[0], boxes.lon[0])
    series = count(release, boxes.per_slice(len(release.edges) - 1), noisy)
    times = [edge.astimezone(release.zone) for edge in release.edges]
    _draw_series(right, times, *(part[None, :] for part in (series.answer, series.low, series.high)))
    asked = [datetime.fromtimestamp(time, timezone.utc).astimezone(release.zone) for time in boxes.time[0]]
    right.axvspan(max(asked[0], times[0]), min(asked[1], times[-1]), color=SAND, alpha=0.35, linewidth=0, zorder=0)
    right.set_title("events in the box, slice by slice", fontsize=9, color=MUTED, loc="left")
    _dates(right, release.zone)
    figure.savefig(path)


def plot_hotspot(
    release: Release, point: tuple[float, float], side: float, found: Hotspots, noisy: bool, path: str | Path
) -> None:
    """The point, the square it was looked for in, and the hotspot, on the map of the hotspot's slice."""
    is_found = bool(found.is_found[0])
    said = f"hotspot of {found.value[0]:,.1f} events, {found.distance[0]:,.0f} m away" if is_found else "no hotspot"
    figure = _figure(said, 5.6)
    axes = figure.add_subplot()
    tensor = _tensor(release, noisy)
    _draw_map(figure, axes, release, tensor[found.slice[0]] if is_found else tensor.max(0))
    up, across = (side / 2 / metres for metres in release.metres)
    lat, lon = (np.array([centre - half, centre + half]) for centre, half in zip(point, (up, across), strict=True))
    axes.add_patch(Rectangle((lon[0], lat[0]), 2 * across, 2 * up, fill=False, edgecolor=MUTED, linewidth=0.8, linestyle="--"))
    for colour, width in ((GROUND, 3.0), (INK, 1.2)):  # a light rim shows the marks on dark cells too
        axes.plot(point[1], point[0], "+", color=colour, markersize=10, markeredgewidth=width)
        if is_found:
            axes.plot([point[1], found.lon[0]], [point[0], found.lat[0]], color=colour, linewidth=width)
            axes.plot(found.lon[0], found.lat[0], "o", color="none", markeredgecolor=colour, markeredgewidth=width, markersize=10)
    _show_around(axes, release, lat, lon, margin=0.1)
    figure.savefig(path)


def plot_forecast(made: Forecast, path: str | Path) -> None:
    """The past of the first box with its 90 % interval, and its forecast."""
    figure = _figure(f"{made.coming[0]:%Y-%m-%d %H:%M} and on: {made.seasons[0]}", 9)
    axes: Any = figure.add_subplot()
    past = [*made.times, made.coming[0]]
    _draw_series(axes, past, made.past[:1], made.low[:1], made.high[:1])
    step = made.coming[1] - made.coming[0] if len(made.coming) > 1 else past[-1] - past[-2]
    axes.stairs(made.ahead[0], [*made.coming, made.coming[-1] + step], baseline=None, color=HEAT, linewidth=1.6)
    axes.axvline(made.coming[0], color=RULE, linewidth=1)
    axes.set_title("events a slice: past, and forecast", fontsize=9, color=MUTED, loc="left")
    _dates(axes, made.coming[0].tzinfo)
    figure.savefig(path)


def _tensor(release: Release, noisy: bool) -> np.ndarray:
    return release.noisy * np.float32(release.gamma) if noisy else release.values


def _figure(title: str, width: float) -> Figure:
    figure = Figure(figsize=(width, 4.2), dpi=120, layout="constrained")
    figure.suptitle(title, fontsize=11, color=INK, x=0.01, ha="left")
    return figure


def _panels(title: str) -> tuple[Figure, Any]:
    figure = _figure(title, 10.5)
    return figure, figure.subplots(1, 2, width_ratios=[1, 1.3])


def _draw_map(figure: Figure, axes: Any, release: Release, values: np.ndarray) -> None:
    grid = release.grid
    high = max(float(values.max()), 1e-9)
    extent = (grid.west, grid.east, grid.south, grid.north)
    norm = LogNorm(high / 10**DECADES, high)
    shown = axes.imshow(np.maximum(values, 0), cmap=RAMP, norm=norm, origin="lower", extent=extent, interpolation="nearest")
    up, across = release.metres
    axes.set_aspect(up / across)
    axes.set_facecolor(GROUND)
    axes.ticklabel_format(useOffset=False)
    axes.locator_params(nbins=4)
    bar = figure.colorbar(shown, ax=axes, shrink=0.8)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=7, colors=MUTED)
    _calm(axes)


def _show_around(axes: Any, release: Release, lat: np.ndarray, lon: np.ndarray, margin: float = MARGIN) -> None:
    """Show a box and what lies around it, within the grid."""
    grid = release.grid
    for limit, edges, low, high in ((axes.set_ylim, lat, grid.south, grid.north), (axes.set_xlim, lon, grid.west, grid.east)):
        reach = margin * np.ptp(edges)
        limit(max(edges[0] - reach, low), min(edges[1] + reach, high))


def _draw_series(axes: Any, times: Sequence[datetime], answer: np.ndarray, low: np.ndarray, high: np.ndarray) -> None:
    """Steps with their interval; `times` has one more than the steps: the end of the last."""
    axes.stairs(high[0], times, baseline=low[0], fill=True, color=SLATE, alpha=0.22, linewidth=0, label="90 % interval")
    axes.stairs(answer[0], times, baseline=None, color=SLATE, linewidth=1.4)
    axes.set_ylim(bottom=min(0.0, float(low.min())))
    axes.legend(fontsize=8, labelcolor=MUTED, frameon=False, loc="upper left")
    _calm(axes)
    axes.grid(axis="y", color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)


def _dates(axes: Any, zone: Any) -> None:
    locator = AutoDateLocator(tz=zone)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=zone))


def _calm(axes: Any) -> None:
    axes.tick_params(labelsize=8, colors=MUTED, length=3, width=0.6)
    for spine in axes.spines.values():
        spine.set_color(RULE)
