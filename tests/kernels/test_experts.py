"""Routing and experts against their definitions in fp64, one token at a time."""

import numpy as np
import pytest
import torch

from pagoda.kernels import ops
from pagoda.kernels.ref import experts as ref
from tests.kernels.adapter_cases import expert_adapters, merged


def softmax(x: np.ndarray) -> np.ndarray:
    shares = np.exp(x - x.max())
    return shares / shares.sum()


def expected_route(logits, top_k, scoring, renormalize):
    """Of one token: ids by falling logit, lower ones first of equals, and weights."""
    ids = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top_k]
    chosen = logits[ids]
    weights = {
        "softmax": softmax(logits)[ids],
        "topk_softmax": softmax(chosen),
        "sigmoid": 1 / (1 + np.exp(-chosen)),
    }[scoring]
    return ids, weights / weights.sum() if renormalize else weights


def check_route(route) -> None:
    """`route(logits, top_k, scoring, renormalize, scales)` on rows with equals among them."""
    torch.manual_seed(0)
    for count, top_k in ((1, 1), (4, 4), (32, 4), (129, 8)):
        logits = (torch.randn(40, count) * 4).round(decimals=0 if count > 4 else 3)
        logits[0] = -torch.inf if count == 1 else 0.0
        logits[0, -1] = 1.0
        for scoring in ("softmax", "topk_softmax", "sigmoid"):
            for renormalize in (False, True):
                scales = torch.randn(count) if top_k > 1 else None
                ids, weights, _ = route(logits, top_k, scoring, renormalize, scales)
                assert (ids.dtype, weights.dtype) == (torch.int64, torch.float32)
                for row, numbers in enumerate(logits.double().numpy()):
                    mine, shares = expected_route(numbers, top_k, scoring, renormalize)
                    shares = shares if scales is None else shares * scales[mine].numpy()
                    assert ids[row].tolist() == mine
                    np.testing.assert_allclose(weights[row].numpy(), shares, rtol=1e-5)


def test_reference_route():
    check_route(ref.route)


def expected_corrected(logits, added, top_k, scoring, groups, top_groups, count):
    """Of one token: ids and weights, by numbers without equals."""
    shares = 1 / (1 + np.exp(-logits)) if scoring == "sigmoid" else softmax(logits)
    keys = (shares + added).reshape(groups, -1)
    best = np.sort(keys, axis=1)[:, -count:].sum(1)
    opened = np.argsort(-best)[:top_groups]
    keys[[group for group in range(groups) if group not in opened]] = -np.inf
    ids = np.argsort(-keys.ravel())[:top_k]
    return ids, shares[ids]


def check_corrected_route(route) -> None:
    """`route(logits, top_k, scoring, renormalize, scales, correction)`."""
    torch.manual_seed(0)
    for count, top_k, groups, top_groups in (
        (4, 4, 1, 1), (32, 4, 1, 1), (32, 6, 8, 3), (129, 8, 1, 1), (12, 3, 4, 2), (128, 8, 64, 4),
    ):  # fmt: skip
        logits, added = torch.randn(40, count) * 2, torch.randn(count) / 3
        for scoring, best in (("softmax", 2), ("sigmoid", 2), ("softmax", 1), ("sigmoid", 1)):
            correction = ops.Correction(added, groups, top_groups, best)
            ids, weights, _ = route(logits, top_k, scoring, False, None, correction)
            scales = torch.full((count,), 2.5)
            shares = route(logits, top_k, scoring, True, scales, correction)[1]
            for row, numbers in enumerate(logits.double().numpy()):
                mine, alone = expected_corrected(
                    numbers, added.double().numpy(), top_k, scoring, groups, top_groups, best
                )
                assert ids[row].tolist() == mine.tolist()
                np.testing.assert_allclose(weights[row].numpy(), alone, rtol=1e-5)
                expected = 2.5 * alone / alone.sum()
                np.testing.assert_allclose(shares[row].numpy(), expected, rtol=1e-5)


def test_reference_corrected_route():
    check_corrected_route(ref.route)


def gated(x: np.ndarray, gating: ops.Gating) -> np.ndarray:
    gate, up = np.split(x, 2)
    if gating.limit:
        gate, up = np.minimum(gate, gating.limit), np.clip(up, -gating.limit, gating.limit)
        return gate / (1 + np.exp(-gating.alpha * gate)) * (up + 1)
    if gating.activation == "gelu_tanh":
        return gate / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
    return gate / (1 + np.exp(-gate)) * up


