"""`pagoda agent`, and `pagoda-agent` alone: a served model that sees operates a computer."""

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from types import ModuleType

from pagoda_agent.base import env
from pagoda_agent.base.errors import AgentError, ConfigError
from pagoda_agent.base.near import nearest
from pagoda_agent.base.printable import for_terminal
from pagoda_agent.cli.name import ALONE, command
from pagoda_agent.cli.parser import FlagParser
from pagoda_agent.version import __version__
from pagoda_agent.words import speak, told

USAGE = "{serve,run,resume,replay,drivers,prompt,calibrate,mcp,demo} [flags]"
EPILOG = "`pagoda agent KIND --help` lists the flags of a kind."

KINDS = {
    "serve": "The page: watch, chat, pause, hint, allow, in a browser.",
    "run": "One task, from this terminal.",
    "resume": "Go on with a run that was cut off.",
    "replay": "Do a recorded run again, without a model.",
    "drivers": "The ways to reach a computer, what each lacks here, and what installs it.",
    "prompt": "Print the built-in system prompt.",
    "calibrate": "How far a model's clicks miss drawn targets.",
    "mcp": "The computer and the agent as tools for other programs.",
    "demo": "All of it on a small form, with a scripted model: nothing else is needed.",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "\n".join(f"{kind}: {told(text)}" for kind, text in KINDS.items())
    parser.add_argument("words", metavar="KIND", nargs=argparse.REMAINDER, help=kinds)


def main() -> int:
    """Run this process's command line. Returns the exit status: 0, 1 (failed), 2 (usage) or 130
    (Ctrl-C)."""
    words = sys.argv[1:]
    speak()
    try:
        if words and words[0] in ("--version", "-v", "-V", "version"):
            print(f"{ALONE} {__version__}")
            return 0
        parser = FlagParser(
            prog=ALONE, usage=f"{ALONE} {USAGE}", epilog=EPILOG.replace("pagoda agent", ALONE)
        )
        add_arguments(parser)
        status = run(parser.parse_flags(words or ["--help"]))
        # Here, where a reader that left is no error; at exit it would be.
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if env.get("PAGODA_DEBUG"):
            raise
        bug = not isinstance(error, AgentError | OSError)
        text = f"{type(error).__name__}: {error} (a bug; PAGODA_DEBUG=1 shows where)"
        print(f"{ALONE}: {for_terminal(told(text if bug else str(error)))}", file=sys.stderr)
        return 1


def run(args: argparse.Namespace) -> int:
    module, parsed = parse_kind(args.words)
    return int(module.run(parsed))


def parse_kind(words: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """The kind's module and its flags. ConfigError for a kind that there is not."""
    kind, *words = words or [""]
    if kind not in KINDS:
        close = nearest(kind, KINDS)
        if close:
            raise ConfigError(f"There is no {kind!r} of agents; did you mean {close!r}?")
        there_is = f"There is no {kind!r} of agents" if kind else "Say what the agent should do"
        raise ConfigError(f"{there_is}; there are: {', '.join(KINDS)}.")
    module = importlib.import_module("pagoda_agent.cli." + kind)
    parser = FlagParser(
        prog=f"{command()} {kind}",
        usage=f"{command()} {kind} {module.USAGE}",
        description=KINDS[kind],
    )
    module.add_arguments(parser)
    return module, parser.parse_flags(words)
