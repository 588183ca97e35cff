"""Text from outside never speaks to the terminal."""

import subprocess

import pytest

from pagoda.base.printable import escaped, for_terminal
from pagoda.cli.main import main
from pagoda.doctor.command import quoted

ODD = ["x\x1b[31mred", "line\nbreak", "a'b\\c\x07", "\x9b5m", "\u202egpj.exe", "plain", "two words"]


@pytest.mark.parametrize("text", ODD)
def test_what_is_shown_is_printable(text):
    assert escaped(text).isprintable()
    assert all(line.isprintable() for line in for_terminal(text).split("\n"))
    assert quoted([text]).isprintable()


def test_a_shell_reads_the_words_that_were_quoted():
    command = f"printf '%s\\0' {quoted(ODD)}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, check=True)
    assert done.stdout.decode().split("\0")[:-1] == ODD


def test_long_words_are_shortened_and_sentences_are_not():
    long = "A" * 100_000
    assert len(for_terminal(f"The architecture {long!r} is new.")) < 300
    sentence = "several words " * 1000
    assert for_terminal(sentence) == sentence


def test_errors_are_shown_so(capsys):
    assert main(["doctor", "/no/such\x1b[31m/model"]) == 1
    said = capsys.readouterr().err
    assert "\x1b" not in said and "\\x1b[31m" in said
