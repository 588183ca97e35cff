"""The help of commands with a hundred flags: the usual ones first, and all, or some, when asked."""

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from pagoda.base.near import nearest
from pagoda.base.words import say, told

_ALL = "all"
_VLLM_GROUPS = {"frontend": "server", "multimodal": "media"}


class HelpAction(argparse.Action):
    """`--help` shows the usual flags, `--help=all` every one, `--help=WORD` a group or the flags
    with WORD in their names or texts, as vLLM has it. Without usual flags all are shown, and
    nothing is said of words."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, usual: Sequence[str] = (), **_: Any
    ):
        super().__init__(
            option_strings, argparse.SUPPRESS, nargs="?", const="", default=argparse.SUPPRESS,
            metavar="all|WORD" if usual else "",
            help="these flags; with `all` every one, with a WORD those of that group or with that "
            "word in their names, or else in their descriptions"
            if usual
            else "show this help message and exit",
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
    do with the word, or, where none has, as with ""."""
    found = _found(parser, word.lstrip("-").replace("_", "-").lower()) if word else []
    if word == _ALL or not (usual or found):
        return parser.format_help()
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    formatter.add_text(parser.description)
    for title, actions in found:
        _add(formatter, title, actions)
    if word and not found:
        formatter.add_text(_nothing(parser, word))
    if not found:
        _add(formatter, *_positionals(parser))
        _add(formatter, say("usual flags"), [_action(parser, flag) for flag in usual])
    if usual:
        formatter.add_text(_more(parser))
    if not found:
        formatter.add_text(parser.epilog)
    return formatter.format_help()


def _nothing(parser: argparse.ArgumentParser, word: str) -> str:
    """That no flag was found, and the word in their names that was meant."""
    flags = [flag for _, actions in _groups(parser) for each in actions
             for flag in each.option_strings]  # fmt: skip
    parts = dict.fromkeys(part for flag in flags for part in flag.split("-") if part)
    meant = nearest(word, flags, parts)
    if meant is None:
        return say("No flag has to do with {word!r}.", word=word)
    return say(
        "No flag has to do with {word!r}; `{program} --help={meant}` shows those with {meant!r}.",
        word=word,
        program=parser.prog,
        meant=meant.removeprefix("--"),
    )


def _found(parser: argparse.ArgumentParser, word: str) -> list[tuple[str, list[argparse.Action]]]:
    """A group of that name and flags of others with the word in their names; where there are none,
    flags with it in their texts."""
    name = word.removesuffix("config")
    name = _VLLM_GROUPS.get(name, name)
    groups = list(_groups(parser))
    found = [
        (title, actions if title == name else [each for each in actions if _is_named(each, name)])
        for title, actions in groups
    ]
    if not any(actions for _, actions in found):
        found = [
            (title, [each for each in actions if word in told(each.help or "").lower()])
            for title, actions in groups
        ]
    return [(title, actions) for title, actions in found if actions]


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
        "those with WORD in their names, or else in their descriptions.",
        program=parser.prog,
        count=count,
        titles=", ".join(titles),
    )
