"""From llama-server's words to prompts and SamplingParams."""

from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.sampling import ENGINE_ORDER, NUMBERS, SAMPLERS, Number, neutral
from pagoda.core.sampling import MAX_LOGIT_BIAS, SamplingParams, named_samplers
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine import requests
from pagoda.engine.aside.jobs import Constrain
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import Pieces, encode
from pagoda.server.params import STRUCTURE, clamped, stop_strings, with_defaults
from pagoda.server.protocol.native import NativeBody

_RANDOM_SEEDS = (-1, 2**32 - 1)


async def prompt_ids(served: ServedModel, prompt: Pieces) -> list[int]:
    """Token ids. Where text begins the prompt, what the model wants before a text comes first."""
    ids: list[int] = []
    for piece in prompt:
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += await encode(
                served, piece, add_special_tokens=False, truncates=False, param="prompt"
            )
    return served.tokenizer.with_special(ids) if isinstance(prompt[0], str) else ids


def native_params(body: NativeBody, served: ServedModel) -> SamplingParams:
    requests.check_generates(served.generates)
    if served.max_logprobs != -1 and body.n_probs > served.max_logprobs:
        raise RequestError(
            f"n_probs may be {served.max_logprobs} at most; --max-logprobs raises that.", "n_probs"
        )
    sent = {number: getattr(body, number.native) for number in NUMBERS}
    values = with_defaults(
        {
            **{
                number.name: None if value is None else floored(number, value)
                for number, value in sent.items()
            },
            "samplers": body.samplers,
            "dry_sequence_breakers": body.dry_sequence_breakers,
        },
        served,
    )
    if body.samplers is not None and "penalties" not in named_samplers(body.samplers):
        values |= neutral("penalties")
    apply_window(values, body.repeat_last_n)
    return SamplingParams(
        n=body.n_cmpl,
        max_tokens=None,
        stop=[text for text in stop_strings(body.stop) if text],
        seed=None if body.seed in _RANDOM_SEEDS else body.seed,
        ignore_eos=body.ignore_eos,
        logit_bias=_logit_bias(body.logit_bias, served) or None,
        logprobs=body.n_probs or None,
        logprobs_after_sampling=body.post_sampling_probs,
        **values,
    )


async def native_grammar(body: NativeBody, served: ServedModel) -> str | None:
    """`grammar` or `json_schema`, of the body or the server, for the engine. RequestError names
    what cannot be enforced."""
    if body.grammar and body.json_schema is not None:
        raise RequestError("Send one of grammar and json_schema.", "json_schema")
    wanted: StructuredOutputsParams | None = served.defaults.get(STRUCTURE)
    if body.grammar or body.json_schema is not None:
        wanted = StructuredOutputsParams(grammar=body.grammar or None, json=body.json_schema)
    if wanted is None:
        return None
    try:
        # Beside the event loop: grammars are anyone's.
        return (await served.aside.constrain(Constrain(wanted))).grammar
    except RequestError as error:
        param = "grammar" if body.grammar else "json_schema"
        raise RequestError(error.message, param) from error


def settings(sampling: SamplingParams, body: NativeBody | None = None) -> dict[str, Any]:
    """Sampling as llama-server tells it, in `generation_settings` and `/props`."""
    limit = -1 if sampling.max_tokens is None else sampling.max_tokens
    return {
        "seed": -1 if sampling.seed is None else sampling.seed,
        **{number.native: floored(number, getattr(sampling, number.name)) for number in NUMBERS},
        "repeat_last_n": -1,
        "stop": sampling.stop,
        "max_tokens": limit,
        "n_predict": limit,
        "ignore_eos": sampling.ignore_eos,
        "stream": body.stream if body is not None else False,
        "logit_bias": [
            {"token": token, "bias": bias} for token, bias in (sampling.logit_bias or {}).items()
        ],
        "n_probs": sampling.logprobs or 0,
        "post_sampling_probs": sampling.logprobs_after_sampling,
        "grammar": body.grammar if body is not None else "",
        "samplers": _order(sampling),
        "dry_sequence_breakers": sampling.dry_sequence_breakers,
        "timings_per_token": body.timings_per_token if body is not None else False,
    }


def floored(number: Number, value: float) -> float:
    """A value as llama-server reads it: what lies below 0 does nothing, as 0."""
    return value if number.floor is None else max(value, number.kind(0))


def _order(sampling: SamplingParams) -> list[str]:
    if sampling.samplers is not None:
        return sampling.samplers
    return list(ENGINE_ORDER if sampling.chain is None else SAMPLERS)


def apply_window(values: dict[str, Any], repeat_last_n: int) -> None:
    """Turn penalties off where they are to look at no token; RequestError where they are to look
    at the last ones alone."""
    off = neutral("penalties")
    if repeat_last_n == 0:
        values |= off
    elif repeat_last_n > 0 and any(values.get(name, value) != value for name, value in off.items()):
        raise RequestError(
            "Penalties look at the whole text here: with one of them, send repeat_last_n -1, or "
            "0 to turn them off.",
            "repeat_last_n",
        )


def _logit_bias(given: Any, served: ServedModel) -> dict[int, float]:
    pairs = list(given.items()) if isinstance(given, dict) else given
    if not isinstance(pairs, list):
        raise _bad_bias()
    biases: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise _bad_bias()
        bias = -MAX_LOGIT_BIAS if pair[1] is False else pair[1]
        if type(bias) not in (int, float):
            raise _bad_bias()
        for token in _biased_ids(pair[0], served, keyed=isinstance(given, dict)):
            biases[token] = bias
    return clamped(biases)


def _biased_ids(name: Any, served: ServedModel, *, keyed: bool) -> list[int]:
    if type(name) is int:
        return [name]
    if not isinstance(name, str):
        raise _bad_bias()
    # JSON's keys are strings, those that are meant as ids too.
    if keyed and name.isascii() and name.isdigit() and len(name) < 19:
        return [int(name)]
    return served.tokenizer.encode(name, add_special_tokens=False)


def _bad_bias() -> RequestError:
    return RequestError(
        "logit_bias must be [[token id or text, number or false], ...] or an object of such pairs.",
        "logit_bias",
    )
