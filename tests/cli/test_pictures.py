"""Pictures in `pagoda chat`, and messages between three quotes."""

import base64
import io
import os
import shlex
from pathlib import Path

import pytest
from PIL import Image

from pagoda.base.errors import ConfigError
from pagoda.cli.talk.blocks import block_of, is_open
from pagoda.cli.talk.chat_commands import Next, is_command, run_command
from pagoda.cli.talk.conversation import Conversation
from pagoda.cli.talk.pictures import dropped_pictures, paths_of, read_picture

NAMES = ("plain.png", "my pic.png", "it's.png", "图片 1.png", 'a"b.png', "50%20.png", "a\\b.png")


class Seeing:
    model, place, max_model_len, sees = "m", "here", 100, True


class Blind(Seeing):
    sees = False


def picture(kind="PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (8, 6), (200, 30, 30)).save(out, kind)
    return out.getvalue()


@pytest.fixture
def folder(tmp_path):
    for name in NAMES:
        (tmp_path / name).write_bytes(picture())
    (tmp_path / "notes.txt").write_text("no picture")
    return tmp_path


def backslashed(path: Path) -> str:
    return "".join(c if c.isalnum() or c in "/._-" else f"\\{c}" for c in str(path))


# As terminals paste a file that is dropped onto them.
FORMS = {
    "quoted": lambda path: shlex.quote(str(path)),
    "always-quoted": lambda path: "'" + str(path).replace("'", "'\\''") + "'",
    "backslashes": backslashed,
    "url": Path.as_uri,
    "quoted-url": lambda path: f"'{path.as_uri()}'",
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_dropped_pictures_are_found(form, name, folder):
    path = folder / name
    other = folder / "plain.png"
    assert dropped_pictures(form(path)) == ([path], "")
    assert dropped_pictures(f"{form(path)} {form(other)} ") == ([path, other], "")
    assert dropped_pictures(f"What is {form(path)} there?") == ([path], "What is  there?")
    assert paths_of(f"{form(path)} {form(other)}") == [path, other]


def test_a_path_with_blanks_may_stand_alone(folder):
    assert dropped_pictures(str(folder / "my pic.png")) == ([folder / "my pic.png"], "")


def test_other_words_stay_text(folder):
    notes, missing = folder / "notes.txt", folder / "none.png"
    for text in (
        f"read {notes}", f"open {missing}", f"{folder}", "no path", "it's 'so' \"so\" \\ /", "/",
        "plain.png", "file://", "'", f"glued{folder / 'plain.png'}", "/" + "x" * 5000,
        "~nobody-at-all/x", "it's a\\", "file://[x", "file://[/x",
    ):  # fmt: skip
        assert dropped_pictures(text) == ([], text)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP"])
def test_a_picture_is_read_whole(kind, tmp_path):
    (tmp_path / "a").write_bytes(picture(kind))
    read = read_picture(tmp_path / "a")
    head, _, data = read.url.partition(",")
    assert head == f"data:image/{kind.lower()};base64" and base64.b64decode(data) == picture(kind)


def test_what_cannot_be_sent(tmp_path, monkeypatch):
    (tmp_path / "text").write_text("words")
    (tmp_path / "big").write_bytes(picture())
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr("pagoda.cli.talk.pictures._MAX_BYTES", 10)
    for name, said in (
        ("text", "is no picture that can be sent"), ("big", "at most 10 B are sent"),
        ("none", "No such file"), ("", "is no file"), ("pipe", "is no file"),
    ):  # fmt: skip
        monkeypatch.setattr("pagoda.cli.talk.pictures._MAX_BYTES", 10 if name == "big" else 10**6)
        with pytest.raises(ConfigError, match=said):
            read_picture(tmp_path / name)


def test_pictures_go_with_the_next_message_alone(folder):
    chat = Conversation()
    text, following = run_command(f"/image {folder}/plain.png", chat, Seeing())
    assert following is Next.PROMPT and text.startswith("With the next message: plain.png (")
    run_command(f"/image '{folder}/my pic.png'", chat, Seeing())
    chat.ask("what?")
    chat.ask("and now?")
    first, second = (turn["content"] for turn in chat.turns)
    assert [part["type"] for part in first] == ["image_url", "image_url", "text"]
    assert first[-1]["text"] == "what?" and second == "and now?"


def test_pictures_may_be_left_out(folder):
    chat = Conversation()
    run_command(f"/image {folder}/plain.png", chat, Seeing())
    assert "No picture waits" in run_command("/image none", chat, Seeing())[0]
    chat.ask("what?")
    assert chat.turns == [{"role": "user", "content": "what?"}]


def test_one_bad_path_takes_none(folder):
    chat = Conversation()
    with pytest.raises(ConfigError, match="cannot be opened"):
        run_command(f"/image {folder}/plain.png {folder}/none.png", chat, Seeing())
    assert chat.pictures == []


@pytest.mark.parametrize("argument", ["it's none", "~nobody-at-all/x", "a' b", "none.png"])
def test_a_path_that_is_none(argument, folder):
    with pytest.raises(ConfigError, match="cannot be opened"):
        run_command(f"/image {argument}", Conversation(), Seeing())
    with pytest.raises(ConfigError, match="cannot be opened"):
        run_command(f"/read {argument}", Conversation(), Seeing())


def test_a_model_without_eyes(folder):
    chat = Conversation()
    with pytest.raises(ConfigError, match="m reads text alone"):
        run_command(f"/image {folder}/plain.png", chat, Blind())
    assert chat.pictures == []


def test_a_saved_chat_keeps_its_pictures(folder, tmp_path):
    chat = Conversation()
    run_command(f"/image {folder}/plain.png", chat, Seeing())
    chat.ask("what?")
    chat.save(tmp_path / "chat.json")
    other = Conversation()
    other.load(tmp_path / "chat.json")
    assert other.turns == chat.turns


@pytest.mark.parametrize(
    "part",
    [
        '{"type": "image_url", "image_url": {"url": "http://elsewhere/x.png"}}',
        '{"type": "image_url"}', '{"type": "audio"}', '{"text": "a"}', "1",
    ],
)  # fmt: skip
def test_a_saved_chat_with_other_parts_is_refused(part, tmp_path):
    (tmp_path / "chat.json").write_text(f'[{{"role": "user", "content": [{part}]}}]')
    with pytest.raises(ConfigError):
        Conversation().load(tmp_path / "chat.json")


@pytest.mark.parametrize("line", ["/bye", "/BYE", "/image x", "/help"])
def test_commands_are_told_from_paths(line):
    assert is_command(line) and not is_command(line[1:])
    assert not is_command(f"/home{line}")


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ('"""\none\n\n /two\n"""', "one\n\n /two"),
        ('"""one"""', "one"),
        ('  """one\ntwo"""  ', "one\ntwo"),
        ('""""""', ""),
        ('"""\nsay "" and """ so\n"""', 'say "" and """ so'),
        ("'''one'''", None),
        ('he said """so"""', None),
    ],
)
def test_blocks(text, block):
    assert block_of(text) == block and not is_open(text)


@pytest.mark.parametrize("text", ['"""', '""""', '"""one', '"""\none\n', '"""one""" two'])
def test_open_blocks(text):
    assert is_open(text) and block_of(text) is None
