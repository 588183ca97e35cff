"""Gated delta nets against transformers' own, with states in slots that start as NaN."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen3_5 import modeling_qwen3_5 as theirs

from pagoda.kernels import ops as doors
from pagoda.kernels.ref import activation, delta_net

native = pytest.importorskip(
    "pagoda.kernels.cpu._native", reason="the native kernels are not built here"
)
from pagoda.kernels.cpu.ops import CpuOps  # noqa: E402 - behind the skip

FORMS = ["ref", *((isa, threads) for isa in native.INSTRUCTION_SETS for threads in (1, 3))]
# Tokens of each request of a step, and those it had before; one request has none in this step. Of
# the last tokens so many are drafts.
LENGTHS = [1, 5, 0, 130, 1, 2, 64, 3, 4, 6, 70]
BEFORE = [0, 7, 9, 0, 300, 1, 64, 2, 5, 1, 3]
DRAFTS = [0, 0, 0, 0, 0, 0, 0, 0, 3, 4, 2]


class _Reference:
    """The torch forms under the names of the native ones."""

    causal_conv = staticmethod(delta_net.causal_conv)
    gated_delta_rule = staticmethod(delta_net.gated_delta_rule)
    gated_rms_norm = staticmethod(delta_net.gated_rms_norm)
    sigmoid_mul = staticmethod(activation.sigmoid_mul)
    add_gated = staticmethod(activation.add_gated)


@pytest.fixture(params=FORMS, ids=str)
def ops(request):
    if request.param == "ref":
        return _Reference()
    isa, threads = request.param
    return CpuOps(native.Native(threads, isa))


@pytest.fixture(autouse=True)
def poisoned_outputs() -> Iterator[None]:
    """In torch's deterministic mode `torch.empty` is full of NaN."""
    torch.manual_seed(5)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@dataclass
class Step:
    """A ragged step, and a cache whose slots lie apart."""

    shape: tuple[int, ...]
    lengths: list[int] = field(default_factory=lambda: LENGTHS)
    before: list[int] = field(default_factory=lambda: BEFORE)
    drafts: list[int] = field(default_factory=lambda: DRAFTS)

    def __post_init__(self):
        chance = random.Random(4)
        count = len(self.lengths)
        drafts = self.drafts[:count]
        size = torch.Size(self.shape).numel()
        slots = 3 * count + sum(drafts) + 1
        buffer = torch.full((slots, size + 5), torch.nan)
        self.cache = buffer[:, 3 : 3 + size].unflatten(1, self.shape)
        free = list(range(1, slots))
        chance.shuffle(free)
        self.read = [free.pop() for _ in range(count)]
        # Some keep what they read from, some do not keep the state at all.
        first = [(read, free.pop(), free.pop(), 0)[i % 4] for i, read in enumerate(self.read)]
        self.write = [
            [0] * (length - 1 - more) + [slot] + [free.pop() for _ in range(more)] if length else []
            for length, more, slot in zip(self.lengths, drafts, first, strict=True)
        ]
        for req, read in enumerate(self.read):
            if self.before[req] > 0:
                self.cache[read] = torch.randn(self.shape)
        starts = [0, *torch.tensor(self.lengths).cumsum(0).tolist()]
        kv_lens = [a + b for a, b in zip(self.lengths, self.before, strict=True)]
        as_int = {"dtype": torch.int32}
        self.rows = [slice(a, b) for a, b in zip(starts, starts[1:], strict=False)]
        self.slots = doors.StateSlots(
            torch.tensor(self.read, **as_int), torch.tensor(sum(self.write, []), **as_int),
            torch.tensor(starts, **as_int), torch.tensor(kv_lens, **as_int), any(drafts),
        )  # fmt: skip

    def slots_for(self, rows: int) -> doors.StateSlots:
        """With further rows, which are no request's."""
        write = torch.zeros(rows, dtype=torch.int32)
        write[: len(self.slots.write)] = self.slots.write
        return self.slots._replace(write=write)

    def state_of(self, req: int) -> torch.Tensor:
        """A request's state before the step."""
        return self.cache[self.read[req]] if self.before[req] else torch.zeros(self.shape)

    def check(self, out: torch.Tensor, run: Callable, expect: Callable, tolerance: float) -> None:
        """`run()` fills `out` and changes the cache as `expect(req, rows, state)` does alone."""
        expected_cache = self.cache.clone()
        expected = torch.zeros_like(out)
        for req, rows in enumerate(self.rows):
            if self.lengths[req] == 0:
                continue
            state, slots = self.state_of(req), self.write[req]
            ends = [i + 1 for i, slot in enumerate(slots) if slot] or [len(slots)]
            for first, end in zip([0, *ends], ends, strict=False):
                part = slice(rows.start + first, rows.start + end)
                expected[part], state = expect(part, state)
                if slots[end - 1]:
                    expected_cache[slots[end - 1]] = state
        found = run()
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
        torch.testing.assert_close(
            self.cache, expected_cache, rtol=tolerance, atol=tolerance, equal_nan=True
        )


