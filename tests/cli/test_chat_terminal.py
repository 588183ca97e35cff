"""`pagoda chat` on a terminal, with a server of its own."""

import base64
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

import pytest

SECONDS = 20.0

PICTURE = b"\x89PNG\r\n\x1a\n" + bytes(8)
"""As far as a chat looks at it."""


class Terminal:
    """A program on a pseudo-terminal."""

    def __init__(self, words, env):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "pagoda", *words], env)
        self.seen = ""
        self.status = None

    def send(self, text):
        os.write(self.fd, text.encode())

    def wait_for(self, pattern):
        """Read until `pattern` appears behind what was found before."""
        deadline = time.monotonic() + SECONDS
        while True:
            match = re.search(pattern, self.seen)
            if match:
                found, self.seen = self.seen[: match.end()], self.seen[match.end() :]
                return found
            assert time.monotonic() < deadline, f"no {pattern!r} in {self.seen!r}"
            if select.select([self.fd], [], [], 0.1)[0]:
                try:
                    data = os.read(self.fd, 65536).decode(errors="replace")
                except OSError:
                    data = ""
                self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data)

    def exit_status(self):
        deadline = time.monotonic() + SECONDS
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = os.waitstatus_to_exitcode(status)
                return self.status
            if select.select([self.fd], [], [], 0.05)[0]:
                try:
                    os.read(self.fd, 65536)
                except OSError:
                    time.sleep(0.05)
        raise AssertionError("the program did not end")

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@contextlib.contextmanager
def chatting(fake_server, *words):
    # NO_CPR: this terminal does not answer where its cursor is.
    env = {**os.environ, "TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1"}
    program = Terminal(["chat", "--base-url", fake_server.url, *words], env)
    try:
        program.wait_for("/help lists the commands")
        yield program
    finally:
        program.close()


@pytest.fixture
def terminal(fake_server):
    with chatting(fake_server) as program:
        program.wait_for("› ")
        yield program


def test_a_prompt_on_a_terminal_is_the_first_message(fake_server):
    with chatting(fake_server, "-p", "hello you") as terminal:
        terminal.wait_for(r"\[2 tokens")
        terminal.send("again\r")
        terminal.wait_for(r"\[1 tokens")
        turns = [turn["content"].strip() for turn in fake_server.bodies[1]["messages"]]
        assert turns == ["hello you", "hello you", "again"]
        terminal.send("\x04")
        assert terminal.exit_status() == 0


def test_a_conversation_keeps_its_history(terminal, fake_server):
    terminal.send("hello you\r")
    terminal.wait_for(r"\[2 tokens · .*first token")
    terminal.send("again\r")
    terminal.wait_for(r"\[1 tokens · first token")
    assert [turn["content"].strip() for turn in fake_server.bodies[1]["messages"]] == [
        "hello you",
        "hello you",
        "again",
    ]
    terminal.send("\x04")
    assert terminal.exit_status() == 0


def test_ctrl_c_stops_the_reply_and_not_the_program(terminal, fake_server):
    words = " ".join(str(number) for number in range(100))
    terminal.send(f"slow {words}\r")
    terminal.wait_for(r"\nslow 0 1 2 ")  # the question's echo follows a prompt, not a line break
    terminal.send("\x03")
    terminal.wait_for(r"\[stopped\]")
    assert fake_server.cut_off.wait(SECONDS), "the server still generates"
    terminal.send("next\r")
    terminal.wait_for(r"\[1 tokens")
    stopped = fake_server.bodies[-1]["messages"][1]
    assert stopped["role"] == "assistant"
    assert stopped["content"].startswith("slow 0 1 2")
    terminal.send("/exit\r")
    assert terminal.exit_status() == 0


