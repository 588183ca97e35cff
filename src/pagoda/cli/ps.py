"""`pagoda ps`: the servers of this machine."""

import argparse

from pagoda.base.words import say, told

USAGE = ""
NONE = say("No Pagoda server of yours runs; `pagoda serve` starts one.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(args: argparse.Namespace) -> int:
    from pagoda.cli.watch.servers import servers
    from pagoda.cli.watch.table import table

    del args
    found = servers()
    print("\n".join(table(found)) if found else told(NONE))
    return 0
