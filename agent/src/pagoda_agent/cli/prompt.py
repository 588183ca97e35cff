"""`pagoda agent prompt`: the built-in system prompt, to begin one's own with."""

import argparse

USAGE = "> FILE"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from pagoda_agent.dialects.rules import BUILT_IN

    print(BUILT_IN)
    return 0
