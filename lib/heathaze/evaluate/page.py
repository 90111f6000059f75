"""The table of the yardstick as text, JSON and one self-contained HTML page."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict
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
    "large anywhere: absolute",
    "whole slice: absolute",
    "hotspots: distance, metres",
    "hotspots: regret",
    "forecasts: sMAPE",
)
"""Columns of the table, the errors that decide; the JSON has all of them."""

STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;color:#23262b;background:#f5f2eb;margin:2rem auto;max-width:72rem;padding:0 1rem}"
    "table{border-collapse:collapse;font-size:12.5px;margin:1rem 0}"
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
            "runs_at": of[0].runs_at,
            "seeds": len(of),
            "seconds": float(np.mean([row.seconds for row in of])),
            "megabytes": float(np.max([row.megabytes for row in of])),
            "errors": {
                name: {
                    "mean": float(np.mean([row.errors[name] for row in of])),
                    "spread": float(np.std([row.errors[name] for row in of])),
                }
                for name in of[0].errors
            },
        }
        for (level, epsilon, method), of in groups.items()
    ]


def as_markdown(rows: Sequence[Row]) -> str:
    """One table per level and epsilon; the best of each column is bold (oracles and `sampling alone` are not counted)."""
    parts = []
    entries = summary(rows)
    for level, epsilon in dict.fromkeys((entry["level"], entry["epsilon"]) for entry in entries if entry["epsilon"]):
        chosen = [entry for entry in entries if entry["level"] == level and entry["epsilon"] in ("", epsilon)]
        parts.append(f"### {level} level, epsilon {epsilon}\n\n{_table(chosen)}")
    return "\n\n".join(parts)


def _table(entries: list[dict[str, Any]]) -> str:
    names = [name for name in HEADLINES if name in entries[0]["errors"]]
    lines = ["| method | " + " | ".join(names) + " | seconds | MB |", "|---" * (len(names) + 3) + "|"]
    real = [entry for entry in entries if "oracle" not in entry["method"] and entry["epsilon"]]
    best = {name: min(entry["errors"][name]["mean"] for entry in real) for name in names}
    for entry in entries:
        cells = []
        for name in names:
            error = entry["errors"][name]
            text = f"{error['mean']:.4g}" + (f" ± {error['spread']:.1g}" if entry["seeds"] > 1 else "")
            cells.append(f"**{text}**" if entry in real and error["mean"] == best[name] else text)
        label = entry["method"] + (f" ({entry['runs_at']})" if entry["runs_at"] else "")
        lines.append(f"| {label} | " + " | ".join(cells) + f" | {entry['seconds']:.1f} | {entry['megabytes']:.0f} |")
    return "\n".join(lines)


def as_json(rows: Sequence[Row]) -> dict[str, Any]:
    return {"rows": [asdict(row) for row in rows], "summary": summary(rows)}


def as_page(rows: Sequence[Row], title: str, truth: np.ndarray, answers: dict[str, np.ndarray]) -> str:
    """The page: errors against epsilon, maps of the busiest slice, and the tables."""
    entries = summary(rows)
    body = [f"<h1>{escape(title)}</h1><p class=fine>Public or synthetic data. Mean over the seeds; lower is better.</p>"]
    for level in dict.fromkeys(row.level for row in rows):
        body.append(f"<h2>{level} level</h2>{_picture(_plots([e for e in entries if e['level'] == level and e['epsilon']]))}")
    if answers:
        body.append(f"<h2>The busiest slice</h2>{_picture(_maps(truth, answers))}")
    body.append("".join(_html_tables(entries)))
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body>{''.join(body)}</body></html>"
    )


def _html_tables(entries: list[dict[str, Any]]) -> list[str]:
    parts = []
    for level, epsilon in dict.fromkeys((entry["level"], entry["epsilon"]) for entry in entries if entry["epsilon"]):
        chosen = [entry for entry in entries if entry["level"] == level and entry["epsilon"] in ("", epsilon)]
        lines = [line.strip("|").split("|") for line in _table(chosen).splitlines()]
        head = "".join(f"<th>{escape(cell.strip())}</th>" for cell in lines[0])
        body = "".join("<tr>" + "".join(f"<td>{_bold(cell.strip())}</td>" for cell in line) + "</tr>" for line in lines[2:])
        parts.append(f"<h3>{level} level, epsilon {epsilon}</h3><table><tr>{head}</tr>{body}</table>")
    return parts


def _bold(text: str) -> str:
    return f"<b>{escape(text[2:-2])}</b>" if text.startswith("**") else escape(text)


def _plots(entries: list[dict[str, Any]]) -> Figure:
    shown = [name for name in HEADLINES if entries and name in entries[0]["errors"]][:6]
    figure = Figure(figsize=(13, 7), layout="constrained")
    for axes, name in zip(figure.subplots(2, 3).ravel(), shown, strict=False):
        for method in dict.fromkeys(entry["method"] for entry in entries):
            mine = [entry for entry in entries if entry["method"] == method]
            style = {"linewidth": 3, "color": "#b5442e"} if method == "bayes" else {"linewidth": 1, "alpha": 0.8}
            places = [float(entry["epsilon"]) for entry in mine]
            axes.plot(places, [entry["errors"][name]["mean"] for entry in mine], marker="o", markersize=3, label=method, **style)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_title(name, fontsize=9)
        axes.set_xlabel("epsilon", fontsize=8)
    if shown:
        figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside right center", fontsize=8)
    return figure


def _maps(truth: np.ndarray, answers: dict[str, np.ndarray]) -> Figure:
    number = int(truth.sum((1, 2)).argmax())
    busy = truth[number]
    row, col = np.unravel_index(int(busy.argmax()), busy.shape)
    rows, cols = slice(max(0, row - 60), row + 60), slice(max(0, col - 60), col + 60)
    images = {"truth": busy[rows, cols]} | {name: answer[number][rows, cols] for name, answer in answers.items()}
    figure = Figure(figsize=(3 * len(images), 3.2), layout="constrained")
    top = np.log1p(float(busy[rows, cols].max()) or 1.0)
    for axes, (name, image) in zip(figure.subplots(1, len(images), squeeze=False)[0], images.items(), strict=True):
        axes.imshow(np.log1p(np.maximum(image, 0)), origin="lower", vmin=0, vmax=top, cmap="inferno")
        axes.set_title(name, fontsize=9)
        axes.set_axis_off()
    return figure


def _picture(figure: Figure) -> str:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=90)
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}">'
