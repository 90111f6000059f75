"""The command line: `heathaze <command> --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, timedelta
from pathlib import Path

from heathaze import __version__, console
from heathaze.policy import as_dict, load_policy


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 the user's mistake, 2 refused, others a bug."""
    return console.run(_run, arguments)


def _run(arguments: Sequence[str] | None) -> None:
    parsed = build_parser().parse_args(arguments)
    parsed.do(parsed)


class _Parser(argparse.ArgumentParser):
    """Mistakes in arguments exit with 1, as the user's other mistakes do."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.print_usage(sys.stderr)
        self.exit(1, f"{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    from heathaze.collect.night import add_arguments
    from heathaze.night import add_public_arguments

    parser = _Parser(prog="heathaze", description="Density maps with a user-level differential privacy guarantee.")
    parser.add_argument("--version", action="version", version=f"heathaze {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)

    policy = commands.add_parser("policy", help="what a policy promises").add_subparsers(
        dest="action", required=True, metavar="ACTION", parser_class=_Parser
    )
    check = policy.add_parser("check", help="check a policy file and say what it promises")
    check.add_argument("file", help="policy file (TOML)")
    _add_json(check)
    check.set_defaults(do=_policy_check)

    synthesize = commands.add_parser("synthesize", help="write a synthetic city as Parquet or Delta")
    synthesize.add_argument("--out", required=True, help="folder to write")
    synthesize.add_argument("--users", type=int, default=20_000)
    synthesize.add_argument("--events-per-user", type=float, default=20.0, help="mean over the users")
    synthesize.add_argument("--first-day", type=date.fromisoformat, default=None, help="default: yesterday")
    synthesize.add_argument("--days", type=int, default=1)
    synthesize.add_argument("--shape", default="rings", choices=["rings", "corridors", "polycentric"])
    synthesize.add_argument("--seed", type=int, default=0)
    synthesize.add_argument("--format", default="parquet", choices=["parquet", "delta"])
    _add_json(synthesize)
    synthesize.set_defaults(do=_synthesize)

    collect = commands.add_parser("collect", help="bound, count and noise one night: the private side")
    add_arguments(collect, events=True)
    _add_json(collect)
    collect.set_defaults(do=_collect)

    denoise = commands.add_parser("denoise", help="make a noisy night better, from noisy nights alone")
    add_public_arguments(denoise)
    _add_json(denoise)
    denoise.set_defaults(do=_denoise)

    budget = commands.add_parser("budget", help="what has been spent, and what is left")
    budget.add_argument("--tables", required=True, metavar="PLACE", help="folder, URI or catalog.schema of heathaze's tables")
    _add_json(budget)
    budget.set_defaults(do=_budget)

    demo = commands.add_parser("demo", help="one more night of a synthetic city, end to end")
    demo.add_argument("--tables", default="demo", help="folder for the demo's events and tables")
    demo.set_defaults(do=_demo)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _policy_check(arguments: argparse.Namespace) -> None:
    from heathaze.statement import promise

    policy = load_policy(arguments.file)
    sentences = promise(policy)
    console.show({"policy": as_dict(policy), "hash": policy.hash, "promise": sentences}, arguments.json, "\n".join(sentences))


def _synthesize(arguments: argparse.Namespace) -> None:
    from heathaze.evaluate.synthetic import City, synthesize

    city = City(
        users=arguments.users,
        events_per_user=arguments.events_per_user,
        first_day=arguments.first_day or date.today() - timedelta(days=1),
        days=arguments.days,
        shape=arguments.shape,
        seed=arguments.seed,
    )
    rows = synthesize(city, arguments.out, arguments.format, progress=_percent)
    text = f"{rows:,} events of {city.users:,} synthetic users, {city.days} day(s) from {city.first_day}, in {arguments.out}"
    console.show({"rows": rows, "out": arguments.out, "first_day": city.first_day, "days": city.days}, arguments.json, text)


def _percent(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r  {100 * done // of} % of the users", end="" if done < of else "\n", file=sys.stderr, flush=True)


def _collect(arguments: argparse.Namespace) -> None:
    from heathaze.collect.night import open_night
    from heathaze.collect.pipeline import run_bound, run_count, run_noise

    say = console.Progress()
    night = open_night(arguments, say)
    before = {entry.entry for entry in night.ledger.entries()}
    entry = run_bound(night, arguments.events)
    run_count(night, entry)
    run_noise(night, entry)
    say.finish()
    is_new = entry.entry not in before
    bucket = next(b for b in night.ledger.buckets() if (b.dataset, b.time_window) == (entry.dataset, entry.time_window))
    report = {
        "entry": entry.entry,
        "dataset": entry.dataset,
        "period": entry.period,
        "epsilon": entry.epsilon if is_new else "0",
        "spent": bucket.spent,
        "left": bucket.left,
        "cap": bucket.cap,
        "window": bucket.time_window,
        "noisy": night.tables.address("noisy"),
    }
    charge = f"charged epsilon {entry.epsilon}" if is_new else "charged nothing (this release was charged before)"
    text = (
        f"{entry.dataset}/{entry.period}: {charge}; {bucket.left} of {bucket.cap} left for {bucket.time_window}.\n"
        f"noisy tensor: {report['noisy']}, entry {entry.entry}"
    )
    console.show(report, arguments.json, text)


def _denoise(arguments: argparse.Namespace) -> None:
    from heathaze.learn.pipeline import run_denoise
    from heathaze.night import open_denoising

    say = console.Progress()
    report = run_denoise(open_denoising(arguments, say))
    say.finish()
    text = f"{arguments.period}: " + ", ".join(f"{key} {value}" for key, value in report.items())
    console.show(report, arguments.json, text)


def _budget(arguments: argparse.Namespace) -> None:
    from heathaze.collect.ledger import Ledger
    from heathaze.tables import Tables

    tables = Tables(arguments.tables)
    spark = None
    if tables.in_catalog:
        from heathaze.session import start_spark

        spark = start_spark()
    buckets = Ledger(tables.ledger_log(spark)).buckets()
    lines = [] if buckets else ["nothing has been charged here yet."]
    for bucket in buckets:
        lines.append(
            f"{bucket.dataset}, {bucket.time_window}: epsilon {bucket.spent} of {bucket.cap} spent, {bucket.left} left "
            f"(per {bucket.unit})"
        )
        lines.append("  period      epsilon  delta  charged at                 entry")
        for entry in bucket.entries:
            lines.append(f"  {entry.period}  {entry.epsilon:>7}  {entry.delta:>5}  {entry.charged_at}  {entry.entry}")
    report = [{**asdict(bucket), "left": bucket.left} for bucket in buckets]
    console.show(report, arguments.json, "\n".join(lines))


def _demo(arguments: argparse.Namespace) -> None:
    """Release the next night of the demo city: the day after the last one released, 60 days ago at first."""
    from heathaze.collect.ledger import Ledger
    from heathaze.tables import Tables

    place = Path(arguments.tables)
    released = [entry.period for entry in Ledger(Tables(str(place / "tables")).ledger_log()).entries()]
    day = date.fromisoformat(max(released)) + timedelta(days=1) if released else date.today() - timedelta(days=60)
    events = place / "events" / day.isoformat()
    if not events.exists():
        _run(["synthesize", "--out", str(events), "--users", "20000", "--events-per-user", "30", "--first-day", str(day)])
    policy = Path(__file__).parents[2] / "conf" / "demo.toml"
    tables = str(place / "tables")
    _run(["collect", "--policy", str(policy), "--events", str(events), "--period", str(day), "--tables", tables])
    _run(["budget", "--tables", tables])


if __name__ == "__main__":
    sys.exit(main())
