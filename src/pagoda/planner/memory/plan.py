"""Bytes that a model will take, predicted from its spec and its tensor headers alone."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.base.units import format_bytes
from pagoda.base.words import say
from pagoda.core.kvcache.layout import SlabLayout, blocks_required, slab_bytes
from pagoda.core.kvcache.spec import GroupSpec, attention_groups
from pagoda.planner.captured import CapturedSize
from pagoda.planner.memory.placement import ON_DEVICE, Placement

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# Python, torch and the libraries of the engine process before a model is loaded: its anonymous
# memory, with torch 2.13 on Linux 146 to 158 MiB.
PROCESS_BYTES = {"cpu": 168 << 20, "cuda": 400 << 20}
# What torch's matrix libraries and thread pool keep from their first products on, 8 to 11 MiB,
# and what loading leaves in the gaps of the heap, 4 to 7 MiB.
_HEAP_BYTES = 20 << 20
# Parts of a request that attention on a GPU reads side by side, at most.
_SPLITS = 32
# A request with more tokens in a step has none.
_SPLIT_QUERIES = 16
_GRAPH_LAYER_BYTES = 128 << 10
PROMPT_LOGITS = 1 << 22
"""Logits of prompt tokens that the runner computes at once: 16 MiB of fp32."""


@dataclass(frozen=True)
class MemoryPlan:
    """Predicted bytes on the device, and the KV pool that follows from them."""

    weights: int
    activations: int
    process: int
    groups: tuple[GroupSpec, ...]
    max_chunk: int
    """Tokens of a step."""
    num_slabs: int = 0
    """Slabs of the KV pool; the first is never handed out. A model with one group has blocks for
    slabs."""
    max_model_len: int = 0
    captured: int = 0
    """For captured decode steps, at most."""
    position_bytes: int = 0
    """Bytes of tables by position, for each token of `max_model_len`."""
    placement: Placement = ON_DEVICE
    """Weights that are in the host's memory instead, or of the host's own on disk; `weights` is
    without them."""
    draft_model: int = 0
    """Weights of a draft model."""
    adapters: int = 0
    """Room for adapters."""
    num_host_slabs: int = 0
    """As `num_slabs`, in the host's memory, for blocks that the pool evicts."""
    on_host: bool = False
    """The device is the host: it has all that is in the host's memory, too."""

    @property
    def on_disk(self) -> int:
        """Bytes of experts that a CPU reads from disk."""
        return self.placement.nbytes if self.on_host else 0

    @property
    def slab_bytes(self) -> int:
        return slab_bytes(self.groups)

    @property
    def kv_pool(self) -> int:
        return self.num_slabs * self.slab_bytes if self.groups else 0

    @property
    def host_kv(self) -> int:
        return self.num_host_slabs * self.slab_bytes if self.groups else 0

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes that each token takes in a long context: windows and states stop growing."""
        full = [g for g in attention_groups(self.groups) if g.window is None]
        growing = full or attention_groups(self.groups)
        return sum(group.block_bytes // group.block_size for group in growing)

    @property
    def concurrency(self) -> float:
        """Requests of `max_model_len` tokens that the pool holds at once."""
        return self.kv_tokens / max(1, self.max_model_len)

    @property
    def kv_tokens(self) -> int:
        """Tokens in requests of `max_model_len` that the pool holds at once."""
        usable = max(0, self.num_slabs - 1) * self.slab_bytes
        attention = attention_groups(self.groups)
        if len(attention) == len(self.groups) and all(g.window is None for g in attention):
            unit = sum(group.block_bytes for group in attention)
            return usable // unit * attention[0].block_size if attention else 0
        each, computed = (self._request_bytes(tokens) for tokens in (1, self.max_chunk))
        left = max(0, usable - (computed - each))
        return left * self.max_model_len // each if each else 0

    def _request_bytes(self, max_chunk: int) -> int:
        required = blocks_required(self.groups, self.max_model_len, max_chunk)
        return sum(n * group.block_bytes for n, group in zip(required, self.groups, strict=True))

    def slabs_for(self, num_tokens: int, requests: int = 1) -> int:
        """What requests of so many tokens take, and the slab that is never handed out.

        The tokens of a step are computed in front of a window; together requests have no more of
        them than one alone.
        """
        layout = SlabLayout(self.groups, 1)
        computed, each = (
            layout.slabs_for(blocks_required(self.groups, num_tokens, tokens))
            for tokens in (self.max_chunk, 1)
        )
        return computed + (requests - 1) * each + 1

    def longest(self, num_slabs: int, most: int, requests: int = 1) -> int:
        """The most tokens, up to `most`, of requests that so many slabs hold; 0 where none."""
        return bisect_right(
            range(1, most + 1), num_slabs, key=lambda tokens: self.slabs_for(tokens, requests)
        )

    def longest_within(self, room: int, most: int) -> int:
        """As `longest`, of a request whose slabs and tables take `room` bytes together."""

        def needed(tokens: int) -> int:
            return self.slabs_for(tokens) * self.slab_bytes + self.position_bytes * tokens

        return bisect_right(range(1, most + 1), room, key=needed)

    @property
    def tables(self) -> int:
        """Bytes of cosines, sines and scales for each position."""
        return self.position_bytes * self.max_model_len

    @property
    def total(self) -> int:
        return self.weights + self.beside_weights + self.tables + self.kv_pool

    @property
    def beside_weights(self) -> int:
        """What runs them, without the pool and what grows with the context."""
        loaded = self.placement.staging + self.draft_model + self.adapters
        loaded += self.host_kv if self.on_host else 0
        return loaded + self.activations + self.captured + self.process

    def rows(self) -> list[dict[str, Any]]:
        """The ledger's predicted column: item, bytes, how it comes about."""
        tokens = say(
            "{count:,} tokens of {size}, touched when used",
            count=self.kv_tokens, size=format_bytes(self.kv_bytes_per_token),
        )  # fmt: skip
        staged = say(
            "through which weights on disk pass" if self.on_host
            else "through which weights in the host's memory pass"
        )  # fmt: skip
        rows = [
            _row(say("weights"), self.weights, say("from the tensor headers")),
            _row(say("draft model"), self.draft_model, say("what guesses tokens")),
            _row(say("adapters"), self.adapters, say("of --max-loras adapters")),
            _row(say("staging"), self.placement.staging, staged),
            _row(say("KV pool"), self.kv_pool, tokens),
            *(self._host_kv_rows() if self.on_host else ()),
            _row(say("activations"), self.activations, say("of the largest step")),
            _row(say("positions"), self.tables, say("cosines and sines of each")),
            _row(say("captured steps"), self.captured, say("once serving")),
            _row(say("process"), self.process, say("Python and libraries")),
        ]
        return [row for row in rows if row["bytes"]]  # an encoder has no KV

    def host_rows(self) -> list[dict[str, Any]]:
        """As `rows`, of what is not in the device's memory."""
        nbytes = self.placement.nbytes
        row = _row(say("in host memory"), nbytes, say("weights, read over the bus"))
        if self.on_host:
            row = _row(say("on disk"), nbytes, say("experts, read as tokens choose them"))
        return ([row] if nbytes else []) + ([] if self.on_host else self._host_kv_rows())

    def _host_kv_rows(self) -> list[dict[str, Any]]:
        row = _row(say("offloaded KV"), self.host_kv, say("touched when used"))
        return [row] if self.host_kv else []


