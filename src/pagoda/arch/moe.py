"""A dense decoder's spec with experts in place of the feed-forward part of some layers."""

from collections.abc import Collection
from dataclasses import replace

from pagoda.arch.names import linear_rules
from pagoda.arch.spec import ExpertTensors, ModelSpec, MoeSpec, WeightRule

MAX_EXPERTS = 1 << 16

_PARAM = "layers.{layer}.mlp."


def with_experts(
    spec: ModelSpec, experts: MoeSpec, layers: Collection[int], rules: Collection[WeightRule]
) -> ModelSpec:
    """`experts` in those layers, whose weights `rules` say."""
    dense = tuple(index for index in range(len(spec.layers)) if index not in layers)
    sparse = tuple(sorted(layers)) if dense else None
    kept = []
    for rule in spec.weights:
        if not rule.param.startswith(_PARAM):
            kept.append(rule)
        elif dense:
            kept.append(replace(rule, layers=dense))
    return replace(
        spec,
        layers=tuple(
            replace(layer, mlp=None, experts=experts) if index in layers else layer
            for index, layer in enumerate(spec.layers)
        ),
        weights=(*kept, *(replace(rule, layers=sparse) for rule in rules)),
    )


def single_rules(experts: MoeSpec, prefix: str = "model.layers.{layer}.mlp.") -> list[WeightRule]:
    """A tensor per expert and matrix, as the hub's Qwen checkpoints have them."""
    stored = ExpertTensors(experts.num_experts, "single")
    names = [prefix + "experts.{expert}." + name + "_proj.weight" for name in ("gate", "up")]
    down = prefix + "experts.{expert}.down_proj.weight"
    return [
        WeightRule(_PARAM + "router.weight", (prefix + "gate.weight",)),
        WeightRule(_PARAM + "gate_up.weight", tuple(names), experts=stored),
        WeightRule(_PARAM + "down.weight", (down,), experts=stored),
    ]


def gguf_rules(experts: MoeSpec) -> list[WeightRule]:
    """Names as llama.cpp writes them (gguf-py/gguf/constants.py, TENSOR_NAMES)."""
    stored = ExpertTensors(experts.num_experts, "stacked")
    layer = "blk.{layer}.ffn_"
    matrices = [
        *linear_rules(_PARAM + "gate_up", (layer + "gate_exps", layer + "up_exps"), experts.bias),
        *linear_rules(_PARAM + "down", (layer + "down_exps",), experts.bias),
    ]
    router = linear_rules(_PARAM + "router", (layer + "gate_inp",), experts.bias)
    return [*router, *(replace(rule, experts=stored) for rule in matrices)]
