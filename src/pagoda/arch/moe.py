"""A dense decoder's spec with experts in place of the feed-forward part of some layers."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from pagoda.arch.names import linear_rules
from pagoda.arch.spec import ExpertTensors, ModelSpec, MoeSpec, WeightRule

MAX_EXPERTS = 1 << 16

Layout = Literal["single", "stacked"]
_PARAM = "layers.{layer}.mlp."
_NAMES = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class _Naming:
    """What the tensors of experts are called, behind `experts.` and before what they are."""

    layout: Layout
    gate_up: tuple[str, ...]
    """Both, or one that holds both, one behind the other."""
    down: str
    weight: str = ".weight"
    bias: str = ".bias"


_NAMINGS = (
    # As transformers holds them in memory; quantizers write `.weight_packed` and such behind it.
    _Naming("stacked", ("gate_up_proj",), "down_proj", "", "_bias"),
    _Naming("stacked", ("gate_up_proj",), "down_proj"),
    # As quantizers leave what they have taken apart: compressed-tensors, ModelOpt, GPTQ, AWQ.
    _Naming("single", ("{expert}.gate_proj", "{expert}.up_proj"), "{expert}.down_proj"),
    _Naming("single", ("{expert}.gate_up_proj",), "{expert}.down_proj"),
    # As Unsloth takes gpt-oss apart for bitsandbytes.
    _Naming("single", ("gate_up_projs.{expert}",), "down_projs.{expert}"),
)
"""How experts are published, whatever a family's own checkpoints have."""


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


def expert_rules(
    experts: MoeSpec,
    layout: Layout,
    source: str,
    param: str = _PARAM,
    *,
    interleaved: bool = False,
    names: tuple[str, str, str] = _NAMES,
) -> list[WeightRule]:
    """Rules for the experts' matrices and biases, as most checkpoints of a family have them: a
    tensor of each expert or one of all (`as_stored`). `source` is what stands before `experts.`;
    `interleaved` is of one tensor of all, `names` (of gate, up and down) of one for each."""
    stored = ExpertTensors(experts.num_experts, layout, interleaved=interleaved)
    kinds = ("weight", "bias") if experts.bias else ("weight",)
    params = [f"{param}{name}.{kind}" for name in ("gate_up", "down") for kind in kinds]
    naming = _NAMINGS[0]
    if layout == "single":
        gate, up, down = (f"{{expert}}.{name}" for name in names)
        naming = _Naming("single", (gate, up), down)
    return [_expert_rule(param, stored, source, naming) for param in params]


def _expert_rule(param: str, stored: ExpertTensors, before: str, naming: _Naming) -> WeightRule:
    _, name, kind = param.rsplit(".", 2)
    parts = naming.gate_up if name == "gate_up" else (naming.down,)
    ending = naming.weight if kind == "weight" else naming.bias
    matrices = 2 if name == "gate_up" else 1
    experts = replace(stored, layout=naming.layout, parts=matrices // len(parts))
    sources = tuple(f"{before}experts.{part}{ending}" for part in parts)
    return WeightRule(param, sources, experts=experts)


def single_rules(experts: MoeSpec, prefix: str = "model.layers.{layer}.mlp.") -> list[WeightRule]:
    """Names as the hub's Qwen checkpoints have them."""
    return [
        _router_rule(experts, prefix + "gate.weight", prefix + "shared_expert_gate.weight"),
        *expert_rules(experts, "single", prefix),
        *shared_rules(experts, prefix + "shared_expert.{part}_proj"),
    ]


def _router_rule(experts: MoeSpec, source: str, gate: str) -> WeightRule:
    """`gate` is that of a shared expert, if it has one."""
    gated = experts.shared is not None and experts.shared.gated
    return WeightRule(_PARAM + "router.weight", (source, gate) if gated else (source,))


def correction_rules(source: str) -> list[WeightRule]:
    return [WeightRule(_PARAM + "correction.weight", (source,))]


def shared_rules(experts: MoeSpec, names: str) -> list[WeightRule]:
    """`names` has {part} for gate, up and down."""
    if experts.shared is None:
        return []
    gate, up, down = (names.replace("{part}", name) for name in ("gate", "up", "down"))
    return [
        *linear_rules(_PARAM + "shared.gate_up", (gate, up), False),
        *linear_rules(_PARAM + "shared.down", (down,), False),
    ]


def as_stored(spec: ModelSpec, tensors: Collection[str]) -> ModelSpec:
    """With experts' tensors as they are in a checkpoint of safetensors (`_NAMINGS`): one for each
    expert or one of all."""
    head = spec.draft_head
    if head is not None:
        head = replace(head, weights=tuple(_as_found(rule, tensors) for rule in head.weights))
    weights = tuple(_as_found(rule, tensors) for rule in spec.weights)
    return replace(spec, weights=weights, draft_head=head)


def _as_found(rule: WeightRule, tensors: Collection[str]) -> WeightRule:
    if rule.experts is None or _is_found(rule, tensors):
        return rule
    first = rule.sources[0]
    before, named, _ = first.partition("experts.")
    if not named:  # Granite's have names of their own: what stands before these
        before = first.rsplit(".", 2)[0] + "."
    for naming in _NAMINGS:
        found = _expert_rule(rule.param, rule.experts, before, naming)
        found = replace(found, layers=rule.layers)
        if _is_found(found, tensors):
            return found
    return rule


def _is_found(rule: WeightRule, tensors: Collection[str]) -> bool:
    first = rule.sources[0].replace("{expert}", "0")
    return first.replace("{layer}", str(rule.layers[0] if rule.layers else 0)) in tensors


def gguf_rules(experts: MoeSpec, layout: Layout = "stacked") -> list[WeightRule]:
    """Names as llama.cpp writes them (gguf-py/gguf/constants.py, TENSOR_NAMES)."""
    stored = ExpertTensors(experts.num_experts, layout)
    layer = "blk.{layer}.ffn_"
    ending = "_exps" if layout == "stacked" else ".{expert}"
    gate, up, down = (layer + name + ending for name in ("gate", "up", "down"))
    matrices = [
        *linear_rules(_PARAM + "gate_up", (gate, up), experts.bias),
        *linear_rules(_PARAM + "down", (down,), experts.bias),
    ]
    router = [_router_rule(experts, layer + "gate_inp.weight", layer + "gate_inp_shexp.weight")]
    if experts.corrected:
        router += correction_rules("blk.{layer}.exp_probs_b.bias")
    if experts.bias:
        router.append(WeightRule(_PARAM + "router.bias", (layer + "gate_inp.bias",)))
    shared = shared_rules(experts, layer + "{part}_shexp")
    return [*router, *(replace(rule, experts=stored) for rule in matrices), *shared]
