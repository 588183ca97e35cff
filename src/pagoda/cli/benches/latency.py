"""`pagoda bench latency`."""

import argparse
import json
from pathlib import Path

from pagoda.bench.latency import LatencyConfig, bench_latency, latency_lines
from pagoda.cli.bars import CountBar
from pagoda.cli.talk.own_engine import add_own_engine_flags, own_engine
from pagoda.config.flags import add_flags, from_namespace

USAGE = "[MODEL] [--input-len N] [--output-len N] [--batch-size N] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_own_engine_flags(parser)
    add_flags(parser, LatencyConfig)
    parser.add_argument("--output-json", metavar="FILE", help="write the result as JSON")


def run(args: argparse.Namespace) -> int:
    config = from_namespace(LatencyConfig, args)
    length = config.input_len + config.output_len
    with own_engine(args, max_model_len=length) as engine, CountBar("batches") as bar:
        result = bench_latency(engine, config, bar.update)
    print(latency_lines(result))
    if args.output_json:
        Path(args.output_json).write_text(json.dumps(result, indent=4) + "\n")
    return 0
