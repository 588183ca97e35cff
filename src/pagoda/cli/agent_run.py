"""`pagoda agent run "task"`: one task in this terminal."""

import argparse

from pagoda.cli.agent_flags import add_operator, in_terminal

USAGE = '"TASK" [--driver URL] [flags]'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("task", metavar="TASK", help="what should be done, in your words")
    add_operator(parser)


def run(args: argparse.Namespace) -> int:
    return in_terminal(args, lambda operator: operator.start(args.task))
