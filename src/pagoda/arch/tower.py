"""Names of a vision tower's tensors that differ between checkpoints of one family."""

from collections.abc import Collection
from dataclasses import replace

from pagoda.arch.spec import ModelSpec

# The hub's checkpoints have a module of this name around SigLIP; transformers 5 writes none.
_MODULE = ".vision_model."


def tower_as_found(spec: ModelSpec, tensors: Collection[str]) -> ModelSpec:
    """With the tower's tensors as they are named in a checkpoint of safetensors; without a tower
    where it has none of them."""
    vision = spec.vision
    if vision is None or not tensors or vision.weights[0].sources[0] in tensors:
        return spec
    shorter = tuple(
        replace(rule, sources=tuple(name.replace(_MODULE, ".") for name in rule.sources))
        for rule in vision.weights
    )
    if shorter[0].sources[0] in tensors:
        return replace(spec, vision=replace(vision, weights=shorter))
    # Whoever quantized the language model alone left config.json as it was.
    names = {
        name
        for rule in spec.expanded_weights()
        if rule.param.startswith("vision.")
        for name in rule.sources
    }
    return spec if names & set(tensors) else replace(spec, vision=None)
