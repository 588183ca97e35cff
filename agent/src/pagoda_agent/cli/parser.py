"""An argument parser whose flags may be written with underscores, and which knows near misses."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from pagoda_agent.base.columns import wrap
from pagoda_agent.base.near import nearest
from pagoda_agent.words import told


class _HelpFormatter(argparse.HelpFormatter):
    """One spelling per line of help: `-h, --help`, `--host HOST`."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=30)

    class _Section(argparse.HelpFormatter._Section):
        def format_help(self) -> str:
            colon = "：" if self.heading and not self.heading.isascii() else ":"
            plain = f"{self.heading}:\n"
            return super().format_help().replace(plain, f"{self.heading}{colon}\n", 1)

    def start_section(self, heading: str | None) -> None:
        super().start_section(heading and told(heading))

    def add_text(self, text: str | None) -> None:
        super().add_text(text and told(text))

    def add_usage(
        self, usage: str | None, actions: Any, groups: Any, prefix: str | None = None
    ) -> None:
        super().add_usage(usage, actions, groups, told(prefix or "usage: "))

    def _split_lines(self, text: str, width: int) -> list[str]:
        lines = (wrap(" ".join(line.split()), width) for line in text.splitlines())
        return [part for line in lines for part in line]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n".join(wrap(" ".join(text.split()), width, indent, indent))

    def _expand_help(self, action: argparse.Action) -> str:
        return told(super()._expand_help(action))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return ", ".join(sorted(action.option_strings, key=len)) + (f" {value}" if value else "")


class FlagParser(argparse.ArgumentParser):
    """Usage errors are one line and exit status 2; no beginning of a flag stands for it."""

    def __init__(self, **texts: str):
        super().__init__(allow_abbrev=False, formatter_class=_HelpFormatter, **texts)  # type: ignore[arg-type]

    def parse_flags(self, words: Sequence[str]) -> argparse.Namespace:
        end = words.index("--") if "--" in words else len(words)
        known = [self._dashed(word) for word in words[:end]]
        parsed, left = self.parse_known_args([*known, *words[end:]])
        if left:
            self.error(self._explain(left))
        return parsed

    def _dashed(self, word: str) -> str:
        """`--base_url` and `-base-url` are `--base-url`."""
        name, equals, value = word.partition("=")
        flag = "--" + name.lstrip("-").replace("_", "-")
        return (
            flag + equals + value
            if name[:1] == "-" and flag in self._option_string_actions
            else word
        )

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """No value is glued to a flag of one letter."""
        return []

    def error(self, message: str) -> NoReturn:
        more = told(f"See `{self.prog} --help`.")
        sys.stderr.write(f"{self.prog}: {told(message)}\n{more}\n")
        raise SystemExit(2)

    def _explain(self, left: Sequence[str]) -> str:
        flag = next((word.partition("=")[0] for word in left if word.startswith("-")), None)
        if flag is None:
            return f"unexpected argument {left[0]!r}."
        close = nearest(flag, self._option_string_actions)
        return f"unknown flag {flag}" + (f"; did you mean {close}?" if close else ".")
