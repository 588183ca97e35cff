"""What the agent's command is called: it is Pagoda's, or its own where it is installed alone."""

import sys
from pathlib import Path

ALONE = "pagoda-agent"
"""The command of an agent that was installed without Pagoda."""


def command() -> str:
    """What its user types to start the agent."""
    return ALONE if Path(sys.argv[0]).name == ALONE else "pagoda agent"
