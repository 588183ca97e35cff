"""`pagoda bench`: measurements, in the tables that users of vLLM and llama.cpp know."""

import argparse
import importlib
from types import ModuleType

from pagoda.base.errors import ConfigError
from pagoda.base.near import nearest
from pagoda.base.words import in_lines, say

USAGE = (
    "{serve,latency,throughput,step-times,speculation,startup,serving-cost,host-overhead,agents,"
    "llama-bench,micro,gpu} [flags]"
)
EPILOG = "`pagoda bench KIND --help` lists the flags of a kind."

KINDS = {
    "serve": "Load a running server with requests.",
    "latency": "Time one batch, from prompt to last token.",
    "throughput": "Time many prompts at once.",
    "step-times": "What steps of each size take, for `pagoda simulate`.",
    "speculation": "Decoding with guesses that are verified, beside none.",
    "startup": "Time the way from the command to the first token.",
    "serving-cost": "CPU time per token of the server, the model left out.",
    "host-overhead": "What the engine does for a decode step, the model left out.",
    "agents": "Prompts of agents that are computed again, the model left out.",
    "llama-bench": "Prompt and generation speed, as llama-bench prints them.",
    "micro": "Each native kernel against what this machine can do at best.",
    "gpu": "Models of real sizes on this GPU, beside what it can do at best.",
}

# They compute in this process; others start an engine, which says itself what is wrong with torch.
_WITH_TORCH = ("micro", "gpu", "host-overhead")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = [say("{kind}: {text}", kind=kind, text=say(text)) for kind, text in KINDS.items()]
    parser.add_argument("words", metavar="KIND", nargs=argparse.REMAINDER, help=in_lines(kinds))


def run(args: argparse.Namespace) -> int:
    kind, *words = args.words or [""]
    if kind not in KINDS:
        known = ", ".join(KINDS)
        if not kind:
            raise ConfigError(say("Name a bench; there are: {known}.", known=known))
        if close := nearest(kind, KINDS):
            raise ConfigError(
                say("There is no bench {kind!r}; did you mean {close!r}?", kind=kind, close=close)
            )
        raise ConfigError(
            say("There is no bench {kind!r}; there are: {known}.", kind=kind, known=known)
        )
    module, parser = kind_parser(kind)
    given = parser.parse_args(words)
    if kind in _WITH_TORCH:
        from pagoda.engine.start.libraries import import_torch

        import_torch()
    return int(module.run(given))


def kind_parser(kind: str) -> tuple[ModuleType, argparse.ArgumentParser]:
    """The module of a bench, and what parses its flags."""
    from pagoda.config.parser import FlagParser

    module = importlib.import_module("pagoda.cli.benches." + kind.replace("-", "_"))
    parser = FlagParser(
        prog=f"pagoda bench {kind}",
        usage=f"pagoda bench {kind} {module.USAGE}",
        description=KINDS[kind],
    )
    module.add_arguments(parser)
    return module, parser
