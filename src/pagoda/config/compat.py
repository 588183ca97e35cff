"""Flags of vLLM and llama.cpp that Pagoda takes: as its own, or with a line that says why not."""

import argparse
import json
from collections.abc import Container, Iterator
from typing import Any

from pagoda.base.errors import ConfigError
from pagoda.config.compat_row import Compat
from pagoda.config.compat_same import SAME, Same
from pagoda.config.compat_table import TABLE
from pagoda.config.compat_values import (
    FOREIGN_VALUES,
    QUANTIZATION_AT_LOAD,
    QUANTIZATION_IN_CHECKPOINT,
)
from pagoda.config.flags import reader
from pagoda.config.option import flag_name
from pagoda.config.parser import MergeJson

_PREFIX = "compat "
_REPO, _FILE = _PREFIX + "repo", _PREFIX + "file"


def add_compat_flags(parser: argparse.ArgumentParser) -> None:
    """Add them without a word in the help; after the flags that have a meaning."""
    known = parser._option_string_actions
    fields = {action.dest for action in parser._actions}
    for same in SAME:
        if same.field in fields:
            _add_same(parser, same)
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("-hf", "-hfr", "--hf-repo", dest=_REPO, action=_FromHub, **hidden)
    parser.add_argument("-hff", "--hf-file", dest=_FILE, action=_FromHub, **hidden)
    for entry in TABLE:
        if known.keys().isdisjoint(entry.flags.split()):  # a command may give one a meaning
            _add(parser, entry)
    for action in parser._actions:
        if action.dest == "quantization":
            action.choices = None  # `_quantization_answers` knows more about them
        if action.dest in FOREIGN_VALUES and action.choices is not None:
            action.choices = _Choices(action.choices)
            action.choices.foreign = FOREIGN_VALUES[action.dest]


def answers(namespace: argparse.Namespace) -> list[str]:
    """One line for each such flag that was given; replaces values only others know.

    Raises ConfigError for a flag without which the server would not be what was asked for.
    """
    if hasattr(namespace, _FILE) and not hasattr(namespace, _REPO):
        file = getattr(namespace, _FILE)
        raise ConfigError(f"--hf-file {file} is a file of a repository; name that with --hf-repo.")
    return [
        *_flag_answers(namespace),
        *_value_answers(namespace),
        *_quantization_answers(namespace),
    ]


class _Choices(tuple[str, ...]):
    """Ours; values that only others know pass, and `_value_answers` answers them."""

    foreign: Container[str]

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or value in self.foreign


class _Means(MergeJson):
    """Keeps what a flag said for `answers`, or writes the fields that its value stands for."""

    entry: Compat

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if self.nargs == 0:
            denied = [_denied(flag) for flag in self.entry.flags.split()]
            values = self.entry.takes == "0" or option_string not in denied
        means = self.entry.means.get(str(values))
        if means is None:
            super().__call__(parser, namespace, values, option_string)
            return
        for name, value in means.items():
            field = MergeJson([], name)
            field(parser, namespace, value)


class _FromHub(argparse.Action):
    """A repository on the hub, and perhaps one of its files, which is then no other."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        setattr(namespace, self.dest, values)
        repo, file = getattr(namespace, _REPO, None), getattr(namespace, _FILE, None)
        if repo is not None:
            namespace.model = f"hf:{repo}" if file is None else f"hf:{repo.split(':')[0]}:{file}"


class _Constant(MergeJson):
    """A flag without a value, whose field may be a mapping."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        super().__call__(parser, namespace, self.const, option_string)


def _add_same(parser: argparse.ArgumentParser, same: Same) -> None:
    flags = [flag for flag in same.flags.split() if flag not in parser._option_string_actions]
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    if not flags:
        return
    if same.value is None:
        parser.add_argument(
            *flags, dest=same.field, type=reader(same.read), action=MergeJson, **hidden
        )
    else:
        constant = same.read(same.value)
        parser.add_argument(
            *flags, dest=same.field, nargs=0, const=constant, action=_Constant, **hidden
        )


def _add(parser: argparse.ArgumentParser, entry: Compat) -> None:
    flags = entry.flags.split()
    kwargs: dict[str, Any] = {"nargs": None}
    match entry.takes:
        case "-":
            flags += map(_denied, entry.flags.split())
            kwargs["nargs"] = 0
        case "0":
            kwargs["nargs"] = 0
        case "?":
            kwargs = {"nargs": "?", "const": True}
        case "*":
            kwargs["nargs"] = "+"
        case "j":
            kwargs["type"] = reader(json.loads)
    action = parser.add_argument(
        *(flag for flag in flags if flag not in parser._option_string_actions),
        dest=_PREFIX + flags[0],
        action=_Means,
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
        **kwargs,
    )
    assert isinstance(action, _Means)
    action.entry = entry


def _denied(flag: str) -> str:
    """`--no-jinja` of `--jinja`, `-no-cnv` of `-cnv`."""
    dashes = flag[: len(flag) - len(flag.lstrip("-"))]
    return f"{dashes}no-{flag.lstrip('-')}"


def _flag_answers(namespace: argparse.Namespace) -> Iterator[str]:
    given = vars(namespace)
    for entry in TABLE:
        flag = entry.flags.split()[0]
        if _PREFIX + flag not in given:
            continue
        value = given[_PREFIX + flag]
        asked = value is not False or entry.effect == "none"
        if asked and str(value) not in entry.quiet:
            yield answer(_spelled(flag, value), entry.effect, entry.why.text)


def answer(what: str, effect: str, why: str) -> str:
    """The line about a flag or an argument; ConfigError where it is refused."""
    if effect == "refused":
        raise ConfigError(f"{what} is not supported: {why}.")
    return f"{what} {'has no effect here' if effect == 'none' else 'is not supported yet'}: {why}."


def _quantization_answers(namespace: argparse.Namespace) -> Iterator[str]:
    method = getattr(namespace, "quantization", "none")
    line = quantization_answer(f"--quantization {method}", method)
    if line is not None:
        namespace.quantization = "none"
        yield line


def quantization_answer(what: str, method: str) -> str | None:
    """One line where the value only repeats what a checkpoint says; None for Pagoda's own.

    ConfigError for any other.
    """
    if method in QUANTIZATION_AT_LOAD:
        return None
    if method.lower() in QUANTIZATION_IN_CHECKPOINT:
        return f"{what} has no effect here: the checkpoint itself says how its weights are stored."
    raise ConfigError(
        f"{what} is not supported yet: choose one of {', '.join(QUANTIZATION_AT_LOAD)}, or take a "
        "checkpoint that is already quantized."
    )


def _value_answers(namespace: argparse.Namespace) -> Iterator[str]:
    for name, foreign in FOREIGN_VALUES.items():
        value = getattr(namespace, name, None)
        if value not in foreign:
            continue
        instead, why = foreign[value]
        yield answer(f"{flag_name(name)} {value}", "later" if instead else "refused", why.text)
        setattr(namespace, name, instead)


def _spelled(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag if value else "--no-" + flag.removeprefix("--")
    if isinstance(value, dict | list):
        return flag
    return f"{flag} {value}"
