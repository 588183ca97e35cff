"""`pagoda agent resume RUN`: go on with a run that was cut off or failed, in this terminal."""

import argparse

from pagoda_agent.cli.flags import add_operator, add_run, find_run, in_terminal

USAGE = "RUN [--driver URL] [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add_operator(parser)


def run(args: argparse.Namespace) -> int:
    folder = find_run(args)  # before any computer is connected to
    return in_terminal(args, lambda operator: operator.resume(folder))
