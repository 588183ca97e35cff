"""POST /inference/v1/generate and /inference/v1/abort_requests: tokens in, tokens out."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.core.sampling import SamplingParams
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import parse_fields, read_body, report_unknown
from pagoda.server.bodies.prompts import Prompt
from pagoda.server.context import ReplyHead, context_of, reply_id
from pagoda.server.openapi import describe
from pagoda.server.params import sampling_params
from pagoda.server.protocol.generate import (
    Aborted,
    AbortRequest,
    Generated,
    GeneratedChunk,
    GenerateRequest,
    SamplingParamsBody,
)
from pagoda.server.replies.generate import GenerateReply
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.respond import json_reply, respond
from pagoda.server.requestlog import log_request

router = APIRouter()


@router.post(
    "/inference/v1/generate", openapi_extra=describe(GenerateRequest, Generated, GeneratedChunk)
)
async def generate(request: Request) -> Response:
    body = await read_body(request, GenerateRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    sampling = _sampling(body, served, request)
    head = ReplyHead(reply_id(request, body.request_id), body.model or served.names[0])
    prompts = [Prompt(body.token_ids)]
    generation = Generation(served, prompts, sampling, body, head.id, context.metrics)
    log_request(context.config, head.id, generation)
    reply = GenerateReply(generation, body, head)
    return await respond(request, context, reply, streamed=body.stream)


@router.post("/inference/v1/abort_requests", openapi_extra=describe(AbortRequest, Aborted))
async def abort_requests(request: Request) -> Response:
    """End requests of any route; their replies get the finish reason `abort`."""
    body = await read_body(request, AbortRequest)
    wanted = set(body.request_ids)
    running = [g for g in context_of(request).generations if g.id in wanted]
    for generation in running:
        generation.abort()
    return json_reply(Aborted(sorted({generation.id for generation in running})))


def _sampling(body: GenerateRequest, served: ServedModel, request: Request) -> SamplingParams:
    fields = parse_fields(body.sampling_params, SamplingParamsBody, request.url.path)
    report_unknown(request.scope, fields, "sampling_params.")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true.", "stream_options")
    if body.stream and fields.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs can't be streamed.", "sampling_params.prompt_logprobs")
    if body.output_mode == "text" and not fields.detokenize:
        raise RequestError("output_mode text needs detokenize.", "sampling_params.detokenize")
    return sampling_params(fields, served, max_tokens=fields.max_tokens, logprobs=fields.logprobs)
