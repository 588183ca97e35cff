"""`pagoda agent`: hands over to the agent, a distribution of its own."""

import argparse

from pagoda.base.errors import PagodaError
from pagoda.base.words import say, spoken
from pagoda_agent.base.errors import AgentError
from pagoda_agent.cli.main import USAGE
from pagoda_agent.cli.main import add_arguments as add_agent_arguments
from pagoda_agent.cli.main import run as run_agent
from pagoda_agent.words import speak, told

__all__ = ["EPILOG", "USAGE", "add_arguments", "run"]

EPILOG = say("`pagoda agent KIND --help` lists the flags of a kind.")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    speak(spoken())
    add_agent_arguments(parser)


def run(args: argparse.Namespace) -> int:
    try:
        return run_agent(args)
    except AgentError as error:
        raise PagodaError(told(str(error))) from error
