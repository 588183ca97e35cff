"""Decoders of blocks that have one part each, a mixer or a feed-forward one, as layers that have
both."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pagoda.arch.recurrent import RecurrentSpec
from pagoda.arch.spec import AttentionSpec, LayerSpec, MlpSpec, ModelSpec, MoeSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError

Part = AttentionSpec | RecurrentSpec | MlpSpec | MoeSpec


@dataclass(frozen=True)
class Block:
    """x + part(norm(x))."""

    part: Part
    rules: tuple[WeightRule, ...]
    """Where its weights lie; in their sources `{layer}` stands for the block's index."""


def with_blocks(spec: ModelSpec, blocks: Sequence[Block], norm: str) -> ModelSpec:
    """`spec` with layers of these blocks: a mixer and the feed-forward part in the next block, if
    it is one, make a layer. `norm` is the source of each block's norm."""
    layers: list[LayerSpec] = []
    weights = [rule for rule in spec.weights if "{layer}" not in rule.param]
    for index, block in enumerate(blocks):
        if isinstance(block.part, AttentionSpec | RecurrentSpec):
            layers.append(LayerSpec(block.part, None))
            place = "attention_norm"
        else:
            layers[-1:] = [_fed(layers, block.part, index)]
            place = "mlp_norm"
        rules = (WeightRule(f"layers.{{layer}}.{place}.weight", (norm,)), *block.rules)
        weights += _placed(rules, len(layers) - 1, index)
    return replace(spec, layers=tuple(layers), weights=tuple(weights))


def _fed(layers: Sequence[LayerSpec], part: MlpSpec | MoeSpec, index: int) -> LayerSpec:
    if not layers or layers[-1].feeds_forward:
        raise UnsupportedModelError(
            f"Block {index} is a feed-forward layer with no mixer right before it, unlike those of "
            "the published models; they are supported."
        )
    mlp, experts = (part, None) if isinstance(part, MlpSpec) else (None, part)
    return replace(layers[-1], mlp=mlp, experts=experts)


def _placed(rules: Iterable[WeightRule], layer: int, block: int) -> list[WeightRule]:
    return [
        replace(
            rule,
            param=rule.param.replace("{layer}", str(layer)),
            sources=tuple(source.replace("{layer}", str(block)) for source in rule.sources),
        )
        for rule in rules
    ]
