"""`pagoda rm`: remove a model from the cache."""

import argparse

USAGE = "NAME [NAME ...]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", metavar="NAME", nargs="+", help="as `pagoda list` shows it")


def run(args: argparse.Namespace) -> int:
    from pagoda.base.units import format_bytes
    from pagoda.base.words import tell
    from pagoda.weights.hub.models import remove

    for name in args.names:
        print(tell("{name}: {size} freed", name=name, size=format_bytes(remove(name))))
    return 0
