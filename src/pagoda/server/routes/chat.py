"""POST /v1/chat/completions."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.engine.constraint import Constraint, chat_constraint
from pagoda.engine.directory import ServedModel
from pagoda.server.body import read_body
from pagoda.server.chat import ChatJob, StreamedChat, WholeChat
from pagoda.server.context import Context, context_of, reply_head
from pagoda.server.generation import Generation, ReplyRules
from pagoda.server.messages import final_text, render_prompt
from pagoda.server.openapi import describe
from pagoda.server.params import chat_params
from pagoda.server.prompts import encode
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.replies import ChatCompletion, ChatCompletionChunk
from pagoda.server.requestlog import log_request
from pagoda.server.respond import respond
from pagoda.server.structure import constrained, is_named, report_unenforced, tool_use

router = APIRouter()


@router.post(
    "/v1/chat/completions",
    openapi_extra=describe(ChatCompletionRequest, ChatCompletion, ChatCompletionChunk),
)
async def create_chat_completion(request: Request) -> Response:
    body = await read_body(request, ChatCompletionRequest)
    context = context_of(request)
    job, constraint = await _job(request, body, context)
    log_request(context.config, job.head.id, job.generation)
    response = await respond(
        request,
        context,
        job.generation,
        streamed=StreamedChat(job) if body.stream else None,
        whole=WholeChat(job).reply,
    )
    report_unenforced(response, constraint)
    return response


async def _job(
    request: Request, body: ChatCompletionRequest, context: Context
) -> tuple[ChatJob, Constraint]:
    served = await context.served(request, body.model)
    sampling = chat_params(body, served)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls)
    prompt = await _render(body, served)
    constraint = Constraint()
    if use.tools or sampling.structured_outputs is not None:
        constraint = await constrained(
            lambda: chat_constraint(served.text, prompt, sampling.structured_outputs, use)
        )
    ids = await encode(
        served,
        prompt,
        # Templates write the special tokens themselves; a second BOS would spoil the prompt.
        add_special_tokens=body.add_special_tokens,
        truncates=body.truncate_prompt_tokens is not None,
        param="messages",
    )
    head = reply_head(request, "chatcmpl", body.request_id, body.model or served.names[0])
    rules = ReplyRules(constraint.grammar, served.text.markup_ids)
    generation = Generation(served, [ids], sampling, body, head.id, context.metrics, rules)
    echoed = final_text(body.messages) if body.echo else ""
    job = ChatJob(body, served, generation, head, prompt, echoed, is_named(body.tool_choice))
    return job, constraint


async def _render(body: ChatCompletionRequest, served: ServedModel) -> str:
    variables = dict(body.chat_template_kwargs)
    if body.documents is not None:
        variables.setdefault("documents", body.documents)
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
        variables.setdefault("enable_thinking", body.reasoning_effort != "none")
    return await render_prompt(
        served,
        body.messages,
        tools=body.offered_tools,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        variables=variables,
    )
