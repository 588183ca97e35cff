"""Flags of vLLM and llama-server that Pagoda takes and answers with one line each."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from pagoda.base.errors import ConfigError
from pagoda.config.compat_table import (
    FOREIGN_VALUES,
    QUANTIZATION_AT_LOAD,
    QUANTIZATION_IN_CHECKPOINT,
    TABLE,
    Compat,
)
from pagoda.config.flags import reader
from pagoda.config.option import flag_name
from pagoda.config.parser import MergeJson

_PREFIX = "compat "


def add_compat_flags(parser: argparse.ArgumentParser) -> None:
    """Add them without a word in the help; after the flags that have a meaning."""
    known = parser._option_string_actions
    for entry in TABLE:
        if known.keys().isdisjoint(entry.flags.split()):  # a command may give one a meaning
            _add(parser, entry)
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("-q", dest="quantization", **hidden)
    parser.add_argument(
        "-cmoe", "--cpu-moe", dest="n_cpu_moe", action="store_const", const="all", **hidden
    )
    parser.add_argument(
        "-hf", "-hfr", "--hf-repo", dest="model", type=lambda name: f"hf:{name}", **hidden
    )
    for action in parser._actions:
        if action.dest == "quantization":
            action.choices = None  # `_quantization_answer` knows more about them
        if action.dest in FOREIGN_VALUES and action.choices is not None:
            action.choices = (*action.choices, *FOREIGN_VALUES[action.dest])


def answers(namespace: argparse.Namespace) -> list[str]:
    """One line for each such flag that was given; replaces values only others know.

    Raises ConfigError for a flag without which the server would not be what was asked for.
    """
    return [
        *_flag_answers(namespace),
        *_value_answers(namespace),
        *_quantization_answers(namespace),
    ]


def _add(parser: argparse.ArgumentParser, entry: Compat) -> None:
    flags = entry.flags.split()
    kwargs: dict[str, Any] = {
        "dest": _PREFIX + flags[0],
        "default": argparse.SUPPRESS,
        "help": argparse.SUPPRESS,
    }
    match entry.takes:
        case "-":
            kwargs["action"] = argparse.BooleanOptionalAction
        case "?":
            kwargs |= {"nargs": "?", "const": True}
        case "*":
            kwargs["nargs"] = "+"
        case "j":
            kwargs |= {"type": reader(json.loads), "action": MergeJson}
    parser.add_argument(*flags, **kwargs)


def _flag_answers(namespace: argparse.Namespace) -> Iterator[str]:
    given = vars(namespace)
    for entry in TABLE:
        flag = entry.flags.split()[0]
        if _PREFIX + flag not in given:
            continue
        value = given[_PREFIX + flag]
        asked = value is not False or entry.effect == "none"
        if asked and str(value) not in entry.quiet:
            yield _answer(_spelled(flag, value), entry.effect, entry.why)


def _answer(what: str, effect: str, why: str) -> str:
    if effect == "refused":
        raise ConfigError(f"{what} is not supported: {why}.")
    return f"{what} {'has no effect here' if effect == 'none' else 'is not supported yet'}: {why}."


def _quantization_answers(namespace: argparse.Namespace) -> Iterator[str]:
    method = getattr(namespace, "quantization", "none")
    answer = quantization_answer(f"--quantization {method}", method)
    if answer is not None:
        namespace.quantization = "none"
        yield answer


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
        yield _answer(f"{flag_name(name)} {value}", "later" if instead else "refused", why)
        setattr(namespace, name, instead)


def _spelled(flag: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag if value else "--no-" + flag.removeprefix("--")
    if isinstance(value, dict | list):
        return flag
    return f"{flag} {value}"
