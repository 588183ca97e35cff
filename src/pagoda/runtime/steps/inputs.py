"""From the scheduled rows to the tensors of one forward pass."""

from dataclasses import dataclass, field
from typing import Self

import numpy as np
import torch

from pagoda.core.batch import NEVER
from pagoda.layers.batch import ForwardBatch, GroupInputs, StateInputs
from pagoda.runtime.block_table import BlockTable, Ints, Ints32
from pagoda.runtime.cache_memory import LayerCaches
from pagoda.runtime.device import to_tensor
from pagoda.runtime.media import MediaRows
from pagoda.runtime.states import RequestStates, Scheduled


@dataclass
class GroupArrays:
    """`GroupInputs` in numpy; the block table is gathered where it is needed as a whole."""

    table: BlockTable
    rows: Ints
    """The requests', in the table."""
    slot_mapping: Ints


def first_blocks(rows: Ints, slot_mapping: Ints) -> GroupArrays:
    """The arrays of requests that have block 0 alone."""
    table = BlockTable(1, len(rows), 1)
    table.used[:] = 1
    return GroupArrays(table, rows, slot_mapping)


@dataclass
class StateArrays:
    """`StateInputs` in numpy."""

    read: Ints32
    write: Ints32
    drafts: bool = False

    @classmethod
    def of(cls, blocks: Ints32, query_start: Ints) -> Self:
        """`blocks` are `Scheduled.states` [requests, 1 + tokens], of requests end to end."""
        read, num_tokens, most = blocks[:, 0], int(query_start[-1]), blocks.shape[1] - 1
        if most == 1 and num_tokens == len(blocks):
            return cls(read, blocks[:, 1])
        write = np.zeros(num_tokens, np.int32)
        for back in range(1, most + 1):
            kept = blocks[:, -back] > 0
            write[query_start[1:][kept] - back] = blocks[kept, -back]
        return cls(read, write, drafts=most > 1)


@dataclass
class StepArrays:
    """What changes from step to step of a ForwardBatch, in numpy; nobody else has these arrays."""

    token_ids: Ints
    positions: Ints
    """[num_tokens], or [3, num_tokens] in a step with pictures."""
    query_start: Ints32
    kv_lens: Ints32
    max_query_len: int
    groups: list[GroupArrays]
    states: StateArrays | None = None
    """Where a model has recurrent layers."""
    token_types: Ints | None = None
    """Where a model has them."""
    adapters: Ints32 | None = None
    """As `ForwardBatch.adapters`."""
    media: list[MediaRows] = field(default_factory=list)
    """The pictures' tokens among the step's."""
    steps_left: int = 0
    """With so many steps of one token each, some request enters its next block."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def num_reqs(self) -> int:
        return len(self.kv_lens)

    def move_on(self, plan: Scheduled, states: RequestStates) -> None:
        """Be those of the next step, of the same requests with one token each; the tokens aside."""
        self.positions += 1
        self.kv_lens += 1
        self.steps_left -= 1
        if self.steps_left > 0:
            for group in self.groups:
                group.slot_mapping += 1
        else:
            self._enter_blocks(plan)
        if self.states is not None:
            self.states = StateArrays(*plan.states.T)  # of one token each

    def _enter_blocks(self, plan: Scheduled) -> None:
        for group in self.groups:
            group.slot_mapping = group.table.slots(plan.rows, plan.starts)
        sizes = [group.table.block_size for group in self.groups]
        self.steps_left = min(
            (size - int((plan.starts % size).max()) for size in sizes), default=NEVER
        )


def step_arrays(plan: Scheduled, states: RequestStates) -> StepArrays:
    """Requests in the plan's order, end to end."""
    lens = plan.ends - plan.starts
    query_start = np.zeros(len(lens) + 1, np.int64)
    np.cumsum(lens, out=query_start[1:])
    num_tokens = int(query_start[-1])
    if num_tokens == len(lens):
        rows, positions = plan.rows, plan.starts.copy()
    else:
        rows = np.repeat(plan.rows, lens)
        positions = np.arange(num_tokens) + np.repeat(plan.starts - query_start[:-1], lens)
    media = _media(plan, states, query_start) if states.media else []
    return StepArrays(
        token_ids=states.token_ids[rows, positions].astype(np.int64),
        positions=_rotary_positions(plan, states, positions, query_start, _have_grids(media)),
        query_start=query_start.astype(np.int32),
        kv_lens=plan.ends.astype(np.int32),
        max_query_len=int(lens.max()),
        groups=[
            GroupArrays(table, plan.rows, table.slots(rows, positions)) for table in states.tables
        ],
        states=StateArrays.of(plan.states, query_start) if states.has_states else None,
        token_types=_token_types(states, rows, positions) if not states.tables else None,
        adapters=None if states.slots is None else states.slots[rows],
        media=media,
    )


def build_batch(arrays: StepArrays, cache: LayerCaches, device: torch.device) -> ForwardBatch:
    """Each array is coordinates to the device once."""
    types, states, adapters = arrays.token_types, arrays.states, arrays.adapters
    groups: list[GroupInputs | StateInputs] = [
        GroupInputs(to_tensor(x.table.of_rows(x.rows), device), to_tensor(x.slot_mapping, device))
        for x in arrays.groups
    ]
    if states is not None:
        read, write = to_tensor(states.read, device), to_tensor(states.write, device)
        groups.append(StateInputs(read, write, states.drafts))
    return ForwardBatch(
        token_ids=to_tensor(arrays.token_ids, device),
        positions=to_tensor(arrays.positions, device),
        query_start=to_tensor(arrays.query_start, device),
        kv_lens=to_tensor(arrays.kv_lens, device),
        max_query_len=arrays.max_query_len,
        max_kv_len=int(arrays.kv_lens.max()),
        groups=groups,
        layer_group=cache.layer_group,
        kv_caches=cache.layers,
        host_query_start=arrays.query_start,
        host_kv_lens=arrays.kv_lens,
        token_types=None if types is None else to_tensor(types, device),
        adapters=None if adapters is None else to_tensor(adapters, device),
    )


def _media(plan: Scheduled, states: RequestStates, query_start: Ints) -> list[MediaRows]:
    return [
        rows
        for i, row in enumerate(plan.rows.tolist())
        if row in states.media
        for rows in states.media[row].rows(
            i, int(plan.starts[i]), int(plan.ends[i]), int(query_start[i])
        )
    ]


def _have_grids(media: list[MediaRows]) -> bool:
    return any(rows.item.grid is not None for rows in media)


def _rotary_positions(
    plan: Scheduled, states: RequestStates, positions: Ints, query_start: Ints, pictures: bool
) -> Ints:
    """[3, tokens] in a step with pictures that have rows and columns, else [tokens]."""
    if not states.media:
        return positions
    coordinates = np.tile(positions, (3, 1)) if pictures else positions.copy()
    for i, row in enumerate(plan.rows.tolist()):
        if row in states.media:
            own = states.media[row].positions(int(plan.starts[i]), int(plan.ends[i]))
            part = slice(int(query_start[i]), int(query_start[i + 1]))
            coordinates[..., part] = own if pictures else own[0]
    return coordinates


def _token_types(states: RequestStates, rows: Ints, positions: Ints) -> Ints:
    """1 from where a pair's second text begins."""
    second = states.params["pair_start"][rows]
    return ((second > 0) & (positions >= second)).astype(np.int64)
