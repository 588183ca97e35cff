"""`pagoda top`: what the servers of this machine do, second by second."""

import argparse
import sys
import time
from collections.abc import Iterator

USAGE = "[--interval SECONDS] [--once]"
_LEAST_SECONDS = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="default: 1")
    parser.add_argument("--once", action="store_true", help="print one table and leave")


def run(args: argparse.Namespace) -> int:
    tables = _tables(max(_LEAST_SECONDS, args.interval))
    if args.once or not sys.stdout.isatty():
        print("\n".join(next(tables)))
        return 0
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from pagoda.base.words import tell

    # The other screen, so that what stood in the terminal is there again when it ends.
    with Live(Text(""), console=Console(), screen=True, auto_refresh=False) as live:
        for lines in tables:
            live.update(Text("\n".join([*lines, "", tell("Ctrl-C ends it.")])), refresh=True)
    return 0


def _tables(interval: float) -> Iterator[list[str]]:
    from pagoda.base.words import told
    from pagoda.cli.ps import NONE
    from pagoda.cli.watch.gpus import gpu_lines
    from pagoda.cli.watch.servers import servers
    from pagoda.cli.watch.table import table_of_rates

    before = servers()
    while True:
        time.sleep(interval)
        now = servers()
        yield [*gpu_lines(), *(table_of_rates(before, now) if now else [told(NONE)])]
        before = now
