"""What stores K and V in the paged cache and attends to it: values, one for each kind of layer.

`planner.attention` says which backend serves what, and how the cache is laid out for it.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from pagoda.kernels.ref import attention as reference
from pagoda.kernels.ref.kv_cache import KVScales, head_dim

Tensor = torch.Tensor


class HeadNorms(NamedTuple):
    """RMS norms of each head of q and of k; fp32 weights [dim]."""

    q: Tensor
    k: Tensor
    eps: float
    values: bool = False
    """v has one too, without weights."""


@dataclass(frozen=True)
class AttentionKind:
    """Layers that are planned together: heads of this rank, and what they see."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    chunked: bool = False


class Step(Protocol):
    """What plans are made of: a part of `layers.batch.ForwardBatch`."""

    query_start: Tensor
    kv_lens: Tensor
    max_query_len: int
    max_kv_len: int
    host_query_start: npt.NDArray[np.int32] | None
    host_kv_lens: npt.NDArray[np.int32] | None
    fixed: bool
    """A decode step that is captured: its tensors, and the arrays on the host, stay where they are
    and change from replay to replay. Requests behind the last real one have no tokens."""


class Plan(Protocol):
    """What a step's layers of one kind have in common."""

    def update(self) -> None:
        """Before a captured step is replayed: the numbers of the step, where they lay before."""


class AttentionBackend(Protocol):
    @property
    def name(self) -> str: ...

    def plan(self, kind: AttentionKind, block_table: Tensor, step: Step) -> Plan:
        """Once per step and kind of layer, never while a step is captured. int32 `block_table`
        [num_reqs, max_blocks]; entries that no request uses are 0."""

    def store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        norms: HeadNorms | None = None,
        q_scales: Tensor | None = None,
        values_are_keys: bool = False,
        kv_scales: KVScales | None = None,
    ) -> Tensor:
        """Rotate q and k (after `norms`), write k and v to their slots, and return q.

        qkv [tokens, (heads + 2 * kv_heads) * dim] may be overwritten; with `values_are_keys` it
        has no v, which is then k before its norm and rotation, or where caches are one tensor the
        key as it is stored. `cos_sin` is fp32 [max_position, rotary_dim]: cosines, then sines,
        halves convention (NeoX), and dimensions past rotary_dim pass through; None rotates nothing.
        fp32 `q_scales` [max_position] are what q is multiplied with at last. Caches as
        `kernels.ref.kv_cache` says; `kv_scales` are those of 8-bit floats. Returns q
        [tokens, heads, dim].
        """

    def rotate(
        self,
        q: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        dim: int,
        norm: tuple[Tensor, float] | None = None,
        q_scales: Tensor | None = None,
    ) -> Tensor:
        """What `store` makes of q alone, [tokens, heads * dim], for a layer that attends to another
        one's keys and values: [tokens, heads, dim]. `norm` is q's weight [dim] and its epsilon."""

    def attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        plan: Any,
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
        """Causal attention of q [tokens, heads, dim] over each request's cached tokens.

        Heads share KV heads in equal groups. The last query of a request sees all its tokens (the
        last `window` of them, if given; if `chunked`, those from the last multiple of `window`
        on). fp32 `sinks` [heads] are logits of one more key each, whose value is zero. With `cap` a
        logit x, sinks apart, becomes cap * tanh(x / cap). int32
        `sees_until` [tokens] is how many of its request's tokens each query sees instead of those
        up to itself: never falling within a request, at most its length. With int32 `chosen`
        [tokens, count] a query at position `count` or later sees these slots alone
        (`Ops.choose_keys`); nothing else is asked for then. Returns q's shape; rows of no
        request (a step padded to a captured size) are finite numbers that nobody reads.
        """


class Paged(NamedTuple):
    """The plan of Pagoda's own kernels, which read a step as it is."""

    block_table: Tensor
    query_start: Tensor
    kv_lens: Tensor
    host_query_start: npt.NDArray[np.int32] | None = None
    """None where it changes from replay to replay."""

    def update(self) -> None: ...


