"""The state of a chat, and how replies are shown."""

import asyncio
import io
import os
import signal
from typing import ClassVar

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from pagoda.base.errors import ConfigError, PagodaError
from pagoda.cli.talk.chat_commands import COMMANDS, Next, context_used, run_command
from pagoda.cli.talk.conversation import Conversation
from pagoda.cli.talk.reply import ReplyPrinter, describe, on_ctrl_c, printable
from pagoda.cli.talk.source import Piece, Usage
from pagoda.cli.talk.source_http import HttpSource
from pagoda.cli.talk.terminal import make_session

USAGE = Usage(10, 21, 4, 0.5, 2.5, "stop")


class NoSource:
    model, place, max_model_len = "m", "here", 100
    defaults: ClassVar = {"temperature": 0.6, "top_k": 40, "seed": None}


def test_a_saved_chat_is_loaded_whole(tmp_path):
    chat = Conversation(system="be brief")
    chat.ask("你好")
    chat.answer("hi", USAGE)
    chat.save(tmp_path / "chat.json")
    other = Conversation(system="forgotten")
    other.load(tmp_path / "chat.json")
    assert (other.system, other.turns) == (chat.system, chat.turns)


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"role": "user", "content": [1]}]'])
def test_a_file_that_is_no_chat_changes_nothing(tmp_path, text):
    (tmp_path / "file").write_text(text)
    chat = Conversation()
    chat.ask("kept")
    if text != "{}":
        with pytest.raises(ConfigError):
            chat.load(tmp_path / "file")
        assert chat.turns == [{"role": "user", "content": "kept"}]


def test_set_shows_what_is_in_force():
    chat = Conversation()
    shown, _ = run_command("/set top_k 7", chat, NoSource())
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines())
    assert lines["top_k"] == "7"
    assert lines["temperature"] == "0.6 (default)"
    assert lines["seed"] == lines["min_p"] == "default"  # drawn anew, and not known


@pytest.mark.parametrize("seed", [-1, 5])
def test_a_server_tells_what_is_in_force(fake_server, seed):
    """By llama-server's names; -1 is a seed drawn anew."""
    fake_server.defaults = {"temperature": 0.3, "repeat_penalty": 1.1, "seed": seed, "n_probs": 0}

    async def shown():
        source = await HttpSource.connect(f"{fake_server.url}/v1")
        try:
            return run_command("/set", Conversation(), source)[0]
        finally:
            await source.close()

    lines = dict(line.split(maxsplit=1) for line in asyncio.run(shown()).splitlines())
    assert lines["temperature"] == "0.3 (default)"
    assert lines["repetition_penalty"] == "1.1 (default)"
    assert lines["seed"] == ("default" if seed < 0 else "5 (default)")


def test_options_have_types():
    chat = Conversation()
    chat.set_option("top_k", "40")
    chat.set_option("temperature", "0.7")
    assert chat.options == {"top_k": 40, "temperature": 0.7}
    chat.set_option("top_k", "default")
    assert chat.options == {"temperature": 0.7}
    with pytest.raises(ConfigError, match="no value"):
        chat.set_option("seed", "x")
    with pytest.raises(ConfigError, match="options: temperature"):
        chat.set_option("heat", "1")


def test_regen_needs_a_question():
    with pytest.raises(ConfigError, match="nothing to answer"):
        run_command("/regen", Conversation(), NoSource())


def test_regen_takes_the_answer_back():
    chat = Conversation()
    chat.ask("q")
    chat.answer("a", USAGE)
    assert run_command("/regen", chat, NoSource()) == ("", Next.REPLY)
    assert chat.turns == [{"role": "user", "content": "q"}]


def test_help_lists_every_command():
    text, _ = run_command("/help", Conversation(), NoSource())
    assert all(f"/{name}" in text for name in COMMANDS)


@pytest.mark.parametrize("line", ["/exit", "/quit"])
def test_leaving(line):
    assert run_command(line, Conversation(), NoSource())[1] is Next.EXIT


def test_an_unknown_command_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean /clear"):
        run_command("/claer", Conversation(), NoSource())


def test_commands_do_not_mind_capitals():
    assert run_command("/HELP", Conversation(), NoSource()) == run_command(
        "/help", Conversation(), NoSource()
    )


