"""`pagoda agent drivers`: which drivers there are, and what each lacks on this machine."""

import argparse

USAGE = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    pass


def run(args: argparse.Namespace) -> int:
    from pagoda_agent.drivers.needs import EXTRAS, lacks

    for missing in map(lacks, EXTRAS):
        print(f"{missing.driver:<8} {'lacks packages' if missing.packages else 'ready'}")
        if missing.packages:
            print(f"         {missing.sentence}\n         {missing.command}")
        if missing.system:
            print(f"         {missing.system.why}\n         {missing.system.command}")
    return 0
