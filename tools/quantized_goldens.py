"""Writes tests/models/data/quantized_*.safetensors: layers that other packages packed and decoded.

    pip download --no-deps --no-build-isolation auto-gptq==0.7.1 autoawq==0.2.9 \
        auto-round==0.16.1 compressed-tensors==0.10.2 bitsandbytes==0.50.2
    (unpack all into FOLDER: auto_gptq/, awq/, auto_round/, auto_round_extension/, bitsandbytes/ and
    compressed_tensors/, whose later versions no longer write weight_g_idx)
    python tools/quantized_goldens.py FOLDER [NAME ...]

With names ("layers", "bits", "bitsandbytes", or that of a model) only these files are written.

Their packages import much that plain packing does not need, so single modules of them are loaded.
Codes, scales and zero points come from rounding to nearest; what is under test is how they are
packed and what they decode to, both of which are these packages' doing.
"""

import importlib
import json
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

Tensor = torch.Tensor
DATA = Path(__file__).parents[1] / "tests" / "models" / "data"
# What transformers calls a tiny Llama; rows and columns by 32, as AWQ wants them.
SIZES = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}  # fmt: skip
IDS = [(7 * i * i + 3) % 64 for i in range(24)]


@dataclass(frozen=True)
class Case:
    package: str
    config: dict
    """As the package writes it to config.json (`quantization_config`)."""
    act_order: bool = False
    exact: bool = False
    """Scales have so few bits that decoded weights need no rounding to fp16."""

    @property
    def bits(self) -> int:
        return self.config["bits"]

    @property
    def symmetric(self) -> bool:
        return self.config.get("sym", False)


def gptq(**changes) -> dict:
    common = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False}
    return {**common, "checkpoint_format": "gptq", **changes}


def auto_round(**changes) -> dict:
    common = {"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": True}
    return {**common, "data_type": "int", **changes}


def compressed() -> dict:
    weights = {"num_bits": 4, "strategy": "group", "group_size": 32, "actorder": "group"}
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "bits": 4, "group_size": 32, "sym": True,  # for `Case`; no part of the format
    }  # fmt: skip


def bitsandbytes(kind: str, twice: bool) -> dict:
    return {
        "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False,
        "bnb_4bit_quant_type": kind, "bnb_4bit_use_double_quant": twice,
    }  # fmt: skip


V1, V2, AWQ = ("auto_round:auto_gptq", "auto_round:gptqmodel", "auto_round:auto_awq")
CASES = {
    "gptq": Case("auto_gptq", gptq()),
    "gptq asymmetric": Case("auto_gptq", gptq(sym=False)),
    "gptq channels": Case("auto_gptq", gptq(sym=False, group_size=-1)),
    "gptq 8 bits": Case("auto_gptq", gptq(bits=8)),
    "gptq 8 bits asymmetric": Case("auto_gptq", gptq(bits=8, sym=False)),
    "gptq act order": Case("auto_gptq", gptq(desc_act=True), act_order=True),
    "gptq act order asymmetric": Case("auto_gptq", gptq(desc_act=True, sym=False), act_order=True),
    "awq": Case("awq", {
        "quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": None,
    }),
    "auto-round": Case("auto_round_zp", auto_round(packing_format=V1)),
    "auto-round asymmetric": Case("auto_round_zp", auto_round(packing_format=V1, sym=False)),
    "auto-round v2": Case("auto_round", auto_round(packing_format=V2, sym=False)),
    "auto-round v2 8 bits": Case("auto_round", auto_round(packing_format=V2, bits=8)),
    "auto-round awq": Case("awq", auto_round(packing_format=AWQ, sym=False)),
    "compressed-tensors act order": Case("compressed_tensors", compressed(), act_order=True),
}  # fmt: skip
# Rows and columns by 32, as codes of 3 bits want them.
FEW_BITS = {
    f"gptq {bits} bits{kind}": Case("auto_gptq", gptq(bits=bits, **changes))
    for bits in (2, 3)
    for kind, changes in (("", {}), (" asymmetric", {"sym": False, "group_size": 64}))
}
NF4 = Case("bitsandbytes", bitsandbytes("nf4", True))
MODELS = {**{name: CASES[name] for name in ("gptq act order", "awq", "auto-round")}, "nf4": NF4}


def module(name: str):
    """A module of a package, without running its parents' `__init__`."""
    parents = name.split(".")[:-1]
    for depth in range(1, len(parents) + 1):
        parent = ".".join(parents[:depth])
        if parent not in sys.modules:
            stub = types.ModuleType(parent)
            stub.__path__ = [str(Path(sys.argv[1], *parents[:depth]))]
            sys.modules[parent] = stub
    return importlib.import_module(name)


