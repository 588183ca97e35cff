"""`pagoda bench serving-cost`."""

import argparse

from pagoda.bench.serving_cost import ServingCostConfig, bench_serving_cost, serving_cost_table
from pagoda.config.flags import add_flags, from_namespace

USAGE = "[--streams N] [--rate N] [--seconds N] [MODEL [flags of serve]]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, ServingCostConfig)
    parser.add_argument(
        "words", metavar="MODEL [flags]", nargs=argparse.REMAINDER,
        help="what follows `pagoda serve`; only the model's tokenizer and template are used",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    config = from_namespace(ServingCostConfig, args)
    costs = bench_serving_cost(config, ("pagoda.cli.benches.paced_server",), args.words)
    print(serving_cost_table(config, costs))
    return 0
