"""Requests as the engine would get them, for the routes that only show them."""

import msgspec

from pagoda.core.sampling import SamplingParams
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import Prompt
from pagoda.server.context import ReplyHead
from pagoda.server.media import MediaLoader
from pagoda.server.params import chat_params
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.protocol.common import GenerationBody
from pagoda.server.protocol.generate import Rendered
from pagoda.server.replies.chat_job import chat_prompt, render_chat
from pagoda.server.replies.generation import prepared_request


async def rendered_chat(
    body: ChatCompletionRequest,
    served: ServedModel,
    head: ReplyHead,
    media: MediaLoader | None = None,
) -> Rendered:
    """The prompt of a chat request, in whatever dialect it came."""
    sampling = chat_params(body, served)
    shown = await render_chat(body, served)
    prompt = await chat_prompt(body, served, body.messages, shown, media)
    return rendered(served, prompt, sampling, body, head)


def rendered(
    served: ServedModel,
    prompt: Prompt,
    sampling: SamplingParams,
    body: GenerationBody,
    head: ReplyHead,
) -> Rendered:
    """Raises as a Generation of it would."""
    request = prepared_request(served, head.id, prompt, sampling, body)
    return Rendered(
        request_id=head.id,
        model=head.model,
        token_ids=request.prompt_token_ids,
        sampling_params={
            name: value
            for name, value in msgspec.structs.asdict(request.sampling).items()
            if value is not None and name != "truncate_prompt_tokens"
        },
        stream=body.stream,
        stream_options=None if body.stream_options is None else body.stream_options.model_dump(),
        cache_salt=body.cache_salt,
        priority=body.priority,
    )
