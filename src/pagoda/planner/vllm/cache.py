"""vLLM's KV pool: groups of layers, sizes of blocks, and what they hold. Exact integer arithmetic
on what config.json says (vllm/v1/core/kv_cache_utils.py, vllm/v1/kv_cache_interface.py)."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Literal

from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import AttentionSpec, ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.planner.vllm.setup import Run

_BLOCK = 16
# 0.7 reserves 4 GiB of the host's memory for swapped blocks.
_SWAP_BYTES = 4 << 30
_KV_BYTES = {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "float16": 2, "bfloat16": 2}
# These have one fp32 scale for each token's K or V of one head.
_SCALED = ("int8_per_token_head", "fp8_per_token_head")


@dataclass(frozen=True)
class LayerCache:
    """What one layer keeps on a rank. Layers that are equal share block tables."""

    kind: Literal["full", "sliding", "state"]
    block: int
    """Tokens per block."""
    page: int
    """Bytes of a block."""
    window: int | None = None

    def blocks(self, length: int, run: Run) -> int:
        """Blocks of one request of `length` tokens, at most."""
        if self.kind == "state":
            drafted = run.drafted if run.version.keeps_drafted_states else 0
            return (2 if run.aligned else 1) + drafted
        if self.window is None:
            return -(-length // self.block)
        # A window may begin and end inside a block.
        return -(-min(self.window - 1 + run.tokens, length) // self.block) + 1


@dataclass(frozen=True)
class Group:
    """Layers with one block table."""

    cache: LayerCache
    layers: tuple[int, ...]
    """Those that draft are numbered behind the model's."""
    pages: tuple[int, ...]
    """Bytes of a page of each layer; they differ only where all layers are in one group."""

    def block_bytes(self, held: range) -> int:
        """Bytes of one block in those layers that `held` has."""
        both = zip(self.layers, self.pages, strict=True)
        return sum(page for layer, page in both if layer in held)


@dataclass(frozen=True)
class Pool:
    """The KV pool of a rank."""

    run: Run
    groups: tuple[Group, ...]
    num_blocks: int
    block_bytes: int
    """Bytes of one block in all layers of the stage that share it."""
    stage: int = 0
    """The pipeline's, that has the fewest blocks; the others use no more."""
    state_bytes: int = 0
    """State bytes of one recurrent layer, before it is padded to a page."""

    @property
    def block(self) -> int:
        return min(group.cache.block for group in self.groups)

    @property
    def page(self) -> int:
        """Bytes of a block of one layer."""
        return self.groups[0].pages[0]

    @property
    def state_padding(self) -> float:
        """Share that a recurrent state grows by."""
        return self.page / self.state_bytes - 1 if self.state_bytes else 0.0

    def request_blocks(self, length: int) -> int:
        return sum(group.cache.blocks(length, self.run) for group in self.groups)

    @property
    def concurrency(self) -> float:
        """Requests of the whole context at once."""
        if self.run.version.is_v0:
            return self.num_blocks * self.block / self.run.length
        return self.num_blocks / self.request_blocks(self.run.length)

    @property
    def tokens(self) -> int:
        """What the log's line says; of models with several groups not what fits, up to 0.19."""
        if self.run.version.counts_requests:
            return int(self.concurrency * self.run.length)
        return self.num_blocks // len(self.groups) * self.block

    @property
    def context_tokens(self) -> int:
        """In requests of the whole context."""
        return int(self.concurrency * self.run.length)

    @property
    def cpu_blocks(self) -> int:
        """Blocks in the host's memory; 0.7 alone has them."""
        return _SWAP_BYTES // self.block_bytes if self.run.version.is_v0 else 0

    @property
    def largest_context(self) -> int:
        """Tokens of one request that the pool holds, up to the context asked for; 0 for none."""
        lengths = range(1, self.run.length + 1)
        return bisect_right(lengths, self.num_blocks, key=self.request_blocks)

    def lines(self) -> tuple[str, str]:
        """As the version logs them."""
        length = f"{self.run.length:,}"
        if self.run.version.is_v0:
            return (
                f"# CUDA blocks: {self.num_blocks}, # CPU blocks: {self.cpu_blocks}",
                f"Maximum concurrency for {self.run.length} tokens per request: "
                f"{self.concurrency:.2f}x",
            )
        return (
            f"GPU KV cache size: {self.tokens:,} tokens",
            f"Maximum concurrency for {length} tokens per request: {self.concurrency:.2f}x",
        )


