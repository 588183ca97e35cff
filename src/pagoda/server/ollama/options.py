"""Ollama's `options`, `format` and `think` -> fields of a chat request."""

from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.sampling import NUMBERS
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.body import parse_fields
from pagoda.server.nativeparams import apply_window, floored
from pagoda.server.params import with_defaults
from pagoda.server.protocol.ollama import OllamaOptions, OllamaTextBody

NAMES = {
    **{number.name: number.native for number in NUMBERS},
    "max_completion_tokens": "num_predict",
    "max_tokens": "num_predict",
    "reasoning_effort": "think",
    "response_format": "format",
}
"""Fields by the chat API's names."""


def read_options(options: dict[str, Any], served: ServedModel, route: str) -> OllamaOptions:
    """RequestError or ApiError for what cannot be honoured."""
    read = parse_fields(options, OllamaOptions, f"{route} options")
    if served.max_model_len and (read.num_ctx or 0) > served.max_model_len:
        raise RequestError(
            f"options.num_ctx is {read.num_ctx}, and {served.names[0]} is served with a context of "
            f"{served.max_model_len} tokens; ask for at most that, or start the server with "
            "--max-model-len.",
            "options.num_ctx",
        )
    return read


def text_fields(
    body: OllamaTextBody, options: OllamaOptions, served: ServedModel
) -> dict[str, Any]:
    """Fields of a chat request: all but the messages. RequestError for what cannot be honoured."""
    sent = {number: getattr(options, number.native) for number in NUMBERS}
    numbers = with_defaults(
        {
            number.name: None if value is None else floored(number, value)
            for number, value in sent.items()
        },
        served,
    )
    apply_window(numbers, options.repeat_last_n)
    stop = [options.stop] if isinstance(options.stop, str) else options.stop
    return {
        **numbers,
        "stop": [text for text in stop if text],
        "seed": None if options.seed == -1 else options.seed,
        "max_completion_tokens": options.num_predict if options.num_predict > 0 else None,
        "stream": body.stream,
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs if body.logprobs else None,
        **_format(body.format),
        **_thinking(body.think),
    }


def _format(wanted: str | dict[str, Any]) -> dict[str, Any]:
    if not wanted:
        return {}
    if wanted == "json":
        return {"response_format": {"type": "json_object"}}
    if isinstance(wanted, str):
        raise RequestError(
            f"format is {wanted[:64]!r}; it must be 'json' or a JSON schema.", "format"
        )
    schema = {"name": "format", "schema": wanted}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def _thinking(think: bool | str | None) -> dict[str, Any]:
    """What `reasoning_effort` and the template's variables are in the chat API."""
    if think is None or think == "":
        return {}
    if isinstance(think, bool):
        return {"chat_template_kwargs": {"enable_thinking": think}}
    return {"reasoning_effort": think}
