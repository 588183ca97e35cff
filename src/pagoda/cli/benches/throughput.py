"""`pagoda bench throughput`."""

import argparse
import asyncio
import json
from pathlib import Path

from pagoda.bench.client import Prompt
from pagoda.bench.datasets import DatasetConfig, load_dataset
from pagoda.bench.throughput import bench_throughput, throughput_lines
from pagoda.cli.bars import CountBar
from pagoda.cli.talk.own_engine import LocalTokenizer, add_own_engine_flags, own_engine
from pagoda.config.flags import add_flags, engine_config, from_namespace

USAGE = "[MODEL] [--num-prompts N] [--input-len N] [--output-len N] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_own_engine_flags(parser)
    add_flags(parser, DatasetConfig)
    parser.add_argument("--output-json", metavar="FILE", help="write the result as JSON")


def run(args: argparse.Namespace) -> int:
    dataset = from_namespace(DatasetConfig, args)
    tokenizer = LocalTokenizer(engine_config(args).model)
    prompts = asyncio.run(load_dataset(dataset, tokenizer, chat=False))
    ids = [_ids(prompt, tokenizer) for prompt in prompts]
    outputs = [prompt.output_tokens for prompt in prompts]
    longest = max(len(prompt) + count for prompt, count in zip(ids, outputs, strict=True))
    with own_engine(args, max_model_len=longest) as engine, CountBar("requests") as bar:
        result = bench_throughput(engine, ids, outputs, bar.update)
    print(throughput_lines(result))
    if args.output_json:
        Path(args.output_json).write_text(json.dumps(result, indent=4) + "\n")
    return 0


def _ids(prompt: Prompt, tokenizer: LocalTokenizer) -> list[int]:
    content = prompt.content
    return tokenizer.encode(content) if isinstance(content, str) else content
