"""Where the time of steps goes, and how much memory the largest one takes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from pagoda.core.kvcache.spec import GroupSpec, attention_groups, state_groups
from pagoda.kernels import ops
from pagoda.layers.batch import ForwardBatch
from pagoda.runtime.block_table import BlockTable, Ints
from pagoda.runtime.cache_memory import CacheMemory
from pagoda.runtime.device import Device
from pagoda.runtime.model import Model
from pagoda.runtime.steps.inputs import GroupArrays, StateArrays, StepArrays, build_batch

_PROMPT = 512
_FEW = 16
"""Queries: with no more, long contexts of a request may be cut, and each part has results of its
own."""


@dataclass
class StepTimes:
    """Seconds since start, per part of a step: `media` (encoding pictures), `host`, `forward`,
    `sample`, and of the latter `masks`, what grammars took.

    On a GPU `forward` ends when the work is queued; waiting for it shows in `sample`.
    """

    steps: int = 0
    tokens: int = 0
    seconds: dict[str, float] = field(
        default_factory=lambda: dict.fromkeys(
            ("media", "host", "forward", "sample", "masks", "draft"), 0.0
        )
    )

    def count(self, tokens: int) -> None:
        """One more step, of so many tokens."""
        self.steps += 1
        self.tokens += tokens

    def add(self, part: str, seconds: float) -> None:
        self.seconds[part] += seconds


@torch.inference_mode()
def largest_step(
    model: Model,
    groups: Sequence[GroupSpec],
    device: Device,
    max_num_batched_tokens: int,
    max_num_reqs: int,
    max_num_samples: int,
    max_model_len: int,
) -> None:
    """Compute steps of the most tokens and the most logits, for what memory they take: of prompts,
    and of as many requests as can have a few tokens each beside prompts as long as they may be. All
    keep K and V in one block, beside block tables of full length."""
    cache = CacheMemory(groups, 1, device)
    count, longest = max_num_batched_tokens, max(max_model_len, _PROMPT)
    # Short, for rotary tables grow with the longest and may depend on how long that is.
    prompts = np.append(np.arange(0, count, _PROMPT), count)
    few = np.arange(0, min(max_num_reqs * _FEW, count), _FEW)
    rest = np.arange(few[-1], count, longest)
    for starts in (prompts, np.concatenate((few[:-1], rest, [count]))):
        batch = step_of(starts, groups, cache, device, longest)
        if not model.spec.begins:
            shape = (count, model.carried_size)
            batch.carried = torch.zeros(shape, device=device.torch_device)
        hidden_states = model.forward(batch)
        if model.spec.ends:
            ops.first_max(model.compute_logits(hidden_states[: min(count, max_num_samples)]))


def step_of(
    starts: Ints,
    groups: Sequence[GroupSpec],
    cache: CacheMemory,
    device: Device,
    table_tokens: int,
) -> ForwardBatch:
    """A step of requests that begin with the tokens `starts` [requests + 1]; the last number is
    that of all tokens. They share block 0, and block tables have room for `table_tokens`."""
    count, lens = int(starts[-1]), np.diff(starts).astype(np.int32)
    none = np.zeros(len(lens), np.int32)
    arrays = StepArrays(
        token_ids=np.zeros(count, np.int64),
        positions=(np.arange(count) - np.repeat(starts[:-1], lens)) % _PROMPT,
        query_start=starts.astype(np.int32),
        kv_lens=lens,
        max_query_len=int(lens.max()),
        groups=[
            GroupArrays(
                _full_table(group.block_size, len(lens), table_tokens),
                np.arange(len(lens)),
                np.zeros(count, np.int64),
            )
            for group in attention_groups(groups)
        ],
        states=StateArrays(none, np.zeros(count, np.int32)) if state_groups(groups) else None,
    )
    return build_batch(arrays, cache, device.torch_device)


def _full_table(block_size: int, num_rows: int, max_tokens: int) -> BlockTable:
    """Block 0 wherever a token may be."""
    table = BlockTable(block_size, num_rows, max_tokens)
    table.used[:] = table.entries.shape[1]
    return table