@pytest.mark.parametrize("channels", [1, 16, 43, 300, 1024])
@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("silu", [False, True])
def test_causal_conv(ops, channels, width, silu):
    step = Step((width - 1, channels))
    total = sum(step.lengths)
    x = torch.randn(total + 2, channels + 7)[:, 3 : 3 + channels]
    weight = torch.randn(width, channels)
    bias = None if silu and width == 2 else torch.randn(channels)

    def expect(rows, state):
        window = torch.cat((state, x[rows]))
        filters = weight.t().unsqueeze(1).contiguous()
        out = F.conv1d(window.t()[None], filters, bias, groups=channels)[0].t()
        return F.silu(out) if silu else out, window[len(window) - width + 1 :]

    # Two rows behind the last request become zero.
    step.check(
        torch.empty(total + 2, channels),
        lambda: ops.causal_conv(
            x, weight, step.cache, step.slots_for(total + 2), bias=bias, silu=silu
        ),
        expect,
        2e-6,
    )


@dataclass
class Rule:
    """Random arguments of the rule for so many tokens."""

    tokens: int
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    tiled: bool = False

    def __post_init__(self):
        self.keys = self.key_heads * self.key_dim
        self.values = self.value_heads * self.value_dim
        self.qkv = torch.randn(self.tokens, 2 * self.keys + self.values)
        both = torch.randn(self.tokens, 2 * self.value_heads + 3) * 2
        self.strength = both[:, : self.value_heads]
        rate, bias = -torch.rand(self.value_heads) * 2, torch.randn(self.value_heads)
        self.decay = doors.Decay(both[:, self.value_heads : -3], rate, bias)

    @property
    def state_shape(self) -> tuple[int, ...]:
        return (self.value_heads, self.key_dim, self.value_dim)

    def expect(self, rows: slice, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = self.qkv[rows].split((self.keys, self.keys, self.values), dim=1)
        shape = (1, -1, self.key_heads, self.key_dim)
        if self.tiled:  # theirs repeats key heads in runs: as many tiles as value heads need
            count = self.value_heads // self.key_heads
            q, k, shape = q.repeat(1, count), k.repeat(1, count), (1, -1, *self.state_shape[:2])
        log_decay = self.decay.rate * F.softplus(self.decay.x[rows] + self.decay.bias)
        out, after = theirs.torch_recurrent_gated_delta_rule(
            q.reshape(shape), k.reshape(shape), v.reshape(1, -1, self.value_heads, self.value_dim),
            g=log_decay[None], beta=self.strength[rows].sigmoid()[None],
            initial_state=state[None], output_final_state=True, use_qk_l2norm_in_kernel=True,
        )  # fmt: skip
        return out[0].flatten(1), after[0]

    def run(self, ops, cache: torch.Tensor, slots: doors.StateSlots, rows=slice(None)):
        decay = self.decay._replace(x=self.decay.x[rows])
        qkv = self.qkv[rows].clone()
        return ops.gated_delta_rule(qkv, self.strength[rows], decay, cache, slots, tiled=self.tiled)


@pytest.mark.parametrize(
    ("key_heads", "value_heads", "key_dim", "value_dim", "tiled"),
    [
        (1, 1, 8, 16, False), (2, 6, 24, 48, False), (2, 6, 24, 48, True), (4, 4, 128, 128, False),
        (1, 3, 37, 80, False), (2, 4, 256, 112, True),
    ],
)  # fmt: skip
def test_gated_delta_rule(ops, key_heads, value_heads, key_dim, value_dim, tiled):
    total = sum(LENGTHS)
    rule = Rule(total, key_heads, value_heads, key_dim, value_dim, tiled)
    step = Step(rule.state_shape)
    out = torch.empty(total, rule.values)
    step.check(out, lambda: rule.run(ops, step.cache, step.slots), rule.expect, 2e-5)


@pytest.mark.parametrize(("key_dim", "value_dim"), [(8, 10), (300, 16)])
def test_sizes_that_only_torch_takes(key_dim, value_dim):
    rule = Rule(sum(LENGTHS), 1, 2, key_dim, value_dim)
    step = Step(rule.state_shape)
    out = torch.empty(sum(LENGTHS), rule.values)
    step.check(out, lambda: rule.run(doors, step.cache, step.slots), rule.expect, 2e-5)


@pytest.mark.parametrize("form", FORMS[1:], ids=str)
@pytest.mark.parametrize("chunks", [[1] * 50, [3, 47], [7, 1, 42], [49, 1]])
def test_bits_do_not_depend_on_steps_or_batch(form, chunks):
    ops = CpuOps(native.Native(form[1], form[0]))
    rule = Rule(50, 2, 4, 64, 96)
    whole = Step(rule.state_shape, [50], [0])
    expected = rule.run(ops, whole.cache, whole.slots)
    end = whole.cache[whole.write[0][-1]]
    cut = torch.full_like(whole.cache, torch.nan)
    done, parts, where = 0, [], 1
    other = Rule(9, 2, 4, 64, 96)
    other.decay = other.decay._replace(rate=rule.decay.rate, bias=rule.decay.bias)
    for length in chunks:
        rows = slice(done, done + length)
        done += length
        # Another request of 9 tokens goes first, and the state moves between two slots.
        both = Rule(9 + length, 2, 4, 64, 96)
        both.qkv = torch.cat((other.qkv, rule.qkv[rows]))
        both.strength, x = (
            torch.cat((a, b[rows]))
            for a, b in ((other.strength, rule.strength), (other.decay.x, rule.decay.x))
        )
        both.decay = rule.decay._replace(x=x)
        write = [0] * (8 + length) + [3 - where]
        slots = doors.StateSlots(
            *(torch.tensor(x, dtype=torch.int32) for x in (
                [3, where], write, [0, 9, 9 + length], [9, done],
            ))
        )  # fmt: skip
        where = 3 - where
        parts.append(both.run(ops, cut, slots)[9:])
    assert torch.equal(torch.cat(parts), expected)
    assert torch.equal(cut[where], end)


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("in_place", [False, True])
def test_states_behind_drafts_are_those_of_single_steps(form, in_place):
    """Bit for bit, of both ops; the first one may go where the step reads from. (But for torch's
    sigmoid, whose last bit depends on where in a tensor a number stands.)"""
    off = 1e-6 if form == "ref" else 0
    same = partial(torch.testing.assert_close, rtol=off, atol=off)
    ops = _Reference() if form == "ref" else CpuOps(native.Native(form[1], form[0]))
    count, weight, rule = 5, torch.randn(4, 2 * 2 * 24 + 4 * 48), Rule(5, 2, 4, 24, 48)
    ints = lambda *values: torch.tensor(values, dtype=torch.int32)  # noqa: E731
    started = torch.full((count + 2, *rule.state_shape), torch.nan)
    started_conv = torch.full((count + 2, 3, weight.shape[1]), torch.nan)
    started[1], started_conv[1] = torch.randn(rule.state_shape), torch.randn(3, weight.shape[1])
    places = ints(*range(1 if in_place else 2, count + (1 if in_place else 2)))

    cache, conv = started.clone(), started_conv.clone()
    slots = doors.StateSlots(ints(1), places, ints(0, count), ints(9 + count), True)
    out = ops.causal_conv(rule.qkv, weight, conv, slots), rule.run(ops, cache, slots)

    alone, alone_conv, said = started.clone(), started_conv.clone(), []
    for row, place in enumerate(places.tolist()):
        rows = slice(row, row + 1)
        slots = doors.StateSlots(ints(1), ints(1), ints(0, 1), ints(10 + row))
        said.append((
            ops.causal_conv(rule.qkv[rows], weight, alone_conv, slots),
            rule.run(ops, alone, slots, rows),
        ))  # fmt: skip
        same(cache[place], alone[1])
        same(conv[place], alone_conv[1])
    if form != "ref":
        for whole, parts in zip(out, zip(*said, strict=True), strict=True):
            assert torch.equal(whole, torch.cat(parts))


def test_an_empty_step(ops):
    rule = Rule(0, 2, 4, 16, 16)
    step = Step(rule.state_shape, [0, 0], [5, 0])
    before = step.cache.clone()
    assert rule.run(ops, step.cache, step.slots).shape == (0, 64)
    torch.testing.assert_close(step.cache, before, rtol=0, atol=0, equal_nan=True)


def test_extreme_gates(ops):
    """States that are forgotten at once, or never; strengths of 0 and 1."""
    rule = Rule(20, 1, 2, 16, 16)
    both = torch.tensor([[-80.0, 80.0, -80.0, 80.0], [80.0, -80.0, 80.0, -80.0]]).repeat(10, 1)
    rule.strength, rule.decay = both[:, :2], rule.decay._replace(x=both[:, 2:])
    step = Step(rule.state_shape, [20], [3])
    out = torch.empty(20, rule.values)
    step.check(out, lambda: rule.run(ops, step.cache, step.slots), rule.expect, 2e-5)


@pytest.mark.parametrize("rows", [0, 1, 3, 130])
@pytest.mark.parametrize(("heads", "size"), [(1, 1), (3, 16), (2, 43), (4, 128)])
def test_gated_rms_norm(ops, rows, heads, size):
    x, wide = torch.randn(rows, heads * size), torch.randn(rows, heads * size + 3)
    gate = wide[:, 2:-1]
    norm = theirs.Qwen3_5RMSNormGated(size, eps=1e-6)
    norm.weight.data = torch.randn(size)
    with torch.no_grad():
        expected = norm(x.view(-1, size), gate.reshape(-1, size)).view(x.shape)
    found = ops.gated_rms_norm(x, gate, norm.weight.data, 1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [0, 1, 3, 130])
@pytest.mark.parametrize("size", [1, 16, 43, 1536])
def test_sigmoid_mul(ops, rows, size):
    x, gate = torch.randn(rows, size), torch.randn(rows, size + 4)[:, 1:-3] * 20
    expected = x.double() * gate.double().sigmoid()
    found = ops.sigmoid_mul(x, gate).double()
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("rows", [0, 1, 3, 130])
@pytest.mark.parametrize("size", [1, 16, 43, 1536])
@pytest.mark.parametrize("gated", [False, True])
def test_add_gated(ops, rows, size, gated):
    x, added, gate = torch.randn(rows, size), torch.randn(rows, size), torch.randn(rows, 7) * 9
    gate = gate[:, 6:] if gated else None
    expected = x.double() + added.double() * (1 if gate is None else gate.double().sigmoid())
    found = ops.add_gated(x, added, gate).double()
    torch.testing.assert_close(found, expected, rtol=2e-6, atol=1e-6)