def test_text_typed_during_a_reply_outlives_ctrl_c(terminal, fake_server):
    terminal.send("slow a b c d e f g h\r")
    terminal.wait_for(r"\nslow a ")
    terminal.send("typed early")
    terminal.wait_for("b ")
    terminal.send("\x03")
    terminal.wait_for(r"\[stopped\]")
    terminal.send(" and late\r")
    terminal.wait_for(r"\[4 tokens")
    assert fake_server.bodies[-1]["messages"][-1]["content"] == "typed early and late"


def test_a_stopped_reply_counts_into_the_context(terminal):
    terminal.send("slow a b c d e f g h\r")
    terminal.wait_for(r"\nslow a ")
    terminal.send("\x03")
    terminal.wait_for(r"\[stopped\]")
    terminal.send("/stats\r")
    used = re.search(r"(\d+) of 4096", terminal.wait_for(r"context +\d+ of 4096"))
    assert int(used[1]) >= 11  # the question's nine words and two of the answer


def test_stats_tell_of_the_last_reply_and_of_all(terminal):
    terminal.send("/stats\r")
    assert "last reply" not in terminal.wait_for("replies +0, 0 tokens")
    terminal.send("guess this\r")
    terminal.wait_for(r"\[2 tokens")
    terminal.send("/stats\r")
    said = terminal.wait_for("replies +1, 2 tokens")
    assert re.search(r"last reply +2 tokens · .*first token \d", said)
    assert re.search("prompt +2 tokens, 1 of them from the prefix cache", said)
    assert re.search("guesses +8 tokens verified, 5 of them right", said)
    terminal.send("one more reply\r")
    terminal.wait_for(r"\[3 tokens")
    terminal.send("/stats\r")
    said = terminal.wait_for(r"replies +2, 5 tokens\s+prompts .*cache\s+guesses .*right")
    first, _, sums = said.rpartition("replies ")
    assert "guesses" not in first and re.search("last reply +3 tokens", first)
    assert re.search("prompts +5 tokens, 2 of them from the prefix cache", sums)
    assert re.search("guesses +8 tokens verified, 5 of them right", sums)


