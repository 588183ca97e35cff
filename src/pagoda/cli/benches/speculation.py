"""`pagoda bench speculation`."""

import argparse
import contextlib
from pathlib import Path

from pagoda.base.errors import ConfigError
from pagoda.bench.edits import works
from pagoda.bench.llama_server import LlamaServer
from pagoda.bench.speculation import (
    SpeculationBenchConfig,
    bench_speculation,
    speculation_table,
)
from pagoda.cli.bars import CountBar
from pagoda.cli.talk.own_engine import LocalTokenizer, add_own_engine_flags, own_engine
from pagoda.config.flags import add_flags, engine_config, from_namespace

USAGE = "[MODEL] [--rounds N] [--output-len N] [--llama-server PROGRAM] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_own_engine_flags(parser)
    add_flags(parser, SpeculationBenchConfig)


def run(args: argparse.Namespace) -> int:
    config = from_namespace(SpeculationBenchConfig, args)
    if not hasattr(args, "speculative_config"):
        args.speculative_config = {"method": "suffix"}
    if not hasattr(args, "enable_prefix_caching"):
        args.enable_prefix_caching = True  # only decoding is timed
    model = engine_config(args).model
    encode = LocalTokenizer(model).encode
    longest = max(len(encode(work.prompt)) for work in works()) + config.output_len + 1
    with contextlib.ExitStack() as stack:
        servers = _servers(config, args, stack)
        engine = stack.enter_context(own_engine(args, max_model_len=longest))
        if engine.speculator is None:
            raise ConfigError("Nothing guesses for this model, so there is nothing to measure.")
        bar = stack.enter_context(CountBar("rounds"))
        rows = bench_speculation(engine, config, encode, servers, bar.update)
    print(speculation_table(rows))
    return 0


def _servers(
    config: SpeculationBenchConfig, args: argparse.Namespace, stack: contextlib.ExitStack
) -> list[LlamaServer]:
    if config.llama_server is None:
        return []
    from pagoda.engine.served.text_side import fetch_model

    given = engine_config(args)
    threads = given.device.threads
    flags = ["-c", "4096", *(["-t", str(threads)] if isinstance(threads, int) else [])]
    program, file = Path(config.llama_server), Path(fetch_model(given.model).model)
    guessing = [*flags, "--spec-type", config.llama_spec_type]
    return [
        stack.enter_context(LlamaServer("llama.cpp", program, file, flags)),
        stack.enter_context(LlamaServer("llama.cpp guessing", program, file, guessing)),
    ]
