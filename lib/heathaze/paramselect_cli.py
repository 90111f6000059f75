"""`heathaze paramselect`: the table behind the side of cells that snh chooses, and how well it is foreseen."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from heathaze import console
from heathaze.errors import InputError

AddJson = Callable[[argparse.ArgumentParser], None]


def add_paramselect_commands(commands: argparse._SubParsersAction[Any], add_json: AddJson) -> None:
    """Add `paramselect` and its two actions to the command line."""
    actions = commands.add_parser("paramselect", help="how the side of cells of snh is chosen").add_subparsers(
        dest="action", required=True, metavar="ACTION", parser_class=console.Parser
    )
    train = actions.add_parser("train", help="search the best sides on synthetic cities, and fit what foresees them")
    train.add_argument("--out", type=Path, metavar="FILE", help="write the table of best sides (default: nowhere)")
    train.add_argument("--table", type=Path, metavar="FILE", help="fit to this table, instead of searching")
    train.add_argument("--cities", type=int, default=None, metavar="N", help="search on the first N cities only")
    train.set_defaults(do=_train)
    validate = actions.add_parser("validate", help="hold trees and power law against each other on a published table")
    validate.add_argument("sides", type=Path, help="CSV with city, n, eps, best")
    validate.add_argument("cities", type=Path, help="CSV with city, entropy_512")
    validate.set_defaults(do=_validate)
    for parser in (train, validate):
        add_json(parser)


def _train(arguments: argparse.Namespace) -> None:
    from heathaze.evaluate.paramselect import (
        MODELS,
        Row,
        cross_validate,
        fit_power_law,
        make_rows,
        read_table,
        synthetic_cities,
        write_table,
    )

    if arguments.cities is not None and arguments.cities < 2:
        raise InputError(f"cities are foreseen from others, so --cities must be at least 2, but it is {arguments.cities}.")
    rows: list[Row] = []
    if arguments.table:
        rows = read_table(arguments.table)
    else:
        cities = synthetic_cities()[: arguments.cities]
        for number, city in enumerate(cities, start=1):
            rows += make_rows(city)
            print(f"city {number} of {len(cities)}: {len(rows)} best sides", file=sys.stderr, flush=True)
    if arguments.out:
        write_table(rows, arguments.out)
    models = [{"model": name, **_rounded(cross_validate(rows, fit))} for name, fit in MODELS.items()]
    law = fit_power_law(rows)
    text = "\n".join([*map(_line, models), f"power law: rho = exp({law.a:.3f}) n^{law.b:.3f} epsilon^{law.c:.3f} metres"])
    console.show({"rows": len(rows), "models": models, "law": vars(law)}, arguments.json, text)


def _validate(arguments: argparse.Namespace) -> None:
    from heathaze.evaluate.paramselect import validate_authors

    models = validate_authors(arguments.sides, arguments.cities)
    console.show(models, arguments.json, "\n".join(map(_line, models)))


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in values.items()}


def _line(row: dict[str, Any]) -> str:
    return f"{row['model']:<24}" + "  ".join(f"{name} {value}" for name, value in row.items() if name != "model")
