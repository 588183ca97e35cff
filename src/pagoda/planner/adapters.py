"""Room for adapters: how many, how large, and the bytes that they take."""

from math import prod
from pathlib import Path

from pagoda.arch.adapters import expert_module
from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.base.words import say
from pagoda.config.adapters import AdapterConfig
from pagoda.planner.memory.plan import DTYPE_BYTES
from pagoda.planner.memory.tensors import model_tensors
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import DType, ResolvedAdapters
from pagoda.weights.adapters import open_adapter

# Beyond those that flags name, for such as are loaded later, and sums of several.
_SPARE = 4
_LEAST_RANK = 16
_INT32 = _FLOAT = 4
_DTYPES: dict[str, DType] = {
    "float32": "float32", "bfloat16": "bfloat16", "float16": "float16",
}  # fmt: skip


def resolve_adapters(
    config: AdapterConfig, spec: ModelSpec, dtype: DType, reasons: list[Reason]
) -> ResolvedAdapters:
    """`dtype` is that of activations. ConfigError for flags that do not go together, and what
    opening an adapter raises."""
    if not config.enabled:
        return ResolvedAdapters()
    if spec.encoder is not None:
        raise ConfigError(
            f"--enable-lora: {spec.architecture} is an encoder, and adapters are served beside "
            "models that write; leave the flag out."
        )
    named = config.paths
    opened = {path: open_adapter(Path(path)) for path in named}
    ranks = {path: files.rank for path, files in opened.items()}
    slots, most = config.max_loras, config.max_lora_rank
    if not isinstance(slots, int):
        slots = len(named) + _SPARE
        why = say("{count} named, and {more} more", count=len(named), more=_SPARE)
        reasons.append(Reason("max_loras", slots, why))
    # Those of --lora may all apply at once.
    together = sum(ranks[adapter.path] for adapter in config.applied)
    if not isinstance(most, int):
        most = max(_LEAST_RANK, together, *ranks.values())
        why = say("what the named adapters need, at least 16")
        reasons.append(Reason("max_lora_rank", most, why))
    if len(named) > slots:
        raise ConfigError(
            f"--max-loras {slots} is less than the {len(named)} adapters that are named; raise it."
        )
    for path, rank in ranks.items():
        if rank > most:
            raise ConfigError(
                f"The adapter {path} has the rank {rank}, above --max-lora-rank {most}; raise it."
            )
    experts = config.lora_experts or any(
        expert_module(name) is not None for files in opened.values() for name in files.modules
    )
    mixes = any(layer.experts is not None for layer in spec.layers)
    return ResolvedAdapters(slots, most, _DTYPES.get(config.lora_dtype, dtype), experts and mixes)


def adapter_bytes(spec: ModelSpec, adapters: ResolvedAdapters, size: int = 1) -> int:
    """What all slots take on one device of `size`: for each linear layer, and where there is room
    for them for each expert's, A and B of the largest rank, and the rank of each slot."""
    total, width = 0, DTYPE_BYTES[adapters.dtype]
    roles = ("linear", "experts") if adapters.experts else ("linear",)
    for tensor in model_tensors(spec):
        matrix = tensor.role in roles and tensor.name.endswith(".weight")
        if not matrix or tensor.layer is None:
            continue
        *experts, rows, columns = tensor.rank_shape(size, whole_experts=True)
        shards = max(1, len(tensor.parts))
        place = adapters.max_rank * (shards * columns + rows) * width + _INT32
        total += prod(experts) * place
    return adapters.slots * total


def expert_activations(spec: ModelSpec, adapters: ResolvedAdapters, max_tokens: int) -> int:
    """Bytes that a GPU's products of experts take more where adapters stand beside them: what gate
    and up give, what comes of both, and what down gives, fp32 of each token and expert."""
    if not adapters.experts:
        return 0
    experts = [layer.experts for layer in spec.layers if layer.experts is not None]
    sizes = (x.top_k * (3 * x.intermediate_size + spec.hidden_size) for x in experts)
    return _FLOAT * max_tokens * max(sizes)
