"""`pagoda bench host-overhead`."""

import argparse

from pagoda.bench.host_overhead import (
    HostOverheadConfig,
    bench_host_overhead,
    host_overhead_table,
)
from pagoda.config.flags import add_flags, from_namespace

USAGE = "[--requests N] [--steps N]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, HostOverheadConfig)


def run(args: argparse.Namespace) -> int:
    print(host_overhead_table(bench_host_overhead(from_namespace(HostOverheadConfig, args))))
    return 0
