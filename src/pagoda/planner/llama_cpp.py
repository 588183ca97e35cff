"""llama.cpp's accounting on one device: what its log says of buffers, for a GGUF or for a
config.json and the format its matrices would be stored in."""

from collections.abc import Mapping
from math import prod

from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import TOWERS, AttentionSpec, ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.planner.estimate import Estimate, Row
from pagoda.planner.memory.tensor import ModelTensor
from pagoda.planner.memory.tensors import model_tensors
from pagoda.weights.checkpoint import TensorInfo
from pagoda.weights.formats import FORMATS

_FLOAT = 4
_HALF = 2
# llama-kv-cache-iswa.cpp: layers with a window keep it and one batch, in multiples of this.
_CELL_UNIT = 256
# Of a larger model's attention or feed-forward part the compute buffer was not measured.
_COMPUTE_ERROR = 1.25


def plan_llama_cpp(
    spec: ModelSpec,
    tensors: Mapping[str, TensorInfo],
    cells: int,
    storage: str = "Q8_0",
    batch: int = 512,
) -> list[Row]:
    """`tensors`: a GGUF's headers; if empty, all matrices are taken to be in `storage`. `cells` is
    --ctx-size, `batch` --ubatch-size; keys and values are f16.

    Build 6981 on a CPU, Qwen3-VL-2B in Q8_0, 4096 cells: weights 1743.77, KV 448.00 and compute
    304.75 MiB, all three as here.
    """
    if storage not in FORMATS:
        raise ConfigError(f"The storage format {storage!r} is not known; Q8_0 and Q4_0 are some.")
    if cells < 1 or batch < 1:
        raise ConfigError(f"{cells} cells and batches of {batch}: both must be at least 1.")
    if tensors:
        weights = sum(info.nbytes for info in tensors.values())
    else:
        weights = sum(_bytes(tensor, storage) for tensor in model_tensors(spec))
    cache = sum(_cache_bytes(layer.mixer, cells, batch) for layer in spec.layers)
    # Logits of a whole batch, and the state before and behind the last layer's end.
    compute = batch * (spec.vocab_size + 2 * spec.hidden_size) * _FLOAT
    most = round(_COMPUTE_ERROR * compute)
    kind = "the file's headers" if tensors else f"matrices in {storage}, vectors in F32"
    return [
        Row("weights", Estimate.exactly(weights, kind)),
        Row("KV", Estimate.exactly(cache, f"{cells:,} cells in f16")),
        Row("compute", Estimate(compute, compute, most, f"logits of {batch} tokens")),
    ]


def _bytes(tensor: ModelTensor, storage: str) -> int:
    """Towers are a file of their own; routers stay in fp32."""
    if tensor.name.startswith(TOWERS):
        return 0
    blocked = tensor.shape[-1] % FORMATS[storage].block_elements == 0
    if not tensor.is_matrix or tensor.role in ("router", "conv") or not blocked:
        return tensor.elements * _FLOAT
    return FORMATS[storage].nbytes(tensor.elements)


def _cache_bytes(mixer: AttentionSpec | RecurrentSpec, cells: int, batch: int) -> int:
    if isinstance(mixer, RecurrentSpec):
        return sum(map(prod, mixer.state_shapes)) * _FLOAT
    if mixer.kind == "encoder" or mixer.borrows:
        return 0
    if mixer.window is not None:
        cells = min(cells, -(-(mixer.window + batch) // _CELL_UNIT) * _CELL_UNIT)
    parts = 2 if mixer.latent is None else 1
    return cells * parts * mixer.num_kv_heads * mixer.head_dim * _HALF
