"""`pagoda agent run "task"`: one task in this terminal."""

import argparse
from pathlib import Path

from pagoda.cli.agent_flags import add_driver, add_runs, add_settings, make_operator

USAGE = '"TASK" --driver URL [flags]'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="what should be done, in your words")
    add_driver(parser)
    add_runs(parser)
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    import asyncio

    from pagoda.base.log import setup_logging
    from pagoda.cli.agent_terminal import Terminal

    setup_logging("warning")
    operator = make_operator(args)
    return asyncio.run(Terminal(operator).run(lambda: operator.start(args.task)))


def resume(args: argparse.Namespace, folder: Path) -> int:
    import asyncio

    from pagoda.base.log import setup_logging
    from pagoda.cli.agent_terminal import Terminal

    setup_logging("warning")
    operator = make_operator(args)
    return asyncio.run(Terminal(operator).run(lambda: operator.resume(folder)))
