"""The table of the yardstick as text, JSON and one self-contained HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from heathaze.evaluate.harness import Row

HEADLINES = (
    "small at records: relative",
    "small at records: absolute",
    "cell at records: absolute",
    "middle at records: relative",
    "middle at records: absolute",
    "small anywhere: absolute",
    "middle anywhere: absolute",
    "large at records: absolute",
    "large anywhere: absolute",
    "whole slice: absolute",
    "hotspots: distance, metres",
    "hotspots: regret",
    "forecasts: sMAPE",
    "forecasts: off those on the truth",
)
"""Columns of the table, the errors that decide; the JSON has all of them."""

AFTER_SAMPLING = (
    "small at records: absolute",
    "middle at records: absolute",
    "large at records: absolute",
    "middle anywhere: absolute",
    "whole slice: absolute",
)
"""Columns of the second table at user level, of errors against the scaled sample."""

NOTE = (
    "Public or synthetic data only: answers are compared with the truth, which no release may do. "
    "Mean over the seeds, after ± their standard deviation; lower is better, bold is the best of the private methods."
)
PLOTTED = 6
"""Errors that are drawn against epsilon."""
HALF = 60
"""Cells from the middle of a map to its edge."""

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#23262b;background:#f5f2eb;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    ".wide{overflow-x:auto}table{border-collapse:collapse;font-size:12.5px;margin:1rem 0}"
    "td,th{padding:.25rem .6rem;text-align:right;border-bottom:1px solid #dedad1}"
    "td:first-child,th:first-child{text-align:left}b{color:#b5442e}img{max-width:100%}.fine{color:#6d7178}"
)


def summary(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Mean and spread over the seeds, one entry per level, epsilon and method."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.level, row.epsilon, row.method), []).append(row)
    return [
        {
            "level": level,
            "epsilon": epsilon,
            "method": method,
            "protects": of[0].protects,
            "runs_at": of[0].runs_at,
            "seeds": len(of),
            "seconds": float(np.mean([row.seconds for row in of])),
            "megabytes": float(np.max([row.megabytes for row in of])),
            "errors": _over_seeds([row.errors for row in of]),
            "errors_after_sampling": _over_seeds([row.errors_after_sampling for row in of]),
        }
        for (level, epsilon, method), of in groups.items()
    ]


def _over_seeds(errors: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and spread of each error that all seeds have: a draw without a seasonal place has no forecasts."""
    names = [name for name in errors[0] if all(name in one for one in errors)]
    values = {name: [one[name] for one in errors] for name in names}
    return {name: {"mean": float(np.mean(found)), "spread": float(np.std(found))} for name, found in values.items()}


@dataclass(frozen=True)
class Table:
    """A table of text; its first column says what a line is about."""

    title: str
    head: list[str]
    lines: list[list[str]]
    """Cells between ** are the best of their column."""

    def as_markdown(self) -> str:
        lines = [self.head, ["---"] * len(self.head), *self.lines]
        return f"### {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def as_html(self) -> str:
        head = "".join(f"<th>{escape(cell)}</th>" for cell in self.head)
        lines = ["".join(f"<td>{_bold(cell)}</td>" for cell in line) for line in self.lines]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        return f"<h3>{escape(self.title)}</h3><div class=wide><table><tr>{head}</tr>{body}</table></div>"


def tables(rows: Sequence[Row], intervals: Sequence[dict[str, Any]] = ()) -> list[Table]:
    """One table per level and epsilon, at user level a second one without the error of sampling; then one of the intervals."""
    found, entries = [], summary(rows)
    for level, epsilon in dict.fromkeys((entry["level"], entry["epsilon"]) for entry in entries if entry["epsilon"]):
        chosen = [entry for entry in entries if entry["level"] == level and entry["epsilon"] in ("", epsilon)]
        title = f"{level} level, epsilon {epsilon}"
        found.append(_table(title, chosen, "errors", HEADLINES, has_cost=True))
        if level == "user":
            private = [entry for entry in chosen if entry["epsilon"]]
            title += ": what noise and method add, against the sample scaled up"
            found.append(_table(title, private, "errors_after_sampling", AFTER_SAMPLING, has_cost=False))
    return found + ([_interval_table(intervals)] if intervals else [])


def as_markdown(rows: Sequence[Row], title: str, intervals: Sequence[dict[str, Any]] = ()) -> str:
    """The tables of the page, and what they are of."""
    return "\n\n".join([f"# {title}", NOTE, *(table.as_markdown() for table in tables(rows, intervals))]) + "\n"


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"rows": [asdict(row) for row in rows], "summary": summary(rows)}


