"""Which of a model's weights an adapter's module stands beside, whatever names either has."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pagoda.arch.spec import ModelSpec, WeightRule
from pagoda.base.errors import UnsupportedModelError

_MERGE = "merge the adapter into the checkpoint and serve that"
# Of transformers' modules, what llama.cpp calls their weights (gguf-py/gguf/tensor_mapping.py).
_GGUF_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "self_attn.out_proj": "attn_output",
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w3": "ffn_up",
    "feed_forward.w2": "ffn_down",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
# llama.cpp's converter puts the rotary pairs of these models side by side, whose own checkpoints
# have them in halves; of all others rows lie in a GGUF as they lie there.
_TURNED_BY_CONVERTER = frozenset(
    (
        "LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM", "SmolLM3ForCausalLM",
        "GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM",
        "GraniteMoeHybridForCausalLM", "Mistral3ForConditionalGeneration", "Ministral3ForCausalLM",
    )
)  # fmt: skip
# In memory, where rows of gate and up take turns.
_INTERLEAVED = frozenset(("GptOssForCausalLM",))
_PARTS = {
    "gate_proj": ("gate",), "up_proj": ("up",), "down_proj": ("down",), "w1": ("gate",),
    "w3": ("up",), "w2": ("down",), "gate_up_proj": ("gate", "up"), "gate": ("gate",),
    "up": ("up",), "down": ("down",), "gate_up": ("gate", "up"),
}  # fmt: skip
_EXPERTS = r"(?:.*\.)?layers\.(?P<layer>\d+)\.(?:.+\.)?experts\."
# Of all experts or of one: as transformers has them, as Unsloth takes gpt-oss apart, as llama.cpp.
_OF_EXPERTS = tuple(
    map(
        re.compile,
        (
            _EXPERTS + r"(?:(?P<expert>\d+)\.)?(?P<part>\w+)",
            _EXPERTS + r"(?P<part>\w+)s\.(?P<expert>\d+)",
            r"blk\.(?P<layer>\d+)\.ffn_(?P<part>\w+)_exps",
        ),
    )
)
_LAYER = re.compile(r"(?:^|\.)(?:layers|blk)\.(\d+)\.")
_OF_LAYER = re.compile(r"(?:.*\.)?layers\.(\d+)\.(.+)")
_TOWER = re.compile(r"\b(vision|visual|vision_tower|vision_model)\b|^(v|mm)\.")
_TABLES = re.compile(r"(.*\.)?(embed_tokens|lm_head|token_embd|output)")


@dataclass(frozen=True)
class ExpertModule:
    """What a module of an adapter stands beside in a mixture of experts."""

    layer: int
    """Its number in the checkpoint."""
    parts: tuple[str, ...]
    """`gate`, `up` or `down`, or gate and up in one."""
    expert: int | None
    """None for all of them."""


def expert_module(name: str) -> ExpertModule | None:
    """None for a module that is no expert's, or is called as none is."""
    for pattern in _OF_EXPERTS:
        found = pattern.fullmatch(name)
        if found is not None and found["part"] in _PARTS:
            expert = found.groupdict().get("expert")
            return ExpertModule(
                int(found["layer"]), _PARTS[found["part"]], None if expert is None else int(expert)
            )
    return None


class AdaptedWeights:
    """The weights of a model that adapters may stand beside."""

    def __init__(self, spec: ModelSpec, of_gguf: bool):
        """`of_gguf`: the model's checkpoint is a GGUF."""
        self._spec = spec
        self._of_gguf = of_gguf
        rules = [
            rule
            for rule in spec.expanded_weights()
            if rule.param.startswith("layers.") and rule.param.endswith(".weight")
        ]
        self._by_key: Mapping[str, tuple[str, WeightRule]] = {
            _key(source.removesuffix(".weight")): (source, rule)
            for rule in rules
            for source in rule.sources
        }
        self._mixtures = {
            int(found[1]): rule.param.removesuffix(".down.weight")
            for rule in rules
            if rule.experts is not None and rule.param.endswith(".down.weight")
            if (found := _LAYER.search(rule.sources[0])) is not None
        }

    def mixture(self, module: ExpertModule, kind: Literal["peft", "gguf"]) -> str | None:
        """Where the model has the module's experts; None where it has none. Raises as `find`."""
        self._check(kind)
        return self._mixtures.get(module.layer)

    def interleaves(self, kind: Literal["peft", "gguf"]) -> bool:
        """Whether rows of gate and up take turns where a module has both."""
        return kind == "peft" and self._spec.architecture in _INTERLEAVED

    def find(self, module: str, kind: Literal["peft", "gguf"]) -> tuple[str, WeightRule]:
        """The module's weight in the checkpoint, and the rule by which its rows become those of a
        layer; UnsupportedModelError where adapters are not applied."""
        self._check(kind)
        turned = kind == "peft" and self._of_gguf
        key = None if _TOWER.search(module) else _key(module)
        if key is not None and turned:
            key = _translated(key)
        source, rule = self._by_key.get(key or "", ("", None))
        if rule is None or rule.experts is not None or rule.value != "x":
            raise UnsupportedModelError(self._refusal(module, rule))
        if turned and self._spec.architecture in _TURNED_BY_CONVERTER:
            rule = replace(rule, unpermute=(), turning=None)
        return source, rule

    def _check(self, kind: Literal["peft", "gguf"]) -> None:
        if kind == "gguf" and not self._of_gguf:
            raise UnsupportedModelError(
                "An adapter in a GGUF goes with a model in a GGUF; take the adapter as peft saved "
                "it, or the model's GGUF."
            )

    def _refusal(self, module: str, rule: WeightRule | None) -> str:
        shown = ascii(module)[1:-1]
        if rule is not None and rule.experts is not None or ".experts." in module:
            return (
                f"Its module {shown} is an expert's, and none of {self._spec.architecture} that "
                f"takes adapters; {_MERGE}."
            )
        if _TABLES.fullmatch(module):
            return (
                f"Its module {shown} is the table of tokens or the output head, where no adapters "
                f"are served; {_MERGE}."
            )
        if _TOWER.search(module):
            return f"Its module {shown} is the vision tower's, where none are served; {_MERGE}."
        return (
            f"Its module {shown} is none of {self._spec.architecture} that takes adapters: it was "
            f"trained for another model, or {_MERGE}."
        )


def _key(name: str) -> str:
    """Without what stands in front of the layers, which differs between libraries, and without
    peft's name for a layer that has adapters beside it."""
    found = _OF_LAYER.fullmatch(name.removesuffix(".base_layer"))
    return name if found is None else f"layers.{found[1]}.{found[2]}"


def _translated(key: str) -> str:
    """A peft module's weight in a GGUF."""
    found = _OF_LAYER.fullmatch(key)
    known = None if found is None else _GGUF_NAMES.get(found[2])
    return key if found is None or known is None else f"blk.{found[1]}.{known}"
