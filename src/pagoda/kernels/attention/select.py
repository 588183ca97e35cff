"""The backends of one engine, by the planner's choice."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

import torch

from pagoda.arch.spec import AttentionSpec
from pagoda.core.kvcache.spec import KVLayout
from pagoda.kernels.attention.backend import AttentionBackend, OwnAttention
from pagoda.kernels.selector import native_form
from pagoda.planner.attention import AttentionChoice


@dataclass(frozen=True)
class AttentionBackends:
    """Those of one engine."""

    choice: AttentionChoice
    by_name: Mapping[str, AttentionBackend]

    @classmethod
    def of(
        cls, choice: AttentionChoice, device: torch.device, dtype: torch.dtype
    ) -> "AttentionBackends":
        """For activations of `dtype` on `device`."""
        return cls(
            choice,
            {
                name: _backend(name, device, dtype, choice.layout.block_size)
                for name in choice.names
            },
        )

    @property
    def layout(self) -> KVLayout:
        return self.choice.layout

    def for_layer(self, mixer: AttentionSpec) -> AttentionBackend:
        return self.by_name[self.choice.of(mixer)]


def _backend(
    name: str, device: torch.device, dtype: torch.dtype, block_size: int
) -> AttentionBackend:
    # A CPU's kernels read one layout only, which is laid out for no other backend.
    has_form = name != "torch" and (name == "native") == (device.type == "cpu")
    own = OwnAttention(name, native_form(device, dtype) if has_form else None)
    if name == "flash-attn":
        from pagoda.kernels.attention.flash import FlashAttention, varlen

        return FlashAttention(varlen(device), own)
    if name == "flashinfer":
        from pagoda.kernels.attention.infer import FlashInfer

        return FlashInfer(import_module("flashinfer"), own, device, dtype, block_size)
    return own