def as_page(
    rows: Sequence[Row],
    title: str,
    truth: np.ndarray | None = None,
    answers: dict[str, np.ndarray] | None = None,
    intervals: Sequence[dict[str, Any]] = (),
) -> str:
    """The page: errors against epsilon, maps of one slice of the truth and of some answers to it, and the tables."""
    body = [f"<h1>{escape(title)}</h1><p class=fine>{escape(NOTE)}</p>"]
    for level in dict.fromkeys(row.level for row in rows):
        body.append(f"<h2>{level} level</h2>{_picture(plot_errors(rows, level), f'errors against epsilon, {level} level')}")
    if truth is not None and answers:
        body.append(f"<h2>The busiest slice</h2>{_picture(plot_maps(truth, answers), 'maps of the truth and of answers')}")
    body.extend(table.as_html() for table in tables(rows, intervals))
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>"
    )


def plot_errors(rows: Sequence[Row], level: str) -> Figure:
    """The first headlines against epsilon, one line per method."""
    entries = [entry for entry in summary(rows) if entry["level"] == level and entry["epsilon"]]
    shown = [name for name in HEADLINES if entries and all(name in entry["errors"] for entry in entries)][:PLOTTED]
    figure = Figure(figsize=(13, 7), layout="constrained")
    for axes, name in zip(figure.subplots(2, PLOTTED // 2).ravel(), shown, strict=False):
        for method in dict.fromkeys(entry["method"] for entry in entries):
            mine = sorted((entry for entry in entries if entry["method"] == method), key=lambda entry: float(entry["epsilon"]))
            style = {"linewidth": 3, "color": "#b5442e"} if method == "bayes" else {"linewidth": 1, "alpha": 0.8}
            dashes = "-" if mine[0]["protects"] else ":"
            places, errors = [float(entry["epsilon"]) for entry in mine], [entry["errors"][name]["mean"] for entry in mine]
            axes.plot(places, errors, linestyle=dashes, marker="o", markersize=3, label=method, **style)
        axes.set_xscale("log")
        axes.set_yscale("symlog" if any(entry["errors"][name]["mean"] <= 0 for entry in entries) else "log")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("epsilon", fontsize=8)
    if shown:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def plot_maps(truth: np.ndarray, answers: dict[str, np.ndarray], across: int = 4) -> Figure:
    """One slice of the truth and of answers around its busiest cell, all on one logarithmic scale."""
    row, col = np.unravel_index(int(truth.argmax()), truth.shape)
    window = slice(max(0, row - HALF), row + HALF), slice(max(0, col - HALF), col + HALF)
    images = {"truth": truth[window]} | {name: answer[window] for name, answer in answers.items()}
    down = -(-len(images) // across)
    figure = Figure(figsize=(3 * min(across, len(images)), 3.2 * down), layout="constrained")
    top = np.log1p(float(truth.max()) or 1.0)
    places = figure.subplots(down, min(across, len(images)), squeeze=False).ravel()
    for axes in places:
        axes.set_axis_off()
    for axes, (name, image) in zip(places, images.items(), strict=False):
        axes.imshow(np.log1p(np.maximum(image, 0)), origin="lower", vmin=0, vmax=top, cmap="inferno")
        axes.set_title(name, fontsize=9)
    return figure


def _table(title: str, entries: list[dict[str, Any]], errors: str, headlines: Sequence[str], has_cost: bool) -> Table:
    names = [name for name in headlines if all(name in entry[errors] for entry in entries)]
    private = [entry for entry in entries if entry["protects"]]
    best = {name: min((entry[errors][name]["mean"] for entry in private), default=None) for name in names}
    lines = []
    for entry in entries:
        line = [entry["method"] + (f" ({entry['runs_at']})" if entry["runs_at"] else "")]
        line[0] += "" if entry["protects"] else " (not private)"
        for name in names:
            error = entry[errors][name]
            text = _number(error["mean"], 4) + (f" ± {_number(error['spread'], 2)}" if entry["seeds"] > 1 else "")
            line.append(f"**{text}**" if entry["protects"] and error["mean"] == best[name] else text)
        cost = ["", ""] if not entry["epsilon"] else [f"{entry['seconds']:.1f}", f"{entry['megabytes']:.0f}"]
        lines.append(line + (cost if has_cost else []))
    return Table(title, ["method", *names, *(["seconds", "MB"] if has_cost else [])], lines)


def _interval_table(intervals: Sequence[dict[str, Any]]) -> Table:
    kinds = list(dict.fromkeys(one["boxes"] for one in intervals))
    lines = []
    for method, epsilon in dict.fromkeys((one["method"], one["epsilon"]) for one in intervals):
        mine = {one["boxes"]: one for one in intervals if (one["method"], one["epsilon"]) == (method, epsilon)}
        lines.append(
            [f"{method}, {epsilon}", *(f"{mine[kind]['share']:.3f} ({_number(mine[kind]['width'], 3)})" for kind in kinds)]
        )
    return Table("90 % intervals: share that holds the truth (mean width)", ["method, epsilon", *kinds], lines)


def _number(value: float, digits: int) -> str:
    """So many significant digits, but all digits of whole numbers: 1.234 and 123,400."""
    return f"{value:,.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def _bold(text: str) -> str:
    return f"<b>{escape(text[2:-2])}</b>" if text.startswith("**") else escape(text)


def _picture(figure: Figure, about: str) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=90)
    return f'<img alt="{escape(about)}" src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}">'
