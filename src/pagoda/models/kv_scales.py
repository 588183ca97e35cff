"""The scales of an fp8 KV cache, from a checkpoint to the layers that attend."""

import hashlib

import torch

from pagoda.base.errors import CheckpointError
from pagoda.kernels import ops
from pagoda.layers.attention import Attention
from pagoda.models.base import Model
from pagoda.weights.checkpoint import Checkpoint
from pagoda.weights.kv_scales import names_of


def load_kv_scales(model: Model, checkpoint: Checkpoint) -> str:
    """Give this rank's heads the scales that the checkpoint has for them; the others keep 1.
    Returns where they come from, in words. CheckpointError for what is no scale."""
    found, layers = 0, 0
    for rule in model.spec.expanded_weights():
        path, _, part = rule.param.rpartition(".qkv.")
        attention = model.get_submodule(path) if part == "weight" else None
        if not isinstance(attention, Attention) or attention.spec.borrows:
            continue
        layers += 1
        prefix = rule.sources[0].rsplit(".", 2)[0]
        for kind, scales in zip("kv", attention.kv_scales, strict=True):
            names = names_of(prefix, kind)
            if kind == "k" and attention.spec.qk_norm:
                names.pop()  # of what the projection gives, which is normalized behind it
            name = next((name for name in names if name in checkpoint.tensors), None)
            if name is not None:
                found += 1
                scales.copy_(_read(checkpoint, name, attention))
    if not found:
        return "the checkpoint has none, so they are 1: numbers beyond 448 are stored as 448"
    missing = "" if found == 2 * layers else "; the others are 1"
    return f"{found} of {2 * layers} are the checkpoint's{missing}"


def digest(model: torch.nn.Module) -> str:
    """A name for the scales of all layers: with others, blocks mean something else."""
    parts = [
        scales.cpu().numpy().tobytes()
        for layer in model.modules()
        if isinstance(layer, Attention)
        for scales in layer.kv_scales
    ]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def _read(checkpoint: Checkpoint, name: str, attention: Attention) -> torch.Tensor:
    """fp32 [this rank's KV heads], or [1] for all of them."""
    info = checkpoint.tensors[name]
    raw = torch.from_numpy(checkpoint.read(name).copy())
    values = ops.dequantize(raw, info.type).flatten()
    heads = attention.spec.num_kv_heads
    if len(values) not in (1, heads):
        raise CheckpointError(
            f"Tensor {name} has the shape {list(info.shape)}; a scale of the KV cache is one "
            f"number, or one for each of the {heads} KV heads. Take --kv-cache-dtype auto or int8, "
            "which read none."
        )
    if not (values.isfinite() & (values > 0)).all():
        raise CheckpointError(
            f"Tensor {name} is {values.tolist()}; a scale of the KV cache must be above 0. Take "
            "--kv-cache-dtype auto or int8, which read none."
        )
    return values if len(values) == 1 else values[attention.kv_heads]
