"""Writes manual pages from the parsers that `--help` shows: `make man`, and into wheels.

`pagoda.1` lists the commands; each command has a page of its own, as git's have, and each kind of
`pagoda bench`. The package argparse-manpage writes them.
"""

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from argparse_manpage.manpage import Manpage

from pagoda.cli.bench import KINDS, kind_parser
from pagoda.cli.main import COMMANDS, command_parser
from pagoda.version import __version__

_DESCRIPTION = "serve open models, from a laptop CPU to GPUs"


def main() -> int:
    """Pages in the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages():
        (folder / f"{name}.1").write_text(text)
    return 0


def pages() -> Iterator[tuple[str, str]]:
    """The name of each page and its text, in troff."""
    yield "pagoda", _page(_overview(), _DESCRIPTION)
    for name, what in COMMANDS.items():
        yield f"pagoda-{name}", _page(command_parser(name)[1], what)
    for kind, what in KINDS.items():
        yield f"pagoda-bench-{kind}", _page(kind_parser(kind)[1], what)


def _overview() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pagoda",
        usage="pagoda COMMAND ...",
        add_help=False,
        epilog="Each command has a page of its own: man pagoda-serve.",
    )
    commands = parser.add_argument_group("commands")
    for name, what in COMMANDS.items():
        commands.add_argument(name, metavar=f"pagoda {name}", help=what)
    return parser


def _page(parser: argparse.ArgumentParser, what: str) -> str:
    page = Manpage(parser)
    page.prog = parser.prog.replace(" ", "-")
    page.description = what.rstrip(".")
    page.synopsis = [parser.prog, *page.synopsis[len(parser.prog.split()) :]]
    page.source, page.manual = f"Pagoda {__version__}", "Pagoda's manual"
    # No date: the same sources give the same page.
    text = re.sub(r'^(\.TH \S+ "1") "[^"]*"', r'\1 ""', str(page))
    # Backticks of a help become bold, also around a line's end.
    return re.sub(r"`([^`\n]+(?:\n[^`\n]+)?)`", r"\\fB\1\\fR", text)


if __name__ == "__main__":
    sys.exit(main())
