"""Runs a model over a paged cache, the way the runner does, and keeps all logits.

Blocks are handed out in random order, and every block starts as NaN: whatever a layer reads
beyond a request's own tokens shows in its logits.
"""

import random

import torch

from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch, GroupInputs
from pagoda.models.base import CausalLM


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
        self.block_size = block_size
        self.free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self.free)
        self.caches = []
        size = model.context.parallel.size
        for layer in model.spec.layers:
            spec = layer.mixer
            dtype = kv_dtype or model.context.dtype
            heads = max(1, spec.num_kv_heads // size)
            shapes = ops.kv_cache_shapes(num_blocks, heads, block_size, spec.head_dim, dtype)
            # Four bytes of -1 are a NaN scale.
            poison = -1 if dtype == torch.int8 else torch.nan
            pair = (torch.full(shape, poison, dtype=dtype) for shape in shapes)
            self.caches.append(tuple(pair))
        self.tables: dict[str, list[int]] = {}
        self.lens: dict[str, int] = {}

    @torch.inference_mode()
    def step(self, tokens: dict[str, list[int]], **fields) -> dict[str, torch.Tensor]:
        """Compute each request's next tokens; fp32 logits [tokens, vocab] per request."""
        batch = self._batch(tokens)
        for name, value in fields.items():
            setattr(batch, name, value)
        logits = self.model.compute_logits(self.model(batch))
        assert logits.dtype == torch.float32
        parts = logits.split([len(ids) for ids in tokens.values()])
        return dict(zip(tokens, parts, strict=True))

    def run(self, ids: list[int], chunk: int, req: str = "r") -> torch.Tensor:
        """A whole prompt in chunks; logits [len(ids), vocab]."""
        pieces = [ids[i : i + chunk] for i in range(0, len(ids), chunk)]
        return torch.cat([self.step({req: piece})[req] for piece in pieces])

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
        num_layers = len(self.model.spec.layers)
        return ForwardBatch(
            token_ids=torch.tensor([id for ids in tokens.values() for id in ids]),
            positions=torch.tensor(positions),
            query_start=torch.tensor(starts, dtype=torch.int32),
            kv_lens=torch.tensor(kv_lens, dtype=torch.int32),
            max_query_len=max(len(ids) for ids in tokens.values()),
            max_kv_len=max(kv_lens),
            groups=[GroupInputs(torch.tensor(tables, dtype=torch.int32), torch.tensor(slots))],
            layer_group=[0] * num_layers,
            kv_caches=self.caches,
        )
