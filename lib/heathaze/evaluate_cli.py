"""`heathaze evaluate`: is a release better than the alternatives, on this data, at this epsilon?"""

from __future__ import annotations

import argparse
import json
from datetime import date
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heathaze import console
from heathaze.policy import load_policy

if TYPE_CHECKING:
    from heathaze.evaluate.harness import Events
    from heathaze.policy import Policy

DEFAULT = "zero identity clipped gaussian shrink bayes"


def add_evaluate_command(commands: Any) -> None:
    parser = commands.add_parser(
        "evaluate",
        help="compare methods on public or synthetic data",
        description="Compares methods with the truth. For public or synthetic data only: it sees no ledger and cannot publish.",
    )
    parser.add_argument("--events", required=True, metavar="FILE", help="public events: Parquet or CSV")
    parser.add_argument("--policy", required=True, metavar="FILE", help="policy file: columns, grid, slices, k, settings")
    parser.add_argument("--epsilon", nargs="+", default=["0.05", "0.2", "0.8"], metavar="E")
    parser.add_argument("--methods", nargs="+", default=DEFAULT.split(), metavar="M", help=f"default: {DEFAULT}; or all")
    parser.add_argument("--seeds", type=int, default=3, help="draws of noise, sample and questions")
    parser.add_argument("--levels", nargs="+", default=["event"], choices=["event", "user"])
    parser.add_argument("--queries", type=int, default=5_000)
    parser.add_argument("--period", type=date.fromisoformat, default=None, help="first day (default: that of the data)")
    parser.add_argument("--intervals", nargs="*", default=[], metavar="M", help="also measure the intervals of these denoisers")
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(do=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    from heathaze.errors import InputError
    from heathaze.evaluate import harness, page

    policy = load_policy(arguments.policy)
    try:
        epsilons = [Decimal(text) for text in arguments.epsilon]
    except InvalidOperation:
        raise InputError(f"--epsilon must be numbers, but {' '.join(arguments.epsilon)} was given.") from None
    if (
        not all(epsilon.is_finite() and 0 < epsilon <= 100 for epsilon in epsilons)
        or arguments.seeds < 1
        or arguments.queries < 1
    ):
        raise InputError("--epsilon must be above 0 and at most 100, --seeds and --queries at least 1.")
    say = console.Progress()
    say("reading public events")
    events, period = harness.read_events(arguments.events, policy, arguments.period)
    names = list(harness.available(policy)) if arguments.methods == ["all"] else arguments.methods
    rows = harness.evaluate(events, policy, epsilons, names, arguments.seeds, arguments.levels, arguments.queries, say)
    report = page.as_json(rows) | {"period": period.name, "policy": policy.hash, "events": len(events.cell)}
    report["intervals"] = _intervals(arguments, policy, events, epsilons, say)
    say.finish()
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    title = f"{policy.dataset.name}, {len(events.cell):,} events from {period.name}"
    truth, answers = _examples(policy, events, epsilons, names)
    (out / "table.json").write_text(json.dumps(report, indent=1))
    text = page.as_markdown(rows) + _interval_table(report["intervals"])
    (out / "table.md").write_text(f"# {title}\n\n{text}\n")
    (out / "report.html").write_text(page.as_page(rows, title, truth, answers))
    console.show(report, arguments.json, f"{text}\n\nreport: {out / 'report.html'}")


def _intervals(
    arguments: argparse.Namespace, policy: Policy, events: Events, epsilons: list[Decimal], say: console.Progress
) -> list[dict[str, Any]]:
    """Coverage of the 90 % intervals, for the denoisers that were asked for."""
    from heathaze.evaluate.harness import coverage

    found = []
    for name in arguments.intervals:
        for epsilon in epsilons:
            say(f"intervals of {name}, epsilon {epsilon}")
            held = coverage(events, policy, epsilon, name, seed=0, queries=arguments.queries)
            found += [
                {"method": name, "epsilon": str(epsilon), "boxes": boxes, "held": share, "width": width}
                for boxes, (share, width) in held.items()
            ]
    return found


def _interval_table(intervals: list[dict[str, Any]]) -> str:
    if not intervals:
        return ""
    lines = ["", "", "### 90 % intervals: share that holds the truth (mean width)", ""]
    kinds = list(dict.fromkeys(one["boxes"] for one in intervals))
    lines += ["| method, epsilon | " + " | ".join(kinds) + " |", "|---" * (len(kinds) + 1) + "|"]
    for method, epsilon in dict.fromkeys((one["method"], one["epsilon"]) for one in intervals):
        mine = {one["boxes"]: one for one in intervals if (one["method"], one["epsilon"]) == (method, epsilon)}
        cells = [f"{mine[kind]['held']:.3f} ({mine[kind]['width']:.4g})" for kind in kinds]
        lines.append(f"| {method}, {epsilon} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _examples(policy: Policy, events: Events, epsilons: list[Decimal], names: list[str]) -> tuple[Any, dict[str, Any]]:
    """The truth and a few quick answers at the middle epsilon, for the maps of the page."""
    from heathaze.evaluate.harness import available, counts_of
    from heathaze.evaluate.meter import Meter

    grid = policy.grid.build()
    truth = counts_of(events, (policy.period.slices, grid.rows, grid.cols))
    epsilon = Fraction(epsilons[len(epsilons) // 2])
    known = available(policy)
    shown = [name for name in ("identity", "gaussian", "shrink") if name in names]
    return truth, {name: known[name](truth, Meter(epsilon, 1, 0)) for name in shown}
