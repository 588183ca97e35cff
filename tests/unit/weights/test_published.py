"""Quantized layers as matrices: slices, pieces that are missing or wrong, configs that are refused.

That values are right is tested against the packages that write them (tests/models).
"""

from math import prod

import numpy as np
import pytest

from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS, held_as
from pagoda.weights.prequantized.checkpoint import PublishedCheckpoint
from pagoda.weights.prequantized.matrix import E4M3
from pagoda.weights.prequantized.select import METHODS, method_of

OUT, IN, GROUP = 48, 256, 64
WORDS, GROUPS = IN // 8, IN // GROUP
# A row of every shape that a published tensor has: name, type, shape.
PARTS = {
    "gptq": [
        ("qweight", "I32", (WORDS, OUT)), ("scales", "F16", (GROUPS, OUT)),
        ("qzeros", "I32", (GROUPS, OUT // 8)), ("g_idx", "I32", (IN,)),
    ],
    "awq": [
        ("qweight", "I32", (IN, OUT // 8)), ("scales", "F16", (GROUPS, OUT)),
        ("qzeros", "I32", (GROUPS, OUT // 8)),
    ],
    "compressed-tensors": [
        ("weight_packed", "I32", (OUT, WORDS)), ("weight_scale", "BF16", (OUT, GROUPS)),
        ("weight_zero_point", "I32", (OUT // 8, GROUPS)), ("weight_shape", "I64", (2,)),
    ],
    "fp8": [("weight", "F8_E4M3", (OUT, IN)), ("weight_scale_inv", "F32", (2, 4))],
    "modelopt": [
        ("weight", "U8", (OUT, IN // 2)), ("weight_scale", "F8_E4M3", (OUT, IN // 16)),
        ("weight_scale_2", "F32", ()),
    ],
}  # fmt: skip
CONFIGS = {
    "gptq": {"bits": 4, "group_size": GROUP, "sym": False, "desc_act": False},
    "awq": {"bits": 4, "group_size": GROUP, "version": "gemm"},
    "compressed-tensors": {
        "format": "pack-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {"num_bits": 4, "symmetric": False, "strategy": "group"},
            }
        },
    },
    "fp8": {"weight_block_size": [32, GROUP]},
    "modelopt": {"quant_algo": "NVFP4"},
    "bitsandbytes": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
}


def config(method: str, **changes) -> dict:
    values = {"quant_method": method, **CONFIGS.get(method, {}), **changes}
    return {"quantization_config": values}


class Memory:
    """Tensors of random bytes."""

    metadata = {"format": "pt"}

    def __init__(self, parts, layer: str = "a.proj"):
        random = np.random.default_rng(7)
        self.tensors, self.raw, self.released = {}, {}, []
        for part, kind, shape in parts:
            name = f"{layer}.{part}"
            nbytes = FORMATS[kind].nbytes(prod(shape))
            self.tensors[name] = TensorInfo(name, tuple(shape), kind, nbytes)
            raw = random.integers(0, 0x38, nbytes, np.uint8)  # no NaN as a float of any type
            self.raw[name] = raw.reshape(shape[0] if len(shape) > 1 else 1, -1)
        if f"{layer}.g_idx" in self.raw:
            self.raw[f"{layer}.g_idx"] = (np.arange(IN, dtype=np.int32) // GROUP).view(np.uint8)

    def read(self, name, rows=None, columns=None):
        raw = self.raw[name].reshape(1, -1) if self.raw[name].ndim == 1 else self.raw[name]
        if rows is not None:
            raw = raw[rows]
        if columns is None:
            return raw
        info = self.tensors[name]
        size = FORMATS[info.type].block_bytes
        return raw[:, columns.start * size : columns.stop * size]

    def release(self, name):
        self.released.append(name)

    def close(self):
        pass


def published(method: str, parts=None, **changes) -> PublishedCheckpoint:
    found = method_of(config(method, **changes))
    return PublishedCheckpoint(Memory(PARTS[method] if parts is None else parts), found)


def without(method: str, part: str) -> list:
    return [entry for entry in PARTS[method] if entry[0] != part]


def changed(method: str, part: str, kind: str, shape: tuple) -> list:
    return [(p, kind, shape) if p == part else (p, k, s) for p, k, s in PARTS[method]]


@pytest.mark.parametrize("method", PARTS)
def test_a_layer_is_one_matrix(method):
    checkpoint = published(method)
    (info,) = checkpoint.tensors.values()
    assert (info.name, info.shape) == ("a.proj.weight", (OUT, IN))
    whole = checkpoint.read(info.name)
    assert whole.shape == (OUT, info.nbytes // OUT) and whole.nbytes == info.nbytes
    assert checkpoint.metadata == {"format": "pt"}
    checkpoint.release(info.name)
    used = {f"a.proj.{part}" for part, _, _ in PARTS[method]} - {"a.proj.weight_shape"}
    assert set(checkpoint._inner.released) == used
    checkpoint.close()


@pytest.mark.parametrize("method", PARTS)
def test_slices_are_slices_of_the_whole(method):
    checkpoint = published(method)
    stored = FORMATS[checkpoint.tensors["a.proj.weight"].type]
    whole = checkpoint.read("a.proj.weight")
    for rows, columns in (((0, 48), (32, 96)), ((3, 21), (0, 256)), ((17, 18), (192, 256))):
        part = checkpoint.read("a.proj.weight", slice(*rows), slice(*columns))
        expected = whole[slice(*rows), stored.nbytes(columns[0]) : stored.nbytes(columns[1])]
        assert np.array_equal(part, expected)
    with pytest.raises(ValueError, match="cut a block"):
        checkpoint.read("a.proj.weight", None, slice(16, 64))


@pytest.mark.parametrize("group", [16, 24, 256, -1])
def test_groups_that_cut_blocks_are_decoded(group):
    count = 1 if group < 0 else -(-IN // group)
    parts = changed("gptq", "scales", "F16", (count, OUT))
    parts = [("qzeros", k, (count, OUT // 8)) if p == "qzeros" else (p, k, s) for p, k, s in parts]
    parts = [entry for entry in parts if entry[0] != "g_idx"]
    info = published("gptq", parts, group_size=group).tensors["a.proj.weight"]
    assert info.type == ("UINT4" if group in (256, -1) else "DECODED")


@pytest.mark.parametrize("method", PARTS)
def test_a_missing_piece_is_named(method):
    essential = {"qweight", "weight_packed", "weight", "g_idx", "weight_shape"}
    for part in [part for part, _, _ in PARTS[method] if part not in essential]:
        missing = "weight_scale" if method == "fp8" else part
        with pytest.raises(CheckpointError, match=f"layer a.proj lacks the tensor {missing}"):
            published(method, without(method, part))


@pytest.mark.parametrize(
    ("method", "part", "kind", "shape", "message"),
    [
        ("gptq", "scales", "F16", (GROUPS + 1, OUT), r"a.proj.scales has the shape \[5, 48\]"),
        ("gptq", "qzeros", "I32", (GROUPS, OUT), "a.proj.qzeros has the shape"),
        ("gptq", "g_idx", "I32", (IN - 8,), "a.proj.g_idx has the shape"),
        ("awq", "scales", "F16", (GROUPS, OUT - 8), "a.proj.scales has the shape"),
        ("compressed-tensors", "weight_scale", "BF16", (OUT, 7), "a.proj.weight_scale has the"),
        ("compressed-tensors", "weight_zero_point", "I32", (OUT, GROUPS), "zero_point has the"),
        ("fp8", "weight_scale_inv", "F32", (3, 4), "a.proj.weight_scale_inv has the shape"),
        ("modelopt", "weight", "U8", (OUT, IN // 2 + 4), "whole groups of 16 columns"),
        ("modelopt", "weight_scale", "F8_E4M3", (OUT, GROUPS), "a.proj.weight_scale has the shape"),
        ("modelopt", "weight_scale_2", "F32", (OUT,), "one scale of the whole matrix"),
        ("modelopt", "weight_scale", "F16", (OUT, IN // 16), "F16, but NVFP4 has F8_E4M3 there"),
    ],
)
def test_a_wrong_shape_is_named(method, part, kind, shape, message):
    with pytest.raises(CheckpointError, match=message):
        published(method, changed(method, part, kind, shape))


@pytest.mark.parametrize(
    ("method", "part", "kind", "shape", "message"),
    [
        ("gptq", "scales", "I16", (GROUPS, OUT), "scales holds scales stored as I16"),
        ("gptq", "qweight", "F32", (WORDS, OUT), "qweight is stored as F32, but packed"),
    ],
)
def test_a_wrong_type_is_named(method, part, kind, shape, message):
    checkpoint = published(method, changed(method, part, kind, shape))
    with pytest.raises(CheckpointError, match=message):
        checkpoint.read("a.proj.weight")


def test_a_scale_that_cannot_be_divided_by_is_named():
    parts = [
        ("weight_packed", "U8", (OUT, IN // 2)), ("weight_scale", "F8_E4M3", (OUT, IN // 16)),
        ("weight_global_scale", "F32", (1,)),
    ]  # fmt: skip
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    told = config("compressed-tensors", format="nvfp4-pack-quantized", config_groups=groups)
    memory = Memory(parts)
    memory.raw["a.proj.weight_global_scale"][:] = 0
    method = method_of(told)
    assert (method.storage, method.group_size) == ("FP4", -1)
    checkpoint = PublishedCheckpoint(memory, method)
    with pytest.raises(
        CheckpointError, match="weight_global_scale is 0.0, and weights are divided"
    ):
        checkpoint.read("a.proj.weight")


def test_columns_out_of_order_need_desc_act():
    memory = Memory(PARTS["gptq"])
    shuffled = np.random.default_rng(0).permutation(np.arange(IN, dtype=np.int32) // GROUP)
    memory.raw["a.proj.g_idx"] = shuffled.astype(np.int32).view(np.uint8)
    checkpoint = PublishedCheckpoint(memory, method_of(config("gptq")))
    with pytest.raises(CheckpointError, match="g_idx scatters columns"):
        checkpoint.read("a.proj.weight")
    ordered = PublishedCheckpoint(memory, method_of(config("gptq", desc_act=True)))
    assert ordered.tensors["a.proj.weight"].type == "DECODED"
    whole = ordered.read("a.proj.weight").view(np.float32)
    part = ordered.read("a.proj.weight", slice(8, 24), slice(40, 56)).view(np.float32)
    assert np.array_equal(part, whole[8:24, 40:56])
    memory.raw["a.proj.g_idx"] = (shuffled + 4).astype(np.int32).view(np.uint8)
    with pytest.raises(CheckpointError, match="names a group that is not there"):
        ordered.read("a.proj.weight")


def test_zero_points_must_be_those_of_symmetric_weights():
    checkpoint = published("gptq", sym=True)
    assert checkpoint.tensors["a.proj.weight"].type == "INT4"
    with pytest.raises(CheckpointError, match="zero points of a.proj are not all 8"):
        checkpoint.read("a.proj.weight")


def test_what_no_matrix_is_made_of_is_left_out_and_said(caplog):
    caplog.set_level("INFO", logger="pagoda")
    extra = [("input_scale", "F32", (1,)), ("bias", "F16", (OUT,))]
    checkpoint = published("fp8", [*PARTS["fp8"], *extra])
    assert list(checkpoint.tensors) == ["a.proj.weight", "a.proj.bias"]
    assert "1 tensors input_scale are not used" in caplog.text


def test_layers_that_are_not_quantized_stay():
    parts = [("weight", "BF16", (OUT, IN))]
    checkpoint = published("gptq", parts, modules_to_not_convert=["a.proj"])
    assert checkpoint.tensors["a.proj.weight"].type == "BF16"
    assert checkpoint.read("a.proj.weight").shape == (OUT, 2 * IN)


def test_every_number_of_e4m3():
    """By the formula of the OCP's specification (OFP8, section 5): 448 is the largest."""
    for code in range(256):
        sign, exponent, mantissa = -1 if code & 128 else 1, (code >> 3) & 15, code & 7
        if code & 127 == 127:
            assert np.isnan(E4M3[code])
        elif exponent == 0:
            assert E4M3[code] == sign * mantissa / 512
        else:
            assert E4M3[code] == sign * 2.0 ** (exponent - 7) * (8 + mantissa) / 8
    assert np.nanmax(E4M3) == 448


@pytest.mark.parametrize(
    ("storage", "columns", "held"),
    [
        ("INT4", 64, "Q4_0"), ("UINT4", 64, "Q4_1"), ("FP8", 64, "Q8_0"), ("DECODED", 64, "Q8_0"),
        ("FP4", 512, "Q6_K"), ("FP4", 96, "Q8_0"), ("DECODED", 40, "BF16"),
        ("Q4_1", 64, "Q4_1"), ("IQ2_S", 256, "BF16"),
    ],
)  # fmt: skip
def test_what_holds_a_storage_format(storage, columns, held):
    assert held_as(storage, columns, {"Q4_0", "Q4_1", "Q6_K", "Q8_0", "BF16"}) == held


def test_without_that_kernel_it_is_bf16():
    assert held_as("INT4", 64, {"BF16"}) == "BF16"


def test_every_method_says_what_it_is():
    for name in METHODS:
        values = config(name)
        if name == "compressed-tensors":
            assert "int of 4 bits" in method_of(values).description
        assert len(method_of(values).description) > 2
    assert method_of({}) is None and method_of(None) is None
    assert method_of({"text_config": config("awq")}).description.startswith("AWQ, 4 bits")


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("hqq", {}, "quantized by 'hqq'.*known are auto-round, awq"),
        ("gptq", {"bits": 5}, "GPTQ in 5 bits"),
        ("bitsandbytes", {"bnb_4bit_quant_type": "af4"}, "bitsandbytes in 'af4'"),
        ("gptq", {"checkpoint_format": "marlin"}, "GPTQ packed for 'marlin'"),
        ("gptq", {"pack_dtype": "int8"}, "GPTQ packed into int8"),
        ("awq", {"version": "gemv"}, "AWQ packed for 'gemv'"),
        ("awq", {"version": None, "format": "gemv_fast"}, "AWQ packed for 'gemv_fast'"),
        ("awq", {"bits": 8}, "AWQ in 8 bits"),
        ("auto-round", {"packing_format": "auto_round:llm_compressor"}, "AutoRound packed as"),
        ("auto-round", {"data_type": "mx_fp"}, "AutoRound in mx_fp"),
        ("fp8", {"fmt": "e5m2"}, "fp8 in 'e5m2'"),
        ("modelopt", {"quant_algo": "NVFP4_AWQ"}, "ModelOpt's NVFP4_AWQ"),
        ("compressed-tensors", {"format": "nvfp4-pack-quantized"}, "int weights of 4 bits"),
        ("compressed-tensors", {"format": "marlin-24"}, "compressed-tensors' marlin-24"),
        ("compressed-tensors", {"sparsity_config": {"format": "sparse-bitmask"}}, "sparse weights"),
        ("compressed-tensors", {"transform_config": {"config_groups": {"R1": {}}}}, "rotations"),
    ],
)
def test_what_is_not_supported_is_named(method, changes, message):
    with pytest.raises(UnsupportedModelError, match=message):
        method_of(config(method, **changes))


@pytest.mark.parametrize(
    ("method", "changes", "message"),
    [
        ("bitsandbytes", {"load_in_8bit": True}, "load_in_4bit or load_in_8bit must be true"),
        ("gptq", {"bits": "four"}, "quantization_config.bits must be a whole number"),
        ("gptq", {"sym": 1}, "quantization_config.sym must be true or false"),
        ("gptq", {"dynamic": {"[": {}}}, "is no regular expression"),
        ("awq", {"version": 3}, "quantization_config.version must be a text"),
        ("fp8", {"weight_block_size": [128]}, "weight_block_size must be two whole numbers"),
        ("compressed-tensors", {"config_groups": {}}, "says of no weights"),
        ("compressed-tensors", {"config_groups": 3}, "config_groups must be an object"),
    ],
)
def test_a_broken_config_is_named(method, changes, message):
    with pytest.raises(CheckpointError, match=message):
        method_of(config(method, **changes))


def test_other_bits_for_some_layers():
    parts = [
        ("qweight", "I32", (IN // 4, OUT)), ("scales", "F16", (GROUPS, OUT)),
        ("qzeros", "I32", (GROUPS, OUT // 4)),
    ]  # fmt: skip
    for method, key, name in (
        ("gptq", "dynamic", r"+:a\.proj"),
        ("auto-round", "extra_config", "a.proj"),
    ):
        changes = {**CONFIGS["gptq"], "sym": True, key: {name: {"bits": 8, "sym": True}}}
        checkpoint = PublishedCheckpoint(Memory(parts), method_of(config(method, **changes)))
        assert checkpoint.tensors["a.proj.weight"].shape == (OUT, IN)
        assert checkpoint.tensors["a.proj.weight"].type == "INT8"


@pytest.mark.parametrize("method", PARTS)
def test_all_experts_in_one_tensor_are_as_each_apart(method):
    """Every part has a first dimension more; what is one number may be of all."""
    count = 3
    apart = [Memory(PARTS[method]) for _ in range(count)]
    for expert, memory in enumerate(apart):
        for name, raw in memory.raw.items():
            if memory.tensors[name].shape and not name.endswith("g_idx"):
                memory.raw[name] = np.roll(raw, expert)
    parts = [(p, k, (count, *s) if s else s) for p, k, s in PARTS[method]]
    together = Memory(parts)
    for name, info in together.tensors.items():
        raws = [np.atleast_2d(memory.raw[name]) for memory in apart]
        together.raw[name] = np.concatenate(raws) if info.shape else raws[0]
    found = PublishedCheckpoint(together, method_of(config(method)))
    (info,) = found.tensors.values()
    each = [PublishedCheckpoint(memory, method_of(config(method))) for memory in apart]
    one = each[0].tensors["a.proj.weight"]
    assert (info.shape, info.type, info.group) == ((count, OUT, IN), one.type, one.group)
    expected = np.concatenate([x.read("a.proj.weight") for x in each])
    assert found.read(info.name).nbytes == info.nbytes == expected.nbytes
    assert np.array_equal(found.read(info.name), expected)
    part = found.read(info.name, slice(OUT - 8, 2 * OUT + 8))
    assert np.array_equal(part, expected[OUT - 8 : 2 * OUT + 8])
