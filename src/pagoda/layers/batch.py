"""The inputs of one forward pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pagoda.kernels.attention.backend import AttentionBackend, AttentionKind, Plan
from pagoda.layers.watched import Watched


@dataclass
class GroupInputs:
    """Where one KV group's tokens lie in its cache."""

    block_table: torch.Tensor
    """int32 [num_reqs, max_blocks]; unused entries are 0."""
    slot_mapping: torch.Tensor
    """int64 [num_tokens]: block * block_size + offset, where each token's K and V go."""


@dataclass
class StateInputs:
    """Where requests' recurrent states lie in their cache.

    A request that begins at position 0 starts from zeros, whatever `read` says. Block 0 belongs to
    nobody and may be other memory: it is neither read nor written.
    """

    read: torch.Tensor
    """int32 [num_reqs]: the block with the state in front of the step."""
    write: torch.Tensor
    """int32 [num_tokens]: where the state behind each token goes; 0: nowhere. Of a request's tokens
    those with a block are the last ones, and the first of these may have the one that is read."""
    drafts: bool = False
    """Whether some request has several."""


@dataclass
class ForwardBatch:
    """Tokens of several requests, end to end: request i owns rows
    `query_start[i] : query_start[i + 1]`, and its KV holds `kv_lens[i]` tokens when the step
    is done (those rows included).
    """

    token_ids: torch.Tensor
    """int64 [num_tokens]."""
    positions: torch.Tensor
    """int64 [num_tokens], or [3, num_tokens] where images have rows and columns."""
    query_start: torch.Tensor
    """int32 [num_reqs + 1]."""
    kv_lens: torch.Tensor
    """int32 [num_reqs]."""
    max_query_len: int
    max_kv_len: int
    groups: list[GroupInputs | StateInputs]
    layer_group: list[int]
    """Group of each layer."""
    kv_caches: list[tuple[torch.Tensor, ...]]
    """Per layer, K and V (`kernels.ref.kv_cache`), or the parts of a state. A block's part is
    contiguous, blocks lie any stride apart."""
    input_embeds: torch.Tensor | None = None
    """[num_tokens, hidden]; replaces the embeddings of the rows in `embed_rows`."""
    embed_rows: torch.Tensor | None = None
    """bool [num_tokens]."""
    layer_embeds: Sequence[torch.Tensor] = ()
    """[num_tokens, hidden] each, zeros but in `embed_rows`: added behind the first layers, one to
    each."""
    rotary_rows: dict[Any, torch.Tensor] = field(default_factory=dict)
    """Each token's row of the rotary tables that were asked for positions of three coordinates."""
    adapters: torch.Tensor | None = None
    """int32 [num_tokens]: the slot of each token's adapter, -1 for none; None where the model has
    no room for adapters."""
    sees_until: torch.Tensor | None = None
    """int32 [num_tokens], in layers with a window: how many of its request's tokens each one sees,
    where a picture's see all of it; None where each sees just those up to itself."""
    chosen: torch.Tensor | None = None
    """What the last layer with an indexer chose, as `Ops.choose_keys` gives it."""
    carried: torch.Tensor | None = None
    """fp32 [num_tokens, columns], in all but the first stage of a pipeline: what the one before has
    computed."""
    token_types: torch.Tensor | None = None
    """int64 [num_tokens], for encoders: which text of a pair a token belongs to."""

    watched: Watched | None = None
    """Attention to a sound that requests of the step want to see."""

    host_query_start: npt.NDArray[np.int32] | None = None
    """`query_start` and `kv_lens` where the host has them."""
    host_kv_lens: npt.NDArray[np.int32] | None = None
    fixed: bool = False
    """As `kernels.attention.backend.Step` has it."""
    plans: dict[AttentionKind, Plan] = field(default_factory=dict)
    """Plans for the kinds of layers that have attended in this step."""

    def attended(
        self, backend: AttentionBackend, kind: AttentionKind, layer: int
    ) -> tuple[GroupInputs, Plan]:
        """Where a layer's tokens lie, and the plan of its kind, made when the first one asks."""
        where = self.groups[self.layer_group[layer]]
        assert isinstance(where, GroupInputs)
        plan = self.plans.get(kind)
        if plan is None:
            plan = self.plans[kind] = backend.plan(kind, where.block_table, self)
        return where, plan

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_reqs(self) -> int:
        return self.kv_lens.shape[0]
