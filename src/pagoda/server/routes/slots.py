"""llama-server's GET /props and GET /slots."""

from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.served.model import ServedModel
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.context import Context, context_of
from pagoda.server.errors import unavailable
from pagoda.server.metrics import RequestTimer
from pagoda.server.modelfacts import shown_model
from pagoda.server.nativeparams import settings
from pagoda.server.openapi import describe, query
from pagoda.server.protocol.state import GenerationDefaults, Modalities, NextToken, Props, Slot
from pagoda.server.replies.respond import json_reply
from pagoda.server.routes.info import MODEL
from pagoda.version import __version__

router = APIRouter()

_BUILD = f"pagoda-{__version__}"
_FAIL = query("fail_on_no_slot", "string", "Anything: 503 when every slot is busy.")


@router.get("/props", openapi_extra={**describe(None, Props), "parameters": [MODEL]})
async def props(request: Request) -> Response:
    """A model that is not loaded is described from its files: asking does not load it."""
    entry = context_of(request).asked(request.query_params.get("model"))
    if entry.served is not None:
        return json_reply(_props(entry, entry.served))
    shown = await shown_model(entry, entry.names[0])
    return json_reply(
        Props(
            default_generation_settings=GenerationDefaults(
                shown.context_length, settings(SamplingParams())
            ),
            total_slots=0,
            model_alias=entry.names[0],
            model_path=entry.config.model.model,
            modalities=Modalities(vision=shown.sees, audio=shown.hears),
            chat_template=shown.template,
            bos_token="",
            eos_token="",
            build_info=_BUILD,
            is_sleeping=True,
        )
    )


def _props(entry: ModelEntry, served: ServedModel) -> Props:
    defaults = {name: value for name, value in served.defaults.items() if name != "max_tokens"}
    sampling = SamplingParams(max_tokens=served.defaults.get("max_tokens"), **defaults)
    names = served.tokenizer.special_token_names
    return Props(
        default_generation_settings=GenerationDefaults(served.max_model_len, settings(sampling)),
        total_slots=_num_slots(served),
        model_alias=served.names[0],
        model_path=served.root,
        modalities=Modalities(
            vision="image" in served.modalities,
            audio="audio" in served.modalities,
            video="video" in served.modalities,
        ),
        chat_template=served.chat_template.source if served.chat_template else "",
        bos_token=names.get("bos_token", ""),
        eos_token=names.get("eos_token", ""),
        build_info=_BUILD,
        is_sleeping=entry.asleep > 0,
    )


@router.get(
    "/slots", openapi_extra={**describe(None, Slot, many=True), "parameters": [MODEL, _FAIL]}
)
async def slots(request: Request) -> Response:
    """The running requests, and room for more. No text of anybody."""
    context = context_of(request)
    served = context.loaded(request.query_params.get("model"))
    count, running = _num_slots(served), _running(context, served)
    if request.query_params.get("fail_on_no_slot") and len(running) >= count:
        raise unavailable("No slot is free.")
    busy = [_slot(i, served, *work) for i, work in enumerate(running[:count])]
    idle = [
        Slot(
            id=i, n_ctx=served.max_model_len, speculative=_guesses(served), is_processing=False,
        )
        for i in range(len(busy), count)
    ]  # fmt: skip
    return json_reply([*busy, *idle])


def _num_slots(served: ServedModel) -> int:
    return served.client.ready.max_num_seqs if served.client.ready is not None else 0


def _guesses(served: ServedModel) -> bool:
    ready = served.client.ready
    return ready is not None and ready.speculation != "none"


def _running(context: Context, served: ServedModel) -> list[tuple[AddRequest, RequestTimer]]:
    return [
        work
        for generation in context.generations
        if generation.served is served
        for work in generation.running_requests
    ]


def _slot(number: int, served: ServedModel, request: AddRequest, timer: RequestTimer) -> Slot:
    left = (request.sampling.max_tokens or 0) - timer.num_tokens
    begun = timer.num_tokens > 0
    computed = timer.num_prompt_tokens - timer.num_cached_tokens
    return Slot(
        id=number,
        n_ctx=served.max_model_len,
        speculative=_guesses(served),
        is_processing=True,
        id_task=timer.number,
        n_prompt_tokens=timer.num_prompt_tokens,
        n_prompt_tokens_processed=computed if begun else 0,
        n_prompt_tokens_cache=timer.num_cached_tokens,
        # The last token is not computed before the next is.
        n_past=timer.num_prompt_tokens + timer.num_tokens - 1 if begun else 0,
        draft_n=timer.num_draft_tokens or UNSET,
        draft_n_accepted=timer.num_accepted_tokens if timer.num_draft_tokens else UNSET,
        params={
            name: value
            for name, value in settings(request.sampling).items()
            if name not in ("stop", "logit_bias")
        },
        next_token=[NextToken(True, left, timer.num_tokens)],
    )
