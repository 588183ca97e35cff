"""What holding quantized weights in the native kernels' formats costs: docs/quantization.md.

Run it as `python tools/quantization_error.py`. Weights are standard normal; an error is the rms of
the difference over the rms of the weights.
"""

import torch

from pagoda.kernels import ops
from pagoda.kernels.ref import kv_cache, q4
from pagoda.quant.repack import repacked
from pagoda.weights.quantize import quantize_rows

ROWS, COLUMNS, GROUP = 512, 4096, 128
BLOCKS = COLUMNS // 32
E2M1 = torch.tensor((0, 0.5, 1, 1.5, 2, 3, 4, 6))
# The levels of nf4 (arXiv 2305.14314, appendix E).
NF4 = torch.tensor((
    -1.0, -0.6961928, -0.5250731, -0.3949175, -0.2844414, -0.1847734, -0.0910500, 0.0,
    0.0795803, 0.1609302, 0.2461123, 0.3379152, 0.4407098, 0.5626170, 0.7229568, 1.0,
))  # fmt: skip
Tensor = torch.Tensor


def error(x: Tensor, y: Tensor) -> str:
    return f"{100 * float((x - y).norm() / x.norm()):.2f}%"


def rounded(x: Tensor, storage: str) -> Tensor:
    raw = quantize_rows(x.contiguous().view(torch.uint8).numpy(), "F32", storage)
    return ops.dequantize(torch.from_numpy(raw), storage)


def groups(x: Tensor, width: int) -> Tensor:
    return x.unflatten(1, (-1, width))


def in_blocks(fields: list[Tensor]) -> Tensor:
    return torch.cat(fields, dim=-1).flatten(1)


def spread(scale: Tensor, width: int) -> Tensor:
    """A scale per group as the bytes of one per block."""
    per_block = scale.repeat_interleave(width // 32, dim=1)
    return per_block.contiguous().view(torch.uint8)


def fp8(x: Tensor) -> tuple[Tensor, Tensor]:
    """(decoded, blocks): a scale per row, as the online fp8 of other engines has."""
    scale = x.abs().amax(1, keepdim=True) / 448
    codes = (x / scale).to(torch.float8_e4m3fn)
    blocks = [spread(scale.unsqueeze(-1), COLUMNS), groups(codes.view(torch.uint8), 32)]
    return codes.float() * scale, in_blocks(blocks)


def uint4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale (fp16) and zero point per group, as AWQ and GPTQ have."""
    x = groups(x, GROUP)
    low, high = x.amin(2, keepdim=True), x.amax(2, keepdim=True)
    scale = ((high - low) / 15).half().float()
    zero = (-low / scale).round().clamp(0, 15)
    codes = (x / scale + zero).round().clamp(0, 15)
    decoded = ((codes - zero) * scale).flatten(1)
    halves = groups(codes.flatten(1), 32).to(torch.uint8)
    packed = halves[..., :16] | halves[..., 16:] << 4
    zeros = zero.to(torch.uint8).repeat_interleave(GROUP // 32, dim=1)
    return decoded, in_blocks([spread(scale, GROUP), zeros, packed])


def nvfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales as ModelOpt chooses them: the largest of 16 becomes 6, the largest scale 448."""
    grouped = groups(x, 16)
    whole = x.abs().amax() / (6 * 448)
    scale = (grouped.abs().amax(2) / 6 / whole).to(torch.float8_e4m3fn)
    each = (scale.float() * whole).unsqueeze(-1)
    apart = grouped.abs().unsqueeze(-1) / each.unsqueeze(-1) - E2M1
    codes = apart.abs().argmin(-1)
    decoded = (E2M1[codes] * each * grouped.sign()).flatten(1)
    halves = groups((codes + 8 * (grouped < 0)).flatten(1), 32).to(torch.uint8)
    packed = halves[..., :16] | halves[..., 16:] << 4
    wholes = whole.view(1).view(torch.uint8).expand(ROWS, BLOCKS, 4)
    return decoded, in_blocks([wholes, groups(scale.view(torch.uint8), 2), packed])


def nf4(x: Tensor) -> Tensor:
    """Decoded: the largest of 64 becomes 1, as bitsandbytes has it."""
    scale = groups(x, 64).abs().amax(2, keepdim=True)
    codes = ((groups(x, 64) / scale).unsqueeze(-1) - NF4).abs().argmin(-1)
    return (NF4[codes] * scale).flatten(1)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS)
    eight, eight_blocks = fp8(x)
    four, four_blocks = uint4(x)
    floats, float_blocks = nvfp4(x)
    assert torch.equal(ops.dequantize(float_blocks, "FP4"), floats)
    in_six = ops.dequantize(repacked(float_blocks, "FP4", "Q6_K"), "Q6_K")
    in_eight = ops.dequantize(repacked(float_blocks, "FP4", "Q8_0"), "Q8_0")
    scattered = four[:, torch.randperm(COLUMNS)].contiguous()
    assert torch.equal(ops.dequantize(eight_blocks, "FP8"), eight)
    assert torch.equal(ops.dequantize(four_blocks, "UINT4"), four)
    held = ops.dequantize(repacked(eight_blocks, "FP8", "Q8_0"), "Q8_0")
    low = ops.dequantize(repacked(four_blocks, "UINT4", "Q4_1"), "Q4_1")
    levels = nf4(x)
    scattered_raw = scattered.view(torch.uint8)
    spread_out = ops.dequantize(repacked(scattered_raw, "DECODED", "Q8_0"), "Q8_0")
    heads = groups(x, 64)  # of K and V
    cached = kv_cache.decode(kv_cache.encode(heads, torch.int8), torch.float32)
    rows = [
        ("bf16 to fp8, a scale per row", error(x, eight)),
        ("bf16 to Q8_0 (`--quantization int8` and `fp8`)", error(x, rounded(x, "Q8_0"))),
        ("bf16 to Q4_1 (`--quantization int4`)", error(x, rounded(x, "Q4_1"))),
        ("FP8 held as Q8_0", error(eight, held)),
        ("FP8 held as BF16", error(eight, eight.bfloat16().float())),
        ("FP8 held as Q8_0, against the weights before fp8", error(x, held)),
        ("UINT4 held as Q4_1", error(four, low)),
        ("NVFP4, with scales as ModelOpt chooses them", error(x, floats)),
        ("FP4 held as Q6_K", error(floats, in_six)),
        ("FP4 held as Q8_0", error(floats, in_eight)),
        ("nf4 of bitsandbytes", error(x, levels)),
        ("nf4 held as Q8_0", error(levels, rounded(levels, "Q8_0"))),
        ("4 bits in activation order held as Q8_0", error(scattered, spread_out)),
        ("4 bits in activation order held as Q4_1", error(scattered, rounded(scattered, "Q4_1"))),
        ("keys and values to int8, a scale per 64", error(heads, cached)),
        ("keys and values to q4_0", error(heads, q4.decode(*q4.encode(heads)))),
        ("keys and values to fp8", error(heads, heads.to(torch.float8_e4m3fn).float())),
    ]
    print("| weights | error |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


if __name__ == "__main__":
    main()
