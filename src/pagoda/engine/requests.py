"""How a prompt becomes an engine request: checked against the model, before any queue."""

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import msgspec

from pagoda.base.errors import ContextLengthError, RequestError
from pagoda.core.messages import AddRequest, PoolingParams
from pagoda.core.sampling import SamplingParams
from pagoda.text.breakers import breaker_ids
from pagoda.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class RequestLimits:
    max_model_len: int
    vocab_size: int
    max_logprobs: int = 20
    clamp_max_tokens: bool = False
    """Let a request end at the context's end, where a server refuses what does not fit."""
    generates: bool = True
    """False for models of vectors and scores."""


def make_request(
    req_id: str,
    prompt_ids: list[int],
    sampling: SamplingParams,
    tokenizer: Tokenizer,
    limits: RequestLimits,
    grammar: str | None = None,
) -> AddRequest:
    """Check a prompt and its sampling against a model, and fill in what only it knows.

    Copies `sampling`: max_tokens None becomes what the context leaves, and `structured_outputs`
    is left out, for `grammar` says it (`engine.constraint`).
    """
    check_generates(limits.generates)
    prompt_ids = _truncate(prompt_ids, sampling, limits)
    _check_tokens(prompt_ids, sampling, limits)
    _check_logprobs(sampling, limits)
    room = limits.max_model_len - len(prompt_ids)
    max_tokens = sampling.max_tokens
    if max_tokens is None or (limits.clamp_max_tokens and max_tokens > room):
        max_tokens = max(room, 1)
    _check_length(len(prompt_ids), max_tokens, limits)
    sampling = msgspec.structs.replace(
        sampling,
        max_tokens=max_tokens,
        min_tokens=min(sampling.min_tokens, max_tokens),
        structured_outputs=None,
    )
    return AddRequest(
        req_id=req_id,
        prompt_token_ids=prompt_ids,
        sampling=sampling,
        eos_token_ids=sorted(tokenizer.eos_token_ids),
        bad_word_ids=_bad_word_ids(tuple(sampling.bad_words), tokenizer),
        dry_breaker_ids=breaker_ids(tuple(sampling.dry_sequence_breakers), tokenizer)
        if "dry" in (sampling.chain or ())
        else [],
        grammar=grammar,
        arrival_time=time.time(),
    )


def check_generates(generates: bool) -> None:
    if not generates:
        raise RequestError(
            "This model writes no text. Use /v1/embeddings, /score or /rerank, or /classify "
            "where it has a classifier; or serve a model that generates.",
            "model",
        )


def checked_prediction(ids: Sequence[int], limits: RequestLimits) -> list[int]:
    """Token ids that a client expects of a reply, as the engine gets them."""
    if len(ids) > limits.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your "
            f"prediction contains {len(ids)} tokens, more than any reply can have. Please reduce "
            "its length, or leave it out.",
            "prediction",
        )
    if ids:
        _check_vocabulary("prediction", ids, limits.vocab_size)
    return list(ids)


def make_pool_request(
    req_id: str, prompt_ids: list[int], pooling: PoolingParams, limits: RequestLimits
) -> AddRequest:
    """Check a text that is to become a vector or scores against a model."""
    _check_tokens(prompt_ids, SamplingParams(), limits)
    if len(prompt_ids) > limits.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {limits.max_model_len} tokens. However, your "
            f"input contains {len(prompt_ids)} tokens. Please reduce its length, or let "
            "truncate_prompt_tokens=-1 cut it.",
            "input",
        )
    return AddRequest(
        req_id=req_id,
        prompt_token_ids=prompt_ids,
        kind="pool",
        pooling=pooling,
        arrival_time=time.time(),
    )


def fan_out(request: AddRequest, n: int) -> list[AddRequest]:
    """`n` requests of one completion each; a seed counts up (in 64 bits), so that they differ."""
    if n == 1:
        return [request]
    seed = request.sampling.seed
    return [
        msgspec.structs.replace(
            request,
            req_id=f"{request.req_id}-{index}",
            sampling=msgspec.structs.replace(
                request.sampling, n=1, seed=None if seed is None else _wrapped(seed + index)
            ),
        )
        for index in range(n)
    ]


def _wrapped(seed: int) -> int:
    return (seed + 2**63) % 2**64 - 2**63


def _truncate(ids: list[int], sampling: SamplingParams, limits: RequestLimits) -> list[int]:
    keep = sampling.truncate_prompt_tokens
    if keep is None:
        return ids
    if keep == -1:
        keep = limits.max_model_len - (sampling.max_tokens or 1)
    return ids[-keep:] if keep > 0 else []


def _check_tokens(ids: list[int], sampling: SamplingParams, limits: RequestLimits) -> None:
    if not ids:
        raise RequestError("The prompt is empty; it needs at least one token.", "prompt")
    for name, tokens in (
        ("prompt", ids),
        ("stop_token_ids", sampling.stop_token_ids),
        ("logit_bias", sampling.logit_bias),
        ("allowed_token_ids", sampling.allowed_token_ids),
    ):
        if tokens:
            _check_vocabulary(name, tokens, limits.vocab_size)


def _check_vocabulary(name: str, ids: Collection[int], size: int) -> None:
    lowest, highest = min(ids), max(ids)
    if lowest < 0 or highest >= size:
        worst = lowest if lowest < 0 else highest
        raise RequestError(
            f"{name} has the token id {worst}, and the vocabulary has {size} tokens.", name
        )


def _check_logprobs(sampling: SamplingParams, limits: RequestLimits) -> None:
    most = limits.max_logprobs
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(sampling, name)
        if asked is None or most == -1:
            continue
        if asked == -1 or asked > most:
            raise RequestError(
                f"{name} asks for {asked} alternatives and at most {most} are allowed; "
                "--max-logprobs raises that.",
                name,
            )


def _check_length(prompt: int, max_tokens: int, limits: RequestLimits) -> None:
    """In vLLM's words: clients search them for the two numbers."""
    start = f"This model's maximum context length is {limits.max_model_len} tokens. However, "
    if prompt + min(max_tokens, 1) > limits.max_model_len:
        raise ContextLengthError(
            f"{start}your prompt contains {prompt} input tokens. Please reduce the length of "
            "the prompt.",
            "prompt",
        )
    if prompt + max_tokens > limits.max_model_len:
        raise ContextLengthError(
            f"{start}you requested {max_tokens} output tokens and your prompt contains {prompt} "
            f"input tokens, {prompt + max_tokens} together. Please reduce the length of the "
            "prompt or the number of output tokens.",
            "max_tokens",
        )


@lru_cache(maxsize=16)  # the prompts of a call share their words, and so do a client's calls
def _bad_word_ids(words: tuple[str, ...], tokenizer: Tokenizer) -> list[list[int]]:
    """Each word as it stands at a line's start and after a space, where that differs."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word.lstrip(), " " + word.lstrip()):
            ids = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
            if ids:
                found[tuple(ids)] = None
    return [list(ids) for ids in found]
