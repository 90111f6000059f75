"""publish: one immutable release with its manifest and report, all of it or none."""

import argparse
from collections.abc import Sequence

from heathaze import console
from heathaze.night import add_public_arguments, open_releasing
from heathaze.release.pipeline import run_publish


def parser() -> argparse.ArgumentParser:
    return add_public_arguments(console.Parser(description=__doc__))


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parser().parse_args(arguments)
    say = console.Progress()
    run_publish(open_releasing(parsed, say))
    say.finish()


if __name__ == "__main__":
    console.leave(console.run(main))
