"""`heathaze suggest`: settings and their expected error from public numbers alone, before any budget is spent."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any

from heathaze import console
from heathaze.errors import InputError
from heathaze.grid import Grid
from heathaze.policy import METHODS, GridSettings, Policy, load_policy
from heathaze.rho import select_rho

if TYPE_CHECKING:
    from heathaze.evaluate.suggest import Feed, Suggestion

EDGES = ("south", "west", "north", "east")
Edges = tuple[Decimal, Decimal, Decimal, Decimal]
LITTLE = 0.5
"""From this relative error of a 500 m box on there is little to publish."""


def add_suggest_command(commands: argparse._SubParsersAction[Any], add_json: Callable[[argparse.ArgumentParser], None]) -> None:
    """Add `suggest` to the command line."""
    parser = commands.add_parser(
        "suggest",
        help="k, cells, slices and denoiser from public numbers, with the error to expect",
        description="Suggests settings and says how far off counts will be. It reads no events and spends nothing.",
    )
    parser.add_argument("--users", type=int, required=True, metavar="N", help="users that may appear in a period")
    parser.add_argument(
        "--events-per-user", type=float, required=True, metavar="N", help="mean of a period, users without events included"
    )
    parser.add_argument("--method", choices=METHODS, default="vdr", help="vdr: a map in slices; snh: squares, by networks (vdr)")
    parser.add_argument("--epsilon", type=_decimal, metavar="X", help="of one release (default: the policy's)")
    parser.add_argument("--area", type=float, metavar="KM2", help="size of the area; or give its four edges, or a policy")
    for edge in EDGES:
        parser.add_argument(f"--{edge}", type=_decimal, metavar="DEGREES", help="edge of the area")
    parser.add_argument("--policy", metavar="FILE", help="policy file to take area and period from")
    parser.add_argument("--period-days", type=int, metavar="DAYS", help="length of a period (default: 1, or the policy's)")
    parser.add_argument("--slices", type=int, metavar="N", help="take this number of slices of the period")
    parser.add_argument("--cell-metres", type=float, metavar="METRES", help="take cells of this side")
    parser.add_argument("--max-events-per-user", type=int, metavar="K", help="take this k")
    parser.add_argument(
        "--tail", type=float, default=1.5, metavar="X", help="activity: P(more than x events) ~ x^-tail (default: 1.5)"
    )
    parser.add_argument(
        "--shape",
        choices=["rings", "corridors", "polycentric"],
        help="one centre, bands, or many centres (default: between them)",
    )
    add_json(parser)
    parser.set_defaults(do=_suggest)


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise argparse.ArgumentTypeError(f"must be a number, but it is {text!r}") from None


def _suggest(arguments: argparse.Namespace) -> None:
    from heathaze.evaluate.suggest import Feed, suggest

    policy = load_policy(arguments.policy) if arguments.policy else None
    edges = _edges(arguments, policy)
    days = _days(arguments, policy)
    epsilon = arguments.epsilon if arguments.epsilon is not None else policy.privacy.epsilon if policy else None
    if epsilon is None:
        raise InputError("suggest needs --epsilon, the epsilon of one release, or --policy to take it from; neither was given.")
    area = arguments.area if edges is None else _area(edges)
    feed = Feed(arguments.users, arguments.events_per_user, epsilon, area, days, arguments.tail, arguments.shape)
    k, cell, slices = _given(arguments, days)
    if arguments.method == "snh":
        if slices not in (None, 1):
            raise InputError(f"snh releases one grid for the whole period, so --slices must be 1, but it is {slices}.")
        made = _squares(feed, k, cell)
    else:
        made = suggest(feed, k, cell, slices)
    snippet = _snippet(feed, made, edges)
    now = _policy_now(feed, policy) if policy else None
    report = {"feed": asdict(feed), **_report(made), "policy_now": _report(now) if now else None, "toml": snippet}
    console.show(report, arguments.json, "" if arguments.json else _text(feed, made, now, snippet))


def _squares(feed: Feed, k: int | None, cell: float | None) -> Suggestion:
    """k as for a map of one slice, cells by ParamSelect; learned cells are expected to err as those of bayes do."""
    from heathaze.evaluate.suggest import Setting, assess, suggest

    made = suggest(feed, k, cell, 1)
    k = made.setting.k
    cell = cell or min(feed.side / 8, round(select_rho(max(1.0, made.kept * feed.events), float(feed.epsilon), k), 1))
    found = assess(feed, Setting(k, cell, 1, "bayes"))
    return replace(found, setting=replace(found.setting, denoiser="snh"))


def _edges(arguments: argparse.Namespace, policy: Policy | None) -> Edges | None:
    """The edges of the area; None where only its size is known."""
    given = [getattr(arguments, edge) for edge in EDGES]
    ways = [arguments.area is not None, any(edge is not None for edge in given), policy is not None]
    if sum(ways) != 1:
        found = "none" if not any(ways) else "more than one"
        raise InputError(
            f"the area must be given by one of --area, --south --west --north --east, and --policy, but {found} was."
        )
    if policy is not None:
        return policy.grid.south, policy.grid.west, policy.grid.north, policy.grid.east
    if arguments.area is not None:
        return None
    missing = [f"--{edge}" for edge, value in zip(EDGES, given, strict=True) if value is None]
    if missing:
        raise InputError(f"an area needs all of its edges; missing: {', '.join(missing)}.")
    return given[0], given[1], given[2], given[3]


def _area(edges: Edges) -> float:
    """Square kilometres."""
    grid: Grid = GridSettings(*edges, rows=1, cols=1).build()
    return grid.height_metres * grid.width_metres / 1e6


def _days(arguments: argparse.Namespace, policy: Policy | None) -> int:
    if policy is None:
        return 1 if arguments.period_days is None else arguments.period_days
    if arguments.period_days is not None:
        raise InputError("the period is taken from --policy, so --period-days cannot be given with it.")
    return policy.period.days


def _given(arguments: argparse.Namespace, days: int) -> tuple[int | None, float | None, int | None]:
    """What the arguments fix: k, the side of cells, and slices."""
    k, cell, slices = arguments.max_events_per_user, arguments.cell_metres, arguments.slices
    if k is not None and not 1 <= k <= 100_000:
        raise InputError(f"--max-events-per-user must be between 1 and 100000, but it is {k}.")
    if cell is not None and not 1 <= cell <= 100_000:
        raise InputError(f"--cell-metres must be between 1 and 100000, but it is {cell:g}.")
    if slices is not None and (slices < 1 or slices > 8_784 or days * 86_400 % slices):
        raise InputError(f"--slices must divide the {days * 86_400} seconds of the period, up to 8784, but it is {slices}.")
    return k, cell, slices


def _policy_now(feed: Feed, policy: Policy) -> Suggestion:
    """What to expect of the policy as it stands, of the denoisers that errors are known of."""
    from heathaze.evaluate.suggest import Setting, assess

    grid = policy.grid.build()
    cell = (grid.height_metres * grid.width_metres / grid.cells) ** 0.5
    method = policy.denoise.method if policy.denoise.method in ("none", "shrink") else "bayes"
    return assess(feed, Setting(policy.privacy.max_events_per_user, cell, policy.period.slices, method))


def _report(made: Suggestion) -> dict[str, Any]:
    rows = [{**asdict(one), "relative": one.relative} for one in made.expected]
    return {"setting": asdict(made.setting), "kept": made.kept, "gamma": made.gamma, "expected": rows}


def _snippet(feed: Feed, made: Suggestion, edges: Edges | None) -> str:
    """The tables of a policy, ready to paste."""
    setting = made.setting
    names = zip(EDGES, edges, strict=True) if edges else ()
    box = [f"{name} = {value:f}" for name, value in names] or ["# south, west, north and east: the edges of your area, degrees"]
    is_snh = setting.denoiser == "snh"
    lines = [
        *(["[release]", 'method = "snh"', ""] if is_snh else []),
        "[period]",
        f"days = {feed.days}",
        f"slices = {setting.slices}",
        "",
        "[grid]",
        *box,
        f"{'rho' if is_snh else 'cell_metres'} = {setting.cell_metres:g}",
        "",
        "[privacy]",
        f"epsilon = {feed.epsilon:f}",
        f"max_events_per_user = {setting.k}",
        f"declared_event_count = {_round(feed.events):_}  # users x events per user",
        *([] if is_snh else ["", "[denoise]", f'method = "{setting.denoiser}"']),
    ]
    return "\n".join(lines)


def _round(number: float) -> int:
    """A round figure of two digits: N is declared, not measured."""
    return max(1, int(float(f"{number:.1e}")))


def _text(feed: Feed, made: Suggestion, now: Suggestion | None, snippet: str) -> str:
    parts = [_table(feed, "expected", made)]
    if now:
        parts.append(_table(feed, "the policy as it stands", now))
    worst = next((one for one in made.expected if one.box == "500 m"), made.expected[-1])
    if worst.relative > LITTLE:
        parts.append(
            f"Counts of {worst.box} are expected to be off by {worst.relative:.0%}: so few events can hardly be published at "
            "this epsilon. Take a longer period, or a larger epsilon."
        )
    return "\n\n".join([*parts, snippet])


def _table(feed: Feed, title: str, made: Suggestion) -> str:
    setting = made.setting
    hours = feed.days * 24 / setting.slices
    head = (
        f"{title}: k {setting.k}, cells of {setting.cell_metres:.4g} m, {setting.slices} slices of {hours:.3g} h, "
        f"{setting.denoiser}; {made.kept:.0%} of the events kept, gamma {made.gamma:.2f} of N / n"
    )
    lines = [head, "  at a record, in one slice   typical count   mean error       of it   noise alone   sampling alone"]
    for one in made.expected:
        lines.append(
            f"  {one.box:<26} {one.typical:>14,.1f} {one.absolute:>12,.1f} {one.relative:>11.0%} {one.noise:>13,.1f} "
            f"{one.sampling:>16,.1f}"
        )
    return "\n".join(lines)
