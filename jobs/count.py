"""count: the private sample to exact counts on the public grid, sparse and private."""

import argparse
from collections.abc import Sequence

from heathaze import console
from heathaze.collect.night import add_arguments, charged, open_night
from heathaze.collect.pipeline import run_count


def parser() -> argparse.ArgumentParser:
    return add_arguments(console.Parser(description=__doc__), events=False)


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parser().parse_args(arguments)
    say = console.Progress()
    night = open_night(parsed, say)
    run_count(night, charged(night))
    say.finish()


if __name__ == "__main__":
    console.leave(console.run(main))
