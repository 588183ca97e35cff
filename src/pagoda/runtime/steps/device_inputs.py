"""The memory on a device from which captured steps read, and its picture on the host."""

from collections.abc import Sequence

import numpy as np
import torch

from pagoda.layers.batch import ForwardBatch, GroupInputs, StateInputs
from pagoda.planner.captured import CapturedSize
from pagoda.runtime.adapters import NO_SLOT
from pagoda.runtime.block_table import Ints
from pagoda.runtime.cache_memory import LayerCaches
from pagoda.runtime.device import copy_to, to_tensor
from pagoda.runtime.steps.inputs import StepArrays
from pagoda.runtime.steps.program import Inputs, StepLimits

_ALIGNMENT = 16
_TORCH_TYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32}


class _Arena:
    """Small host arrays side by side, and their copies on the device, moved all at once."""

    def __init__(self, nbytes: int, device: torch.device):
        self._host = np.zeros(nbytes, np.uint8)
        self._whole = torch.from_numpy(self._host)
        self._device = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        self._used = 0

    def zeros(self, shape: int | tuple[int, ...], dtype: type) -> np.ndarray:
        """As np.zeros."""
        count, kind = int(np.prod(shape)), np.dtype(dtype)
        start, nbytes = self._used, count * kind.itemsize
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return self._host[start : start + nbytes].view(kind).reshape(shape)

    def on_device(self, array: np.ndarray) -> torch.Tensor:
        """The copy of an array of `zeros`."""
        start = array.ctypes.data - self._host.ctypes.data
        part = self._device[start : start + array.nbytes]
        return part.view(_TORCH_TYPES[array.dtype]).view(array.shape)

    def upload(self) -> None:
        copy_to(self._device, self._whole)


class DeviceInputs(Inputs):
    """The memory on the device from which graphs read, and its picture on the host.

    Steps are padded to a captured size by requests without tokens. The rows that these seem to
    have read token 0 at position 0, and store K and V in block 0, which belongs to nobody.
    """

    def __init__(
        self,
        limits: StepLimits,
        block_sizes: Sequence[int],
        has_states: bool,
        device: torch.device,
        has_adapters: bool = False,
    ):
        rows = max(limits.max_tokens, limits.max_reqs) + 1
        # Each array has at most so many rows of 8 bytes; their alignment is the rest.
        arrays = 7 + 3 * len(block_sizes) + 2
        self._arena = _Arena(arrays * (8 * rows + _ALIGNMENT), device)
        super().__init__(limits, block_sizes, has_states, self._arena.zeros, has_adapters)
        self._device = device
        self._tables = [
            torch.zeros(group.block_table.shape, dtype=torch.int32, device=device)
            for group in self.groups
        ]
        zeros, on_device = self._arena.zeros, self._arena.on_device
        self._entries = [
            (zeros(limits.max_reqs, np.int64), zeros(limits.max_reqs, np.int32))
            for _ in self.groups
        ]
        """What is new in each table: where it lies, and the blocks."""
        self._device_entries = [
            (on_device(places), on_device(blocks)) for places, blocks in self._entries
        ]
        self._grown: dict[int, int] = {}
        """The groups that have new entries, and how many."""
        self._flat_tables = [table.view(-1) for table in self._tables]
        self._num_reqs = self._num_tokens = 0
        """Those of the last step."""
        self._device_token_ids = on_device(self.token_ids)

    def load(self, arrays: StepArrays, samples: Ints) -> None:
        self._clear_behind(arrays)
        super().load(arrays, samples)
        self.samples[len(samples) :] = 0  # they would be rows of a larger step
        self._arena.upload()
        for group, count in self._grown.items():
            places, blocks = self._device_entries[group]
            self._flat_tables[group].index_copy_(0, places[:count], blocks[:count])
        self._grown.clear()

    def _clear_behind(self, arrays: StepArrays) -> None:
        reqs = slice(arrays.num_reqs, self._num_reqs)
        tokens = slice(arrays.num_tokens, self._num_tokens)
        self._num_reqs, self._num_tokens = reqs.start, tokens.start
        if tokens.start >= tokens.stop and reqs.start >= reqs.stop:
            return
        self.kv_lens[reqs] = 0
        for array in (self.token_ids, self.positions):
            array[tokens] = 0
        for group in self.groups:
            group.slot_mapping[tokens] = 0
        if self.states is not None:
            self.states.read[reqs] = 0
            self.states.write[tokens] = 0
        if self.adapters is not None:
            self.adapters[tokens] = NO_SLOT

    def take_table(self, group: int, table: np.ndarray) -> None:
        rows, width = table.shape
        self._tables[group][:rows, :width] = to_tensor(table, self._device)

    def take_blocks(self, group: int, rows: Ints, columns: Ints, blocks: Ints) -> None:
        count, (places, entries) = len(rows), self._entries[group]
        places[:count] = rows * self._tables[group].shape[1] + columns
        entries[:count] = blocks
        self._grown[group] = count

    def token_ids_of(self, count: int) -> torch.Tensor:
        """int64 [count], from which a step reads."""
        return self._device_token_ids[:count]

    def samples_of(self, size: CapturedSize) -> torch.Tensor | None:
        """int64 [samples] rows, of a step whose tokens are not all sampled."""
        if not size.prompts:
            return None
        return self._arena.on_device(self.samples)[: size.samples]

    def batch_of(
        self, size: CapturedSize, limits: StepLimits, cache: LayerCaches, drafts: bool
    ) -> ForwardBatch:
        """A step of `size`, some of whose tokens may be `drafts`; no copies."""
        on_device, reqs, tokens = self._arena.on_device, size.requests, size.tokens
        groups: list[GroupInputs | StateInputs] = [
            GroupInputs(table[:reqs], on_device(group.slot_mapping)[:tokens])
            for table, group in zip(self._tables, self.groups, strict=True)
        ]
        if self.states is not None:
            read, write = on_device(self.states.read), on_device(self.states.write)
            groups.append(StateInputs(read[:reqs], write[:tokens], drafts))
        return ForwardBatch(
            token_ids=self.token_ids_of(tokens),
            positions=on_device(self.positions)[:tokens],
            query_start=on_device(self.query_start)[: reqs + 1],
            kv_lens=on_device(self.kv_lens)[:reqs],
            max_query_len=1 + tokens - reqs,
            max_kv_len=limits.max_model_len,
            groups=groups,
            layer_group=cache.layer_group,
            kv_caches=cache.layers,
            host_query_start=self.query_start[: reqs + 1],
            host_kv_lens=self.kv_lens[:reqs],
            fixed=True,
            adapters=None if self.adapters is None else on_device(self.adapters)[:tokens],
        )
