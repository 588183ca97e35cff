"""Sampling parameters, compiled once per request into the columns of a table."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from pagoda.base.errors import RequestError
from pagoda.config.sampling import NUMBERS, neutral
from pagoda.core.messages import POOLING_TASKS, AddRequest
from pagoda.core.sampling import MAX_LOGIT_BIAS


class Needs:
    """Bits of a row's `flags`: what it needs beyond the largest logit. A step does only what some
    row of it needs."""

    RANDOM, PENALTIES, RULES, LOGPROBS, PROMPT_LOGPROBS, POOL = (1 << i for i in range(6))
    GRAMMAR, SHARES, CHAIN, SPEECH, ALIGN = (1 << i for i in range(6, 11))


_COLUMNS = [number for number in NUMBERS if number.column]
PARAMS = np.dtype(
    [
        ("seed", np.uint64),
        *((number.name, number.column) for number in _COLUMNS),
        ("logprobs", np.int32),
        ("prompt_logprobs", np.int32),
        ("prompt_len", np.int32),
        ("pair_start", np.int32),
        ("task", np.int8),
        ("flags", np.uint16),
    ],
    # torch takes columns only at strides that are multiples of their element.
    align=True,
)


_SEEDS = (1 << 64) - 1
_NO_PENALTIES = neutral("penalties")


@dataclass
class Rules:
    """What forbids or favours single tokens of one request."""

    allowed: npt.NDArray[np.int64] | None
    bias_ids: npt.NDArray[np.int64]
    bias: npt.NDArray[np.float32]
    min_tokens: int
    ending: npt.NDArray[np.int64]
    """Forbidden until `min_tokens` are generated: end and stop tokens."""
    bad_words: list[list[int]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return (
            self.allowed is None
            and not len(self.bias_ids)
            and not (self.min_tokens and len(self.ending))
            and not self.bad_words
        )


def compile_params(request: AddRequest, vocab_size: int, engine_seed: int) -> np.ndarray:
    """One record of PARAMS (an array without dimensions), `flags` without `Needs.RULES`."""
    sampling = request.sampling
    record = np.zeros((), PARAMS)
    chained = sampling.chain is not None
    numbers = {
        # A chain cuts by itself: all that it leaves is drawn from.
        number.name: number.default
        if chained and number.sampler != "penalties"
        else getattr(sampling, number.name)
        for number in _COLUMNS
    }
    if not 0 < sampling.top_k < vocab_size:
        numbers["top_k"] = 0
    if sampling.greedy:
        numbers["temperature"] = 0.0
    for name, value in numbers.items():
        record[name] = value
    flags = 0
    if request.kind == "pool":
        flags |= Needs.POOL
    if not sampling.greedy:
        flags |= Needs.RANDOM
    if request.grammar is not None:
        flags |= Needs.GRAMMAR
    if request.speech is not None:
        flags |= Needs.SPEECH
    if any(numbers[name] != value for name, value in _NO_PENALTIES.items()):
        flags |= Needs.PENALTIES
    if chained:
        flags |= Needs.CHAIN
    if sampling.logprobs_after_sampling:
        flags |= Needs.SHARES
    for name, flag in (("logprobs", Needs.LOGPROBS), ("prompt_logprobs", Needs.PROMPT_LOGPROBS)):
        count = getattr(sampling, name)
        if count is not None:
            flags |= flag
            record[name] = vocab_size if count == -1 else min(count, vocab_size)
    record["seed"] = request_seed(sampling.seed, engine_seed, request.req_id)
    record["prompt_len"] = len(request.prompt_token_ids)
    if request.pooling is not None:
        record["pair_start"] = request.pooling.pair_start
        record["task"] = POOLING_TASKS.index(request.pooling.task)
        if request.pooling.alignment is not None:
            flags |= Needs.ALIGN
    record["flags"] = flags
    return record


def compile_rules(request: AddRequest, vocab_size: int) -> Rules:
    """RequestError for tokens that the model does not have."""
    sampling = request.sampling
    bias = sampling.logit_bias or {}
    check_token_ids(list(bias), vocab_size, "logit_bias")
    check_token_ids(sampling.allowed_token_ids or (), vocab_size, "allowed_token_ids")
    ending = set(sampling.stop_token_ids)
    if not sampling.ignore_eos:
        ending.update(request.eos_token_ids)
    allowed = sampling.allowed_token_ids
    return Rules(
        allowed=None if allowed is None else np.unique(np.asarray(allowed, np.int64)),
        bias_ids=np.fromiter(bias, np.int64, len(bias)),
        bias=np.clip(
            np.fromiter(bias.values(), np.float32, len(bias)), -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS
        ),
        min_tokens=sampling.min_tokens,
        # Tokens that the model cannot produce need no ban.
        ending=np.array(sorted(t for t in ending if t < vocab_size), np.int64),
        bad_words=[word for word in request.bad_word_ids if word and max(word) < vocab_size],
    )


def check_token_ids(token_ids: Sequence[int], vocab_size: int, param: str) -> None:
    """RequestError that names the first id outside the vocabulary."""
    if not len(token_ids) or (min(token_ids) >= 0 and max(token_ids) < vocab_size):
        return
    wrong = next(token for token in token_ids if not 0 <= token < vocab_size)
    raise RequestError(
        f"{param} holds token id {wrong}; this model's ids go from 0 to {vocab_size - 1}.", param
    )


def request_seed(seed: int | None, engine_seed: int, req_id: str) -> int:
    """The request's own seed, else one made of the engine's seed and the request's id.

    The id and not a counter: the order of arrival changes nothing, and every rank agrees.
    """
    if seed is not None:
        return seed & _SEEDS
    key = (engine_seed & _SEEDS).to_bytes(8, "little")
    digest = hashlib.blake2b(req_id.encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little")
