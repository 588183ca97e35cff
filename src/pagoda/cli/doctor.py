"""`pagoda doctor`: what this machine can do, and what holds it back."""

import argparse
import sys

from pagoda.base.errors import ConfigError

USAGE = "[--json]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="facts and findings as JSON")


def prepare(words: list[str]) -> list[str]:
    if any(word not in ("--json", "-h", "--help") for word in words):
        raise ConfigError("A model's plan is not in this version; `pagoda doctor` alone runs.")
    return words


def run(args: argparse.Namespace) -> int:
    from pagoda.doctor.checks import findings
    from pagoda.doctor.findings import failed
    from pagoda.doctor.probe import probe

    machine = probe()
    found = findings(machine)
    if args.json:
        import json
        from dataclasses import asdict

        rows = [asdict(finding) for finding in found]
        print(json.dumps({"machine": asdict(machine), "findings": rows}, indent=2))
    else:
        import shutil

        from pagoda.doctor.report import finding_lines, verdict

        width = shutil.get_terminal_size((100, 24)).columns
        print("\n".join(finding_lines(found, width, sys.stdout.isatty())))
        print(verdict(found))
    return int(failed(found))
