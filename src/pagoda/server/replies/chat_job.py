"""From the body of a chat request to all that answering it needs; the bodies of other dialects
are translated into one first."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from pagoda.base.errors import RequestError
from pagoda.engine.aside.jobs import Constrain, Rendered
from pagoda.engine.constraint import Constraint
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import Prompt, encode
from pagoda.server.bodies.structure import constrained, is_named, tool_use
from pagoda.server.context import ReplyHead
from pagoda.server.media import MediaLoader
from pagoda.server.messages import final_text, render_prompt
from pagoda.server.metrics import Metrics
from pagoda.server.params import chat_params
from pagoda.server.protocol.chat import (
    BatchChatRequest,
    ChatBody,
    ChatCompletionRequest,
    ChatMessage,
)
from pagoda.server.replies.events import ReplyReader, ReplyStream
from pagoda.server.replies.generation import Generation, ReplyRules
from pagoda.server.replies.textlogprobs import TextLogprobs
from pagoda.text.media.options import media_options


@dataclass(frozen=True)
class History:
    """A conversation that is known by its tokens alone."""

    ids: list[int]
    turn: Callable[[ChatCompletionRequest, ServedModel], Awaitable[Rendered]]
    """Renders what the messages of a request add to it."""


@dataclass
class ChatJob:
    """All that answering one chat request, or a batch of them, needs."""

    body: ChatBody
    served: ServedModel
    generation: Generation
    head: ReplyHead
    prompt_texts: list[str]
    """One per conversation, of which each has `n` choices."""
    echoed: list[str]
    """With echo, the final message of each conversation, which the reply continues."""
    constraint: Constraint

    def stream(
        self, *, text_logprobs: bool = False, ended: Callable[[bool], None] | None = None
    ) -> ReplyStream:
        """Its events; with `text_logprobs` they say which belong to which text. `ended` hears of
        each choice's end, as of ReplyReader."""
        body, readers = self.body, []
        for index in range(self.generation.num_choices):
            parser = self.served.parser(self.prompt_texts[index // body.n], body.offered_tools)
            readers.append(
                ReplyReader(
                    index,
                    parser,
                    body.parallel_tool_calls,
                    is_named(body.tool_choice),
                    TextLogprobs(parser) if text_logprobs else None,
                    ended,
                )
            )
        return ReplyStream(self.generation, readers)


async def chat_job(
    body: ChatCompletionRequest,
    served: ServedModel,
    head: ReplyHead,
    metrics: Metrics,
    *,
    fits_length: bool = False,
    media: MediaLoader | None = None,
    history: History | None = None,
) -> ChatJob:
    """With `fits_length` a max_tokens beyond the context's end is lowered, where it is refused
    otherwise. `media` is the loader that has looked at the messages before, if one has. `history`
    stands before the messages."""
    sampling = chat_params(body, served)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    shown = await (render_chat(body, served) if history is None else history.turn(body, served))
    constraint = Constraint()
    budget = body.thinking_token_budget
    if use.tools or sampling.structured_outputs is not None or budget is not None:
        constraint = await constrained(
            body,
            served,
            Constrain(
                sampling.structured_outputs,
                shown.text,
                [dict(tool) for tool in use.tools],
                use.required,
                use.several,
                budget,
            ),
        )
    prompt = await chat_prompt(body, served, body.messages, shown, media)
    if history is not None:
        prompt = Prompt([*history.ids, *prompt.ids])
    if fits_length and sampling.max_tokens is not None:
        room = served.max_model_len - len(prompt.ids)
        sampling.max_tokens = max(1, min(sampling.max_tokens, room))
    prediction = await _prediction(body, served)
    rules = ReplyRules(constraint.grammar, served.text.markup_ids, prediction)
    generation = Generation(served, [prompt], sampling, body, head.id, metrics, rules)
    echoed = [final_text(body.messages)] if body.echo else []
    return ChatJob(body, served, generation, head, [shown.text], echoed, constraint)


async def batch_job(
    body: BatchChatRequest, served: ServedModel, head: ReplyHead, metrics: Metrics
) -> ChatJob:
    sampling = chat_params(body, served)
    if sampling.structured_outputs is not None:
        raise RequestError(
            "This server holds replies to a grammar or a schema, and a batch can't be; send its "
            "conversations one by one.",
            "messages",
        )
    texts, prompts = [], []
    for messages in body.messages:
        shown = await _render(body, served, messages)
        texts.append(shown.text)
        prompts.append(await chat_prompt(body, served, messages, shown))
        await asyncio.sleep(0)  # a thousand take a second, and others want theirs
    rules = ReplyRules(shown_ids=served.text.markup_ids)
    generation = Generation(served, prompts, sampling, body, head.id, metrics, rules)
    echoed = [final_text(messages) for messages in body.messages] if body.echo else []
    return ChatJob(body, served, generation, head, texts, echoed, Constraint())


async def render_chat(body: ChatCompletionRequest, served: ServedModel) -> Rendered:
    return await _render(body, served, body.messages)


async def chat_prompt(
    body: ChatBody,
    served: ServedModel,
    messages: list[ChatMessage],
    shown: Rendered,
    media: MediaLoader | None = None,
) -> Prompt:
    """Token ids of a conversation that was rendered as `shown`, with its media."""
    encoded = partial(
        encode,
        served,
        # Templates write the special tokens themselves; a second BOS would spoil the prompt.
        add_special_tokens=body.add_special_tokens,
        truncates=body.truncate_prompt_tokens is not None,
        param="messages",
    )
    options = media_options(body.media_io_kwargs, body.mm_processor_kwargs)
    return await (media or MediaLoader(served, options)).prompt(shown, messages, encoded)


async def _prediction(body: ChatCompletionRequest, served: ServedModel) -> list[int]:
    """Token ids of what the client expects of the reply."""
    if body.prediction is None:
        return []
    return await encode(
        served,
        body.prediction.text,
        add_special_tokens=False,
        truncates=False,
        param="prediction",
        what="prediction",
    )


async def _render(body: ChatBody, served: ServedModel, messages: list[ChatMessage]) -> Rendered:
    variables = dict(body.chat_template_kwargs)
    if body.documents is not None:
        variables.setdefault("documents", body.documents)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        variables.setdefault("enable_thinking", body.reasoning_effort != "none")
    return await render_prompt(
        served,
        messages,
        tools=body.offered_tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=variables,
        add_special_tokens=body.add_special_tokens,
    )
