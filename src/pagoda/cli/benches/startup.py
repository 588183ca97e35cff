"""`pagoda bench startup`."""

import argparse

from pagoda.base.errors import ConfigError
from pagoda.bench.startup import FORMATS, bench_startup
from pagoda.cli.bars import CountBar

USAGE = "[--reps N] [-o FORMAT] [MODEL [flags of serve]]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--reps", "-r", type=int, default=5, metavar="N", help="starts that are timed (default: 5)"
    )
    parser.add_argument("--output", "-o", choices=FORMATS, default="md", help="(default: md)")
    parser.add_argument(
        "words", metavar="MODEL [flags]", nargs=argparse.REMAINDER,
        help="what follows `pagoda serve` (default: the default model)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    if args.reps < 1:
        raise ConfigError(f"--reps {args.reps} measures nothing; it must be at least 1.")
    with CountBar("starts") as bar:
        samples = bench_startup(args.words, args.reps, bar.update)
    print(FORMATS[args.output](samples))
    return 0
