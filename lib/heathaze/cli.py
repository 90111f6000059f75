"""The command line: `heathaze <command> --help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heathaze import __version__, console
from heathaze.policy import as_dict, load_policy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from heathaze.collect.ledger import Entry
    from heathaze.collect.pipeline import Collection
    from heathaze.tables import Tables


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 the user's mistake, 2 refused, others a bug."""
    return console.run(_run, arguments)


def command() -> None:
    """The console script."""
    console.leave(main())


def _run(arguments: Sequence[str] | None) -> None:
    parsed = build_parser().parse_args(arguments)
    parsed.do(parsed)


def build_parser() -> argparse.ArgumentParser:
    from heathaze.collect.night import add_arguments
    from heathaze.evaluate_cli import add_evaluate_command
    from heathaze.night import add_public_arguments
    from heathaze.paramselect_cli import add_paramselect_commands
    from heathaze.query_cli import add_query_commands
    from heathaze.suggest_cli import add_suggest_command

    parser = console.Parser(prog="heathaze", description="Density maps with a user-level differential privacy guarantee.")
    parser.add_argument("--version", action="version", version=f"heathaze {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=console.Parser)

    policy = commands.add_parser("policy", help="what a policy promises").add_subparsers(
        dest="action", required=True, metavar="ACTION", parser_class=console.Parser
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

    release = commands.add_parser("release", help="one night from raw events to a published release")
    add_arguments(release, events=True)
    _add_json(release)
    release.set_defaults(do=_release)

    listing = commands.add_parser("releases", help="what has been published")
    explain = commands.add_parser("explain", help="what a release is, in plain words")
    verify = commands.add_parser("verify", help="check a release against its manifest and the ledger")
    for command, work in ((listing, _releases), (explain, _explain), (verify, _verify)):
        if command is not listing:
            command.add_argument("release", help="name of the release, or latest")
        _add_tables(command)
        _add_json(command)
        command.set_defaults(do=work)

    add_query_commands(commands, _add_tables, _add_json, _open_tables)
    add_evaluate_command(commands)
    add_suggest_command(commands, _add_json)
    add_paramselect_commands(commands, _add_json)

    denoise = commands.add_parser("denoise", help="make a noisy night better, from noisy nights alone")
    add_public_arguments(denoise)
    _add_json(denoise)
    denoise.set_defaults(do=_denoise)

    budget = commands.add_parser("budget", help="what has been spent, and what is left")
    _add_tables(budget)
    _add_json(budget)
    budget.set_defaults(do=_budget)

    demo = commands.add_parser("demo", help="one more night of a synthetic city, end to end")
    demo.add_argument("--tables", default="demo", help="folder for the demo's events and tables")
    demo.set_defaults(do=_demo)
    return parser


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_tables(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tables", required=True, metavar="PLACE", help="folder, URI or catalog.schema of heathaze's tables")


def _open_tables(arguments: argparse.Namespace) -> tuple[Tables, SparkSession | None]:
    """The tables that --tables names, and a session where they are in a catalog."""
    from heathaze.tables import Tables

    tables = Tables(arguments.tables)
    if not tables.in_catalog:
        return tables, None
    from heathaze.session import start_spark

    return tables, start_spark()


def _policy_check(arguments: argparse.Namespace) -> None:
    from heathaze.statement import advice, promise

    policy = load_policy(arguments.file)
    sentences, hints = promise(policy), advice(policy)
    report = {"policy": as_dict(policy), "hash": policy.hash, "promise": sentences, "advice": hints}
    console.show(report, arguments.json, "\n".join([*sentences, *hints]))


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
    entry = run_bound(night, arguments.events)
    run_count(night, entry)
    run_noise(night, entry)
    say.finish()
    report = _charge_report(night, entry) | {"noisy": night.tables.address("noisy")}
    text = f"{_charge_sentence(report)}\nnoisy tensor: {report['noisy']}, entry {entry.entry}"
    console.show(report, arguments.json, text)


def _release(arguments: argparse.Namespace) -> None:
    from heathaze.collect.night import open_night
    from heathaze.collect.pipeline import run_bound, run_count, run_gate_events, run_noise
    from heathaze.learn.pipeline import Denoising, run_denoise
    from heathaze.release.pipeline import Releasing, run_gate, run_publish, run_refine
    from heathaze.tables import Tables

    say = console.Progress()
    night = open_night(arguments, say)
    assert night.files is not None
    run_gate_events(night, arguments.events)
    entry = run_bound(night, arguments.events)
    run_count(night, entry)
    run_noise(night, entry)
    # From here on only tables that hold noise, or what was made of it.
    public = Tables(arguments.tables)
    session = night.spark if public.in_catalog else None
    period = night.period.name
    denoised = run_denoise(Denoising(night.policy, period, public, night.files / "training", say, say.note, session))
    releasing = Releasing(night.policy, period, public, night.files, say, session)
    run_refine(releasing)
    run_gate(releasing)
    name, folder, is_new = run_publish(releasing)
    say.finish()
    report = _charge_report(night, entry) | {
        "release": name,
        "is_new": is_new,
        "denoise": denoised,
        "report": str(folder / "report.html"),
        "manifest": str(folder / "manifest.json"),
    }
    state = "published" if is_new else "was published before, and is the same"
    text = f"{_charge_sentence(report)}\n{name}: {state}.\n  report    {report['report']}\n  manifest  {report['manifest']}"
    console.show(report, arguments.json, text)


def _charge_report(night: Collection, entry: Entry) -> dict[str, Any]:
    bucket = next(b for b in night.ledger.buckets() if (b.dataset, b.time_window) == (entry.dataset, entry.time_window))
    return {
        "entry": entry.entry,
        "dataset": entry.dataset,
        "period": entry.period,
        "epsilon": entry.epsilon if entry.entry in night.granted else "0",
        "spent": bucket.spent,
        "left": bucket.left,
        "cap": bucket.cap,
        "window": bucket.time_window,
    }


def _charge_sentence(report: dict[str, Any]) -> str:
    charged = f"charged epsilon {report['epsilon']}" if report["epsilon"] != "0" else "charged nothing, it was charged before"
    return f"{report['dataset']}/{report['period']}: {charged}; {report['left']} of {report['cap']} left for {report['window']}."


def _releases(arguments: argparse.Namespace) -> None:
    from heathaze.release.publish import releases

    listed = releases(*_open_tables(arguments))
    rows = [
        {
            "release": one.release,
            "period": one.period,
            "published_at": one.published_at,
            "epsilon": one.manifest["epsilon"]["spent"],
            "method": one.manifest["denoise"]["method"],
        }
        for one in listed
    ]
    lines = [f"{row['release']}  epsilon {row['epsilon']}  {row['method']}  published {row['published_at']}" for row in rows]
    console.show(rows, arguments.json, "\n".join(lines) or "nothing has been published here yet.")


def _explain(arguments: argparse.Namespace) -> None:
    from heathaze.release.manifest import explain
    from heathaze.release.publish import find_release

    manifest = find_release(*_named(arguments)).manifest
    console.show(manifest, arguments.json, explain(manifest))


def _verify(arguments: argparse.Namespace) -> None:
    from heathaze.errors import Refused
    from heathaze.release.publish import find_release, verify

    tables, name, spark = _named(arguments)
    release = find_release(tables, name, spark)
    checks = verify(tables, release, spark)
    text = "\n".join(f"{'ok    ' if held else 'FAILED'}  {what}" for what, held in checks)
    console.show([{"check": what, "held": held} for what, held in checks], arguments.json, f"{release.release}\n{text}")
    if not all(held for _, held in checks):
        raise Refused(f"{release.release} is not what its manifest and the ledger say. Do not use it.")


def _named(arguments: argparse.Namespace) -> tuple[Tables, str, SparkSession | None]:
    tables, spark = _open_tables(arguments)
    return tables, arguments.release, spark


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

    tables, spark = _open_tables(arguments)
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
    _run(["release", "--policy", str(policy), "--events", str(events), "--period", str(day), "--tables", tables])
    _run(["budget", "--tables", tables])


if __name__ == "__main__":
    command()
