"""What the ops are: each form of them (the CPU's kernels, Triton's, the reference) is one `Ops`.

Activations are fp32 on a CPU and of the model's dtype on a GPU. Forms may be faster on contiguous
ones; what they do not take, they leave to the reference.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from pagoda.kernels.ref.delta_net import Decay, StateSlots
from pagoda.kernels.ref.draw import DrawParams
from pagoda.kernels.ref.experts import Correction, Routed

Tensor = torch.Tensor


class Ops(Protocol):
    def take_rows(self, x: Tensor, index: Tensor) -> Tensor:
        """Rows of x [rows, size] by int64 index [count]."""

    def first_max(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(values, int64 ids) [rows] of the largest of each row of fp32 logits [rows, vocab], the
        lowest id of equals; the value is NaN where the row has one."""

    def draw(self, tokens: Tensor, logits: Tensor, top: Tensor, params: DrawParams) -> None:
        """Replace int64 tokens [rows] by draws from softmax(logits / temperature) among the tokens
        that min-p, top-k and top-p keep, applied in that order; where temperature is 0, stay.

        fp32 logits [rows, vocab]; top [rows], each row's largest. Top-k keeps all tokens equal to
        the k-th; top-p the smallest set of most likely tokens that reaches p, lower ids first of
        equals.
        """

    def top_tokens(self, logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """(values, int64 ids) [rows, count] of the largest logits, falling; lower ids first of
        equals. Rows with NaN hold any ids."""

    def mask_logits(self, logits: Tensor, index: Tensor, masks: Tensor) -> None:
        """Set to -inf, in rows index[i] of fp32 logits [rows, vocab], what masks[i] does not allow.

        int32 masks [count, words]: bit i % 32 of word i // 32 is set where token i is allowed;
        int64 index [count], no row twice.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x [..., size] / rms(x) * weight [size] over size, computed in fp32, in x's dtype."""

    def norm_in_place(self, x: Tensor, weight: Tensor, eps: float) -> None:
        """As `rms_norm`; x [tokens, size], rows any stride apart, becomes the result."""

    def add_rms_norm(
        self,
        x: Tensor,
        residual: Tensor,
        weight: Tensor,
        eps: float,
        added: Tensor | None = None,
        scale: float = 1.0,
    ) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual) in x's dtype, x + residual in residual's); with fp32 `added`
        [size] the sum is (rms_norm(x, added) + residual) * scale.

        Models keep the residual in fp32: in bf16 its rounding is most of the error of a whole model
        (mean KL to fp32 of the default model: 1.4e-3 against 3.8e-4 with fp32). `residual` may be
        overwritten.
        """

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """x + residual, both [tokens, size], in residual's dtype; that may be overwritten."""

    def layer_norm(
        self, x: Tensor, weight: Tensor, bias: Tensor, eps: float, residual: Tensor | None = None
    ) -> Tensor:
        """(x - mean) / standard deviation * weight + bias over the last dimension of x [..., size],
        of x + residual where there is one; computed in fp32, in x's dtype and shape. Weight and
        bias are fp32 [size]."""

    def rotary(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """q and k [tokens, heads, dim] rotated, without a cache: pairs half of cos_sin's columns
        apart, by the row of fp32 cos_sin [places, columns], cosines then sines, at int64 positions
        [tokens]. q and k may be overwritten."""

    def encoder_attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        query_start: Tensor,
        *,
        scale: float,
        window: int | None = None,
    ) -> Tensor:
        """Attention of each request's tokens to all of its tokens, both ways; no cache.

        q, k, v [tokens, heads, dim], requests end to end: request i owns rows `query_start[i] :
        query_start[i + 1]`. With a window a token sees those fewer places away, on either side.
        Returns q's shape, contiguous.
        """

    def patch_attention(
        self, q: Tensor, k: Tensor, v: Tensor, query_start: Tensor, *, scale: float
    ) -> Tensor:
        """As `encoder_attention`, for patches of pictures: run i has rows `query_start[i] :
        query_start[i + 1]`, and all rows are in runs. A form may take its sums in another order,
        one that suits runs of thousands."""

    def choose_keys(
        self,
        q: Tensor,
        weights: Tensor,
        keys: Tensor,
        block_table: Tensor,
        query_start: Tensor,
        kv_lens: Tensor,
        count: int,
    ) -> Tensor:
        """Where in the cache those of its request's keys lie, up to a query's own, that score
        highest: int32 slots [tokens, count] (block * block_size + offset), in the order of
        positions; earlier keys come before equals.

        A score is the sum over heads of weight * max(0, q . key). q [tokens, heads, dim]; weights
        [tokens, heads], rows any stride apart; keys [blocks, 1, block_size, dim] are a cache or
        some of its dimensions, of floats; the rest is as `AttentionBackend.attend` has it. What a
        query at a position before `count` gets is not defined: it sees all.
        """

    def activate_and_mul(self, x: Tensor, kind: str = "silu") -> Tensor:
        """activation(a) * b for x = [a, b] on the last dimension; `kind` as in `activate`."""

    def activate_mul(self, x: Tensor, gate: Tensor, kind: str) -> Tensor:
        """x * activation(gate), both [tokens, size], rows any stride apart; `kind` as in
        `activate`."""

    def sigmoid_mul(self, x: Tensor, gate: Tensor) -> Tensor:
        """x * sigmoid(gate), both [tokens, size]; rows of the gate may lie any stride apart."""

    def add_adapters(
        self,
        out: Tensor,
        x: Tensor,
        a: Tensor,
        b: Tensor,
        ranks: Tensor,
        slots: Tensor,
        sizes: tuple[int, ...],
    ) -> None:
        """Add b[slot]^T (a[slot] x), computed in fp32, to the rows of out [tokens, sum(sizes)]
        whose slot is not negative (arXiv 2106.09685).

        x [tokens, columns]; a [slots, shards, max_rank, columns] has a part for each of the `sizes`
        side by side in out; b [slots, max_rank, sum(sizes)]; of the ranks a slot uses the first
        int32 ranks [slots]; int32 slots [tokens]. What a row gains does not depend on other rows.
        """

    def add_gated(self, x: Tensor, added: Tensor, gate: Tensor | None) -> Tensor:
        """x + added, both [tokens, size]; with a gate [tokens, 1], whose rows may lie any stride
        apart, `added` is multiplied by its sigmoid."""

    def keep_sum(self, x: Tensor, added: Tensor, kept: Tensor) -> None:
        """Put x + added, both [tokens, size], into the first rows of `kept` [rows, size], which
        stays where it is: a replay of the step finds it there."""

    def causal_conv(
        self,
        x: Tensor,
        weight: Tensor,
        state: Tensor,
        slots: StateSlots,
        *,
        bias: Tensor | None = None,
        silu: bool = True,
    ) -> Tensor:
        """Each channel's convolution over its last tokens, the current one last, and its bias; with
        `silu` that of the sum.

        x [tokens, channels], rows any stride apart; fp32 weight [width, channels] and bias
        [channels]; state
        [slots, width - 1, channels]: the inputs before the request's next token. Rows behind
        `query_start[-1]` are zero; `slots.write` has entries for them as well.
        """

    def gated_delta_rule(
        self,
        qkv: Tensor,
        strength: Tensor,
        decay: Decay,
        state: Tensor,
        slots: StateSlots,
        *,
        tiled: bool,
    ) -> Tensor:
        """[tokens, value_heads * value_dim]: what the states say to q after each token's k and v.

        With S a head's state, per token: S = exp(decay) S; S += k (sigmoid(strength) (v - S^T
        k))^T; out = S^T q, where k and q have length 1 and 1 / sqrt(key_dim). qkv [tokens,
        channels] may be overwritten; strength (and decay) [tokens, value_heads], rows any stride
        apart; state [slots, value_heads, key_dim, value_dim]. `tiled` as in DeltaNetSpec. Rows
        behind `query_start[-1]` are zero.
        """

    def state_space(
        self, xbc: Tensor, decay: Decay, skip: Tensor, state: Tensor, slots: StateSlots
    ) -> Tensor:
        """[tokens, heads * head_dim]: what Mamba-2's states say to c after each token's x and b.

        With S a head's state, per token: S = exp(rate * dt) S + b (dt x)^T; out = S^T c + skip * x,
        where dt = softplus(decay.x + bias). xbc [tokens, channels] are x's heads, then the groups
        of b and of c, each of which equal runs of heads share; decay.x [tokens, heads], rows any
        stride apart; fp32 skip [heads]; state [slots, heads, state_size, head_dim]. Rows behind
        `query_start[-1]` are zero.
        """

    def gated_rms_norm(self, x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
        """rms_norm of each head of x [tokens, heads * size] by fp32 weight [size], times
        silu(gate); rows of the gate may lie any stride apart."""

    def activate(self, x: Tensor, kind: str) -> Tensor:
        """gelu (of the error function), gelu_tanh, gelu_quick (x * sigmoid(1.702 x)), relu, silu
        or identity of each element of x [...]."""

    def scale(self, x: Tensor, factor: float) -> Tensor:
        """x [..., size] * factor, in x's dtype."""

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """cap * tanh(x / cap) of x [..., size], in x's dtype."""

    def mix_streams(
        self, weights: Tensor, streams: Sequence[Tensor], added: Sequence[Tensor], plus: float = 0.0
    ) -> list[Tensor]:
        """For each i: streams[i] + the sum over j of (weights[:, i, j] + plus) * added[j].

        weights [tokens, streams * added]; streams and what is added [tokens, size] each, all of one
        dtype.
        """

    def scale_columns(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [tokens, size] * fp32 weight [size], in x's dtype."""

    def match_rms(self, x: Tensor, like: Tensor, least: float) -> Tensor:
        """x [tokens, size] * rms(like) / sqrt(max(mean square of x, `least`)) for each token."""

    def cut_columns(self, x: Tensor, cut: float) -> None:
        """x [tokens, size], rows any stride apart, becomes max(0, x - (mean + cut * standard
        deviation)) of each token's columns."""

    def route(
        self,
        logits: Tensor,
        top_k: int,
        scoring: str = "softmax",
        renormalize: bool = False,
        scales: Tensor | None = None,
        correction: Correction | None = None,
    ) -> Routed:
        """The experts with the largest logits of [tokens, experts], falling, the lower ids first
        of equals.

        A weight is the expert's share of a `softmax` over all, its share of one over the chosen
        (`topk_softmax`), or the `sigmoid` of its logit; with `renormalize` divided by their sum,
        and at last multiplied by the expert's own of fp32 `scales` [experts]. With a correction
        experts are chosen by their `softmax` or `sigmoid` plus their number.
        """
