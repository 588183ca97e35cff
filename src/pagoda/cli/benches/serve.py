"""`pagoda bench serve`."""

import argparse
import asyncio
import dataclasses
import json

from pagoda.base import env
from pagoda.bench.datasets import DatasetConfig
from pagoda.bench.serve import LoadConfig, bench_serve, result_path
from pagoda.cli.bars import CountBar
from pagoda.config.flags import add_flags, from_namespace

USAGE = "[--base-url URL] [--num-prompts N] [--request-rate R] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, LoadConfig)
    add_flags(parser, DatasetConfig)
    parser.add_argument("--url", dest="base_url", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    parser.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    load, dataset = from_namespace(LoadConfig, args), from_namespace(DatasetConfig, args)
    if load.api_key is None:
        load = dataclasses.replace(load, api_key=env.get("PAGODA_API_KEY"))
    with CountBar("requests", show=not args.disable_tqdm) as bar:
        result, table = asyncio.run(bench_serve(load, dataset, progress=bar.update))
    print(table)
    if load.save_result or load.save_detailed:
        path = result_path(load, result)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result) + "\n")
        print(f"The result is in {path}.")
    return 0 if result["completed"] else 1
