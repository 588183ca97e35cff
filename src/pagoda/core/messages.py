"""What crosses between a client and the engine process, in both directions.

Tensor-free msgspec structs: the same objects travel in process or as msgpack over ZMQ.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from pagoda.arch.spec import PoolingSpec
from pagoda.core.sampling import SamplingParams


class MediaItem(msgspec.Struct, array_like=True, gc=False):
    """A piece of a medium whose embeddings replace a range of prompt tokens."""

    content_hash: str
    """Part of the KV block hash, so different media never share blocks."""
    start: int
    length: int
    payload: str
    """A file that the runner reads (a numpy array); never the bytes."""
    grid: tuple[int, int, int] | None = None
    """Frames, rows and columns of its tokens, where these are the tokens' positions."""
    encoder: str = "image"
    """The kind whose encoder reads the payload."""
    seconds_on: float | None = None
    """How much later it is than the item right before it, whose film it goes on with; None: it is
    a picture, or begins a film."""
    row: int | None = None
    """Its tokens lie in rows of so many, and between two rows stands a token of text, which counts
    among `length`; None: all of them are its own."""


POOLING_TASKS = ("embed", "token_embed", "classify", "align")


class Alignment(msgspec.Struct, frozen=True):
    """How the text that writes down a sound is held against it."""

    heads: list[tuple[int, int]]
    """Layers of the decoder and their heads, whose attention counts."""
    skipped: int
    """Tokens of text that say nothing of it, with which the text begins."""
    frames: int
    """Tokens of sound that are no silence behind it."""


class PoolingParams(msgspec.Struct, omit_defaults=True):
    """What is wanted of a text that is pooled."""

    task: str = "embed"
    """`embed` (one vector), `token_embed` (one for each token), `classify` (logits), or `align`
    (fp32 [tokens, frames]: how much a text's tokens are about each part of a sound)."""
    pair_start: int = 0
    """Where a pair's second text begins, for models that mark it; 0: there is none."""
    alignment: Alignment | None = None
    """With `align`."""


class SpeechRules(msgspec.Struct, omit_defaults=True):
    """Which tokens may stand where in a text that Whisper writes down (openai/whisper,
    decoding.py)."""

    never: list[int] = msgspec.field(default_factory=list)
    not_first: list[int] = msgspec.field(default_factory=list)
    first_time: int | None = None
    """The token of 0 s, behind which are those of later times: they stand in pairs, and go on.
    None: no times are written."""
    end: int = 0
    """Ends the text; tokens below it are words."""
    latest_begin: int | None = None
    """How many tokens behind `first_time` the text may begin with; None is any."""


class KVTransfer(msgspec.Struct, array_like=True, gc=False):
    """Another engine has to do with a request, too."""

    keep: bool = False
    """It will fetch the KV blocks of the prompt from here."""
    host: str | None = None
    """The prompt's blocks are there, at this address; None: they are nowhere else."""
    port: int = 0


class AddRequest(msgspec.Struct, kw_only=True, tag=True):
    """One sequence to generate or to pool. `n > 1` arrives as n requests."""

    req_id: str
    prompt_token_ids: list[int]
    sampling: SamplingParams = msgspec.field(default_factory=SamplingParams)
    kind: str = "generate"
    """`generate` or `pool`."""
    pooling: PoolingParams | None = None
    """What a request of kind `pool` asks for; None is the default of each."""
    eos_token_ids: list[int] = msgspec.field(default_factory=list)
    bad_word_ids: list[list[int]] = msgspec.field(default_factory=list)
    """`sampling.bad_words` as token sequences; only the client knows the tokenizer."""
    dry_breaker_ids: list[list[int]] = msgspec.field(default_factory=list)
    """`sampling.dry_sequence_breakers` likewise, for requests with DRY."""
    prediction_token_ids: list[int] = msgspec.field(default_factory=list)
    """What the client expects of the whole reply; empty where it said nothing."""
    grammar: str | None = None
    """What the output must follow, reasoning and all, as llguidance reads it."""
    speech: SpeechRules | None = None
    """For a text that writes down a sound."""
    adapter: str | None = None
    """Digest of what the adapter does, as the engine told it; None: the model alone."""
    adapter_name: str | None = None
    """What clients call it; None for what has no name."""
    adapter_parts: list[tuple[str, float]] = msgspec.field(default_factory=list)
    """Where it is the sum of several: the digest of each, and what it is multiplied with."""
    media: list[MediaItem] = msgspec.field(default_factory=list)
    cache_salt: str | None = None
    session: str | None = None
    """Requests of one conversation or task say the same; None: nothing is known. It changes only
    what of the cache is evicted first, and which replica is asked."""
    agent: str | None = None
    """Which subagent of the session asks; None: the main one."""
    priority: int = 0
    """Lower is served earlier under the priority policy."""
    kv_transfer: KVTransfer | None = None
    arrival_time: float = 0.0
    """time.time() at the client."""


