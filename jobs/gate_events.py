"""gate_events: judge the shape of the events (columns and types, never values) before anything is charged."""

import argparse
from collections.abc import Sequence

from heathaze import console
from heathaze.collect.night import add_arguments, open_night
from heathaze.collect.pipeline import run_gate_events


def parser() -> argparse.ArgumentParser:
    return add_arguments(console.Parser(description=__doc__), events=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parser().parse_args(arguments)
    say = console.Progress()
    run_gate_events(open_night(parsed, say), parsed.events)
    say.finish()


if __name__ == "__main__":
    console.leave(console.run(main))
