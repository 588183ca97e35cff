"""POST /v1/completions and its render."""

import asyncio

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.engine.aside.jobs import Constrain
from pagoda.engine.constraint import Constraint
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import read_body
from pagoda.server.bodies.prompts import MAX_PROMPTS, Prompt, encode, split_prompts
from pagoda.server.bodies.structure import constrained
from pagoda.server.context import Context, context_of, reply_head
from pagoda.server.openapi import describe
from pagoda.server.params import completion_params
from pagoda.server.protocol.completions import CompletionRequest
from pagoda.server.protocol.generate import Rendered
from pagoda.server.protocol.replies import Completion, CompletionChunk
from pagoda.server.replies.completions import CompletionReply
from pagoda.server.replies.generation import Generation, ReplyRules
from pagoda.server.replies.render import rendered
from pagoda.server.replies.respond import json_reply, respond
from pagoda.server.requestlog import log_request

router = APIRouter()


@router.post(
    "/v1/completions",
    openapi_extra=describe(CompletionRequest, Completion, CompletionChunk),
)
async def create_completion(request: Request) -> Response:
    body = await read_body(request, CompletionRequest)
    context = context_of(request)
    reply = await _reply(request, body, context)
    log_request(context.config, reply.generation.id, reply.generation)
    return await respond(request, context, reply, streamed=body.stream)


@router.post(
    "/v1/completions/render", openapi_extra=describe(CompletionRequest, Rendered, many=True)
)
async def render_completion(request: Request) -> Response:
    """What the engine would get, one for each prompt."""
    body = await read_body(request, CompletionRequest)
    served = await context_of(request).served(request, body.model)
    sampling = completion_params(body, served)
    ids = await _all_ids(served, split_prompts(body.prompt), body)
    head = reply_head(request, "cmpl", body.request_id, body.model or served.names[0])
    return json_reply([rendered(served, Prompt(prompt), sampling, body, head) for prompt in ids])


async def _reply(request: Request, body: CompletionRequest, context: Context) -> CompletionReply:
    served = await context.served(request, body.model)
    sampling = completion_params(body, served)
    prompts = split_prompts(body.prompt)
    ids = await _all_ids(served, prompts, body)
    constraint = Constraint()
    if sampling.structured_outputs is not None:
        constraint = await constrained(body, served, Constrain(sampling.structured_outputs))
    rules = ReplyRules(constraint.grammar)
    head = reply_head(request, "cmpl", body.request_id, body.model or served.names[0])
    given = [Prompt(prompt_ids) for prompt_ids in ids]
    generation = Generation(served, given, sampling, body, head.id, context.metrics, rules)
    texts = []
    if body.echo:
        texts = [
            prompt if isinstance(prompt, str) else served.tokenizer.decode(prompt)
            for prompt in prompts
        ]
    return CompletionReply(generation, body, head, texts)


async def _all_ids(
    served: ServedModel, prompts: list[str] | list[list[int]], body: CompletionRequest
) -> list[list[int]]:
    if len(prompts) * body.n > MAX_PROMPTS:
        raise RequestError(f"prompts times n must be at most {MAX_PROMPTS}.", "n")
    ids = []
    for prompt in prompts:
        ids.append(await _ids(served, prompt, body))
        await asyncio.sleep(0)  # a thousand prompts take a second, and others want theirs
    return ids


async def _ids(served: ServedModel, prompt: str | list[int], body: CompletionRequest) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    return await encode(
        served,
        prompt,
        add_special_tokens=body.add_special_tokens,
        truncates=body.truncate_prompt_tokens is not None,
        param="prompt",
    )
