"""What /api/generate answers with: a turn of a chat, a raw prompt, or what fills a gap."""

import asyncio
from functools import partial

from pagoda.base.errors import RequestError
from pagoda.engine.aside.jobs import Constrain, Rendered
from pagoda.engine.constraint import Constraint
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import Prompt, encode
from pagoda.server.bodies.structure import constrained
from pagoda.server.context import ReplyHead
from pagoda.server.errors import ApiError
from pagoda.server.metrics import Metrics
from pagoda.server.params import chat_params
from pagoda.server.protocol.chat import ChatCompletionRequest, ChatMessage
from pagoda.server.protocol.ollama import OllamaGenerateRequest
from pagoda.server.replies.chat_job import History, chat_job, render_chat
from pagoda.server.replies.events import ReplyStream
from pagoda.server.replies.generation import Generation, ReplyRules
from pagoda.text.fim import fim_tokens, infill_prompt

# Private characters: no template writes them.
_MARK = "\ue000what was said\ue001"


async def generate_stream(
    body: OllamaGenerateRequest,
    chat: ChatCompletionRequest,
    served: ServedModel,
    head: ReplyHead,
    metrics: Metrics,
) -> tuple[ReplyStream, Constraint]:
    """`chat` is `body` as a chat request. Raises RequestError for what cannot be answered, and
    ApiError 501 for a suffix where the model has no tokens for one."""
    _check(body)
    if body.raw or body.suffix:
        return await _prompted(await _prompt_ids(body, chat, served), chat, served, head, metrics)
    history = None
    if body.context:
        history = History(body.context, partial(_next_turn, last=body.context[-1]))
    job = await chat_job(chat, served, head, metrics, fits_length=True, history=history)
    return job.stream(), job.constraint


def _check(body: OllamaGenerateRequest) -> None:
    if (body.raw or body.suffix) and (body.system or body.context or body.images):
        what = "raw" if body.raw else "suffix"
        raise RequestError(
            f"{what} takes the prompt as it is: leave out system, context and images.", what
        )
    if body.context and body.images:
        raise RequestError(
            "A context holds no images; send such a conversation to /api/chat.", "context"
        )


async def _prompted(
    ids: list[int],
    chat: ChatCompletionRequest,
    served: ServedModel,
    head: ReplyHead,
    metrics: Metrics,
) -> tuple[ReplyStream, Constraint]:
    sampling, constraint = chat_params(chat, served), Constraint()
    if sampling.structured_outputs is not None:
        constraint = await constrained(chat, served, Constrain(sampling.structured_outputs))
    if sampling.max_tokens is not None:
        room = served.max_model_len - len(ids)
        sampling.max_tokens = max(1, min(sampling.max_tokens, room))
    rules = ReplyRules(constraint.grammar)
    generation = Generation(served, [Prompt(ids)], sampling, chat, head.id, metrics, rules)
    return ReplyStream(generation), constraint


async def _prompt_ids(
    body: OllamaGenerateRequest, chat: ChatCompletionRequest, served: ServedModel
) -> list[int]:
    if not body.suffix:
        return await encode(
            served, body.prompt, add_special_tokens=True, truncates=False, param="prompt"
        )
    fim = fim_tokens(served.tokenizer)
    if fim is None:
        raise ApiError(
            501,
            f"{served.names[0]} has no tokens for filling in the middle; serve a code model that "
            "has them, such as Qwen2.5-Coder, or send the prompt without a suffix.",
        )
    wanted = chat.max_completion_tokens or 1
    return await asyncio.to_thread(
        infill_prompt, served.tokenizer, fim, body.prompt, body.suffix, "", [],
        served.max_model_len - wanted,
    )  # fmt: skip


async def _next_turn(chat: ChatCompletionRequest, served: ServedModel, *, last: int) -> Rendered:
    """What the template writes behind a reply whose last token is `last`: its end, and what the
    user says next. A system message stands where the conversation began, and was told there."""
    *system, user = chat.messages
    before = [
        *system,
        ChatMessage(role="user", content="."),
        ChatMessage(role="assistant", content=_MARK),
    ]
    shown = await render_chat(chat.model_copy(update={"messages": [*before, user]}), served)
    _, mark, turn = shown.text.rpartition(_MARK)
    if not mark:
        raise RequestError(
            "The model's chat template takes no reply back, so a context cannot go on; send the "
            "conversation to /api/chat.",
            "context",
        )
    if last in served.tokenizer.eos_token_ids:
        turn = turn.removeprefix(served.tokenizer.token_text(last))
    return Rendered(turn)