def expected_mix(x, ids, weights, up, down, gating, first=0, weighs_inputs=False) -> np.ndarray:
    """In fp64; `up` and `down` are (weight, bias) as `PlainExperts` has them."""
    up, down = (
        [None if part is None else part.double().numpy() for part in pair] for pair in (up, down)
    )

    def product(pair, expert, y):
        return pair[0][expert] @ y + (0 if pair[1] is None else pair[1][expert])

    out = np.zeros(tuple(x.shape))
    for row, token in enumerate(x.double().numpy()):
        for expert, weight in zip(ids[row].tolist(), weights[row].tolist(), strict=True):
            here = expert - first
            if 0 <= here < len(up[0]):
                given, after = (weight * token, 1) if weighs_inputs else (token, weight)
                inner = gated(product(up, here, given), gating)
                out[row] += after * product(down, here, inner)
    return out


def expected_adapted(x, routed, up, down, adapters, *rest) -> np.ndarray:
    """In fp64, with what each token's adapter makes of the experts."""
    out = []
    for row, slot in enumerate(adapters.slots.tolist()):
        own = (merged(part, x, slot) for part, x in ((up, adapters.up), (down, adapters.down)))
        here = slice(row, row + 1)
        out.append(expected_mix(x[here], routed.ids[here], routed.weights[here], *own, *rest))
    return np.concatenate(out)


def random_experts(count: int, hidden: int, size: int, bias: bool):
    up = ops.PlainExperts(
        torch.randn(count, 2 * size, hidden) * hidden**-0.5,
        torch.randn(count, 2 * size) if bias else None,
    )
    down = ops.PlainExperts(
        torch.randn(count, hidden, size) * size**-0.5,
        torch.randn(count, hidden) if bias else None,
    )
    return up, down


def expected_of_one_matrix(x, ids, weights, up, down) -> np.ndarray:
    """In fp64: relu(up(x))^2 for what is gated."""
    up, down = up.weight.double().numpy(), down.weight.double().numpy()
    out = np.zeros(tuple(x.shape))
    for row, token in enumerate(x.double().numpy()):
        for expert, weight in zip(ids[row].tolist(), weights[row].tolist(), strict=True):
            out[row] += weight * (down[expert] @ np.maximum(up[expert] @ token, 0) ** 2)
    return out


GATINGS = {
    "silu": ops.Gating(),
    "gelu": ops.Gating(activation="gelu_tanh"),
    "clamped": ops.Gating(1.702, 1.5),
}


@pytest.mark.parametrize("gating", GATINGS)
@pytest.mark.parametrize("bias", [False, True])
def test_reference_mix(gating, bias):
    torch.manual_seed(1)
    up, down = random_experts(6, 24, 10, bias)
    x = torch.randn(9, 24) * 2
    ids, weights, _ = ref.route(torch.randn(9, 12), 3, "topk_softmax", False)
    for first, inputs in ((0, False), (3, True), (6, False)):  # other ranks' experts add nothing
        out = ops.mix_experts(
            x, ops.Routed(ids, weights), up, down, GATINGS[gating], first, weighs_inputs=inputs
        )
        expected = expected_mix(x, ids, weights, up, down, GATINGS[gating], first, inputs)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_one_matrix_is_gate_and_up():
    torch.manual_seed(1)
    up, down = random_experts(6, 24, 10, bias=False)
    up, x = ops.PlainExperts(up.weight[:, :10], None), torch.randn(9, 24) * 2
    ids, weights, _ = ref.route(torch.randn(9, 6), 3, "sigmoid", False)
    out = ops.mix_experts(x, ops.Routed(ids, weights), up, down, ops.Gating(activation="relu"))
    expected = expected_of_one_matrix(x, ids, weights, up, down)
    np.testing.assert_allclose(out.numpy(), expected, rtol=1e-5, atol=1e-5)


def test_half_precision_sums_in_fp32():
    torch.manual_seed(2)
    up, down = random_experts(4, 32, 16, False)
    half = [ops.PlainExperts(part.weight.bfloat16(), None) for part in (up, down)]
    x = torch.randn(5, 32).bfloat16()
    ids, weights, _ = ref.route(torch.randn(5, 4), 4, "softmax", True)
    out = ops.mix_experts(x, ops.Routed(ids, weights), *half, ops.Gating())
    assert out.dtype == torch.bfloat16
    expected = expected_mix(x, ids, weights, *half, ops.Gating())
    np.testing.assert_allclose(out.float().numpy(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("gating", GATINGS)
def test_reference_mix_with_adapters(gating):
    torch.manual_seed(2)
    up, down = random_experts(6, 24, 10, bias=True)
    x = torch.randn(9, 24) * 2
    routed = ref.route(torch.randn(9, 12), 3, "topk_softmax", False)
    adapters = expert_adapters(9, 6, up, down)
    for first, inputs in ((0, False), (3, True)):
        rest = (GATINGS[gating], first)
        out = ops.mix_experts(x, routed, up, down, *rest, weighs_inputs=inputs, adapters=adapters)
        expected = expected_adapted(x, routed, up, down, adapters, *rest, inputs)
        np.testing.assert_allclose(out.numpy(), expected, rtol=1e-4, atol=1e-4)
