"""From request fields to SamplingParams: request > the model's defaults > OpenAI's."""

from collections.abc import Mapping
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.sampling import NUMBERS
from pagoda.core.sampling import MAX_LOGIT_BIAS, SamplingParams
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine import requests
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.structure import wanted_structure
from pagoda.server.protocol.chat import ChatBody
from pagoda.server.protocol.common import GenerationBody, SamplingFields
from pagoda.server.protocol.completions import CompletionRequest

MAX_STOP_STRINGS = 64
# Each is tokenized on arrival.
MAX_BAD_WORDS = 1024
# Both kinds of strings are compared with the output at every step.
MAX_CHARACTERS = 1 << 16
# Ids of all lists travel to the engine with every choice.
MAX_LISTED_IDS = 1 << 20

STRUCTURE = "structured_outputs"
"""Among a model's defaults, what --grammar and --json-schema say."""
_DEFAULTED = [*(number.name for number in NUMBERS), "samplers", "dry_sequence_breakers"]
"""What a model may have its own default of."""
_COPIED = (SamplingFields.model_fields.keys() & SamplingParams.__struct_fields__) - {
    *_DEFAULTED, "stop", "logit_bias",
}  # fmt: skip


def chat_params(body: ChatBody, served: ServedModel) -> SamplingParams:
    _check_streaming(body)
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true.", "top_logprobs")
    return sampling_params(
        body,
        served,
        max_tokens=_chosen_length(body, body.max_completion_tokens or body.max_tokens),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        structure=wanted_structure(body, served.defaults.get(STRUCTURE)),
    )


def completion_params(body: CompletionRequest, served: ServedModel) -> SamplingParams:
    _check_streaming(body)
    if body.max_tokens == 0 and not body.echo:
        raise RequestError(
            "max_tokens must be at least 1; 0 is for echo, which scores the prompt.", "max_tokens"
        )
    params = sampling_params(
        body,
        served,
        max_tokens=_chosen_length(body, body.max_tokens),
        logprobs=body.logprobs,
        structure=wanted_structure(body, served.defaults.get(STRUCTURE)),
    )
    if body.echo and body.logprobs is not None and params.prompt_logprobs is None:
        params.prompt_logprobs = body.logprobs
    return params


def check_volume(sampling: SamplingParams, num_choices: int) -> None:
    """RequestError where the lists of ids, once per choice, are more than engines should carry."""
    ids = (sampling.stop_token_ids, sampling.logit_bias or (), sampling.allowed_token_ids or ())
    listed = sum(map(len, ids)) + len(sampling.bad_words)
    if listed * num_choices > MAX_LISTED_IDS:
        raise RequestError(
            f"stop_token_ids, logit_bias, allowed_token_ids and bad_words have {listed} entries "
            f"for each of {num_choices} choices; {MAX_LISTED_IDS} in all are allowed. Send fewer "
            "prompts at once, a smaller n or shorter lists."
        )


def sampling_params(
    body: SamplingFields,
    served: ServedModel,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    structure: StructuredOutputsParams | None = None,
) -> SamplingParams:
    """The body's own over the model's; RequestError for what is out of range."""
    requests.check_generates(served.generates)
    values: dict[str, Any] = {name: getattr(body, name) for name in _COPIED}
    values |= with_defaults({name: getattr(body, name) for name in _DEFAULTED}, served)
    stop = stop_strings(body.stop)
    if len(body.bad_words) > MAX_BAD_WORDS:
        raise RequestError(f"At most {MAX_BAD_WORDS} bad words are allowed.", "bad_words")
    _check_characters(body.bad_words, "bad_words")
    if body.logit_bias:
        values["logit_bias"] = clamped(body.logit_bias)
    return SamplingParams(
        stop=stop,
        max_tokens=max_tokens,
        logprobs=logprobs,
        structured_outputs=structure,
        **values,
    )


def with_defaults(values: Mapping[str, Any], served: ServedModel) -> dict[str, Any]:
    """Sampling values by name; the model's default for each that is None, else left out."""
    chosen = {
        name: served.defaults.get(name) if value is None else value
        for name, value in values.items()
    }
    return {name: value for name, value in chosen.items() if value is not None}


def stop_strings(stop: str | list[str]) -> list[str]:
    stop = [stop] if isinstance(stop, str) else stop
    if len(stop) > MAX_STOP_STRINGS:
        raise RequestError(f"At most {MAX_STOP_STRINGS} stop strings are allowed.", "stop")
    _check_characters(stop, "stop")
    return stop


def clamped(logit_bias: Mapping[int, float]) -> dict[int, float]:
    return {
        token: max(-MAX_LOGIT_BIAS, min(MAX_LOGIT_BIAS, bias)) for token, bias in logit_bias.items()
    }


def _chosen_length(body: GenerationBody, max_tokens: int | None) -> int | None:
    """None where `n_predict` says what the default is."""
    return max_tokens if body.n_predict is None else None


def _check_characters(texts: list[str], param: str) -> None:
    if sum(map(len, texts)) > MAX_CHARACTERS:
        raise RequestError(f"{param} may have {MAX_CHARACTERS} characters in all.", param)


def _check_streaming(body: GenerationBody) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream to be true.", "stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs can't be streamed.", "prompt_logprobs")
