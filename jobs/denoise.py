"""denoise: tonight's noisy tensor and every earlier one in, a better tensor out; trains a model where the method has one."""

import argparse
from collections.abc import Sequence

from heathaze import console
from heathaze.learn.pipeline import run_denoise
from heathaze.night import add_public_arguments, open_denoising


def parser() -> argparse.ArgumentParser:
    return add_public_arguments(console.Parser(description=__doc__))


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parser().parse_args(arguments)
    say = console.Progress()
    run_denoise(open_denoising(parsed, say))
    say.finish()


if __name__ == "__main__":
    console.leave(console.run(main))
