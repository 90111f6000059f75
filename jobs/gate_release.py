"""gate_release: judge the refined night on noisy data alone; exit code 2 and nothing published where it fails."""

import argparse
from collections.abc import Sequence

from heathaze import console
from heathaze.night import add_public_arguments, open_releasing
from heathaze.release.pipeline import run_gate


def parser() -> argparse.ArgumentParser:
    return add_public_arguments(console.Parser(description=__doc__))


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parser().parse_args(arguments)
    say = console.Progress()
    run_gate(open_releasing(parsed, say))
    say.finish()


if __name__ == "__main__":
    console.leave(console.run(main))
