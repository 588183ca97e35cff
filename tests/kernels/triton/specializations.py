"""Prints, as JSON, for how many launches each kernel would be compiled if ops met steps of several
sizes, by Triton's own rules. To be run by itself: where tests run, kernels are interpreted."""

import json
from collections import defaultdict
from unittest import mock

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.runtime.jit import JITFunction, create_function_from_signature

from pagoda.kernels import ops
from pagoda.kernels.ref.delta_net import Decay, StateSlots
from pagoda.kernels.ref.draw import DrawParams
from pagoda.kernels.triton import attention, delta_net, draw, kv_cache, norm, sampling
from pagoda.kernels.triton.products import experts, gemm, routing
from pagoda.kernels.triton.products.matrix import GpuMatrix

SIZES = (2, 3, 5, 15, 16)
HIDDEN, HEADS, HEAD, VOCAB, BLOCK = 256, 4, 64, 1000, 16
BACKEND = CUDABackend(GPUTarget("cuda", 90, 32))
DTYPE = torch.bfloat16


def main() -> None:
    seen: defaultdict[str, set[str]] = defaultdict(set)

    def catch(kernel, *args, grid, warmup, **kwargs) -> None:
        bind = create_function_from_signature(kernel.signature, kernel.params, BACKEND)
        _, special, options = bind(*args, **kwargs)
        seen[f"{kernel.fn.__module__.rpartition('.')[2]}{kernel.__name__}"].add(
            repr((special, sorted(options.items())))
        )

    with mock.patch.object(JITFunction, "run", catch):
        for count in SIZES:
            step(count)
    print(json.dumps({name: len(keys) for name, keys in sorted(seen.items())}))


def step(count: int) -> None:
    """Ops of a decode step of so many requests."""
    x, weight = torch.zeros(count, HIDDEN, dtype=DTYPE), torch.zeros(HIDDEN)
    norm.rms_norm(x, weight, 1e-6)
    norm.rms_norm(x.view(count, HEADS, HEAD), weight[:HEAD], 1e-6)
    norm.add_rms_norm(x, x.float(), weight, 1e-6)
    norm.layer_norm(x, weight, weight, 1e-6)
    norm.gated_rms_norm(x, x, weight[:HEAD], 1e-6)
    gemm.matmul(x, [GpuMatrix("INT4", 128, HIDDEN, "cpu")])
    attend(count)
    forget(count)
    mix(6 + 2 * count)
    logits = torch.zeros(count, VOCAB)
    values, ids = sampling.first_max(logits)
    sampling.mask_logits(logits, ids, torch.zeros(count, 32, dtype=torch.int32))
    sampling.top_tokens(logits, 100 + count)
    wide = np.zeros(count)
    params = DrawParams(
        seed=wide.astype(np.uint64), position=wide.astype(np.int64), top_p=wide,
        temperature=wide.astype(np.float32), min_p=wide.astype(np.float32),
        top_k=wide.astype(np.int32),
    )  # fmt: skip
    draw.draw(ids, logits, values, params)


def attend(count: int) -> None:
    qkv = torch.zeros(count, 3 * HIDDEN, dtype=DTYPE)
    k_cache, v_cache = torch.zeros(2, 8, HEADS, BLOCK, HEAD, dtype=DTYPE)
    places = torch.zeros(count, dtype=torch.int64)
    q = kv_cache.rotary_store(qkv, places, torch.zeros(64, HEAD), k_cache, v_cache, places)
    # As wide as the longest context asks for, whatever is in the step.
    table, lens = torch.zeros(count, 64, dtype=torch.int32), torch.ones(count, dtype=torch.int32)
    starts = torch.arange(count + 1, dtype=torch.int32)
    attention.paged_attention(q, k_cache, v_cache, table, starts, lens, scale=0.1)


def forget(count: int) -> None:
    """Of a gated delta net."""
    index, starts = torch.zeros(count, dtype=torch.int32), torch.arange(count + 1)
    slots = StateSlots(index, index, starts.int(), index)
    x = torch.zeros(count, 3 * HIDDEN, dtype=DTYPE)
    delta_net.causal_conv(x, torch.zeros(4, 3 * HIDDEN), torch.zeros(2, 3, 3 * HIDDEN), slots)
    gates, rate = torch.zeros(count, HEADS, dtype=DTYPE), torch.zeros(HEADS)
    state = torch.zeros(2, HEADS, HEAD, HEAD)
    delta_net.gated_delta_rule(x, gates, Decay(gates, rate, rate), state, slots, tiled=False)


def mix(count: int) -> None:
    """By many experts: those of a few assignments are another kernel's."""
    x, total, size = torch.zeros(count, HIDDEN, dtype=DTYPE), 6, 32
    routed = routing.route(torch.zeros(count, total), 2)
    up, down = (
        ops.PackedExperts(tuple(GpuMatrix("INT4", total * rows, columns, "cpu")
                                for _ in range(parts)), rows, total, None)
        for parts, rows, columns in ((2, size, HIDDEN), (1, HIDDEN, size))
    )  # fmt: skip
    experts.mix(x, routed, up, down, ops.Gating())


if __name__ == "__main__":
    main()
