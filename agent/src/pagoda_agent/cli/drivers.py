"""`pagoda agent drivers`: which drivers there are, and what each lacks on this machine."""

import argparse

from pagoda_agent.words import told

USAGE = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from pagoda_agent.drivers.needs import EXTRAS, lacks

    for missing in map(lacks, EXTRAS):
        state = "lacks packages" if missing.packages else "ready"
        print(told(f"{missing.driver:<8} {state}"))
        if missing.packages:
            print(f"         {told(missing.sentence)}\n         {missing.command}")
        if missing.system:
            print(f"         {told(missing.system.why)}\n         {missing.system.command}")
    return 0
