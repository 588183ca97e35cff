"""An argument parser that takes flags the way users of vLLM and llama.cpp write them.

Underscores are dashes, `--a.b.c v` is a key of the JSON that `--a` takes, `-O3` is
`--optimization-level 3`, `-mmproj F` is `--mmproj F`, and an unknown flag is answered with the
nearest known one.
"""

import argparse
import json
import re
import sys
from collections.abc import Container, Sequence
from typing import Any, NoReturn

from pagoda.base.errors import ConfigError
from pagoda.base.near import nearest
from pagoda.base.words import LANGUAGES, say, tell, told
from pagoda.config.helping import HelpAction

_SAID = {"true": True, "false": False}
_OPTIMIZATION = re.compile(r"^-O(\d)$")


_IN_USAGES = (say("[flags of serve]"), say("[flags]"))
# argparse asks a function of this name, gettext's, for its own words.
argparse._ = told  # type: ignore[attr-defined]  # as above


class _HelpFormatter(argparse.HelpFormatter):
    """One spelling per line of help: `-tp, --tensor-parallel-size N`, `--[no-]warmup`; in the
    language spoken, which the parser's own texts are not."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30)

    class _Section(argparse.HelpFormatter._Section):
        def format_help(self) -> str:
            heading = tell("{heading}:", heading=self.heading)
            return super().format_help().replace(f"{self.heading}:\n", f"{heading}\n", 1)

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and told(heading))

    def add_text(self, text: str | None) -> None:
        super().add_text(text and told(text))

    def add_usage(self, usage: str | None, *args: Any, **kwargs: Any) -> None:
        for words in _IN_USAGES:
            usage = usage and usage.replace(words, told(words))
        super().add_usage(usage, *args, **kwargs)

    def _expand_help(self, action: argparse.Action) -> str:
        """A help is no `%` format here."""
        return told(action.help or "")

    def _split_lines(self, text: str, width: int) -> list[str]:
        from pagoda.base.columns import wrap

        lines = (wrap(" ".join(line.split()), width) for line in text.splitlines())
        return [part for line in lines for part in line]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        from pagoda.base.columns import wrap

        return "\n".join(wrap(" ".join(text.split()), width, indent, indent))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        flags = sorted(action.option_strings, key=len)
        if isinstance(action, argparse.BooleanOptionalAction):
            positive = [flag for flag in flags if not flag.startswith("--no-")]
            return ", ".join(flag.replace("--", "--[no-]", 1) for flag in positive)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        value = "" if action.metavar == "" else value
        return ", ".join(flags) + (f" {value}" if value else "")


class FlagParser(argparse.ArgumentParser):
    """ArgumentParser with vLLM's spellings; usage errors are one line and exit status 2."""

    def __init__(self, usual: Sequence[str] = (), **kwargs: Any):
        """`usual`: flags that --help shows where all would be too many."""
        super().__init__(
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
            add_help=False,
            **kwargs,
        )
        usual = (*usual, "--lang") if usual else ()
        self.add_argument("-h", "--help", action=HelpAction, usual=usual)
        # `pagoda` reads it before there is a parser.
        self.add_argument(
            "--lang", choices=LANGUAGES, default=argparse.SUPPRESS,
            help="language of help, doctor and errors; by default PAGODA_LANG or the locale",
        )  # fmt: skip

    def parse_known_args(  # type: ignore[override]  # one form of typeshed's overloads is used
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = sys.argv[1:] if args is None else list(args)
        plain = self._switched(normalise(words, self._option_string_actions))
        return super().parse_known_args(plain, namespace)

    def parse_args(  # type: ignore[override]  # as above
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        parsed, left = self.parse_known_args(args, namespace)
        if left:
            self.error(self._explain(left))
        return parsed

    def _switched(self, words: list[str]) -> list[str]:
        """`--switch=False` and `--switch False`, as older vLLM had it, are `--no-switch`."""
        out: list[str] = []
        for index, word in enumerate(words):
            if word == "--":
                return out + words[index:]
            flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
            switch = flag or (out[-1] if out else "")
            action = self._option_string_actions.get(switch)
            said = _SAID.get(value.lower())
            if said is None or action is None or action.nargs != 0:
                out.append(word)
                continue
            if not equals:
                out.pop()
            off = "--no-" + switch.removeprefix("--")
            if said:
                out.append(switch)
            elif off in self._option_string_actions:
                out.append(off)
        return out

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """No beginning of a flag stands for it, and no value is glued to one: argparse would read
        `-mmprj FILE` as `--model mprj`, and `-p TEXT` as `-pp TEXT`."""
        return []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """argparse's, with the nearest of the choices first."""
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            if close := nearest(str(value), known):
                text = tell(
                    "invalid choice: {value!r}; did you mean {close!r}? (choose from {choices})",
                    value=value,
                    close=close,
                    choices=", ".join(known),
                )
                raise argparse.ArgumentError(action, text)
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        more = tell("See `{program} --help`.", program=self.prog)
        sys.stderr.write(f"{self.prog}: {told(message)}\n{more}\n")
        raise SystemExit(2)

    def _explain(self, left: list[str]) -> str:
        flag = next((word.partition("=")[0] for word in left if word.startswith("-")), None)
        if flag is None:
            return say("unexpected argument {word!r}.", word=left[0])
        shown: list[str] = []
        hidden: list[str] = []
        for known, action in self._option_string_actions.items():
            (hidden if action.help == argparse.SUPPRESS else shown).append(known)
        close = nearest(flag, shown, hidden)
        if close:
            return say("unknown flag {flag}; did you mean {close}?", flag=flag, close=close)
        return say("unknown flag {flag}.", flag=flag)


def normalise(words: Sequence[str], known: Container[str] = ()) -> list[str]:
    """Rewrite others' spellings into plain `--flag-name value`; `known` are a parser's flags."""
    out: list[str] = []
    pending: tuple[str, list[str]] | None = None
    for index, word in enumerate(words):
        if pending is not None:
            flag, path = pending
            out += [flag, _nested(path, word)]
            pending = None
            continue
        if word == "--":
            return out + list(words[index:])
        level = _OPTIMIZATION.match(word)
        if level:
            out += ["--optimization-level", level[1]]
            continue
        name, equals, value = word.partition("=")
        dotted = _is_flag(name) and name not in known
        head, *path = name.split(".") if dotted else [name]
        head = _long(head, known)
        if path and not head.startswith("--") and head not in known:
            head, path = name, []
        if not path:
            out.append(head + equals + value if _is_flag(name) else word)
        elif equals:
            out += [head, _nested(path, value)]
        else:
            pending = (head, path)
    if pending is not None:
        raise ConfigError(say("{flag} needs a value.", flag=".".join([pending[0], *pending[1]])))
    return out


def _is_flag(name: str) -> bool:
    return name.startswith("-") and len(name) > 1 and name[1] not in "0123456789."


def _long(flag: str, known: Container[str]) -> str:
    """`-long_name` is `--long-name`, unless it is a flag itself."""
    if not _is_flag(flag):
        return flag
    long = "--" + flag.lstrip("-").replace("_", "-")
    return long if flag.startswith("--") or (flag not in known and long in known) else flag


def _nested(path: list[str], text: str) -> str:
    value: Any
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    for key in reversed(path):
        value = {key: value}
    return json.dumps(value)


class MergeJson(argparse.Action):
    """JSON objects given in several pieces become one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest, None)
        if isinstance(before, dict) and isinstance(values, dict):
            values = _merged(before, values)
        setattr(namespace, self.dest, values)


class More(list[Any]):
    """Entries of a list that several flags give."""


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    out = dict(first)
    for key, value in second.items():
        old = out.get(key)
        if isinstance(old, More) and isinstance(value, More):
            value = More([*old, *value])
        nested = isinstance(old, dict) and isinstance(value, dict)
        out[key] = _merged(old, value) if nested else value  # type: ignore[arg-type]  # `nested` narrows
    return out
