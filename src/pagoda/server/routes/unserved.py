"""Routes of other servers that make no sense here, or not yet: 501 with what to do instead."""

from collections.abc import Awaitable, Callable

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.server.errors import ApiError
from pagoda.server.openapi import refuse

router = APIRouter()

# What to do instead -> methods and paths.
_INSTEAD: dict[str, tuple[str, ...]] = {
    "Models that speak are not served; those that hear take files at /v1/audio/transcriptions.": (
        "POST /v1/audio/speech", "GET /v1/realtime",
    ),
    "Models that draw are not served; models that write are.": (
        "POST /v1/images/generations", "POST /v1/images/edits", "POST /v1/images/variations",
    ),
    "Models are not made here; flags of `pagoda serve` say what holds for a model.": (
        "POST /api/create", "POST /api/blobs/{digest}",
    ),
    "Names are given at start, by --served-model-name or as NAME=MODEL.": ("POST /api/copy",),
    "Use /models/remove, or `pagoda rm MODEL` on the machine that has it.": ("DELETE /api/delete",),
    "Nothing is published from here; upload the files to a hub yourself.": ("POST /api/push",),
    "Use /models/load, /models/unload and /api/pull.": (
        "POST /api/v1/models/load", "POST /api/v1/models/unload", "POST /api/v1/models/download",
    ),
    "Use /v1/chat/completions, /v1/completions, /v1/embeddings or /v1/responses.": (
        "POST /api/v1/chat", "POST /api/v0/chat/completions", "POST /api/v0/completions",
        "POST /api/v0/embeddings",
    ),
    "No model for moderation is known here; /classify takes any classifier.": (
        "POST /v1/moderations",
    ),
    "There is no store of files; `pagoda run-batch` takes a file of requests.": (
        "GET /v1/files", "POST /v1/files", "GET /v1/batches", "POST /v1/batches",
    ),
    "Models are not trained here; serve the checkpoint that your training wrote.": (
        "GET /v1/fine_tuning/jobs", "POST /v1/fine_tuning/jobs",
    ),
    "Weights can't be replaced while the server runs; start it with the new checkpoint.": (
        "POST /init_weight_transfer_engine", "POST /start_weight_update", "POST /update_weights",
        "POST /finish_weight_update", "GET /get_world_size",
    ),
    "Ask a chat at /v1/chat/completions.": ("POST /v1/systemone", "POST /cohere/v2/chat"),
    "Use /v1/completions with `logprobs`, or /score.": ("POST /generative_scoring",),
    "Use /v1/embeddings.": ("POST /v2/embed",),
    "Use /inference/v1/generate with output_mode `text`.": (
        "POST /v1/chat/completions/derender", "POST /v1/completions/derender",
    ),
    "Thought can't be cut short; `reasoning_effort` limits it.": (
        "POST /v1/chat/completions/control",
    ),
    "Streams can't be resumed; send the request again, its prefix is cached.": (
        "GET /v1/stream", "DELETE /v1/stream", "POST /v1/streams/lookup",
    ),
    "The server fetches nothing for others; fetch it yourself.": (
        "GET /cors-proxy", "POST /cors-proxy",
    ),
    "Properties are flags of `pagoda serve`; GET /props shows them.": ("POST /props",),
    "Prefixes are cached by their content, in no slot; /reset_prefix_cache forgets them.": (
        "POST /slots/{id_slot}",
    ),
    "What was prepared of media is kept by its content, and goes for newer; /reset_prefix_cache "
    "forgets prefixes.": (
        "POST /reset_mm_cache", "POST /reset_encoder_cache",
    ),
    "Expert parallelism over several machines is not offered; serve on one.": (
        "POST /scale_elastic_ep", "POST /is_scaling_elastic_ep",
    ),
    "Profiles are not taken over HTTP; `pagoda bench` measures, and /metrics counts.": (
        "POST /start_profile", "POST /stop_profile",
    ),
    "Code of the engine can't be called over HTTP; script it with pagoda.LLM.": (
        "POST /collective_rpc",
    ),
    "Use /sleep and /wake_up.": (
        "POST /release_kv_cache_memory", "POST /pause", "POST /resume", "GET /is_paused",
    ),
    "Use /inference/v1/abort_requests.": ("POST /abort_requests",),
    "KV events come from the endpoint that --kv-events-config names (docs/routers.md).": (
        "GET /kv_event_sources",
    ),
}  # fmt: skip
UNSERVED = {route: advice for advice, routes in _INSTEAD.items() for route in routes}


def _refusing(path: str, advice: str) -> Callable[[Request], Awaitable[Response]]:
    async def unserved(request: Request) -> Response:
        raise ApiError(501, f"{path} is not offered. {advice}")

    return unserved


for _route, _advice in UNSERVED.items():
    _method, _path = _route.split()
    router.add_api_route(
        _path,
        _refusing(_path, _advice),
        methods=[_method],
        description=_advice,
        openapi_extra=refuse(501, _path),
    )
