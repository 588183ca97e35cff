"""Showing one reply as it streams in."""

import asyncio
import contextlib
import os
import signal
import sys
import unicodedata
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from pagoda.base.words import tell
from pagoda.cli.talk.source import Piece, Usage

if TYPE_CHECKING:
    from pagoda.cli.talk.wrap import WordWrap

_DIM, _RESET = "\x1b[2m", "\x1b[0m"


@dataclass
class Reply:
    text: str = ""
    usage: Usage | None = None
    """None where the reply was stopped."""
    stopped: bool = False


class ReplyPrinter:
    """Writes text to `out` and thought apart: dim before it, or to `thoughts` where given. `wrap`
    breaks the lines of `out`."""

    def __init__(
        self,
        out: TextIO,
        *,
        color: bool,
        thoughts: TextIO | None = None,
        strip: bool = True,
        wrap: "WordWrap | None" = None,
    ):
        self._out = out
        self._wrap = wrap
        self._strip = strip
        self._color = color
        self._thoughts = thoughts
        self._kind = "text"
        self._begun = False
        self._wrote = False

    def feed(self, piece: Piece) -> None:
        text = printable(piece.text)
        if piece.kind != self._kind:
            self._switch(piece.kind)
        if self._strip and not self._begun:
            # Templates leave blank lines before the answer; on a screen they are noise.
            text = text.lstrip("\n")
        if not text:
            return
        self._begun = self._wrote = True
        if piece.kind == "reasoning" and self._thoughts:
            self._thoughts.write(text)
            self._thoughts.flush()
            return
        self._out.write(text if self._wrap is None else self._wrap.feed(text))
        self._out.flush()

    def finish(self) -> None:
        self._write_rest()
        if self._kind == "reasoning" and self._color:
            self._out.write(_RESET)
        if self._wrote:
            self._out.write("\n")
        self._out.flush()
        self._kind, self._begun, self._wrote = "text", False, False

    def note(self, text: str) -> None:
        """A remark of Pagoda's own."""
        self._out.write(f"{_DIM}{text}{_RESET}\n" if self._color else f"{text}\n")
        self._out.flush()

    def _write_rest(self) -> None:
        if self._wrap is not None:
            self._out.write(self._wrap.finish())

    def _switch(self, kind: str) -> None:
        self._write_rest()
        target = self._thoughts or self._out
        if kind == "reasoning":
            target.write(_DIM if self._color else "")
        else:
            target.write((_RESET if self._color else "") + ("\n\n" if self._begun else ""))
        target.flush()
        self._kind, self._begun = kind, False


def once_printer(*, strip: bool = True) -> ReplyPrinter:
    """For a single reply: where stdout is no terminal it gets the answer and stderr the thought."""
    terminal = sys.stdout.isatty()
    thoughts = None if terminal else sys.stderr
    return ReplyPrinter(sys.stdout, color=terminal, thoughts=thoughts, strip=strip)


def chat_printer() -> ReplyPrinter:
    """For replies on a terminal, whose lines end between words."""
    from pagoda.cli.talk.wrap import WordWrap

    return ReplyPrinter(sys.stdout, color=True, wrap=WordWrap(_columns))


def _columns() -> int:
    """The terminal's width as it is now; 0 where stdout is none."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except OSError:
        return 0


async def show(stream: AsyncIterator[Piece | Usage], printer: ReplyPrinter) -> Reply:
    """Print a reply until it ends or Ctrl-C stops it; the program goes on either way."""
    reply = Reply()
    task = asyncio.ensure_future(_consume(stream, printer, reply))
    with on_ctrl_c(task.cancel):
        try:
            await task
        except asyncio.CancelledError:
            reply.stopped = True
        finally:
            printer.finish()
    return reply


@contextlib.contextmanager
def on_ctrl_c(react: Callable[[], object]) -> Iterator[None]:
    """During the block Ctrl-C calls `react`, and ends nothing."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, react)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


async def _consume(
    stream: AsyncIterator[Piece | Usage], printer: ReplyPrinter, reply: Reply
) -> None:
    async for item in stream:
        if isinstance(item, Usage):
            reply.usage = item
            continue
        printer.feed(item)
        if item.kind == "text":
            reply.text += item.text


def printable(text: str) -> str:
    """Without control characters: a model's text must not drive the terminal."""
    if text.isprintable():
        return text
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


def describe(usage: Usage, max_tokens: int | None = None, context: int | None = None) -> str:
    """`42 tokens · 31.2 tok/s · first token 0.21 s`, and what cut it off: the `max_tokens` that
    were asked for, a default, or the end of the `context` (tokens; None: not known)."""
    parts = [tell("{count} tokens", count=usage.completion_tokens)]
    if usage.tokens_per_second is not None:
        parts.append(f"{usage.tokens_per_second:.1f} tok/s")
    parts.append(tell("first token {seconds:.2f} s", seconds=usage.first_token_seconds))
    if usage.finish_reason == "length":
        parts.append(_what_cut(usage, max_tokens, context))
    return " · ".join(parts)


def _what_cut(usage: Usage, max_tokens: int | None, context: int | None) -> str:
    count = usage.completion_tokens
    if max_tokens is not None and count >= max_tokens:
        return tell("cut off at max_tokens ({max_tokens})", max_tokens=max_tokens)
    if context is not None and usage.prompt_tokens + count < context:
        return tell("cut off at {count} tokens, the limit of the model or server", count=count)
    return tell("cut off: no room for more tokens")
