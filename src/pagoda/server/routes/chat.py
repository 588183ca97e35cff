"""POST /v1/chat/completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.body import read_body
from pagoda.server.chat import StreamedChat, WholeChat
from pagoda.server.chat_job import chat_job
from pagoda.server.context import context_of, reply_head
from pagoda.server.openapi import describe
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.replies import ChatCompletion, ChatCompletionChunk
from pagoda.server.requestlog import log_request
from pagoda.server.respond import respond
from pagoda.server.structure import report_unenforced

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    openapi_extra=describe(ChatCompletionRequest, ChatCompletion, ChatCompletionChunk),
)
async def create_chat_completion(request: Request) -> Response:
    body = await read_body(request, ChatCompletionRequest)
    context = context_of(request)
    served = await context.served(request, body.model)
    head = reply_head(request, "chatcmpl", body.request_id, body.model or served.names[0])
    job = await chat_job(body, served, head, context.metrics)
    log_request(context.config, job.head.id, job.generation)
    response = await respond(
        request,
        context,
        job.generation,
        streamed=StreamedChat(job) if body.stream else None,
        whole=WholeChat(job).reply,
    )
    report_unenforced(response, job.constraint)
    return response
