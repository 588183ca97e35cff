"""Room for adapters: how many, how large, and the bytes that they take."""

from pathlib import Path

from pagoda.arch.spec import ModelSpec
from pagoda.base.errors import ConfigError
from pagoda.config.adapters import AdapterConfig
from pagoda.planner.memory.tensors import model_tensors
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import ResolvedAdapters
from pagoda.weights.adapters import open_adapter

# Beyond those that flags name, for such as are loaded later, and sums of several.
_SPARE = 4
_LEAST_RANK = 16
_INT32 = 4


def resolve_adapters(
    config: AdapterConfig, spec: ModelSpec, reasons: list[Reason]
) -> ResolvedAdapters:
    """ConfigError for flags that do not go together, and what opening an adapter raises."""
    if not config.enabled:
        return ResolvedAdapters()
    if spec.encoder is not None:
        raise ConfigError(
            f"--enable-lora: {spec.architecture} is an encoder, and adapters are served beside "
            "models that write; leave the flag out."
        )
    named = config.paths
    ranks = {path: open_adapter(Path(path)).rank for path in named}
    slots, most = config.max_loras, config.max_lora_rank
    if not isinstance(slots, int):
        slots = len(named) + _SPARE
        reasons.append(Reason("max_loras", slots, f"{len(named)} named, and {_SPARE} more"))
    # Those of --lora may all apply at once.
    together = sum(ranks[adapter.path] for adapter in config.applied)
    if not isinstance(most, int):
        most = max(_LEAST_RANK, together, *ranks.values())
        reasons.append(Reason("max_lora_rank", most, "what the named adapters need, at least 16"))
    if len(named) > slots:
        raise ConfigError(
            f"--max-loras {slots} is less than the {len(named)} adapters that are named; raise it."
        )
    for path, rank in ranks.items():
        if rank > most:
            raise ConfigError(
                f"The adapter {path} has the rank {rank}, above --max-lora-rank {most}; raise it."
            )
    return ResolvedAdapters(slots, most)


def adapter_bytes(spec: ModelSpec, adapters: ResolvedAdapters, width: int, size: int = 1) -> int:
    """What all slots take on one device of `size`, in numbers of `width` bytes: for each linear
    layer A and B of the largest rank, and the rank of each slot."""
    total = 0
    for tensor in model_tensors(spec):
        linear = tensor.role == "linear" and tensor.name.endswith(".weight")
        if not linear or tensor.layer is None:
            continue
        rows, columns = tensor.rank_shape(size)
        shards = max(1, len(tensor.parts))
        total += adapters.max_rank * (shards * columns + rows) * width + _INT32
    return adapters.slots * total