def grid(weight: Tensor, case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(weights on the grid, fp16 scales [out, groups], zero points, each column's group)."""
    columns, size = weight.shape[1], case.config["group_size"]
    size = columns if size < 0 else size
    group_of = torch.arange(columns) // size
    if case.act_order:
        group_of = group_of[torch.randperm(columns)]
    groups = int(group_of.max()) + 1
    top = 2**case.bits - 1
    scales, zeros = (torch.empty(len(weight), groups) for _ in range(2))
    for g in range(groups):
        part = weight[:, group_of == g]
        low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
        if case.symmetric:
            scales[:, g] = torch.maximum(-low, high) / (top / 2)
            zeros[:, g] = (top + 1) // 2
        else:
            scales[:, g] = (high - low) / top
            # The first version of GPTQ's packing has no place for a zero point of 0.
            zeros[:, g] = (-low / scales[:, g]).round().clamp(1, top)
    scales = scales.half()
    if case.exact:  # 7 bits of scale times 4 of code are the 11 of fp16
        scales = (scales.view(torch.int16) & ~15).view(torch.float16)
    scales = scales.float()
    codes = (weight / scales[:, group_of] + zeros[:, group_of]).round().clamp(0, top)
    return (codes - zeros[:, group_of]) * scales[:, group_of], scales, zeros, group_of.int()


def linear_of(weight: Tensor) -> torch.nn.Linear:
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    linear.weight.data = weight
    return linear


def decoded_by(layer: torch.nn.Module, columns: int) -> Tensor:
    """Products with unit vectors are the weights themselves."""
    with torch.inference_mode():
        return layer(torch.eye(columns, dtype=torch.float16)).t().contiguous()


def by_auto_gptq(weight: Tensor, case: Case) -> tuple[dict[str, Tensor], Tensor]:
    found = module("auto_gptq.nn_modules.qlinear.qlinear_cuda").QuantLinear
    on_grid, scales, zeros, group_of = grid(weight, case)
    rows, columns = weight.shape
    layer = found(case.bits, case.config["group_size"], columns, rows, False)
    layer.pack(linear_of(on_grid.half()), scales.half(), zeros.half(), group_of)
    parts = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales", "g_idx")}
    return parts, decoded_by(layer, columns)


def by_awq(weight: Tensor, case: Case) -> tuple[dict[str, Tensor], Tensor]:
    found = module("awq.modules.linear.gemm")
    on_grid, scales, zeros, _ = grid(weight, case)
    size = case.config["group_size"]
    layer = found.WQLinear_GEMM.from_linear(
        linear_of(on_grid), 4, size, scales=scales.t().contiguous(), zeros=zeros.t().contiguous()
    )
    parts = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
    decoded = found.dequantize_gemm(*(parts[n] for n in ("qweight", "qzeros", "scales")), 4, size)
    return parts, decoded.t().contiguous()


def by_auto_round(weight: Tensor, case: Case) -> tuple[dict[str, Tensor], Tensor]:
    if "auto_round.utils" not in sys.modules:
        utils = types.ModuleType("auto_round.utils")
        utils.__path__ = [str(Path(sys.argv[1], "auto_round", "utils"))]
        utils.get_packing_device = lambda device=None: torch.device("cpu")
        sys.modules["auto_round.utils"] = utils
    file = "qlinear_torch_zp" if case.package == "auto_round_zp" else "qlinear_torch"
    found = module(f"auto_round_extension.torch.{file}").QuantLinear
    on_grid, scales, zeros, _ = grid(weight, case)
    rows, columns = weight.shape
    layer = found(case.bits, case.config["group_size"], columns, rows, False)
    layer.device = "cpu"
    layer.pack(linear_of(on_grid), scales, zeros)
    parts = {name: getattr(layer, name) for name in ("qweight", "qzeros", "scales")}
    return parts, decoded_by(layer, columns)


def by_compressed_tensors(weight: Tensor, case: Case) -> tuple[dict[str, Tensor], Tensor]:
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import (
        PackedQuantizationCompressor,
    )
    from compressed_tensors.quantization import QuantizationArgs

    on_grid, scales, _, group_of = grid(weight, case)
    args = QuantizationArgs(**case.config["config_groups"]["group_0"]["weights"])
    packer = PackedQuantizationCompressor()
    parts = packer.compress_weight(on_grid, scales.half(), args, g_idx=group_of)
    parts |= {"weight_scale": scales.half(), "weight_g_idx": group_of}
    return parts, packer.decompress_weight(dict(parts), args)


def by_bitsandbytes(weight: Tensor, case: Case) -> tuple[dict[str, Tensor], Tensor]:
    found = importlib.import_module("bitsandbytes.functional")
    kind, twice = (case.config[f"bnb_4bit_{key}"] for key in ("quant_type", "use_double_quant"))
    codes, state = found.quantize_4bit(weight, quant_type=kind, compress_statistics=twice)
    parts = {f"weight.{name}": value for name, value in state.as_dict(packed=True).items()}
    return {"weight": codes, **parts}, found.dequantize_4bit(codes, state)


PACKERS: dict[str, Callable[[Tensor, Case], tuple[dict[str, Tensor], Tensor]]] = {
    "auto_gptq": by_auto_gptq,
    "awq": by_awq,
    "bitsandbytes": by_bitsandbytes,
    "compressed_tensors": by_compressed_tensors,
    "auto_round": by_auto_round,
    "auto_round_zp": by_auto_round,
}


def write(name: str, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    path = DATA / f"quantized_{name}.safetensors"
    save_file({key: value.contiguous() for key, value in tensors.items()}, path, metadata)
    print(f"{path.name}: {path.stat().st_size:,} bytes, {len(tensors)} tensors")


def write_layers(file: str, cases: dict[str, Case]) -> None:
    tensors: dict[str, Tensor] = {}
    for name, case in cases.items():
        weight = 0.05 * torch.randn(32, 64)
        parts, expected = PACKERS[case.package](weight, case)
        tensors |= {f"{name}.{part}": value for part, value in parts.items()}
        tensors[f"{name}.expected"] = expected
    write(file, tensors, {name: json.dumps(case.config) for name, case in cases.items()})


def write_bitsandbytes() -> None:
    """Layers whose rows are whole blocks of 64 and such whose are not; decoded to fp16."""
    tensors: dict[str, Tensor] = {}
    configs: dict[str, str] = {}
    for name, (rows, columns, kind, twice) in {
        "nf4": (32, 128, "nf4", False),
        "nf4 twice": (20, 896, "nf4", True),  # 280 blocks, of which 256 share a scale
        "nf4 across rows": (33, 96, "nf4", False),
        "fp4 twice": (32, 64, "fp4", True),
    }.items():
        case = Case("bitsandbytes", bitsandbytes(kind, twice))
        weight = (0.05 * torch.randn(rows, columns)).half()
        parts, expected = by_bitsandbytes(weight, case)
        tensors |= {f"{name}.{part}": value for part, value in parts.items()}
        tensors[f"{name}.expected"] = expected
        configs[name] = json.dumps(case.config)
    found = importlib.import_module("bitsandbytes.functional")
    codes, largest, _ = found.int8_vectorwise_quant(0.05 * torch.randn(32, 64).half())
    tensors |= {
        "int8.weight": codes, "int8.SCB": largest,
        "int8.weight_format": torch.tensor(0, dtype=torch.uint8),
        "int8.expected": found.int8_vectorwise_dequant(codes, largest).half(),
    }  # fmt: skip
    configs["int8"] = json.dumps({"quant_method": "bitsandbytes", "load_in_8bit": True})
    write("bitsandbytes", tensors, configs)


def write_model(name: str) -> None:
    """A checkpoint, and the logits of the model with the weights that the package decodes."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES)).eval()
    case = replace(MODELS[name], exact=True)
    tensors: dict[str, Tensor] = {}
    with torch.no_grad():
        for key, weight in model.named_parameters():
            base = 1.0 if "norm" in key else 0.0
            weight.copy_((base + 0.15 * torch.randn(weight.shape)).half())
            if "proj" not in key:
                tensors[key] = weight.half()
                continue
            parts, expected = PACKERS[case.package](weight.detach().clone(), case)
            layer = key.removesuffix(".weight")
            tensors |= {f"{layer}.{part}": value for part, value in parts.items()}
            weight.copy_(expected)
            if case.package == "auto_gptq":  # so did AutoGPTQ, whatever the model had
                tensors[f"{layer}.bias"] = torch.zeros(len(weight), dtype=torch.float16)
        logits = model(torch.tensor([IDS])).logits[0]
    config = {
        **model.config.to_dict(), "architectures": ["LlamaForCausalLM"], "dtype": "float16",
        "quantization_config": case.config,
    }  # fmt: skip
    metadata = {"config": json.dumps(config), "ids": json.dumps(IDS)}
    write(name.replace(" ", "_"), {**tensors, "expected_logits": logits}, metadata)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    WRITERS: dict[str, Callable[[], None]] = {
        "layers": lambda: write_layers("layers", CASES),
        **{name: partial(write_model, name) for name in MODELS},
        "bits": lambda: write_layers("bits", FEW_BITS),
        "bitsandbytes": write_bitsandbytes,
    }
    torch.manual_seed(0)
    for file_name in sys.argv[2:] or WRITERS:
        WRITERS[file_name]()
