"""Pagoda: one engine that serves open models, from a laptop CPU to GPUs."""

from typing import TYPE_CHECKING, Any

from pagoda.version import __version__

if TYPE_CHECKING:
    from pagoda.core.lora import LoRARequest
    from pagoda.core.sampling import SamplingParams
    from pagoda.core.structured import StructuredOutputsParams
    from pagoda.engine.beams import BeamSearchParams
    from pagoda.engine.llm import LLM
    from pagoda.engine.offline_vectors import PoolingParams

__all__ = [
    "LLM",
    "BeamSearchParams",
    "LoRARequest",
    "PoolingParams",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_LAZY = {
    "BeamSearchParams": "pagoda.engine.beams",
    "LLM": "pagoda.engine.llm",
    "LoRARequest": "pagoda.core.lora",
    "PoolingParams": "pagoda.engine.offline_vectors",
    "SamplingParams": "pagoda.core.sampling",
    "StructuredOutputsParams": "pagoda.core.structured",
}


def __getattr__(name: str) -> Any:
    """LLM brings torch, so it loads when it is used."""
    if name not in _LAZY:
        raise AttributeError(f"module 'pagoda' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    """With the names that are not loaded yet, so that shells complete them."""
    return sorted({*globals(), *_LAZY})
