"""All messages that the command line and the doctor have: texts of parsers, and what is said."""

import argparse
import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import pagoda
from pagoda.base.words import Said
from pagoda.cli.bench import KINDS
from pagoda.cli.main import COMMANDS
from pagoda.config.parser import FlagParser

SOURCES = Path(pagoda.__file__).parent
# Their texts are those of flags and of the kinds of bench, which parsers have.
_FROM_TABLES = ("config/flags.py", "cli/bench.py")
# The agent is a distribution of its own, in English.
_ENGLISH = ("agent",)
_ARGPARSE = (
    "usage: ",
    "positional arguments",
    "options",
    "show this help message and exit",
    "argument %(argument_name)s: %(message)s",
    "the following arguments are required: %s",
    "one of the arguments %s is required",
    "not allowed with argument %s",
    "expected one argument",
    "expected at most one argument",
    "expected at least one argument",
    "ignored explicit argument %r",
    "invalid choice: %(value)r (choose from %(choices)s)",
    "invalid %(type)s value: %(value)r",
)
"""What argparse says itself."""


def messages() -> dict[str, str]:
    """English to where it stands."""
    found = dict.fromkeys(_ARGPARSE, "argparse")
    for where, text in [*_of_parsers(), *_of_sources()]:
        found.setdefault(text, where)
    return found


def parsers() -> dict[str, FlagParser]:
    """By the words that name them."""
    named = {name: (f"cli.{name.replace('-', '_')}", COMMANDS[name]) for name in COMMANDS}
    for kind, text in KINDS.items():
        named[f"bench {kind}"] = (f"cli.benches.{kind.replace('-', '_')}", text)
    found = {}
    for name, (module, description) in named.items():
        if name in _ENGLISH:
            continue
        command = importlib.import_module(f"pagoda.{module}")
        found[name] = FlagParser(
            prog=f"pagoda {name}",
            usage=f"pagoda {name} {command.USAGE}",
            description=description,
            epilog=getattr(command, "EPILOG", None),
            usual=getattr(command, "USUAL", ()),
        )
        command.add_arguments(found[name])
    return found


def _of_parsers() -> Iterator[tuple[str, str]]:
    for name in _ENGLISH:
        yield "pagoda --help", COMMANDS[name]
    for name, parser in parsers().items():
        where = f"pagoda {name} --help"
        texts = [parser.description, parser.epilog]
        for group in parser._action_groups:
            texts += [group.title, group.description]
            texts += [each.help for each in group._group_actions if each.help != argparse.SUPPRESS]
        for text in texts:
            for part in _parts(text) if text else ():
                yield where, part


def _parts(text: str) -> Iterator[str]:
    """The templates of a message and of those that are its fields."""
    if not isinstance(text, Said):
        yield text
        return
    yield text.template
    for value in text.fields.values():
        if isinstance(value, Said):
            yield from _parts(value)


def _of_sources() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCES.rglob("*.py")):
        text = path.read_text()
        if "from pagoda.base.words import" not in text and path.name != "words.py":
            continue
        name = str(path.relative_to(SOURCES))
        for node in ast.walk(ast.parse(text)):
            called = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if called and node.func.id in ("say", "tell"):
                for literal in _literals(node.args[0], name):
                    yield f"src/pagoda/{name}", literal


def _literals(node: ast.expr, name: str) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _literals(node.body, name)
        yield from _literals(node.orelse, name)
    elif isinstance(node, ast.Constant):
        yield node.value
    elif name not in _FROM_TABLES and name != "base/words.py":
        raise AssertionError(f"{name}:{node.lineno} says no text that can be read here")