def test_a_word_like_no_command_gets_no_suggestion():
    with pytest.raises(ConfigError, match=r"no command /tempfoo; /help lists them\.$"):
        run_command("/tempfoo", Conversation(), NoSource())


@pytest.mark.parametrize("name", ["read", "load"])
def test_a_file_that_is_not_there_is_a_sentence(name):
    with pytest.raises(
        ConfigError, match=r"^/nope/x cannot be opened: No such file or directory\.$"
    ):
        run_command(f"/{name} /nope/x", Conversation(), NoSource())


def test_a_file_that_is_no_text_is_a_sentence(tmp_path):
    file = tmp_path / "binary"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="binary is not text"):
        run_command(f"/read {file}", Conversation(), NoSource())


@pytest.mark.parametrize("option", ["temperature 9", "top_p 2", "temperature -1"])
def test_values_out_of_range_are_refused_at_once(option):
    chat = Conversation()
    with pytest.raises(PagodaError, match=option.split()[0]):
        run_command(f"/set {option}", chat, NoSource())
    assert chat.options == {}


def test_the_history_is_for_its_user_alone(tmp_path):
    history = tmp_path / "cache" / "chat_history"
    history.parent.mkdir()
    history.write_text("")
    history.chmod(0o644)
    with create_pipe_input() as keys, create_app_session(input=keys, output=DummyOutput()):
        make_session(history, lambda: "")
    assert history.stat().st_mode & 0o777 == 0o600


def test_figures_of_a_reply():
    assert describe(USAGE) == "21 tokens · 10.0 tok/s · first token 0.50 s"
    assert "tok/s" not in describe(Usage(1, 1, 0, 0.5, 0.5, "stop"))


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "context", "said"),
    [
        (9, 9, 100, "cut off at max_tokens (9)"),
        (9, 9, None, "cut off at max_tokens (9)"),
        (9, None, 100, "cut off at 9 tokens, the limit of the model or server"),
        (9, 20, 100, "cut off at 9 tokens, the limit of the model or server"),
        (90, None, 100, "cut off: no room for more tokens"),
        (90, 200, 100, "cut off: no room for more tokens"),
        (9, None, None, "cut off: no room for more tokens"),
    ],
)
def test_a_reply_that_is_cut_off_says_by_what(tokens, max_tokens, context, said):
    usage = Usage(10, tokens, 0, 0.5, 1.0, "length")
    assert describe(usage, max_tokens, context).endswith(f" · {said}")


def test_the_context_in_use():
    chat = Conversation()
    assert context_used(chat) == "0"
    chat.ask("q")
    chat.answer("a", USAGE)
    assert context_used(chat) == "31"
    chat.ask("another")
    chat.answer("half of an answ", None)  # it was stopped, and nobody has counted
    assert context_used(chat) == "?"
    chat.context = 40
    assert context_used(chat) == "40"
    chat.clear()
    assert context_used(chat) == "0"


def test_a_loaded_chat_is_not_empty(tmp_path):
    chat = Conversation()
    chat.ask("q")
    chat.answer("a", USAGE)
    chat.save(tmp_path / "chat.json")
    other = Conversation()
    other.load(tmp_path / "chat.json")
    assert context_used(other) == "?"


def test_a_model_cannot_drive_the_terminal():
    assert printable("a\x1b[2Jb\r\x07\x9bc\n\td") == "a[2Jbc\n\td"
    family = "👩‍👩‍👧 é 漢字\u00a0x"
    assert printable(family) == family


async def test_ctrl_c_is_for_what_runs_and_ends_nothing_else():
    pressed = []
    with on_ctrl_c(lambda: pressed.append("C")):
        os.kill(os.getpid(), signal.SIGINT)
        while not pressed:
            await asyncio.sleep(0)
    assert pressed == ["C"]


def test_thought_is_dim_and_apart():
    out = io.StringIO()
    printer = ReplyPrinter(out, color=True)
    for piece in (Piece("reasoning", "\nhm"), Piece("text", "\n\nyes"), Piece("text", "\n")):
        printer.feed(piece)
    printer.finish()
    assert out.getvalue() == "\x1b[2mhm\x1b[0m\n\nyes\n\n"


def test_a_stopped_thought_leaves_no_dim_text():
    out = io.StringIO()
    printer = ReplyPrinter(out, color=True)
    printer.feed(Piece("reasoning", "hm"))
    printer.finish()
    assert out.getvalue() == "\x1b[2mhm\x1b[0m\n"
