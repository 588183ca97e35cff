"""`pagoda agent`: a served model that sees operates a computer."""

import argparse
import importlib
from types import ModuleType

from pagoda.base.errors import ConfigError
from pagoda.base.near import nearest

USAGE = "{serve,run,resume,replay,calibrate,mcp} [flags]"
EPILOG = "`pagoda agent KIND --help` lists the flags of a kind."

KINDS = {
    "serve": "The page: watch, chat, pause, hint, allow, in a browser.",
    "run": "One task, from this terminal.",
    "resume": "Go on with a run that was cut off.",
    "replay": "Do a recorded run again, without a model.",
    "calibrate": "How far a model's clicks miss drawn targets.",
    "mcp": "The computer and the agent as tools for other programs.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "; ".join(f"{kind}: {text}" for kind, text in KINDS.items())
    parser.add_argument("words", metavar="KIND", nargs=argparse.REMAINDER, help=kinds)


def run(args: argparse.Namespace) -> int:
    module, parsed = parse_kind(args.words)
    return int(module.run(parsed))


def parse_kind(words: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    """The kind's module and its flags. ConfigError for a kind that there is not."""
    from pagoda.config.parser import FlagParser

    kind, *words = words or [""]
    if kind not in KINDS:
        close = nearest(kind, KINDS)
        if close:
            raise ConfigError(f"There is no {kind!r} of agents; did you mean {close!r}?")
        there_is = f"There is no {kind!r} of agents" if kind else "Say what the agent should do"
        raise ConfigError(f"{there_is}; there are: {', '.join(KINDS)}.")
    module = importlib.import_module("pagoda_agent.cli." + kind)
    parser = FlagParser(
        prog=f"pagoda agent {kind}",
        usage=f"pagoda agent {kind} {module.USAGE}",
        description=KINDS[kind],
    )
    module.add_arguments(parser)
    return module, parser.parse_args(words)