def _row(item: str, nbytes: int, detail: str) -> dict[str, Any]:
    return {"item": item, "bytes": nbytes, "detail": detail}


def activation_bytes(
    spec: ModelSpec, dtype: str, max_num_batched_tokens: int, max_num_samples: int
) -> int:
    """Peak of a step: one layer's intermediates for the token budget, and the sampler's logits.

    Per token a layer holds the fp32 residual before and after, three fp32 temporaries of a norm,
    q, k and v with the fp32 halves of their rotation, and gate, up, their activation and product.
    All are counted, although not all live at once: a heap seldom fits the next kind into the gaps
    of the last. A draft head reads the model's hidden states, and has its own beside them. The
    sampler holds fp32 logits, a copy with penalties applied, and their sort or
    cumulated sum.

    Measured on a CPU, bf16, 512 tokens and 64 requests, prompt logprobs included: 84 MiB for
    SmolLM2 135M (predicted 82), 92 for a Llama of 1.1B (118).
    """
    width = DTYPE_BYTES[dtype]
    per_token = 5 * 4 * spec.hidden_size + max(_per_token(layer, width) for layer in spec.layers)
    if spec.layer_inputs is not None:
        # Rows of the table, what is added to them, and the latter before its norm.
        per_token += (4 + 2 * width) * spec.inputs_from_here * spec.layer_inputs.size
    if spec.stage is not None:
        # What came from the stage before, and what goes to the next one.
        per_token += 2 * 4 * spec.hidden_size
    if spec.altup is not None:
        # As they came, as they were guessed and as they were corrected.
        per_token += 3 * 4 * spec.altup.num_streams * spec.hidden_size
    if spec.drafts:
        per_token += 2 * width * spec.hidden_size
        head = spec.draft_head
        if head is not None and head.eagle3 is not None:
            # What it reads of the model is kept, and then joined.
            per_token += 2 * len(head.eagle3.reads) * width * spec.hidden_size
    logits = 0
    if spec.encoder is None:
        logits = 3 * 4 * max(max_num_samples * spec.vocab_size, PROMPT_LOGITS)
    return max_num_batched_tokens * per_token + logits + _HEAP_BYTES


