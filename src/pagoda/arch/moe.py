"""A dense decoder's spec with experts in place of the feed-forward part of some layers."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Literal

from pagoda.arch.names import linear_rules
from pagoda.arch.spec import ExpertTensors, ModelSpec, MoeSpec, WeightRule
from pagoda.weights.checkpoint import TensorInfo

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
        _router_rule(experts, prefix + "gate.weight", prefix + "shared_expert_gate.weight"),
        WeightRule(_PARAM + "gate_up.weight", tuple(names), experts=stored),
        WeightRule(_PARAM + "down.weight", (down,), experts=stored),
        *shared_rules(experts, prefix + "shared_expert.{part}_proj"),
    ]


def _router_rule(experts: MoeSpec, source: str, gate: str) -> WeightRule:
    """`gate` is that of a shared expert, if it has one."""
    gated = experts.shared is not None and experts.shared.gated
    return WeightRule(_PARAM + "router.weight", (source, gate) if gated else (source,))


def shared_rules(experts: MoeSpec, names: str) -> list[WeightRule]:
    """`names` has {part} for gate, up and down."""
    if experts.shared is None:
        return []
    gate, up, down = (names.replace("{part}", name) for name in ("gate", "up", "down"))
    return [
        *linear_rules(_PARAM + "shared.gate_up", (gate, up), False),
        *linear_rules(_PARAM + "shared.down", (down,), False),
    ]


def as_stored(spec: ModelSpec, tensors: Collection[str] | Mapping[str, TensorInfo]) -> ModelSpec:
    """With experts' tensors as they are in a checkpoint of safetensors, whose shapes a mapping
    tells: a tensor for each expert or one of all, and those upright or on their side."""
    spec = replace(spec, weights=tuple(_joined(rule, tensors) for rule in spec.weights))
    layout = _layout(spec, tensors) if isinstance(tensors, Mapping) else None
    return spec if layout is None else laid(spec, layout)


def laid(spec: ModelSpec, layout: Literal["stacked", "transposed"]) -> ModelSpec:
    """With experts upright or on their side, where one tensor holds all."""
    weights = (
        replace(rule, experts=replace(rule.experts, layout=layout))
        if rule.experts is not None and _is_matrix(rule)
        else rule
        for rule in spec.weights
    )
    return replace(spec, weights=tuple(weights))


def _joined(rule: WeightRule, tensors: Collection[str]) -> WeightRule:
    """Of one tensor of all experts, where the checkpoint has that."""
    if rule.experts is None or rule.experts.layout != "single":
        return rule
    before = rule.sources[0].partition("{expert}.")[0]
    source = before + ("gate_up_proj" if len(rule.sources) == 2 else "down_proj")
    if _in_first_layer(rule, source) not in tensors:
        return rule
    stored = replace(rule.experts, layout="stacked", parts=len(rule.sources))
    return replace(rule, sources=(source,), experts=stored)


def _layout(
    spec: ModelSpec, tensors: Mapping[str, TensorInfo]
) -> Literal["stacked", "transposed"] | None:
    """How matrices of all experts lie; None where there are none, or only square ones."""
    for rule in spec.weights:
        info = tensors.get(_in_first_layer(rule, rule.sources[0]))
        experts = spec.layers[rule.layers[0] if rule.layers else 0].experts
        if not _is_matrix(rule) or info is None or experts is None:
            continue
        assert rule.experts is not None
        rows, columns = experts.intermediate_size * rule.experts.parts, spec.hidden_size
        if rule.param.endswith(".down.weight"):
            rows, columns = columns, rows
        if rows != columns:
            return "stacked" if info.shape[1:] == (rows, columns) else "transposed"
    return None


def _is_matrix(rule: WeightRule) -> bool:
    """Of all experts."""
    stored = rule.experts
    return stored is not None and stored.layout != "single" and rule.param.endswith(".weight")


def _in_first_layer(rule: WeightRule, source: str) -> str:
    return source.replace("{layer}", str(rule.layers[0] if rule.layers else 0))


def gguf_rules(experts: MoeSpec) -> list[WeightRule]:
    """Names as llama.cpp writes them (gguf-py/gguf/constants.py, TENSOR_NAMES)."""
    stored = ExpertTensors(experts.num_experts, "stacked")
    layer = "blk.{layer}.ffn_"
    matrices = [
        *linear_rules(_PARAM + "gate_up", (layer + "gate_exps", layer + "up_exps"), experts.bias),
        *linear_rules(_PARAM + "down", (layer + "down_exps",), experts.bias),
    ]
    router = [_router_rule(experts, layer + "gate_inp.weight", layer + "gate_inp_shexp.weight")]
    if experts.bias:
        router.append(WeightRule(_PARAM + "router.bias", (layer + "gate_inp.bias",)))
    shared = shared_rules(experts, layer + "{part}_shexp")
    return [*router, *(replace(rule, experts=stored) for rule in matrices), *shared]
