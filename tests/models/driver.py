"""Runs a model over a paged cache, the way the runner does, and keeps all logits.

Blocks are handed out in random order, and every block starts as NaN: whatever a layer reads
beyond a request's own tokens shows in its logits. So do slots of recurrent states; now and then a
request's state moves to another slot, and the one that it leaves becomes NaN.
"""

import random
from dataclasses import replace

import torch

from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import AttentionSpec
from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels.ref.kv_cache import row_elements, views
from pagoda.layers.batch import ForwardBatch, GroupInputs, StateInputs
from pagoda.models.base import CausalLM

# Groups of layers: those with attention, those with a state.
_ATTENTION, _STATE = 0, 1


class Driver:
    def __init__(
        self,
        model: CausalLM,
        num_blocks: int = 64,
        block_size: int = 4,
        seed: int = 0,
        kv_dtype: torch.dtype | None = None,
    ):
        self.model = model
        self.device = model.context.device
        self.block_size = block_size
        self.chance = random.Random(seed)
        self.free = list(range(1, num_blocks))
        self.chance.shuffle(self.free)
        mixers = [layer.mixer for layer in model.spec.cached_layers]
        self.layer_group = [_STATE if isinstance(x, RecurrentSpec) else _ATTENTION for x in mixers]
        num_slots = 24 if _STATE in self.layer_group else 0
        self.free_slots = list(range(1, num_slots))
        self.chance.shuffle(self.free_slots)
        size = model.context.parallel.size
        dtype = kv_dtype or model.context.dtype
        layout = replace(model.context.attention.layout, block_size=block_size)
        self.caches = [
            _kv_cache(mixer, num_blocks, layout, size, dtype, self.device)
            if isinstance(mixer, AttentionSpec)
            else _state_cache(mixer, num_slots, size, self.device)
            for mixer in mixers
        ]
        for index, mixer in enumerate(mixers):
            if isinstance(mixer, AttentionSpec) and mixer.borrows:
                self.caches[index] = self.caches[index - mixer.borrows]
        self.tables: dict[str, list[int]] = {}
        self.slots: dict[str, int] = {}
        self.kept: set[int] = set()
        self._left: list[int] = []  # slots to be poisoned once the step that reads them is done
        self.lens: dict[str, int] = {}

    @torch.inference_mode()
    def step(self, tokens: dict[str, list[int]], **fields) -> dict[str, torch.Tensor]:
        """Compute each request's next tokens; fp32 logits [tokens, vocab] per request."""
        batch = self._batch(tokens)
        for name, value in fields.items():
            setattr(batch, name, value.to(self.device))
        logits = self.model.compute_logits(self.model(batch)).to("cpu")
        assert logits.dtype == torch.float32
        parts = logits.split([len(ids) for ids in tokens.values()])
        return dict(zip(tokens, parts, strict=True))

    def run(self, ids: list[int], chunk: int, req: str = "r") -> torch.Tensor:
        """A whole prompt in chunks; logits [len(ids), vocab]."""
        pieces = [ids[i : i + chunk] for i in range(0, len(ids), chunk)]
        return torch.cat([self.step({req: piece})[req] for piece in pieces])

    def resume(self, req: str, kept: str) -> None:
        """Let a new request go on from where another one is now; that one's state stays, and so do
        its full blocks. It must end with a block."""
        assert self.lens[kept] % self.block_size == 0
        self.tables[req] = list(self.tables[kept])
        self.lens[req] = self.lens[kept]
        if kept in self.slots:
            self.slots[req] = self.slots[kept]
            self.kept.add(self.slots[kept])

    def _batch(self, tokens: dict[str, list[int]]) -> ForwardBatch:
        positions, slots, starts, kv_lens = [], [], [0], []
        for req, ids in tokens.items():
            done = self.lens.get(req, 0)
            table = self.tables.setdefault(req, [])
            while len(table) * self.block_size < done + len(ids):
                table.append(self.free.pop())
            for position in range(done, done + len(ids)):
                block = table[position // self.block_size]
                positions.append(position)
                slots.append(block * self.block_size + position % self.block_size)
            self.lens[req] = done + len(ids)
            starts.append(starts[-1] + len(ids))
            kv_lens.append(self.lens[req])
        width = max(len(self.tables[req]) for req in tokens)
        tables = [self.tables[req] + [0] * (width - len(self.tables[req])) for req in tokens]
        groups = [GroupInputs(self.integers(tables, torch.int32), self.integers(slots))]
        if self.free_slots:
            groups.append(self._states(tokens))
        return ForwardBatch(
            token_ids=self.integers([id for ids in tokens.values() for id in ids]),
            positions=self.integers(positions),
            query_start=self.integers(starts, torch.int32),
            kv_lens=self.integers(kv_lens, torch.int32),
            max_query_len=max(len(ids) for ids in tokens.values()),
            max_kv_len=max(kv_lens),
            groups=groups,
            layer_group=self.layer_group,
            kv_caches=self.caches,
        )

    def _states(self, tokens: dict[str, list[int]]) -> StateInputs:
        """Each request's slots before and after the step."""
        for slot in self._left:
            self._leave(slot)
        self._left, reads, writes = [], [], []
        for req in tokens:
            is_new = req not in self.slots
            # A new request reads nothing, wherever it is told to.
            read = self.free_slots[0] if is_new else self.slots[req]
            moves = is_new or read in self.kept or self.chance.random() < 0.3
            if moves:
                self.slots[req] = self.free_slots.pop()
                if not is_new and read not in self.kept:
                    self._left.append(read)
            reads.append(read)
            writes.append(self.slots[req])
        behind_last = [
            slot
            for ids, written in zip(tokens.values(), writes, strict=True)
            for slot in [*[0] * (len(ids) - 1), written]
        ]
        return StateInputs(
            self.integers(reads, torch.int32), self.integers(behind_last, torch.int32)
        )

    def integers(self, values: list, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """On the model's device."""
        return torch.tensor(values, dtype=dtype, device=self.device)

    def _leave(self, slot: int) -> None:
        for group, cache in zip(self.layer_group, self.caches, strict=True):
            if group == _STATE:
                for states in cache:
                    states[slot] = torch.nan
        self.free_slots.insert(0, slot)


def _kv_cache(
    spec: AttentionSpec,
    num_blocks: int,
    layout: KVLayout,
    ranks: int,
    dtype: torch.dtype,
    device: str,
) -> tuple[torch.Tensor, ...]:
    heads = max(1, spec.num_kv_heads // ranks)
    row = row_elements(spec.head_dim, dtype)
    # Bytes of ones are NaN scales.
    poison = {torch.int8: -1, torch.uint8: 255}.get(dtype, torch.nan)
    shape = (2, num_blocks, heads * layout.block_size * row)
    parts = torch.full(shape, poison, dtype=dtype, device=device)
    keys, values = parts
    return views(keys, keys if spec.latent is not None else values, layout, heads)


def _state_cache(
    spec: RecurrentSpec, num_slots: int, ranks: int, device: str
) -> tuple[torch.Tensor, ...]:
    """Slots of all parts side by side in one buffer, with room between them."""
    own = replace(spec, **{name: getattr(spec, name) // ranks for name in spec.splits})
    shapes = [torch.Size(shape) for shape in own.state_shapes]
    sizes = [shape.numel() for shape in shapes]
    buffer = torch.full((num_slots, sum(sizes) + 7), torch.nan, device=device)
    parts = buffer[:, 3:-4].split(sizes, dim=1)
    return tuple(part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True))
