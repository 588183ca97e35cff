"""`pagoda chat`: a conversation in the terminal."""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from pagoda.base import env
from pagoda.base.errors import ConfigError, PagodaError
from pagoda.base.words import message_of, say, tell, told
from pagoda.cli.connect import (
    add_source_arguments,
    open_source,
    refuse_text_as_model,
    request_options,
    say_answers,
)
from pagoda.cli.talk.blocks import block_of
from pagoda.cli.talk.chat_commands import (
    Next,
    attach,
    context_used,
    is_command,
    run_command,
    waiting,
)
from pagoda.cli.talk.conversation import Conversation
from pagoda.cli.talk.pictures import BEGINNINGS, dropped_pictures
from pagoda.cli.talk.piped import with_piped
from pagoda.cli.talk.reply import (
    ReplyPrinter,
    chat_printer,
    describe,
    on_ctrl_c,
    once_printer,
    show,
)
from pagoda.cli.talk.source import Source

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

USAGE = "[MODEL] [--base-url URL] [-p TEXT | -q TEXT] [flags]"
USUAL = (
    "--quick",
    "--system-prompt",
    "--base-url",
    "--model-name",
    "--api-key",
    "--temperature",
    "--top-p",
    "--max-tokens",
    "--max-model-len",
    "--gpu-memory-utilization",
)
EPILOG = (
    "Without MODEL and --base-url, a server on this machine's port 8000 answers; without a server "
    "the default model runs in this terminal. Text piped in, and -q's behind it, is one message; "
    "its reply goes to stdout."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("chat")
    group.add_argument("-q", "--quick", metavar="TEXT", help="print one reply and leave")
    group.add_argument(
        "-p", "--prompt", metavar="TEXT", help="say this first; on a terminal the chat goes on"
    )
    group.add_argument(
        "-sys", "--system-prompt", metavar="TEXT", help="how the model should behave"
    )
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    say_answers(args)
    refuse_text_as_model(args)
    return asyncio.run(_chat(args))


async def _chat(args: argparse.Namespace) -> int:
    chat = Conversation(system=args.system_prompt, options=request_options(args))
    on_terminal = sys.stdin is not None and sys.stdin.isatty()
    text = with_piped(args.prompt if args.quick is None and not on_terminal else args.quick)
    if text is not None:
        text = text.rstrip("\n")  # the one that `echo` adds is no part of a message
        if not text.strip():
            raise ConfigError(say("There is nothing to answer; give a text by -q or on the input."))
    source = await open_source(args)
    try:
        if text is None:
            return await _converse(chat, source, args.prompt)
        chat.ask(text)
        return await _answer_once(chat, source)
    finally:
        await source.close()


async def _answer_once(chat: Conversation, source: Source) -> int:
    """The answer on stdout, nothing else; thought is not part of it."""
    printer = chat_printer() if sys.stdout.isatty() else once_printer()
    reply = await show(source.chat(chat.messages(), chat.options), printer)
    return 130 if reply.stopped else 0


async def _converse(chat: Conversation, source: Source, first: str | None) -> int:
    from pagoda.cli.talk.terminal import make_session, quiet_keys

    printer = chat_printer()
    session = make_session(env.cache_dir() / "chat_history", lambda: _toolbar(chat, source))
    hint = tell("/help lists the commands, Ctrl-D leaves")
    printer.note(f"{source.model} {told(source.place)} · {hint}")
    with quiet_keys():
        if first is not None:
            await _say(first, chat, source, printer)
        return await _loop(session, chat, source, printer)


async def _loop(
    session: "PromptSession[str]", chat: Conversation, source: Source, printer: ReplyPrinter
) -> int:
    interrupted = False
    while True:
        try:
            line = (await session.prompt_async()).strip()
        except EOFError:
            return 0
        except KeyboardInterrupt:
            if interrupted:
                return 0
            printer.note(tell("Ctrl-C again, Ctrl-D or /exit leaves."))
            interrupted = True
            continue
        interrupted = False
        if line and await _take(line, chat, source, printer) is Next.EXIT:
            return 0


async def _take(line: str, chat: Conversation, source: Source, printer: ReplyPrinter) -> Next:
    """What the user typed: a command or a message. Errors are shown and nothing is lost."""
    before = list(chat.turns)
    try:
        message = _message(line, chat, source)
        if message:
            await _say(message, chat, source, printer)
            return Next.PROMPT
        if message is not None:
            if chat.pictures:
                printer.note(waiting(chat))
            return Next.PROMPT
        text, following = run_command(line, chat, source)
    except PagodaError as error:
        printer.note(told(message_of(error)))
        return Next.PROMPT
    if text:
        printer.note(text)
    if following is not Next.REPLY:
        return following
    await _reply(before, chat, source, printer)
    return Next.PROMPT


def _message(line: str, chat: Conversation, source: Source) -> str | None:
    """The text to send, without the paths of pictures, which wait in the chat for it; None for a
    command. Raises ConfigError for pictures alone that cannot be sent."""
    block = block_of(line)
    if block is not None:
        return block
    if is_command(line):
        return None
    paths, text = dropped_pictures(line)
    # A text may speak of a picture's path to a model that cannot see.
    if paths and (source.sees is not False or not text or line.startswith(BEGINNINGS)):
        attach(paths, chat, source)
        return text
    return None if line.startswith("/") else line


async def _say(text: str, chat: Conversation, source: Source, printer: ReplyPrinter) -> None:
    before, pictures = list(chat.turns), chat.pictures
    chat.ask(text)
    await _reply(before, chat, source, printer)
    if pictures and chat.turns == before:
        chat.pictures = pictures
        printer.note(tell("{waiting}; /image none leaves them out.", waiting=waiting(chat)))


async def _reply(
    before: list[dict[str, Any]], chat: Conversation, source: Source, printer: ReplyPrinter
) -> None:
    """Answer the last turn; where that fails, the chat is as `before` again."""
    try:
        reply = await show(source.chat(chat.messages(), chat.options), printer)
    except PagodaError as error:
        chat.turns = before
        printer.note(told(message_of(error)))
        return
    if reply.text or reply.usage:
        chat.answer(reply.text, reply.usage)
        if reply.usage is None:
            with on_ctrl_c(lambda: None):  # one more of those that stopped it
                chat.context = await source.count(chat.messages())
    else:
        chat.turns = before
    limits = chat.options.get("max_tokens"), source.max_model_len
    said = tell("stopped") if reply.usage is None else describe(reply.usage, *limits)
    printer.note(f"[{said}]\n")


def _toolbar(chat: Conversation, source: Source) -> str:
    length = source.max_model_len or "?"
    used = tell("{used} of {most} tokens", used=context_used(chat), most=length)
    names = ", ".join(picture.name for picture in chat.pictures)
    pictures = " · " + tell("with {names}", names=names) if names else ""
    return f" {source.model} · {used}{pictures}"
