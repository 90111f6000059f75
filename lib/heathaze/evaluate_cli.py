"""`heathaze evaluate`: is a release better than the alternatives, on this data, at this epsilon?"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from datetime import date
from decimal import Decimal, InvalidOperation
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heathaze import console
from heathaze.policy import load_policy

if TYPE_CHECKING:
    import numpy as np

    from heathaze.evaluate.events import Events
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
    parser.add_argument(
        "--intervals", nargs="*", default=[], metavar="M", help="also measure how the 90 %% intervals of these denoisers hold"
    )
    parser.add_argument("--out", required=True, metavar="DIR")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(do=_evaluate)


def _evaluate(arguments: argparse.Namespace) -> None:
    from heathaze.errors import InputError
    from heathaze.evaluate import harness, page
    from heathaze.evaluate.events import counts_of, read_events

    if arguments.seeds < 1 or arguments.queries < 1:
        raise InputError(f"--seeds and --queries must be at least 1, but {arguments.seeds} and {arguments.queries} were given.")
    policy = load_policy(arguments.policy)
    epsilons = _epsilons(arguments.epsilon)
    names = list(dict.fromkeys(harness.available(policy) if arguments.methods == ["all"] else arguments.methods))
    harness.check(policy, names, epsilons, arguments.levels, arguments.intervals)
    say = console.Progress()
    say("reading public events")
    events, period = read_events(arguments.events, policy, arguments.period)
    out = Path(arguments.out)
    out.mkdir(parents=True, exist_ok=True)
    grid = policy.grid.fine()
    truth = counts_of(events, (policy.period.slices, grid.rows, grid.cols))
    busiest = int(truth.sum((1, 2)).argmax())
    shown = (arguments.levels[0], str(epsilons[len(epsilons) // 2]), 0)
    images: dict[str, np.ndarray] = {}

    def keep(row: harness.Row, answer: np.ndarray) -> None:
        if (row.level, row.epsilon, row.seed) == shown:
            images[row.method] = answer[busiest].copy()

    rows = harness.evaluate(events, policy, epsilons, names, arguments.seeds, arguments.levels, arguments.queries, say, keep)
    intervals = _intervals(arguments, policy, events, epsilons, say)
    say.finish()
    title = f"{policy.dataset.name}, {len(events.cell):,} events from {period.name}"
    facts = {"note": page.NOTE, "period": period.name, "policy": policy.hash, "events": len(events.cell), "intervals": intervals}
    report, text = page.as_json(rows) | facts, page.as_markdown(rows, title, intervals)
    (out / "table.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    (out / "table.md").write_text(text, encoding="utf-8")
    (out / "report.html").write_text(page.as_page(rows, title, truth[busiest], images, intervals), encoding="utf-8")
    console.show(report, arguments.json, f"{text}\nreport: {out / 'report.html'}")


def _epsilons(texts: list[str]) -> list[Decimal]:
    from heathaze.errors import InputError

    try:
        return list(dict.fromkeys(Decimal(text) for text in texts))
    except InvalidOperation:
        raise InputError(f"--epsilon must be numbers, but {' '.join(texts)} was given.") from None


def _intervals(
    arguments: argparse.Namespace, policy: Policy, events: Events, epsilons: list[Decimal], say: console.Progress
) -> list[dict[str, Any]]:
    """How the 90 % intervals hold, for the denoisers that were asked for."""
    from heathaze.evaluate.harness import coverage

    found = []
    for name, epsilon in product(arguments.intervals, epsilons):
        say(f"intervals of {name}, epsilon {epsilon}")
        held = coverage(events, policy, epsilon, name, arguments.seeds, arguments.queries)
        found += [{"method": name, "epsilon": str(epsilon), "boxes": kind, **asdict(one)} for kind, one in held.items()]
    return found
