"""Text that is piped into `pagoda chat` and `complete`."""

import os
import sys

import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli.talk import piped
from pagoda.cli.talk.piped import with_piped


@pytest.fixture
def pipe(monkeypatch):
    """Its writing end; the reading end is the standard input."""
    read, write = os.pipe()
    with os.fdopen(read) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield write


@pytest.mark.parametrize(
    ("came", "text", "sent"),
    [
        (b"a file\r\nof words\n", "What is it?", "a file\nof words\n\nWhat is it?"),
        (b"a file\n", None, "a file\n"),
        (b"", "hi", "hi"),
        (b" \n", "hi", "hi"),
        ("\u4f60\u597d".encode(), None, "\u4f60\u597d"),
    ],
)
def test_piped_text_stands_before_the_question_about_it(pipe, came, text, sent):
    os.write(pipe, came)
    os.close(pipe)
    assert with_piped(text) == sent


@pytest.mark.parametrize("text", ["hi", None])
def test_bytes_that_are_no_text(pipe, text):
    os.write(pipe, b"\xff\xfe\x00")
    os.close(pipe)
    with pytest.raises(ConfigError, match="not text"):
        with_piped(text)


def test_a_pipe_that_stays_open_is_named(pipe, monkeypatch):
    """The input of a script, say, which nobody closes."""
    said = []

    class ClosesOnceTold:
        def write(self, text):
            if not said:
                os.close(pipe)
            said.append(text)

    monkeypatch.setattr(piped, "_SILENCE_SECONDS", 0)
    monkeypatch.setattr(sys, "stderr", ClosesOnceTold())
    assert with_piped("hi") == "hi"
    assert "< /dev/null" in said[0]


def test_no_standard_input_at_all(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    assert with_piped("hi") == "hi"
