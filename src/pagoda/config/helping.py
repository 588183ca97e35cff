"""The help of commands with a hundred flags: the usual ones first, and all, or some, when asked."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from pagoda.base.words import say

_ALL = "all"


class HelpAction(argparse.Action):
    """`--help` shows the usual flags, `--help=all` every one, `--help=WORD` a group or the flags
    with WORD in their names, as vLLM has it."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, usual: Sequence[str] = (), **_: Any
    ):
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs="?", const="", default=argparse.SUPPRESS,
            metavar="all|WORD",
            help="these flags; with `all` every one, with a WORD those of that group or with that "
            "word in their names",
        )  # fmt: skip
        self._usual = usual

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        print(help_of(parser, self._usual, values), end="")
        parser.exit()


def help_of(parser: argparse.ArgumentParser, usual: Sequence[str], word: str) -> str:
    """What `--help` shows: with "" the usual flags, with "all" every one, else those that have to
    do with the word."""
    if word == _ALL:
        return parser.format_help()
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    formatter.add_text(parser.description)
    if word:
        found = list(_found(parser, word.lstrip("-").replace("_", "-").lower()))
        for title, actions in found:
            _add(formatter, title, actions)
        if not found:
            nothing = say("No flag and no group of flags has {word!r} in its name.", word=word)
            formatter.add_text(nothing)
    else:
        _add(formatter, *_positionals(parser))
        _add(formatter, say("usual flags"), [_action(parser, flag) for flag in usual])
    formatter.add_text(_more(parser))
    if not word:
        formatter.add_text(parser.epilog)
    return formatter.format_help()


def _found(
    parser: argparse.ArgumentParser, word: str
) -> Iterator[tuple[str, list[argparse.Action]]]:
    for title, actions in _groups(parser):
        if title != word:
            actions = [action for action in actions if _is_named(action, word)]
        if actions:
            yield title, actions


def _is_named(action: argparse.Action, word: str) -> bool:
    return any(word in flag for flag in action.option_strings)


def _action(parser: argparse.ArgumentParser, flag: str) -> argparse.Action:
    return parser._option_string_actions[flag]


def _positionals(parser: argparse.ArgumentParser) -> tuple[str, list[argparse.Action]]:
    title = str(parser._positionals.title)
    return next((each for each in _groups(parser) if each[0] == title), (title, []))


def _groups(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[argparse.Action]]]:
    """Each group that has flags to show."""
    for group in parser._action_groups:
        shown = [each for each in group._group_actions if each.help != argparse.SUPPRESS]
        if shown:
            yield str(group.title), shown


def _add(formatter: Any, title: str, actions: Sequence[argparse.Action]) -> None:
    formatter.start_section(title)
    formatter.add_arguments(actions)
    formatter.end_section()


def _more(parser: argparse.ArgumentParser) -> str:
    positionals, options = parser._positionals.title, parser._optionals.title
    titles = [title for title, _ in _groups(parser) if title not in (positionals, options)]
    count = sum(len(actions) for title, actions in _groups(parser) if title != positionals)
    return say(
        "`{program} --help=all` shows all {count} flags, --help=WORD a group of them ({titles}) or "
        "those with WORD in their names.",
        program=parser.prog,
        count=count,
        titles=", ".join(titles),
    )