@pytest.mark.parametrize(("columns", "per_line"), [(40, 5), (0, 30)])
def test_words_of_a_reply_stay_whole(terminal, columns, per_line):
    """A terminal of unknown width breaks lines itself."""
    fcntl.ioctl(terminal.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    words = [f"word{number:03}" for number in range(30)]
    terminal.send(" ".join(words) + "\r")
    reply = terminal.wait_for(r"\[30 tokens").rpartition("word000")[2].partition("\n[30")[0]
    lines = [line.split() for line in f"word000{reply}".split("\n")]
    assert [len(line) for line in lines if line] == [per_line] * (30 // per_line)
    assert [word for line in lines for word in line] == words


def test_two_ctrl_c_at_the_prompt_leave(terminal):
    terminal.send("\x03")
    terminal.wait_for("Ctrl-C again")
    terminal.wait_for("› ")
    terminal.send("\x03")
    assert terminal.exit_status() == 0


def test_keys_pressed_during_a_reply_wait_for_the_prompt(terminal, fake_server):
    terminal.send("slow a b c\r")
    terminal.wait_for(r"\nslow a ")
    terminal.send("typed early\r")
    assert "typed" not in terminal.wait_for(r"\[4 tokens")
    terminal.wait_for(r"\[2 tokens")
    assert fake_server.bodies[1]["messages"][-1]["content"] == "typed early"


def test_an_error_loses_nothing(terminal, fake_server):
    terminal.send("one\r")
    terminal.wait_for(r"\[1 tokens")
    terminal.send("boom\r")
    terminal.wait_for("boom is not allowed")
    terminal.send("two\r")
    terminal.wait_for(r"\[1 tokens")
    messages = [turn["content"].strip() for turn in fake_server.bodies[-1]["messages"]]
    assert messages == ["one", "one", "two"]


def test_several_lines(terminal, fake_server):
    terminal.send("first\\\r")
    terminal.send("second")
    terminal.send("\x1b\r")
    terminal.send("third\r")
    terminal.wait_for(r"\[3 tokens")
    assert fake_server.bodies[0]["messages"][0]["content"] == "first\nsecond\nthird"


def test_three_quotes_make_a_block(terminal, fake_server):
    terminal.send('"""first\r')
    terminal.send("/bye\r\r")
    terminal.send('second"""\r')
    terminal.wait_for(r"\[3 tokens")
    assert fake_server.bodies[0]["messages"][0]["content"] == "first\n/bye\n\nsecond"
    terminal.send("/bye\r")
    assert terminal.exit_status() == 0


def test_dropped_pictures(fake_server, tmp_path):
    fake_server.inputs = ["text", "image"]
    for name in ("my pic.png", "b.png"):
        (tmp_path / name).write_bytes(PICTURE)
    with chatting(fake_server) as terminal:
        terminal.wait_for("› ")
        terminal.send(f"'{tmp_path}/my pic.png' \r")
        terminal.wait_for("With the next message: my pic.png")
        terminal.send("\x1b[200~" + f"file://{tmp_path}/b.png" + "\x1b[201~ what boom\r")
        terminal.wait_for("boom is not allowed")
        terminal.wait_for("With the next message: my pic.png .*, b.png .*; /image none")
        terminal.send("what is it\r")
        terminal.wait_for(r"\[3 tokens")
        terminal.send("/image nothing.png\r")
        terminal.wait_for("nothing.png cannot be opened")
        terminal.send("thanks\r")
        terminal.wait_for(r"\[1 tokens")
    first, _, last = fake_server.bodies[-1]["messages"]
    pictures = [part["image_url"]["url"] for part in first["content"][:-1]]
    assert pictures == ["data:image/png;base64," + base64.b64encode(PICTURE).decode()] * 2
    assert first["content"][-1] == {"type": "text", "text": "what is it"}
    assert last["content"] == "thanks"


def test_pictures_for_a_model_that_reads_text_alone(fake_server, tmp_path):
    fake_server.inputs = ["text"]
    path = tmp_path / "a.png"
    path.write_bytes(PICTURE)
    with chatting(fake_server) as terminal:
        for line in (f"/image {path}", f"{path}", f"'{path}' what is it"):
            terminal.wait_for("› ")
            terminal.send(f"{line}\r")
            terminal.wait_for("fake-model reads text alone")
        terminal.send(f"open {path} please\r")
        terminal.wait_for(r"\[3 tokens")
    assert [turn["content"] for turn in fake_server.bodies[0]["messages"]] == [
        f"open {path} please"
    ]


def test_commands(terminal, fake_server, tmp_path):
    terminal.send("/nonsense\r")
    terminal.wait_for("There is no command /nonsense")
    terminal.send("/system be kind\r")
    terminal.wait_for("system prompt is set")
    terminal.send("/set temperature 0.5\r")
    terminal.wait_for(r"temperature +0\.5")
    terminal.send("hello\r")
    terminal.wait_for(r"\[1 tokens")
    terminal.send("/regen\r")
    terminal.wait_for(r"\[1 tokens")
    assert fake_server.bodies[0] == fake_server.bodies[1]
    assert fake_server.bodies[1]["temperature"] == 0.5
    assert fake_server.bodies[1]["messages"][0] == {"role": "system", "content": "be kind"}
    terminal.send(f"/save {tmp_path}/chat.json\r")
    terminal.wait_for("2 messages are in")
    terminal.send("/clear\r")
    terminal.wait_for("The chat is empty")
    terminal.send(f"/load {tmp_path}/chat.json\r")
    terminal.wait_for("2 messages loaded")
    terminal.send("/stats\r")
    terminal.wait_for("of 4096 tokens")


def test_commands_complete_with_tab(terminal):
    terminal.send("/he\t")
    terminal.wait_for("lp")
    terminal.send("\r")
    terminal.wait_for("this list")