def pool(
    spec: ModelSpec, run: Run, available: int | Sequence[int], stages: Sequence[range] | None = None
) -> Pool | None:
    """The pool that `available` bytes of a rank give, or of one rank of each stage; None for a
    model that keeps no KV.

    Raises ConfigError where this version cannot lay the layers' pages out.
    """
    caches = _layer_caches(spec, run)
    if not caches:
        return None
    groups = _groups(caches, run)
    each = [available] if isinstance(available, int) else list(available)
    held = stages or [range(len(spec.layers))]
    last = range(held[-1].start, len(spec.layers) + run.drafters)
    sizes = [
        max(1, *(group.block_bytes(layers) for group in groups)) for layers in [*held[:-1], last]
    ]
    counts = [max(0, nbytes) // size for nbytes, size in zip(each, sizes, strict=True)]
    state = next((m for layer in spec.layers if isinstance(m := layer.mixer, RecurrentSpec)), None)
    padded = 0 if state is None else _state_bytes(state, run)
    stage = counts.index(min(counts))
    return Pool(run, groups, counts[stage], sizes[stage], stage, padded)


def pool_bytes(spec: ModelSpec, run: Run, length: int) -> int:
    """What a rank's pool must have for one request of `length` tokens."""
    found = pool(spec, run, 0)
    return 0 if found is None else found.request_blocks(length) * found.block_bytes


def token_bytes(mixer: AttentionSpec, run: Run) -> int:
    """One token's K and V of one layer on a rank."""
    heads = max(1, mixer.num_kv_heads // run.size) * (2 if mixer.latent is None else 1)
    dtype = run.kv_cache_dtype
    if dtype in _SCALED:
        return heads * (mixer.head_dim + 4)
    if dtype != "auto" and dtype not in _KV_BYTES:
        known = ", ".join(["auto", *_KV_BYTES, *_SCALED])
        raise ConfigError(f"--kv-cache-dtype {dtype} is not known; take one of {known}.")
    return heads * mixer.head_dim * _KV_BYTES.get(dtype, run.width)


def _state_bytes(mixer: RecurrentSpec, run: Run) -> int:
    (taps, channels), *states = mixer.state_shapes
    conv = channels // run.size * (taps + run.drafted) * run.width
    state = sum(map(prod, states)) // run.size
    return conv + state * (4 if run.wide_states else run.width)


def _layer_caches(spec: ModelSpec, run: Run) -> dict[int, LayerCache]:
    """The caches of layers that have one, in order, those that draft last; encoders have none."""
    mixers = [layer.mixer for layer in spec.layers]
    attentions = [mixer for mixer in mixers if isinstance(mixer, AttentionSpec)]
    if any(mixer.kind == "encoder" for mixer in attentions):
        return {}
    if run.drafters:
        full = [mixer for mixer in attentions if mixer.kind == "full"]
        if not full:
            raise ConfigError("A model without full attention has no MTP layer to draft with.")
        mixers += [replace(full[-1], borrows=0)] * run.drafters
    states = [_state_bytes(mixer, run) for mixer in mixers if isinstance(mixer, RecurrentSpec)]
    block = _BLOCK
    if states and attentions:
        # Blocks of attention are made as large as a state.
        token = min(token_bytes(mixer, run) for mixer in attentions)
        block = _BLOCK * max(1, -(-max(states) // (_BLOCK * token)))
    return {
        index: _layer_cache(mixer, run, block, max(states, default=0))
        for index, mixer in enumerate(mixers)
        if isinstance(mixer, RecurrentSpec) or not mixer.borrows
    }


def _layer_cache(
    mixer: AttentionSpec | RecurrentSpec, run: Run, block: int, state: int
) -> LayerCache:
    if isinstance(mixer, RecurrentSpec):
        return LayerCache("state", run.length if not run.aligned else block, state)
    window = mixer.window if mixer.kind == "sliding" and not run.version.is_v0 else None
    kind: Literal["full", "sliding"] = "full" if window is None else "sliding"
    return LayerCache(kind, block, block * token_bytes(mixer, run), window)


def _groups(caches: dict[int, LayerCache], run: Run) -> tuple[Group, ...]:
    kinds = {(cache.kind, cache.window) for cache in caches.values()}
    if len(kinds) == 1:
        # One table for all, and each layer has its own size of page.
        pages = tuple(cache.page for cache in caches.values())
        return (Group(next(iter(caches.values())), tuple(caches), pages),)
    unified = _unified(list(caches.values()), run)
    members: dict[LayerCache, list[int]] = {}
    for index, cache in zip(caches, unified, strict=True):
        members.setdefault(cache, []).append(index)
    counts = [len(layers) for layers in members.values()]
    size = min(counts)
    if run.version.pads_groups and max(counts) < 1.5 * size:
        size = max(counts)
    groups = []
    for cache, layers in members.items():
        number = -(-len(layers) // size)
        for start in range(number):
            share = tuple(layers[start::number])
            groups.append(Group(cache, share, (cache.page,) * len(share)))
    return tuple(groups)


def _unified(caches: list[LayerCache], run: Run) -> list[LayerCache]:
    """With pages of one size: smaller ones get more tokens, states are padded."""
    page = max(cache.page for cache in caches)
    unified = []
    for cache in caches:
        if cache.kind == "state":
            unified.append(replace(cache, page=page))
            continue
        if page % cache.page or (page != cache.page and not run.version.unifies_pages):
            raise ConfigError(
                f"vLLM {run.version.name} cannot serve this model: its layers' KV blocks of "
                f"{cache.page} and {page} bytes do not go into one pool."
            )
        unified.append(replace(cache, block=cache.block * page // cache.page, page=page))
    return unified
