"""The prompt of `pagoda chat`: history, several lines, Tab completion."""

import contextlib
import sys
import termios
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from pagoda.base.words import told
from pagoda.cli.talk.blocks import is_open
from pagoda.cli.talk.chat_commands import COMMANDS, FILE_COMMANDS

_LOCAL_FLAGS = 3  # index in the list of termios.tcgetattr
_STYLE = Style.from_dict({"prompt": "ansicyan bold", "bottom-toolbar": "noreverse ansibrightblack"})


class CommandCompleter(Completer):
    """/commands with their meaning, and paths behind those that take a file."""

    def __init__(self) -> None:
        self._paths = PathCompleter(expanduser=True)

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/"):
            return
        name, space, argument = text[1:].partition(" ")
        if space and name in FILE_COMMANDS:
            yield from self._paths.get_completions(Document(argument), complete_event)
        elif not space:
            for command in COMMANDS:
                if command.startswith(name):
                    doc = told(COMMANDS[command].doc)
                    yield Completion(command, -len(name), f"/{command}", display_meta=doc)


@contextlib.contextmanager
def quiet_keys() -> Iterator[None]:
    """Keys pressed while a reply streams are neither echoed into it nor lost: the next prompt
    reads them, also after the Ctrl-C that still interrupts."""
    before = termios.tcgetattr(sys.stdin)
    quiet = list(before)
    quiet[_LOCAL_FLAGS] &= ~(termios.ECHO | termios.ICANON)
    quiet[_LOCAL_FLAGS] |= termios.NOFLSH
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def make_session(history: Path, toolbar: Callable[[], AnyFormattedText]) -> "PromptSession[str]":
    """A prompt whose history is kept in the file `history`."""
    history.parent.mkdir(parents=True, exist_ok=True)
    history.touch()
    history.chmod(0o600)  # what is said in a chat is nobody else's business
    return PromptSession(
        [("class:prompt", "› ")],
        history=FileHistory(str(history)),
        completer=CommandCompleter(),
        complete_while_typing=True,
        key_bindings=_bindings(),
        multiline=True,
        prompt_continuation="  ",
        bottom_toolbar=toolbar,
        reserve_space_for_menu=4,
        style=_STYLE,
    )


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.insert_text("\n")
        elif buffer.document.current_line_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings
