"""In which format a file keeps each of its tensors."""

from gguf import GGMLQuantizationType as Type

from bench.peers.shapes.decoder import Decoder, Tensor

FORMATS = (
    "q4_0", "q4_1", "q5_k", "q6_k", "q8_0", "q4_k_m", "iq4_xs", "q2_k", "mxfp4", "bf16",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "tq1_0", "tq2_0",
)  # fmt: skip


def type_of(tensor: Tensor, shape: Decoder, storage: str) -> Type:
    """As llama-quantize has it (src/llama-quant.cpp): its mixtures for q4_0, q4_k_m and, of a model
    with experts, mxfp4; what it does with `--pure` for all other formats."""
    if tensor.plain or not tensor.rows:
        return Type.F32
    if storage == "mxfp4" and shape.experts:
        return Type.MXFP4 if tensor.copies else Type.Q8_0
    if storage not in ("q4_0", "q4_k_m"):
        return Type[storage.upper()]
    head = "token_embd.weight" if shape.tied else "output.weight"
    if tensor.name == head or (storage == "q4_k_m" and _has_more_bits(tensor, shape.layers)):
        return Type.Q6_K
    return Type.Q4_0 if storage == "q4_0" else Type.Q4_K


def _has_more_bits(tensor: Tensor, layers: int) -> bool:
    """Values and down projections of the first and last eighth of all layers, and of every third
    between."""
    if not any(part in tensor.name for part in ("attn_v.", "attn_qkv.", "ffn_down")):
        return False
    layer, eighth = int(tensor.name.split(".")[1]), layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2
