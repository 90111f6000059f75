"""Run benchmarks by name, all of them where none is named: python -m tests.bench [NAME ...] [--json]."""

from __future__ import annotations

import argparse
import json
import sys

from tests.bench import collect, denoise, picture, query, snh

BENCHMARKS = {
    "sampler": collect.sampler,
    "bound": collect.bound,
    "growth": collect.growth,
    "error": denoise.error,
    "step": denoise.step,
    "ablation": denoise.ablation,
    "blocks": denoise.blocks,
    "history": denoise.history,
    "vqvae": denoise.vqvae,
    "query": query.query,
    "size": denoise.size,
    "picture": picture.picture,
    "snh": snh.squares,
    "snh_published": snh.published,
    "snh_speed": snh.speed,
    "snh_ranks": snh.ranks,
    "snh_gaussians": snh.gaussians,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; known: {', '.join(BENCHMARKS)}")
    results = {}
    for name in arguments.names or BENCHMARKS:
        print(f"{name}: {(BENCHMARKS[name].__doc__ or '').splitlines()[0]}", file=sys.stderr, flush=True)
        results[name] = BENCHMARKS[name]()
        if not arguments.json:
            for row in results[name]:
                print("  " + "  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
