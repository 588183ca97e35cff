"""llama-server's own generating routes: /completion, /infill and what counts or shows prompts."""

import asyncio
import uuid
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import read_body
from pagoda.server.bodies.prompts import MAX_PROMPTS, Prompt, split_pieces
from pagoda.server.context import context_of, reply_head
from pagoda.server.errors import ApiError
from pagoda.server.nativeparams import native_grammar, native_params, prompt_ids
from pagoda.server.openapi import describe
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.native import (
    InfillRequest,
    InputTokens,
    NativeBody,
    NativeChunk,
    NativeCompletion,
    NativeCompletionRequest,
    PromptText,
)
from pagoda.server.replies.chat_job import chat_prompt, render_chat
from pagoda.server.replies.generation import Generation, ReplyRules
from pagoda.server.replies.native import NativeReply
from pagoda.server.replies.respond import json_reply, respond
from pagoda.server.requestlog import log_request
from pagoda.text.fim import fim_tokens, infill_prompt

router = APIRouter()


def _described(body: type[NativeBody], *refusals: int) -> dict[str, Any]:
    extra = describe(
        body, NativeCompletion, NativeChunk, NativeCompletion, many=True, refusals=refusals
    )
    content = extra["responses"]["200"]["content"]
    whole = content["application/json"]["schema"]
    selected = {"type": "object", "description": "Only the response_fields."}
    whole["anyOf"] += [selected, {"type": "array", "items": selected}]
    _, told = content["text/event-stream"]["schema"]["properties"]["data"]["anyOf"]
    told["contentSchema"]["anyOf"].append(selected)
    return extra


_COMPLETION = _described(NativeCompletionRequest)


@router.post("/completion", openapi_extra=_COMPLETION)
@router.post("/completions", openapi_extra=_COMPLETION)
async def create_native_completion(request: Request) -> Response:
    """Not OpenAI's, which is /v1/completions."""
    body = await read_body(request, NativeCompletionRequest)
    served = await context_of(request).served(request, body.model)
    prompts = split_pieces(body.prompt, "prompt")
    if len(prompts) * body.n_cmpl > MAX_PROMPTS:
        raise RequestError(f"prompts times n_cmpl must be at most {MAX_PROMPTS}.", "n_cmpl")
    ids = []
    for prompt in prompts:
        ids.append(await prompt_ids(served, prompt))
        await asyncio.sleep(0)  # a thousand prompts take a second, and others want theirs
    return await _reply(request, body, served, ids)


@router.post("/infill", openapi_extra=_described(InfillRequest, 501))
async def infill(request: Request) -> Response:
    """What belongs between a prefix and a suffix, by a model that was trained for it."""
    body = await read_body(request, InfillRequest)
    served = await context_of(request).served(request, body.model)
    fim = fim_tokens(served.tokenizer)
    if fim is None:
        raise ApiError(
            501,
            f"{served.names[0]} has no tokens for filling in the middle; serve a code model that "
            "has them, such as Qwen2.5-Coder, or use /completion with the prefix alone.",
        )
    files = [(file.filename, file.text) for file in body.input_extra]
    wanted = max(body.n_predict, 1)
    ids = await asyncio.to_thread(
        infill_prompt, served.tokenizer, fim, body.input_prefix, body.input_suffix, body.prompt,
        files, served.max_model_len - wanted,
    )  # fmt: skip
    return await _reply(request, body, served, [ids])


async def _reply(
    request: Request, body: NativeBody, served: ServedModel, prompts: list[list[int]]
) -> Response:
    context = context_of(request)
    sampling = native_params(body, served)
    head = reply_head(request, "native", body.request_id, body.model or served.names[0])
    if not body.cache_prompt:
        body.cache_salt = uuid.uuid4().hex
    rules = ReplyRules(await native_grammar(body, served))
    given = [Prompt(ids) for ids in prompts]
    generation = Generation(served, given, sampling, body, head.id, context.metrics, rules)
    log_request(context.config, head.id, generation)
    reply = NativeReply(generation, body, head)
    return await respond(request, context, reply, streamed=body.stream)


@router.post("/apply-template", openapi_extra=describe(ChatCompletionRequest, PromptText))
async def apply_template(request: Request) -> Response:
    """The prompt that a chat request would become."""
    body = await read_body(request, ChatCompletionRequest)
    served = await context_of(request).served(request, body.model)
    return json_reply(PromptText((await render_chat(body, served)).text))


_INPUT_TOKENS = describe(ChatCompletionRequest, InputTokens)


@router.post("/v1/chat/completions/input_tokens", openapi_extra=_INPUT_TOKENS)
@router.post("/chat/completions/input_tokens", openapi_extra=_INPUT_TOKENS)
async def count_input_tokens(request: Request) -> Response:
    """How many tokens a chat request would have."""
    body = await read_body(request, ChatCompletionRequest)
    served = await context_of(request).served(request, body.model)
    shown = await render_chat(body, served)
    prompt = await chat_prompt(body, served, body.messages, shown)
    return json_reply(InputTokens(len(prompt.ids)))
