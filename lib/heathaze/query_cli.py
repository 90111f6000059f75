"""`heathaze query range|hotspot|forecast`: one query by arguments, many by a file."""

from __future__ import annotations

import argparse
import csv
import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heathaze import console
from heathaze.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from pyspark.sql import SparkSession

    from heathaze.release.query import Boxes, Forecast, Label, Release
    from heathaze.tables import Tables

EDGES, SQUARE, TIMES = ("south", "west", "north", "east"), ("lat", "lon", "side"), ("start", "end")
NUMBERS = (*EDGES, *SQUARE, "nu")
Columns = dict[str, list[Any]]


def add_query_commands(
    commands: argparse._SubParsersAction[Any],
    add_tables: Callable[[argparse.ArgumentParser], None],
    add_json: Callable[[argparse.ArgumentParser], None],
    open_tables: Callable[[argparse.Namespace], tuple[Tables, SparkSession | None]],
) -> None:
    """Add `query` and its three kinds to the command line."""
    kinds = commands.add_parser("query", help="ask a release for counts, hotspots or forecasts").add_subparsers(
        dest="kind", required=True, metavar="KIND", parser_class=console.Parser
    )
    count = kinds.add_parser("range", help="events in a box of space and time, with a 90 % interval")
    hotspot = kinds.add_parser("hotspot", help="the nearest cell with at least nu events in a slice")
    forecast = kinds.add_parser("forecast", help="the slices to come of a box, by the Theta method")
    for parser, work in ((count, _range), (hotspot, _hotspot), (forecast, _forecast)):
        parser.add_argument("release", nargs="?", default="latest", help="name of the release (default: the latest)")
        add_tables(parser)
        if parser is not hotspot:
            for edge in EDGES:
                parser.add_argument(f"--{edge}", type=float, metavar="DEGREES", help="edge of the box (default: of the grid)")
        parser.add_argument("--lat", type=float, metavar="DEGREES", help="middle of the box")
        parser.add_argument("--lon", type=float, metavar="DEGREES", help="middle of the box")
        default = "5000" if parser is hotspot else "none"
        parser.add_argument("--side", type=float, metavar="METRES", help=f"side of the box around --lat and --lon ({default})")
        for time in TIMES:
            parser.add_argument(f"--{time}", metavar="TIME", help="as 2026-11-14T08:00, local (default: the whole period)")
        parser.add_argument("--noisy", action="store_true", help="answer from the noisy counts, before denoising")
        parser.add_argument("--file", metavar="FILE", help="many queries: .csv or .parquet, with columns named as the arguments")
        parser.add_argument("--out", metavar="FILE", help="write the answers to a .csv or .parquet")
        parser.add_argument("--plot", metavar="FILE", help="draw one query as a .png")
        add_json(parser)
        parser.add_argument("--csv", action="store_true", help="print the answers as CSV")
        parser.set_defaults(do=lambda arguments, work=work: work(_checked(arguments), *open_tables(arguments)))
    hotspot.add_argument("--nu", type=float, metavar="EVENTS", help="least number of events of a hotspot")
    forecast.add_argument("--horizon", type=int, metavar="SLICES", help="how far ahead (default: a season)")
    forecast.add_argument("--season", type=int, metavar="SLICES", help="length of a season (default: a day; 1: none)")
    forecast.add_argument("--nights", type=_nights, default=1, metavar="N|all", help="releases in a row that make the past (1)")