def position_bytes(spec: ModelSpec) -> int:
    """Bytes of the tables by position (fp32), for each position; layers that rotate alike share
    one."""
    ropes = {mixer.rope for mixer in spec.attentions if mixer.rope is not None}
    scalings = {mixer.query_scaling for mixer in spec.attentions} - {None}
    return 4 * (sum(rope.rotary_dim for rope in ropes) + len(scalings))


def captured_bytes(
    spec: ModelSpec, dtype: str, sizes: Sequence[CapturedSize], ranks: int = 1
) -> int:
    """Most that captured steps may take on a GPU: their outputs, twice the largest step's
    intermediates (smaller steps captured before it leave gaps), the partial results of attention
    that is split, and what the driver keeps of each launch. The last is assumed, not measured.
    Of several ranks `spec` is one's share, and each keeps the logits of its part of the vocabulary.
    """
    width = DTYPE_BYTES[dtype]
    layers = max(_per_token(layer, width) for layer in spec.layers)
    splits = max((4 * _SPLITS * m.num_heads * m.head_dim for m in spec.attentions), default=0)
    # Of each token, and of each row of logits: once to keep, twice between.
    inputs = 0 if spec.layer_inputs is None else len(spec.layers) * spec.layer_inputs.size
    token = 3 * width * spec.hidden_size + 2 * (20 * spec.hidden_size + layers + 3 * width * inputs)
    row = 3 * 4 * -(-spec.vocab_size // ranks)
    graphs = len(sizes) * len(spec.layers) * _GRAPH_LAYER_BYTES
    if spec.drafts:  # a head's passes are captured as well, with outputs of their own
        token += 2 * width * spec.hidden_size
        row += 4 * spec.vocab_size
        graphs += sum(not size.prompts for size in sizes) * _GRAPH_LAYER_BYTES
    tokens, rows = max(size.tokens for size in sizes), max(size.samples for size in sizes)
    parts = max(min(size.tokens, _SPLIT_QUERIES * size.requests) for size in sizes)
    return tokens * token + parts * splits + rows * row + graphs


def _per_token(layer: LayerSpec, width: int) -> int:
    """Bytes of one layer's intermediates that grow with its own sizes."""
    mixer = layer.mixer
    if isinstance(mixer, AttentionSpec):
        q_heads = mixer.num_heads * (2 if mixer.output_gate else 1)
        mixed = (q_heads + 2 * mixer.num_kv_heads) * mixer.head_dim
        if mixer.latent is not None:  # sums are as wide as keys, and queries and values come beside
            own = mixer.latent.query_dim + mixer.latent.value_dim
            mixed += mixer.num_heads * (mixer.head_dim + own) + (mixer.latent.query_rank or 0)
    else:
        mixed = mixer.inner_width
    wide = 0 if layer.mlp is None else layer.mlp.intermediate_size
    if layer.experts is not None:
        shared = layer.experts.shared
        wide += layer.experts.top_k * layer.experts.intermediate_size
        wide += 0 if shared is None else shared.intermediate_size
    return (width + 4) * mixed + 4 * width * wide
