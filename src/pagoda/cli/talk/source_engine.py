"""Replies from an engine of our own: a child process, and no HTTP."""

import asyncio
import itertools
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec

from pagoda.base.errors import PagodaError, RequestError
from pagoda.base.log import setup_logging
from pagoda.base.words import say
from pagoda.cli.talk.source import Clock, Piece, Usage, piece_of
from pagoda.config.engine import EngineConfig
from pagoda.core.sampling import SamplingParams
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.media import Placed, payloads
from pagoda.engine.offline_media import OfflineMedia, message_media
from pagoda.engine.outputs import OutputProcessor
from pagoda.engine.served.model import ServedModel, start_served_model
from pagoda.engine.start.progress import StartupDisplay

_Tokens = tuple[list[int], list[Placed]]
"""A prompt's token ids, and the pieces of media among them."""


class EngineSource:
    """One model in a child process."""

    place = say("on this machine")

    def __init__(self, served: ServedModel):
        self.served = served
        # A path is long, and its last part says which model it is.
        self.model = served.names[0].rstrip("/").rpartition("/")[2]
        self.max_model_len: int | None = served.max_model_len
        self.sees: bool | None = "image" in served.modalities
        self.defaults: Mapping[str, Any] = msgspec.structs.asdict(
            SamplingParams(**({"max_tokens": None} | served.defaults))
        )
        self._ids = itertools.count()

    @classmethod
    async def start(cls, config: EngineConfig) -> "EngineSource":
        """Load the model. Raises what loading raises; a bar shows whatever takes long."""
        # A chat's screen is for the chat: the engine speaks up when something is wrong.
        setup_logging("warning")
        served = await open_served_model(config)
        return cls(served)

    async def chat(
        self, messages: list[dict[str, Any]], options: dict[str, Any]
    ) -> AsyncIterator[Piece | Usage]:
        template = self.served.chat_template
        if template is None:
            raise RequestError(
                "The model has no chat template. Give one with --chat-template, or use "
                "`pagoda complete`."
            )
        prompt = template.render(messages)
        tokens = await asyncio.to_thread(self._with_media, prompt, messages)
        async for piece in self._reply(prompt, tokens, options, chat=True):
            yield piece

    async def complete(self, prompt: str, options: dict[str, Any]) -> AsyncIterator[Piece | Usage]:
        tokens: _Tokens = self.served.tokenizer.encode(prompt), []
        async for piece in self._reply(prompt, tokens, options, chat=False):
            yield piece

    async def count(self, messages: list[dict[str, Any]]) -> int | None:
        template = self.served.chat_template
        if template is None:
            return None
        try:
            text = template.render(messages, add_generation_prompt=False)
            ids, _ = await asyncio.to_thread(self._with_media, text, messages)
        except PagodaError:
            return None
        return len(ids)

    async def close(self) -> None:
        await self.served.client.shutdown()

    def _with_media(self, prompt: str, messages: list[dict[str, Any]]) -> _Tokens:
        """Token ids of a chat's prompt, with its pictures."""
        ready, served = self.served.client.ready, self.served
        media = OfflineMedia(served.text, {} if ready is None else ready.media, served.media)
        return media.place(prompt, message_media(messages), {}, add_special_tokens=False)

    async def _reply(
        self, prompt: str, tokens: _Tokens, options: dict[str, Any], *, chat: bool
    ) -> AsyncIterator[Piece | Usage]:
        parser = self.served.parser(prompt)
        stream = self._generate(prompt, tokens, options, chat=chat)
        async with aclosing(stream):
            async for item in stream:
                if isinstance(item, Usage):
                    for delta in parser.finish():
                        yield piece_of(delta)
                    yield item
                    return
                for delta in parser.feed(item):
                    yield piece_of(delta)

    async def _generate(
        self, prompt: str, tokens: _Tokens, options: dict[str, Any], *, chat: bool
    ) -> AsyncGenerator[str | Usage, None]:
        """Text as it comes, then the usage."""
        served = self.served
        ids, placed = tokens
        sampling = SamplingParams(**({"max_tokens": None} | served.defaults | options))
        grammar = None
        if sampling.structured_outputs is not None:
            grammar = self._grammar(prompt, sampling.structured_outputs, chat=chat)
        req_id = f"chat-{next(self._ids)}"
        request = served.make_request(req_id, ids, sampling, media=placed, grammar=grammar)
        served.client.adapters.apply(request, None, None)
        processor = OutputProcessor(served.tokenizer, request.sampling, ids, served.text.markup_ids)
        clock, count, cached, finish, guesses = Clock(), 0, 0, None, (0, 0)
        deltas = served.client.generate(request, payloads(placed))
        async with aclosing(deltas):
            async for delta in deltas:
                output = processor.process(delta)
                if output.error is not None:
                    raise PagodaError(f"The reply failed: {output.error}")
                if output.token_ids:
                    clock.mark()
                count += len(output.token_ids)
                cached = output.num_cached_tokens or cached
                finish = output.finish_reason
                if delta.num_draft_tokens:
                    guesses = delta.num_draft_tokens, delta.num_accepted_tokens
                if output.text:
                    yield output.text
                if finish is not None:
                    break
        yield clock.usage(len(ids), count, cached, finish, guesses)

    def _grammar(self, prompt: str, wanted: StructuredOutputsParams, *, chat: bool) -> str | None:
        """What --grammar or --json-schema holds a reply to."""
        from pagoda.engine.constraint import ToolUse, chat_constraint, completion_constraint

        if chat:
            return chat_constraint(self.served.text, prompt, wanted, ToolUse()).grammar
        return completion_constraint(wanted).grammar


async def open_served_model(config: EngineConfig) -> ServedModel:
    """Fetch the model, start its engine and wait until it is ready, with bars on a terminal."""
    display = StartupDisplay()
    try:
        return await start_served_model(config, display.update, log_level="warning")
    finally:
        display.close()
        sys.stderr.flush()
