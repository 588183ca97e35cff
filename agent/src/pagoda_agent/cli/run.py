"""`pagoda agent run "task"`: one task in this terminal."""

import argparse

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.cli.flags import add_operator, in_terminal

USAGE = '"TASK" [--driver URL] [flags]'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "task", metavar="TASK", nargs="+", help="what should be done, in your words, in quotes"
    )
    add_operator(parser)


def run(args: argparse.Namespace) -> int:
    task, *more = args.task
    if more:
        raise ConfigError(
            f"The task is in quotes, so that it is one argument: {' '.join(args.task)!r}."
        )
    return in_terminal(args, lambda operator: operator.start(task))
