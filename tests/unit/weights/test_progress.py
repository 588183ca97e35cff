"""The terminal's progress bars."""

import io

import pytest

from pagoda.weights.hub.progress import terminal_progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "shown"), [(Terminal(), True), (io.StringIO(), False)])
def test_bars_are_drawn_on_terminals_only(
    stream: io.StringIO, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", stream)
    with terminal_progress() as progress:
        progress("model.gguf", 1 << 20, 2 << 20)
        progress("model.gguf", 2 << 20, 2 << 20)
    text = stream.getvalue()
    assert ("model.gguf" in text and "2.0/2.0 MiB" in text) == shown
    assert shown or not text.strip()