def _nights(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, or all, but it is {text!r}")
    return int(text)


def _checked(arguments: argparse.Namespace) -> argparse.Namespace:
    """The arguments, once it is sure that what they name can be written."""
    for name, kinds in (("out", (".csv", ".parquet")), ("plot", (".png",))):
        path = Path(getattr(arguments, name) or f"any{kinds[0]}")
        if path.suffix not in kinds:
            raise InputError(f"--{name} must name a file that ends in {' or '.join(kinds)}, but it is {path}.")
        if not path.parent.is_dir():
            raise InputError(f"--{name} must name a file in a folder that exists, but {path.parent} does not.")
    if arguments.plot and arguments.file:
        raise InputError("--plot draws one query, so it cannot be given together with --file.")
    return arguments


@dataclass(frozen=True)
class _Questions:
    """Queries as they were given."""

    columns: Columns
    """All columns of the file, with the arguments that stand in; the arguments of a single query."""
    label: Label
    """Where the i-th query stands."""
    is_file: bool

    def of(self, name: str) -> Any:
        return self.columns.get(name)


def _questions(arguments: argparse.Namespace, needed: tuple[str, ...] = ()) -> _Questions:
    """The queries of the file or of the arguments; an argument stands in for a column that is not there.

    A box is given by its edges or by its middle and side; `needed` is what a query needs besides, and a query that needs nothing
    may leave out the box, for the whole grid.
    """
    names = (*NUMBERS, *TIMES)
    columns: Columns = {name: [value] for name in names if (value := getattr(arguments, name, None)) is not None}
    label: Label = _nowhere
    if arguments.file:
        read, label = _read(Path(arguments.file))
        size = len(next(iter(read.values())))
        columns = {**{name: values * size for name, values in columns.items()}, **_numbered(read, label)}
    by_edges, by_middle = bool(set(EDGES) & set(columns)), bool({"lat", "lon"} & set(columns))
    where = f"{arguments.file} must have the columns" if arguments.file else "a query needs the arguments"
    forms = (SQUARE,) if needed else (EDGES, SQUARE)
    wanted = " or ".join(", ".join((*form, *needed)) for form in forms)
    if by_edges and by_middle:
        raise InputError(f"{where} {wanted}, but some of both were given.")
    is_whole = not (by_edges or by_middle or needed or arguments.file)
    form = SQUARE if by_middle else () if is_whole else forms[0]
    missing = [name for name in (*form, *needed) if name not in columns]
    if missing:
        raise InputError(f"{where} {wanted}; missing: {', '.join(missing)}.")
    return _Questions(columns, label, bool(arguments.file))


def _nowhere(number: int) -> str:
    return ""


def _read(path: Path) -> tuple[Columns, Label]:
    """The columns of a file of queries, as texts from CSV, and where each of its rows stands."""
    try:
        if path.suffix == ".parquet":
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path)
            columns: Columns = {name: table[name].to_pylist() for name in table.column_names}
            lines = list(range(1, table.num_rows + 1))
        elif path.suffix == ".csv":
            columns, lines = _read_csv(path)
        else:
            raise InputError(f"--file must name a file that ends in .csv or .parquet, but it is {path}.")
    except (OSError, UnicodeDecodeError, ValueError) as error:  # Arrow's errors are ValueErrors
        reason = getattr(error, "strerror", None) or "it is not a file of that kind"
        raise InputError(f"the queries in {path} cannot be read: {reason}.") from None
    if not lines:
        raise InputError(f"{path} must hold at least one query, but it holds none.")
    word = "row" if path.suffix == ".parquet" else "line"
    return columns, lambda i: f"{path}, {word} {lines[i]}: "


def _read_csv(path: Path) -> tuple[Columns, list[int]]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        if not header or len(set(header)) < len(header):
            raise InputError(f"{path} must begin with a line of column names, each once, but it does not.")
        rows, lines = [], []
        for row in reader:
            if len(row) != len(header):
                raise InputError(
                    f"{path}, line {reader.line_num}: a row must have {len(header)} values, as the first line has, "
                    f"but it has {len(row)}."
                )
            rows.append(row)
            lines.append(reader.line_num)
    return {name: list(values) for name, values in zip(header, zip(*rows, strict=True), strict=True)} if rows else {}, lines


def _numbered(columns: Columns, label: Label) -> Columns:
    """The columns, with those that must be numbers as numbers, and times that are not there as None."""
    made = dict(columns)
    for name in set(columns) & set(NUMBERS):
        made[name] = [_number(value, f"{label(i)}{name}") for i, value in enumerate(columns[name])]
    for name in set(columns) & set(TIMES):
        made[name] = [value.strip() if isinstance(value, str) else value for value in columns[name]]
    return made


