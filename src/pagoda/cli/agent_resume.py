"""`pagoda agent resume RUN`: go on with a run that was cut off."""

import argparse

from pagoda.cli import agent_run
from pagoda.cli.agent_flags import add_driver, add_runs, add_settings, runs_folder

USAGE = "RUN --driver URL [flags]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="the run's name, as its folder is called")
    add_driver(parser)
    add_runs(parser)
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    return agent_run.resume(args, runs_folder(args) / args.run)
