"""Mamba-2's state space, natively and in torch, against transformers' and against itself cut into
steps."""

from dataclasses import dataclass

import pytest
import torch
from transformers.models.granitemoehybrid import modeling_granitemoehybrid as theirs

from pagoda.kernels import ops as doors
from pagoda.kernels.cpu.ops import CpuOps
from pagoda.kernels.ref.state_space import state_space
from tests.kernels.test_delta_net import FORMS, Step, native


class _Reference:
    state_space = staticmethod(state_space)


@pytest.fixture(params=FORMS, ids=str)
def ops(request):
    if request.param == "ref":
        return _Reference()
    isa, threads = request.param
    return CpuOps(native.Native(threads, isa))


@dataclass
class Space:
    """Random arguments for so many tokens."""

    tokens: int
    heads: int
    groups: int
    size: int
    head_dim: int

    def __post_init__(self):
        torch.manual_seed(5)
        self.inner = self.heads * self.head_dim
        self.xbc = torch.randn(self.tokens, self.inner + 2 * self.groups * self.size)
        step = torch.randn(self.tokens, self.heads + 3)[:, : self.heads] * 2
        rate, bias = -torch.rand(self.heads) * 2, torch.randn(self.heads)
        self.decay, self.skip = doors.Decay(step, rate, bias), torch.randn(self.heads)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return self.heads, self.size, self.head_dim

    def expect(self, rows: slice, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """transformers' results and state, which it holds on its side."""
        columns = (self.inner, self.groups * self.size, self.groups * self.size)
        x, b, c = self.xbc[rows][None].split(columns, dim=-1)
        out, after = theirs.mamba2_chunk_scan(
            x.unflatten(-1, (self.heads, -1)), self.decay.x[rows][None], self.decay.rate,
            b.unflatten(-1, (self.groups, -1)), c.unflatten(-1, (self.groups, -1)), chunk_size=32,
            D=self.skip, dt_bias=self.decay.bias, dt_softplus=True,
            initial_states=state.transpose(1, 2)[None], return_final_states=True,
        )  # fmt: skip
        return out[0].flatten(1), after[0].transpose(1, 2)

    def run(self, ops, cache, slots, rows=slice(None)):
        decay = self.decay._replace(x=self.decay.x[rows])
        return ops.state_space(self.xbc[rows], decay, self.skip, cache, slots)


SIZES = [(4, 1, 16, 16), (6, 2, 24, 48), (3, 3, 128, 80), (2, 1, 7, 10), (2, 1, 300, 16)]


@pytest.mark.parametrize(("heads", "groups", "size", "head_dim"), SIZES)
def test_state_space(ops, heads, groups, size, head_dim):
    tokens = sum(Step((1,)).lengths)
    space = Space(tokens, heads, groups, size, head_dim)
    step = Step(space.state_shape)
    step.check(
        torch.empty(tokens, space.inner),
        lambda: space.run(ops, step.cache, step.slots),
        space.expect,
        1e-4,
    )


def test_rows_of_nobody_are_zero(ops):
    step = Step((4, 16, 16))
    total = sum(step.lengths)
    space = Space(total + 2, 4, 1, 16, 16)
    out = space.run(ops, step.cache, step.slots_for(total + 2))
    assert torch.equal(out[total:], torch.zeros(2, space.inner))


def test_native_bits_do_not_depend_on_how_tokens_are_cut(ops):
    if isinstance(ops, _Reference):
        pytest.skip("the reference takes many tokens at once")
    space = Space(50, 6, 2, 24, 48)
    whole = Step(space.state_shape, [50], [0])
    expected = space.run(ops, whole.cache, whole.slots)
    state, parts = torch.zeros(2, *space.state_shape), []
    for start in range(0, 50, 7):
        end = min(start + 7, 50)
        write = torch.zeros(end - start, dtype=torch.int32)
        write[-1] = 1
        as_int = {"dtype": torch.int32}
        slots = doors.StateSlots(
            torch.tensor([1], **as_int), write, torch.tensor([0, end - start], **as_int),
            torch.tensor([end], **as_int),
        )  # fmt: skip
        parts.append(space.run(ops, state, slots, slice(start, end)))
    assert torch.equal(torch.cat(parts), expected)