@dataclass(frozen=True)
class OwnAttention:
    """Pagoda's kernels."""

    name: str
    form: Any | None
    """The CPU's ops or Triton's; None: the reference, in torch, which takes either layout."""

    def plan(self, kind: AttentionKind, block_table: Tensor, step: Step) -> Paged:
        """As `AttentionBackend.plan`: the step's own tensors."""
        starts = None if step.fixed else step.host_query_start
        return Paged(block_table, step.query_start, step.kv_lens, starts)

    def store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        norms: HeadNorms | None = None,
        q_scales: Tensor | None = None,
        values_are_keys: bool = False,
        kv_scales: KVScales | None = None,
    ) -> Tensor:
        """As `AttentionBackend.store`."""
        if self.form is None:
            return reference.rotary_store(
                qkv, positions, cos_sin, k_cache, v_cache, slot_mapping, norms, q_scales,
                values_are_keys, kv_scales,
            )  # fmt: skip
        dim = head_dim(v_cache)
        heads = qkv.shape[1] // dim - v_cache.shape[1] * (1 if values_are_keys else 2)
        q_norm, k_norm, eps, norm_values = norms or (None, None, 0.0, False)
        q: Tensor = self.form.rotary_store(
            qkv, heads, positions, cos_sin, k_cache, v_cache, slot_mapping,
            q_norm=q_norm, k_norm=k_norm, eps=eps, q_scales=q_scales, norm_values=norm_values,
            values_are_keys=values_are_keys, **_scaled(kv_scales),
        )  # fmt: skip
        return q

    def rotate(
        self,
        q: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        dim: int,
        norm: tuple[Tensor, float] | None = None,
        q_scales: Tensor | None = None,
    ) -> Tensor:
        """As `AttentionBackend.rotate`."""
        rotated: Tensor = (self.form or reference).rotate(
            q, positions, cos_sin, dim, norm, q_scales
        )
        return rotated

    def attend(
        self,
        q: Tensor,
        k_cache: Tensor,
        v_cache: Tensor,
        plan: Paged,
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
        """As `AttentionBackend.attend`; rows of no request are zero."""
        attended: Tensor = (self.form or reference).paged_attention(
            q, k_cache, v_cache, plan.block_table, plan.query_start, plan.kv_lens,
            host_query_start=plan.host_query_start,
            scale=scale, window=window, chunked=chunked, sinks=sinks, cap=cap,
            sees_until=sees_until, chosen=chosen,
            **_scaled(kv_scales),
        )  # fmt: skip
        return attended


class StoresAsOwn:
    """A backend that leaves the writing of the cache to Pagoda's kernels."""

    own: OwnAttention

    def store(
        self,
        qkv: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        k_cache: Tensor,
        v_cache: Tensor,
        slot_mapping: Tensor,
        norms: HeadNorms | None = None,
        q_scales: Tensor | None = None,
        values_are_keys: bool = False,
        kv_scales: KVScales | None = None,
    ) -> Tensor:
        """As `AttentionBackend.store`."""
        return self.own.store(
            qkv, positions, cos_sin, k_cache, v_cache, slot_mapping, norms, q_scales,
            values_are_keys, kv_scales,
        )  # fmt: skip

    def rotate(
        self,
        q: Tensor,
        positions: Tensor,
        cos_sin: Tensor | None,
        dim: int,
        norm: tuple[Tensor, float] | None = None,
        q_scales: Tensor | None = None,
    ) -> Tensor:
        """As `AttentionBackend.rotate`."""
        return self.own.rotate(q, positions, cos_sin, dim, norm, q_scales)


def _scaled(kv_scales: KVScales | None) -> dict[str, KVScales]:
    """As an argument, where there are some: a CPU's kernels, which take none, never meet them."""
    return {} if kv_scales is None else {"kv_scales": kv_scales}
