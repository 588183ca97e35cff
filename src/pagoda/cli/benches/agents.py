"""`pagoda bench agents`."""

import argparse
import sys

from pagoda.base.errors import ConfigError
from pagoda.bench.agents.run import MODELS, AgentsConfig, agents_table, bench_agents
from pagoda.bench.agents.trace import TraceConfig
from pagoda.config.flags import add_flags, from_namespace

USAGE = "[--models full,sliding,hybrid] [--sessions N] [--pool SIZE] [--host SIZE]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, AgentsConfig)
    add_flags(parser, TraceConfig)


def run(args: argparse.Namespace) -> int:
    config = from_namespace(AgentsConfig, args)
    unknown = set(config.models.split(",")) - set(MODELS)
    if unknown:
        raise ConfigError(
            f"--models knows no {', '.join(sorted(unknown))}; there are: {', '.join(MODELS)}."
        )
    rows = bench_agents(config, from_namespace(TraceConfig, args), _say)
    print(agents_table(list(rows)))
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
