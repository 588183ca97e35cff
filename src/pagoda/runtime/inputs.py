"""From the scheduled rows to the tensors of one forward pass."""

import numpy as np
import torch

from pagoda.layers.batch import ForwardBatch, GroupInputs
from pagoda.runtime.device import to_tensor
from pagoda.runtime.states import BlockTable, Ints, RequestStates, Scheduled

KVCaches = list[tuple[torch.Tensor, torch.Tensor]]


def build_batch(
    plan: Scheduled,
    states: RequestStates,
    layer_group: list[int],
    kv_caches: KVCaches,
    device: torch.device,
) -> ForwardBatch:
    """Requests in the plan's order, end to end; built in numpy, moved to the device once each."""
    lens = plan.ends - plan.starts
    query_start = np.zeros(len(lens) + 1, np.int64)
    np.cumsum(lens, out=query_start[1:])
    num_tokens = int(query_start[-1])
    if num_tokens == len(lens):
        rows, positions = plan.rows, plan.starts
    else:
        rows = np.repeat(plan.rows, lens)
        positions = np.arange(num_tokens) + np.repeat(plan.starts - query_start[:-1], lens)
    token_ids = states.token_ids[rows, positions].astype(np.int64)
    return ForwardBatch(
        token_ids=to_tensor(token_ids, device),
        positions=to_tensor(positions, device),
        query_start=to_tensor(query_start.astype(np.int32), device),
        kv_lens=to_tensor(plan.ends.astype(np.int32), device),
        max_query_len=int(lens.max()),
        max_kv_len=int(plan.ends.max()),
        groups=[_group(table, plan.rows, rows, positions, device) for table in states.tables],
        layer_group=layer_group,
        kv_caches=kv_caches,
    )


def _group(
    table: BlockTable, reqs: Ints, rows: Ints, positions: Ints, device: torch.device
) -> GroupInputs:
    blocks = table.entries[rows, positions // table.block_size].astype(np.int64)
    slots = blocks * table.block_size + positions % table.block_size
    return GroupInputs(
        block_table=to_tensor(table.entries[reqs, : table.used[reqs].max()], device),
        slot_mapping=to_tensor(slots, device),
    )
