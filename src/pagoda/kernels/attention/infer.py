"""FlashInfer: paged attention that is planned on the host.

Written against the documented interface of `BatchPrefillWithPagedKVCacheWrapper` and
`BatchDecodeWithPagedKVCacheWrapper` (0.2 and later). **Never run**: the package was not there;
tests play it and compute with torch. A captured step has a decode wrapper of its own with
`use_cuda_graph`, which copies what is planned into buffers of fixed addresses, so that `update`
before each replay is all that it takes. Requests of no tokens then see one token of block 0.
"""

from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagoda.kernels.attention.backend import AttentionKind, OwnAttention, Step, StoresAsOwn
from pagoda.kernels.ref.kv_cache import KVScales
from pagoda.kernels.transfer import to_tensor

Tensor = torch.Tensor
_WORKSPACE = 128 << 20  # bytes, as its documentation advises
_LAYOUT = "HND"


@dataclass(frozen=True)
class Pages:
    """Whose tokens lie where: int32 arrays on the host, blocks in the order of requests."""

    starts: npt.NDArray[np.int32]
    """[num_reqs + 1], of each request's first block."""
    places: npt.NDArray[np.int64]
    """The place of each block in the flat block table."""
    last: npt.NDArray[np.int32]
    """[num_reqs]: tokens in the last block."""

    @classmethod
    def of(cls, kv_lens: npt.NDArray[np.int32], width: int, block_size: int) -> "Pages":
        lens = np.maximum(kv_lens, 1)
        counts = -(-lens // block_size)
        starts = np.concatenate(([0], np.cumsum(counts)))
        firsts = np.arange(len(lens)) * width - starts[:-1]
        places = np.arange(starts[-1]) + np.repeat(firsts, counts)
        last = lens - (counts - 1) * block_size
        return cls(starts.astype(np.int32), places.astype(np.int64), last.astype(np.int32))


@dataclass
class InferPlan:
    wrapper: Any
    kind: AttentionKind
    block_table: Tensor
    step: Step
    block_size: int
    dtype: torch.dtype

    def update(self) -> None:
        step, kind, table = self.step, self.kind, self.block_table
        lens = _on_host(step.host_kv_lens, step.kv_lens)
        pages = Pages.of(lens, table.shape[1], self.block_size)
        blocks = table.reshape(-1)[to_tensor(pages.places, table.device)]
        paged = torch.from_numpy(pages.starts), blocks, torch.from_numpy(pages.last)
        heads = kind.heads, kind.kv_heads, kind.head_dim, self.block_size
        sight = {"window_left": -1 if kind.window is None else kind.window - 1}
        how = {"sm_scale": kind.scale, "q_data_type": self.dtype, "kv_data_type": self.dtype}
        if step.fixed:
            self.wrapper.plan(*paged, *heads, **sight, **how)
        else:
            starts = torch.from_numpy(_on_host(step.host_query_start, step.query_start))
            self.wrapper.plan(starts, *paged, *heads, causal=True, **sight, **how)


@dataclass
class FlashInfer(StoresAsOwn):
    module: ModuleType
    own: OwnAttention
    """What stores."""
    device: torch.device
    dtype: torch.dtype
    block_size: int
    name: str = "flashinfer"
    _prompts: dict[AttentionKind, Any] = field(default_factory=dict)
    """Wrappers of steps that are not captured; these come one after the other."""

    def __post_init__(self) -> None:
        self._workspace = torch.empty(_WORKSPACE, dtype=torch.uint8, device=self.device)

    def plan(self, kind: AttentionKind, block_table: Tensor, step: Step) -> InferPlan:
        """As `AttentionBackend.plan`, worked out on the host."""
        if step.fixed:
            wrapper = self._captured(block_table)
        else:
            wrapper = self._prompts.get(kind)
            if wrapper is None:
                make = self.module.BatchPrefillWithPagedKVCacheWrapper
                wrapper = self._prompts[kind] = make(self._workspace, _LAYOUT)
        plan = InferPlan(wrapper, kind, block_table, step, self.block_size, self.dtype)
        plan.update()
        return plan

    def _captured(self, block_table: Tensor) -> Any:
        reqs, width = block_table.shape

        def buffer(size: int) -> Tensor:
            return torch.zeros(size, dtype=torch.int32, device=self.device)

        return self.module.BatchDecodeWithPagedKVCacheWrapper(
            self._workspace,
            _LAYOUT,
            use_cuda_graph=True,
            use_tensor_cores=True,
            paged_kv_indptr_buffer=buffer(reqs + 1),
            paged_kv_indices_buffer=buffer(reqs * width),
            paged_kv_last_page_len_buffer=buffer(reqs),
        )

    def attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        plan: InferPlan,
        *,
        scale: float,
        window: int | None = None,
        chunked: bool = False,
        sinks: Tensor | None = None,
        cap: float | None = None,
        sees_until: Tensor | None = None,
        kv_scales: KVScales | None = None,
        chosen: Tensor | None = None,
    ) -> Tensor:
        """As `AttentionBackend.attend`, without chunks, sinks, caps, pictures and 8-bit floats.
        Scale and window were planned."""
        # The planner declines them.
        assert not chunked and sinks is None and cap is None
        assert sees_until is None and kv_scales is None and chosen is None
        attended: Tensor = plan.wrapper.run(q, (k_cache, v_cache))
        return attended


def _on_host(known: npt.NDArray[np.int32] | None, tensor: Tensor) -> npt.NDArray[np.int32]:
    return tensor.cpu().numpy() if known is None else known
