"""`pagoda completion`: a script that completes commands and flags in a shell."""

import argparse
import importlib

from pagoda.config.parser import FlagParser

USAGE = "{bash,zsh,fish}"
EPILOG = (
    "bash: pagoda completion bash > ~/.local/share/bash-completion/completions/pagoda; zsh: write "
    "it as _pagoda into a folder of $fpath; fish: > ~/.config/fish/completions/pagoda.fish. It "
    "counts from the next shell on."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="whose script is printed")


def run(args: argparse.Namespace) -> int:
    import shtab

    print(shtab.complete(whole_parser(), args.shell))
    return 0


def whole_parser() -> argparse.ArgumentParser:
    """`pagoda` with all its commands, each with its flags."""
    import shtab

    from pagoda.cli.bench import KINDS
    from pagoda.cli.main import COMMANDS

    parser = FlagParser(prog="pagoda")
    commands = parser.add_subparsers()
    for name, what in COMMANDS.items():
        command = commands.add_parser(name, help=what)
        if name == "bench":
            kinds = command.add_subparsers()
            for kind, text in KINDS.items():
                _fill(kinds.add_parser(kind, help=text), f"benches.{kind.replace('-', '_')}")
        else:
            _fill(command, name.replace("-", "_"))
    for each in _parsers(parser):
        for action in each._actions:
            if not action.option_strings and action.dest in ("model_tag", "more_models"):
                action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab's own
            if action.choices is not None and not isinstance(action, argparse._SubParsersAction):
                action.choices = list(action.choices)  # shtab takes a dict for subcommands
    return parser


def _fill(parser: argparse.ArgumentParser, module: str) -> None:
    importlib.import_module(f"pagoda.cli.{module}").add_arguments(parser)


def _parsers(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    found = [parser]
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                found += _parsers(each)
    return found