def _number(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{name} must be a number, but it is {value!r}.")
    return number


def _boxes(release: Release, questions: _Questions) -> Boxes:
    given = {name: questions.of(name) for name in TIMES}
    if questions.of("lat") is not None:
        lat, lon, side = (questions.of(name) for name in SQUARE)
        return release.boxes_around(lat, lon, side, label=questions.label, **given)
    south, west, north, east = (questions.of(name) for name in EDGES)
    return release.boxes(south, west, north, east, label=questions.label, **given)


def _asked(release: Release, boxes: Boxes, questions: _Questions) -> Columns:
    """What was asked: the columns of the file, or the box of a single query."""
    if questions.is_file:
        return questions.columns
    sides = zip(EDGES, (boxes.lat[:, 0], boxes.lon[:, 0], boxes.lat[:, 1], boxes.lon[:, 1]), strict=True)
    times = zip(TIMES, boxes.time.T, strict=True)
    return {
        **{name: _rounded(values, 6) for name, values in sides},
        **{name: [release.clock(value) for value in values] for name, values in times},
    }


def _range(arguments: argparse.Namespace, tables: Tables, spark: SparkSession | None) -> None:
    from heathaze.release.query import count, open_release

    questions = _questions(arguments)
    release = open_release(tables, arguments.release, spark)
    boxes = _boxes(release, questions)
    answers = count(release, boxes, arguments.noisy)
    columns = {name: _rounded(getattr(answers, name)) for name in ("answer", "low", "high")}
    _tell(arguments, release.name, {**_asked(release, boxes, questions), **columns, "basis": answers.basis})
    if arguments.plot:
        from heathaze.release.query_plots import plot_range

        plot_range(release, answers, arguments.noisy, arguments.plot)


def _hotspot(arguments: argparse.Namespace, tables: Tables, spark: SparkSession | None) -> None:
    from heathaze.release.query import HOTSPOT_SIDE, hotspots, open_release

    arguments.side = HOTSPOT_SIDE if arguments.side is None else arguments.side
    questions = _questions(arguments, needed=("nu",))
    release = open_release(tables, arguments.release, spark)
    given = {name: questions.of(name) for name in (*SQUARE, "nu", *TIMES)}
    found = hotspots(release, **given, noisy=arguments.noisy, label=questions.label)
    begins = [release.clock(release.edges[number].timestamp()) if number >= 0 else None for number in found.slice.tolist()]
    columns: Columns = {
        "hotspot": ["found" if is_found else "none" for is_found in found.is_found.tolist()],
        "distance": _rounded(found.distance, 1),
        "cell_lat": _rounded(found.lat, 6),
        "cell_lon": _rounded(found.lon, 6),
        "slice": [number if number >= 0 else None for number in found.slice.tolist()],
        "slice_start": begins,
        "value": _rounded(found.value),
        "chance": _rounded(found.chance, 3),
    }
    _tell(arguments, release.name, {**questions.columns, **columns})
    if arguments.plot:
        from heathaze.release.query_plots import plot_hotspot

        point = arguments.lat, arguments.lon
        plot_hotspot(release, point, arguments.side, found, arguments.noisy, arguments.plot)


def _forecast(arguments: argparse.Namespace, tables: Tables, spark: SparkSession | None) -> None:
    from heathaze.release.query import forecast, open_chain, open_release

    questions = _questions(arguments)
    for name in TIMES:
        if name in questions.columns and getattr(arguments, name) is None:
            raise InputError(f"a forecast takes one {name} for all boxes: give --{name}, not a column of {arguments.file}.")
    if arguments.horizon is not None and arguments.horizon < 1:
        raise InputError(f"--horizon must be at least 1 slice, but it is {arguments.horizon}.")
    release = open_release(tables, arguments.release, spark)
    placed = _Questions({name: value for name, value in questions.columns.items() if name not in TIMES}, questions.label, True)
    boxes = _boxes(release, placed)
    nights = [release] if arguments.nights == 1 else open_chain(tables, release.name, arguments.nights, spark)
    made = forecast(nights, boxes, arguments.horizon, arguments.season, arguments.start, arguments.end, arguments.noisy)
    _tell(arguments, release.name, _steps(placed, made, questions.is_file), {"releases": list(made.releases)})
    if arguments.plot:
        from heathaze.release.query_plots import plot_forecast

        plot_forecast(made, arguments.plot)


def _steps(questions: _Questions, made: Forecast, is_file: bool) -> Columns:
    """One row per box and step."""
    count, horizon = made.ahead.shape
    asked = {name: [value for value in values for _ in range(horizon)] for name, values in questions.columns.items()}
    number = {"query": [i + 1 for i in range(count) for _ in range(horizon)]}
    return {
        **({**number, **asked} if is_file else {}),
        "step": list(range(1, horizon + 1)) * count,
        "slice_start": [time.isoformat(timespec="minutes") for time in made.coming] * count,
        "forecast": _rounded(made.ahead.ravel()),
        "season": [season for season in made.seasons for _ in range(horizon)],
    }


def _rounded(values: np.ndarray, digits: int = 3) -> list[float | None]:
    """Numbers for people and JSON: None where there is none."""
    return [None if math.isnan(value) else round(value, digits) + 0.0 for value in values.tolist()]


def _tell(arguments: argparse.Namespace, release: str, columns: Columns, more: dict[str, Any] | None = None) -> None:
    """Write or print the answers as the arguments say."""
    if arguments.out:
        _write(columns, Path(arguments.out))
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if arguments.csv:
        print(_as_csv(columns), end="")
    elif arguments.out and not arguments.json:
        print(f"{release}: {len(rows):,} answers in {arguments.out}")
    else:
        report = {"release": release, **(more or {}), "answers": rows}
        console.show(report, arguments.json, "" if arguments.json else f"{release}\n{_as_table(columns)}")


def _write(columns: Columns, path: Path) -> None:
    if path.suffix == ".csv":
        path.write_text(_as_csv(columns), encoding="utf-8")
        return
    import pyarrow as pa
    import pyarrow.parquet

    pyarrow.parquet.write_table(pa.table({name: pa.array(values) for name, values in columns.items()}), path)


def _as_csv(columns: Columns) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


def _as_table(columns: Columns) -> str:
    """Columns side by side; numbers to the right."""
    padded = []
    for name, values in columns.items():
        texts = [name, *(_text(value) for value in values)]
        width = max(len(text) for text in texts)
        is_text = any(isinstance(value, str) for value in values)
        padded.append([text.ljust(width) if is_text else text.rjust(width) for text in texts])
    return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:,.10g}" if isinstance(value, float) else str(value)
