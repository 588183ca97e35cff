"""The manual pages that `make man` writes."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pagoda.cli.main import COMMANDS, command_parser
from tools import man


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return dict(man.pages())


def test_each_command_has_a_page_that_the_first_one_lists(pages):
    for name, what in COMMANDS.items():
        assert what.replace("-", "\\-") in pages["pagoda"]
        assert f"pagoda-{name}" in pages


def test_a_page_has_each_flag_that_help_shows(pages):
    for name in COMMANDS:
        text = pages[f"pagoda-{name}"].replace("\\-", "-")
        for action in command_parser(name)[1]._actions:
            if action.help != "==SUPPRESS==" and "--help" not in action.option_strings:
                assert all(flag in text for flag in action.option_strings), (name, action.dest)


def test_a_synopsis_begins_with_the_whole_command(pages):
    for name, text in pages.items():
        command = name.replace("pagoda-bench-", "pagoda bench ").replace("pagoda-", "pagoda ")
        assert f".SH SYNOPSIS\n.B {command}\n" in text.replace("\\-", "-"), name


def test_what_help_has_in_backticks_is_bold(pages):
    assert not [name for name, text in pages.items() if "`" in text]
    assert "\\fBhf:org/name[:file or quant]\\fR" in pages["pagoda-serve"]


@pytest.mark.skipif(shutil.which("lexgrog") is None, reason="man-db is not installed")
def test_man_finds_and_shows_them(tmp_path: Path):
    """`apropos` knows a page by its NAME; what troff can't read it warns of."""
    subprocess.run([sys.executable, "tools/man.py", tmp_path], check=True)
    for path in sorted(tmp_path.iterdir()):
        named = subprocess.run(["lexgrog", path], capture_output=True, text=True, check=True).stdout
        assert f'"{path.stem} - ' in named
        shown = subprocess.run(
            ["man", "--warnings", "-l", path], capture_output=True, text=True, check=True,
            env={"MANWIDTH": "200", "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        assert shown.stderr == "" and path.stem.upper() in shown.stdout
