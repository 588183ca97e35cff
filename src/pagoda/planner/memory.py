"""Bytes that a model will take, predicted from its spec and its tensor headers alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.arch.spec import LayerSpec, ModelSpec
from pagoda.base.units import format_bytes
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.weights.checkpoint import TensorInfo

DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

# Python, torch and the libraries of the engine process before a model is loaded: its anonymous
# memory, with torch 2.13 on Linux 146 to 158 MiB.
PROCESS_BYTES = {"cpu": 168 << 20, "cuda": 400 << 20}
# What torch's matrix libraries and thread pool keep from their first products on, 8 to 11 MiB,
# and what loading leaves in the gaps of the heap, 4 to 7 MiB.
_HEAP_BYTES = 20 << 20
PROMPT_LOGITS = 1 << 22
"""Logits of prompt tokens that the runner computes at once: 16 MiB of fp32."""


@dataclass(frozen=True)
class MemoryPlan:
    """Predicted bytes on the device, and the KV pool that follows from them."""

    weights: int
    activations: int
    process: int
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int
    """Blocks of every KV group together; block 0 is never handed out."""
    bytes_per_block: int

    @property
    def kv_pool(self) -> int:
        return self.num_blocks * self.bytes_per_block

    @property
    def kv_tokens(self) -> int:
        """Tokens the pool holds when all of them belong to full-attention requests."""
        return max(0, self.num_blocks - 1) * self.block_size

    @property
    def total(self) -> int:
        return self.weights + self.activations + self.process + self.kv_pool

    def rows(self) -> list[dict[str, Any]]:
        """The ledger's predicted column: item, bytes, how it comes about."""
        tokens = f"{self.kv_tokens:,} tokens of {format_bytes(self.kv_bytes_per_token)}"
        rows = [
            {"item": "weights", "bytes": self.weights, "detail": "from the tensor headers"},
            {"item": "KV pool", "bytes": self.kv_pool, "detail": f"{tokens}, touched when used"},
            {"item": "activations", "bytes": self.activations, "detail": "of the largest step"},
            {"item": "process", "bytes": self.process, "detail": "Python and libraries"},
        ]
        return [row for row in rows if row["bytes"]]  # an encoder has no KV


def weight_bytes(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo], dtype: str, packed: frozenset[str]
) -> int:
    """Weights as loaded: matrices in a storage format of `packed` keep their bits; without any,
    every tensor of the checkpoint is expanded to the compute type.

    Without a checkpoint (dummy loads) the shapes follow from the spec.
    """
    if not tensors:
        return parameter_count(spec) * DTYPE_BYTES[spec.dtype if packed else dtype]
    names = {source for rule in spec.weights for source in _expand(rule.sources, len(spec.layers))}
    return sum(_loaded(info, dtype, packed) for name, info in tensors.items() if name in names)


def _loaded(info: TensorInfo, dtype: str, packed: frozenset[str]) -> int:
    if not packed or len(info.shape) == 1:
        return _elements(info) * DTYPE_BYTES[dtype]
    # Panels of 16 rows; sub-scales of K-quants take a few more bits than in the file (under 3%).
    return info.nbytes if info.type in packed else 2 * _elements(info)


def parameter_count(spec: ModelSpec) -> int:
    """Parameters of a dense model, from its sizes."""
    hidden = spec.hidden_size
    total = spec.vocab_size * hidden * (1 if spec.tie_word_embeddings else 2)
    total += hidden + sum(_layer_parameters(spec, layer) for layer in spec.layers)
    if spec.encoder is None:
        return total
    # Its norms have biases too: one behind the tables, two in each layer.
    total += (spec.encoder.num_positions + spec.encoder.num_token_types) * hidden
    total += hidden * (1 + 2 * len(spec.layers))
    labels = len(spec.pooling.labels)
    return total + (hidden + labels) * (hidden + 1) * bool(labels)


def activation_bytes(
    spec: ModelSpec, dtype: str, max_num_batched_tokens: int, max_num_reqs: int
) -> int:
    """Peak of a step: one layer's intermediates for the token budget, and the sampler's logits.

    Per token a layer holds the fp32 residual before and after, three fp32 temporaries of a norm,
    q, k and v with the fp32 halves of their rotation, and gate, up, their activation and product.
    All are counted, although not all live at once: a heap seldom fits the next kind into the gaps
    of the last. The sampler holds fp32 logits, a copy with penalties applied, and their sort or
    cumulated sum.

    Measured on a CPU, bf16, 512 tokens and 64 requests, prompt logprobs included: 84 MiB for
    SmolLM2 135M (predicted 82), 92 for a Llama of 1.1B (118).
    """
    layer = max(spec.layers, key=lambda x: x.mlp.intermediate_size)
    attention, width = layer.attention, DTYPE_BYTES[dtype]
    qkv = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim
    per_token = 5 * 4 * spec.hidden_size + (width + 4) * qkv
    per_token += 4 * width * layer.mlp.intermediate_size
    logits = 0
    if spec.encoder is None:
        logits = 3 * 4 * max(max_num_reqs * spec.vocab_size, PROMPT_LOGITS)
    return max_num_batched_tokens * per_token + logits + _HEAP_BYTES


def kv_bytes_per_token(groups: Sequence[KVGroupSpec], kv_dtype: str) -> int:
    return sum(g.bytes_per_block(kv_dtype) // g.block_size for g in groups)


def bytes_per_block(groups: Sequence[KVGroupSpec], kv_dtype: str) -> int:
    """Bytes of one block id: each group's layers own a cache of `num_blocks` blocks."""
    return sum(group.bytes_per_block(kv_dtype) for group in groups)


def _layer_parameters(spec: ModelSpec, layer: LayerSpec) -> int:
    a, hidden = layer.attention, spec.hidden_size
    q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    wide = (2 if layer.mlp.gated else 1) * layer.mlp.intermediate_size
    total = hidden * (q + 2 * kv) + q * hidden
    total += hidden * (wide + layer.mlp.intermediate_size) + 2 * hidden
    total += (q + 2 * kv) * a.qkv_bias + hidden * a.output_bias + 2 * a.head_dim * a.qk_norm
    return total + (wide + hidden) * layer.mlp.bias


def _expand(sources: tuple[str, ...], num_layers: int) -> list[str]:
    return [
        source.replace("{layer}", str(layer))
        for source in sources
        for layer in (range(num_layers) if "{layer}" in source else (0,))
    ]


def _elements(info: TensorInfo) -> int:
    count = 1
    for size in info.shape:
        count *= size
    return count
