"""`pagoda agent`: hands over to the agent, a distribution of its own."""

import argparse

from pagoda.base.errors import PagodaError
from pagoda.base.words import spoken
from pagoda_agent.base.errors import AgentError
from pagoda_agent.cli.main import EPILOG, USAGE, add_arguments
from pagoda_agent.cli.main import run as run_agent
from pagoda_agent.words import speak, told

__all__ = ["EPILOG", "USAGE", "add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    speak(spoken())
    try:
        return run_agent(args)
    except AgentError as error:
        raise PagodaError(told(str(error))) from error
