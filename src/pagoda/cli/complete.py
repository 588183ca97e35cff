"""`pagoda complete`: text goes on as the model would, without a chat template."""

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from pagoda.base.errors import PagodaError
from pagoda.base.words import message_of, tell, told
from pagoda.cli.connect import (
    add_source_arguments,
    open_source,
    refuse_text_as_model,
    request_options,
    say_answers,
)
from pagoda.cli.talk.piped import with_piped
from pagoda.cli.talk.reply import ReplyPrinter, describe, once_printer, show
from pagoda.cli.talk.source import Source

if TYPE_CHECKING:
    from prompt_toolkit import PromptSession

USAGE = "[MODEL] [--base-url URL] [-p TEXT] [flags]"
USUAL = (
    "--prompt",
    "--base-url",
    "--model-name",
    "--api-key",
    "--temperature",
    "--top-p",
    "--max-tokens",
    "--max-model-len",
    "--gpu-memory-utilization",
)
_DEFAULT_TOKENS = 128


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("complete")
    group.add_argument(
        "-p", "--prompt", "-q", "--quick", dest="quick", metavar="TEXT",
        help="continue this text and leave",
    )  # fmt: skip
    add_source_arguments(parser)


def run(args: argparse.Namespace) -> int:
    say_answers(args)
    refuse_text_as_model(args)
    return asyncio.run(_complete(args))


async def _complete(args: argparse.Namespace) -> int:
    options = {"max_tokens": _DEFAULT_TOKENS} | request_options(args)
    text = with_piped(args.quick)
    source = await open_source(args)
    try:
        if text is None:
            return await _prompt_loop(source, options)
        reply = await show(source.complete(text, options), once_printer(strip=False))
        return 130 if reply.stopped else 0
    finally:
        await source.close()


async def _prompt_loop(source: Source, options: dict[str, Any]) -> int:
    from prompt_toolkit import PromptSession

    from pagoda.cli.talk.terminal import quiet_keys

    printer = ReplyPrinter(sys.stdout, color=True, strip=False)
    hint = tell("text in, its continuation out; Ctrl-D leaves")
    printer.note(f"{source.model} {told(source.place)} · {hint}")
    session: PromptSession[str] = PromptSession("› ")
    with quiet_keys():
        return await _loop(session, source, options, printer)


async def _loop(
    session: "PromptSession[str]",
    source: Source,
    options: dict[str, Any],
    printer: ReplyPrinter,
) -> int:
    while True:
        try:
            text = await session.prompt_async()
        except (EOFError, KeyboardInterrupt):
            return 0
        if not text:
            continue
        try:
            reply = await show(source.complete(text, options), printer)
        except PagodaError as error:
            printer.note(told(message_of(error)))
            continue
        limits = options["max_tokens"], source.max_model_len
        said = tell("stopped") if reply.usage is None else describe(reply.usage, *limits)
        printer.note(f"[{said}]")