class AbortRequests(msgspec.Struct, tag=True):
    req_ids: list[str]


class Utility(msgspec.Struct, tag=True):
    """A call to the engine that is not a request: `reset_prefix_cache`, `stats`, ..."""

    call_id: int
    method: str
    args: list[Any] = msgspec.field(default_factory=list)


class Shutdown(msgspec.Struct, tag=True):
    """Finish what runs within `drain_seconds`, then leave."""

    drain_seconds: float = 0.0


ClientMessage = AddRequest | AbortRequests | Utility | Shutdown


class TokenLogprobs(msgspec.Struct, array_like=True, gc=False):
    """Log-probabilities at one position, before penalties and temperature."""

    token_id: int
    logprob: float
    rank: int
    """1 for the most probable token."""
    top_ids: list[int]
    top_logprobs: list[float]


class Tiers(NamedTuple):
    """Tokens of a cached prefix. The pool has the others, from requests of this engine
    or from another engine."""

    host: int = 0
    """In the host's memory."""
    disk: int = 0
    """In the pool since the start, which brought them back from disk."""


class RequestDelta(msgspec.Struct, omit_defaults=True, gc=False):
    """What one step added to one request."""

    req_id: str
    token_ids: list[int] = msgspec.field(default_factory=list)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """For the prompt positions computed in this step, in order; the first ever is None."""
    prompt_progress: tuple[int, int] | None = None
    """Prompt tokens that are there by now, and those of them that were found in the prefix cache;
    sent while more are to come, and alone."""
    num_cached_tokens: int | None = None
    """Prompt tokens found in the prefix cache; sent with the first delta that is no progress."""
    prefix_miss: str | None = None
    """Why the block behind the cached ones was not found there (`new`, `evicted`, `no_state`; `off`
    where nothing was looked for); None where all were. Sent with the first delta."""
    cached_tiers: Tiers = Tiers()
    """Which of the cached tokens came from the host's memory or from disk. With the first delta."""
    queue_seconds: float | None = None
    """From arrival to admission; sent with the first delta."""
    embedding: bytes | None = None
    """As in RequestResult."""
    finish_reason: str | None = None
    """`stop`, `length`, `abort` or `error`."""
    stop_reason: int | str | None = None
    """The stop token id, where one ended the request."""
    error: str | None = None
    bad_request: bool = False
    """The error is the request's own fault, and sending it again would not help."""
    num_preemptions: int = 0
    """Sent with the last delta."""
    num_draft_tokens: int = 0
    """Guessed tokens that were verified, in the request so far."""
    num_accepted_tokens: int = 0
    """Those of them that came true."""
    kv_transfer_params: dict[str, Any] | None = None
    """Where another engine finds the prompt's blocks, if that was asked for; sent at the end."""
    engine: int | None = None
    """Which of a model's replicas it is from, which its client notes."""


def is_progress(delta: RequestDelta) -> bool:
    """Whether all that it says is how far a prompt has come."""
    return (
        delta.prompt_progress is not None
        and not delta.token_ids
        and delta.finish_reason is None
        and delta.prompt_logprobs is None
    )


class Deltas(msgspec.Struct, omit_defaults=True):
    """What a step added to requests; iteration gives a RequestDelta of each."""

    others: list[RequestDelta] = msgspec.field(default_factory=list)
    req_ids: list[str] = msgspec.field(default_factory=list)
    """In front of the others, those that gained a token and nothing else: hundreds of streams need
    no object each."""
    tokens: list[int] = msgspec.field(default_factory=list)
    """The token of each of `req_ids`."""

    def __len__(self) -> int:
        return len(self.req_ids) + len(self.others)

    def __iter__(self) -> Iterator[RequestDelta]:
        yield from map(RequestDelta, self.req_ids, map(list, zip(self.tokens, strict=True)))
        yield from self.others


STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
"""Upper bounds of `EngineStats.steps_by_tokens`."""


class EngineStats(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counters since the engine started, gauges as of now."""

    num_running: int = 0
    num_waiting: int = 0
    num_held: int = 0
    """Those of the waiting ones that wait for something other than room."""
    num_preemptions: int = 0
    num_steps: int = 0
    steps_by_tokens: list[int] = msgspec.field(default_factory=list)
    """Steps that computed at most so many tokens as STEP_TOKENS says, and more than the bound
    before; those above all bounds come last."""
    step_requests: int = 0
    """Requests in all steps together: over `num_steps`, how many a step has."""
    longest_request: int = 0
    """Tokens of the longest request that has ended, its reply included."""
    computed_tokens: int = 0
    """By all steps."""
    prompt_tokens: int = 0
    """Prompt tokens computed (not found in the cache)."""
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    """Both in tokens."""
    spec_drafts: int = 0
    """Times that guesses of a request were verified."""
    spec_draft_tokens: int = 0
    spec_accepted_tokens: int = 0
    """Guesses that came true."""
    spec_accepted_per_position: list[int] = msgspec.field(default_factory=list)
    """By place in the guess, as long as the longest so far."""
    blocks_total: int = 0
    blocks_free: int = 0
    kv_sent_bytes: int = 0
    """Those of blocks that other engines fetched here."""
    kv_fetched_bytes: int = 0
    """Those of blocks that came from other engines."""
    kv_fetches: int = 0
    kv_fetch_seconds: float = 0.0
    """That requests waited for them."""
    kv_fetch_failures: dict[str, int] = msgspec.field(default_factory=dict)
    """By what went wrong: fetches after which a prompt was computed here."""
    step_seconds: float = 0.0
    """Time spent inside `step`, so that idle time is not counted as work."""


class StepOutputs(msgspec.Struct, tag=True):
    deltas: Deltas
    stats: EngineStats


class UtilityResult(msgspec.Struct, tag=True):
    call_id: int
    result: Any = None
    error: str | None = None


class LoadedAdapter(msgspec.Struct, frozen=True):
    """An adapter that is loaded."""

    path: str
    identity: str
    """Digest of its content."""
    rank: int


class EngineReady(msgspec.Struct, tag=True, kw_only=True):
    """The engine serves; what the ready line, `/v1/models` and metrics need to know."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    kv_tokens: int
    max_num_seqs: int
    """Requests that run at once."""
    kv_cache_dtype: str = ""
    """Type of cached keys and values, as `--kv-cache-dtype` names it."""
    device: str = "cpu"
    """`cpu` or `cuda`."""
    generates: bool = True
    """False: the model takes requests of kind `pool` only."""
    hidden_size: int = 0
    """Elements of a hidden state; `pooling` says how many a text's vector has."""
    pooling: PoolingSpec = PoolingSpec()
    speculation: str = "none"
    """What guesses tokens ahead."""
    max_loras: int = 0
    """Adapters that may be loaded at once; 0: none."""
    adapters: list[LoadedAdapter] = msgspec.field(default_factory=list)
    """Those that its flags name, in their order."""
    media: dict[str, int] = msgspec.field(default_factory=dict)
    """Kinds of media that prompts may hold, and the most tokens that one of each becomes."""
    ledger: list[dict[str, Any]] = msgspec.field(default_factory=list)


class EngineProgress(msgspec.Struct, tag=True):
    """A start-up phase began or moved; what the watchdog and progress bars read."""

    phase: str
    done: int = 0
    total: int = 0


class EngineHeartbeat(msgspec.Struct, tag=True, omit_defaults=True):
    """What the process does now; sent each second or two, whatever its main thread does."""

    serial: int
    """The number of what it does: two heartbeats with the same one saw no progress between them."""
    phase: str | None = None
    """`step`, a phase of the start, a utility's name, ...; None: it waits for requests."""


class EngineDied(msgspec.Struct, tag=True):
    cause: str
    out_of_memory: bool = False
    """The model does not fit into the memory there is."""


EngineMessage = (
    StepOutputs | UtilityResult | EngineReady | EngineProgress | EngineHeartbeat | EngineDied
)
