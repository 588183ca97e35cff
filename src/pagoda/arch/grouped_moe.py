"""Experts as the checkpoints of DeepSeek V3 (arXiv 2412.19437) and GLM-4.5 have them: behind some
dense layers, with a shared one, and in groups of which some are open to choice."""

from collections.abc import Collection

from pagoda.arch.moe import (
    MAX_EXPERTS,
    correction_rules,
    expert_rules,
    gguf_rules,
    shared_rules,
    with_experts,
)
from pagoda.arch.read import MAX_LAYERS, MAX_WIDTH, Reader
from pagoda.arch.spec import ModelSpec, MoeSpec, SharedExpert, WeightRule
from pagoda.base.errors import UnsupportedModelError

SOFTMAX, SIGMOID = 1, 2
"""GGUF's numbers for them."""
CONFIG_GROUPS = ("n_group", "topk_group")
GGUF_GROUPS = ("expert_group_count", "expert_group_used_count")


def with_config_experts(
    spec: ModelSpec,
    reader: Reader,
    layers: Collection[int],
    *,
    corrected: bool = True,
    grouped: bool = True,
    renormalize: bool = True,
) -> ModelSpec:
    """`spec` with experts in these layers, as config.json says: those that are `corrected` are
    chosen by sigmoids, others by a softmax. `grouped` says whether groups count, and `renormalize`
    what holds where the file does not say it."""
    count = reader.integer("n_routed_experts", MAX_EXPERTS)
    top_k = reader.integer("num_experts_per_tok", count)
    experts = _experts(
        count=count,
        top_k=top_k,
        size=reader.integer("moe_intermediate_size", MAX_WIDTH),
        shared=reader.integer("n_shared_experts", MAX_EXPERTS, 1, minimum=0),
        groups=expert_groups(reader, CONFIG_GROUPS, count, top_k) if grouped else (1, 1),
        corrected=corrected,
        renormalize=reader.flag("norm_topk_prob", renormalize),
        scale=reader.number("routed_scaling_factor", 1.0),
    )
    mlp = "model.layers.{layer}.mlp."
    rules = [
        WeightRule("layers.{layer}.mlp.router.weight", (mlp + "gate.weight",)),
        *(correction_rules(mlp + "gate.e_score_correction_bias") if corrected else ()),
        *expert_rules(experts, "single", mlp),
        *shared_rules(experts, mlp + "shared_experts.{part}_proj"),
    ]
    return with_experts(spec, experts, layers, rules)


def first_sparse(reader: Reader, default: int) -> int:
    """The first layer with experts; those before it are dense."""
    return reader.integer("first_k_dense_replace", MAX_LAYERS, default, minimum=0)


def with_gguf_experts(spec: ModelSpec, reader: Reader, scoring: int) -> ModelSpec:
    """`spec` with experts as a GGUF says; `scoring` is its number where the file has none."""
    count = reader.integer("expert_count", MAX_EXPERTS)
    scoring = reader.integer("expert_gating_func", 16, scoring)
    if scoring not in (SOFTMAX, SIGMOID):
        raise UnsupportedModelError(
            f"The GGUF's router has the function {scoring} (expert_gating_func); known are "
            f"{SOFTMAX}, a softmax, and {SIGMOID}, a sigmoid."
        )
    top_k = reader.integer("expert_used_count", count)
    experts = _experts(
        count=count,
        top_k=top_k,
        size=reader.integer("expert_feed_forward_length", MAX_WIDTH),
        shared=reader.integer("expert_shared_count", MAX_EXPERTS, 0, minimum=0),
        groups=expert_groups(reader, GGUF_GROUPS, count, top_k),
        corrected=scoring == SIGMOID,
        renormalize=reader.flag("expert_weights_norm", False),
        scale=reader.number("expert_weights_scale", 1.0),
    )
    first = reader.integer("leading_dense_block_count", MAX_LAYERS, 0, minimum=0)
    return with_experts(spec, experts, range(first, len(spec.layers)), gguf_rules(experts))


def expert_groups(
    reader: Reader, names: tuple[str, str], count: int, top_k: int
) -> tuple[int, int]:
    """(groups of the experts, those that are open to choice), by the names of these numbers."""
    lying, opened = names
    num_groups = reader.integer(lying, 64, 1)
    top_groups = reader.integer(opened, num_groups, 1)
    each = count // num_groups
    if count % num_groups or (num_groups > 1 and each < 2):
        raise reader.error(lying, f"is {num_groups}, which {count} experts cannot share")
    if each * top_groups < top_k:
        raise reader.error(opened, f"is {top_groups}, whose experts are fewer than {top_k}")
    return num_groups, top_groups


def _experts(
    *,
    count: int,
    top_k: int,
    size: int,
    shared: int,
    groups: tuple[int, int],
    corrected: bool,
    renormalize: bool,
    scale: float,
) -> MoeSpec:
    num_groups, top_groups = groups
    return MoeSpec(
        num_experts=count,
        top_k=top_k,
        intermediate_size=size,
        scoring="sigmoid" if corrected else "softmax",
        corrected=corrected,
        groups=num_groups,
        top_groups=top_groups,
        group_best=2 if corrected else 1,
        renormalize=renormalize,
        scale=scale,
        shared=SharedExpert(shared * size) if shared else None,
    )
