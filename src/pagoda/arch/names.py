"""Names of a dense decoder's weights in checkpoints, and the parameters they become."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from pagoda.arch.latent import LatentSpec
from pagoda.arch.spec import ExpertTensors, RowPiece, WeightRule


@dataclass(frozen=True)
class Traits:
    """What sets one dense decoder apart from another."""

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    fused_qkv: bool = False
    """One tensor holds q, k and v."""
    fused_gate_up: bool = False


def config_rules(
    traits: Traits, tied: bool, prefix: str = "model.", head: str = "lm_head.weight"
) -> tuple[WeightRule, ...]:
    """Names as transformers writes them (modeling_llama.py, modeling_qwen3.py, modeling_phi3.py);
    `prefix` is where the language model lies in the checkpoint."""
    layer = prefix + "layers.{layer}."
    attention = layer + "self_attn."
    mlp = layer + "mlp."
    qkv = ("qkv_proj",) if traits.fused_qkv else ("q_proj", "k_proj", "v_proj")
    gate_up = ("gate_up_proj",) if traits.fused_gate_up else ("gate_proj", "up_proj")
    names = _Names(
        embed=prefix + "embed_tokens.weight",
        norm=prefix + "norm.weight",
        head=head,
        attention_norm=layer + "input_layernorm.weight",
        mlp_norm=layer + "post_attention_layernorm.weight",
        q_norm=attention + "q_norm.weight",
        k_norm=attention + "k_norm.weight",
        qkv=tuple(attention + name for name in qkv),
        output=attention + "o_proj",
        gate_up=tuple(mlp + name for name in gate_up),
        down=mlp + "down_proj",
    )
    return _rules(names, traits, tied)


def gguf_rules(traits: Traits, tied: bool) -> tuple[WeightRule, ...]:
    """Names as llama.cpp writes them (gguf-py/gguf/constants.py, TENSOR_NAMES)."""
    layer = "blk.{layer}."
    qkv = ("attn_qkv",) if traits.fused_qkv else ("attn_q", "attn_k", "attn_v")
    gate_up = ("ffn_up",) if traits.fused_gate_up else ("ffn_gate", "ffn_up")
    names = _Names(
        embed="token_embd.weight",
        norm="output_norm.weight",
        head="output.weight",
        attention_norm=layer + "attn_norm.weight",
        mlp_norm=layer + "ffn_norm.weight",
        q_norm=layer + "attn_q_norm.weight",
        k_norm=layer + "attn_k_norm.weight",
        qkv=tuple(layer + name for name in qkv),
        output=layer + "attn_output",
        gate_up=tuple(layer + name for name in gate_up),
        down=layer + "ffn_down",
    )
    return _rules(names, traits, tied)


def with_pairs_side_by_side(
    rules: tuple[WeightRule, ...], head_dim: int, rotary_dim: int
) -> tuple[WeightRule, ...]:
    """The rules of a checkpoint whose rows of q and k have a rotary pair side by side."""
    turning = None if rotary_dim == head_dim else rotary_dim
    return tuple(
        replace(rule, unpermute=(head_dim, head_dim, 0), turning=turning)
        if rule.param.startswith("layers.{layer}.attention.qkv.")
        else rule
        for rule in rules
    )


def renamed(rules: Iterable[WeightRule], names: Mapping[str, str]) -> tuple[WeightRule, ...]:
    """The rules of a checkpoint that calls parts of sources' names otherwise: `.mlp.up_proj.` to
    `.feed_forward.w3.`."""

    def own(source: str) -> str:
        for known, name in names.items():
            source = source.replace(known, name)
        return source

    return tuple(replace(rule, sources=tuple(map(own, rule.sources))) for rule in rules)


def with_sources(rules: Iterable[WeightRule], sources: Mapping[str, str]) -> tuple[WeightRule, ...]:
    """The rules of a checkpoint that has other names for some of a layer's parameters:
    `mlp_norm.weight` to `blk.{layer}.post_attention_norm.weight`."""
    named = {"layers.{layer}." + param: source for param, source in sources.items()}
    return tuple(
        replace(rule, sources=(named[rule.param],)) if rule.param in named else rule
        for rule in rules
    )


@dataclass(frozen=True)
class _Names:
    """A naming scheme; linear layers without `.weight` or `.bias`."""

    embed: str
    norm: str
    head: str
    attention_norm: str
    mlp_norm: str
    q_norm: str
    k_norm: str
    qkv: tuple[str, ...]
    output: str
    gate_up: tuple[str, ...]
    down: str


def _rules(names: _Names, traits: Traits, tied: bool) -> tuple[WeightRule, ...]:
    layer = "layers.{layer}."
    attention = layer + "attention."
    rules = [
        WeightRule("embed.weight", (names.embed,)),
        WeightRule(layer + "attention_norm.weight", (names.attention_norm,)),
        *linear_rules(attention + "qkv", names.qkv, traits.qkv_bias),
        *linear_rules(attention + "output", (names.output,), traits.output_bias),
        WeightRule(layer + "mlp_norm.weight", (names.mlp_norm,)),
        *linear_rules(layer + "mlp.gate_up", names.gate_up, traits.mlp_bias),
        *linear_rules(layer + "mlp.down", (names.down,), traits.mlp_bias),
        WeightRule("norm.weight", (names.norm,)),
    ]
    if traits.qk_norm:
        rules.append(WeightRule(attention + "q_norm.weight", (names.q_norm,)))
        rules.append(WeightRule(attention + "k_norm.weight", (names.k_norm,)))
    if not tied:
        rules.append(WeightRule("head.weight", (names.head,)))
    return tuple(rules)


def linear_rules(param: str, sources: tuple[str, ...], bias: bool = True) -> list[WeightRule]:
    """Rules for a layer with a weight and, with `bias`, one of these."""
    kinds = (".weight", ".bias") if bias else (".weight",)
    return [WeightRule(param + kind, tuple(source + kind for source in sources)) for kind in kinds]


@dataclass(frozen=True)
class LatentNames:
    """Where a checkpoint has the matrices and norms of latent attention, without `.weight`."""

    query: str
    query_down: str
    query_norm: str
    query_up: str
    """These three where queries have a rank, and the first where they have none."""
    down: str
    norm: str
    keys_and_values: str
    """[heads * (key_dim + value_dim), rank]."""
    indexer: Mapping[str, str]
    """Layers of an indexer: `q`, `k`, `k_norm` and `weights`."""
    keys: str = ""
    """[heads, rank, key_dim], and below [heads, value_dim, rank], where there is no such matrix of
    both."""
    values: str = ""


_ATTENTION = "model.layers.{layer}.self_attn."
LATENT_CONFIG = LatentNames(
    query=_ATTENTION + "q_proj",
    query_down=_ATTENTION + "q_a_proj",
    query_norm=_ATTENTION + "q_a_layernorm",
    query_up=_ATTENTION + "q_b_proj",
    down=_ATTENTION + "kv_a_proj_with_mqa",
    norm=_ATTENTION + "kv_a_layernorm",
    keys_and_values=_ATTENTION + "kv_b_proj",
    indexer={
        "q": _ATTENTION + "indexer.wq_b",
        "k": _ATTENTION + "indexer.wk",
        "k_norm": _ATTENTION + "indexer.k_norm",
        "weights": _ATTENTION + "indexer.weights_proj",
    },
)
"""Names as transformers writes them (modeling_deepseek_v3.py, modeling_deepseek_v32.py)."""
LATENT_GGUF = LatentNames(
    query="blk.{layer}.attn_q",
    query_down="blk.{layer}.attn_q_a",
    query_norm="blk.{layer}.attn_q_a_norm",
    query_up="blk.{layer}.attn_q_b",
    down="blk.{layer}.attn_kv_a_mqa",
    norm="blk.{layer}.attn_kv_a_norm",
    keys_and_values="blk.{layer}.attn_kv_b",
    indexer={
        "q": "blk.{layer}.indexer.attn_q_b",
        "k": "blk.{layer}.indexer.attn_k",
        "k_norm": "blk.{layer}.indexer.k_norm",
        "weights": "blk.{layer}.indexer.proj",
    },
    keys="blk.{layer}.attn_k_b",
    values="blk.{layer}.attn_v_b",
)
"""Names as llama.cpp writes them (conversion/deepseek.py)."""


def latent_rules(
    names: LatentNames, latent: LatentSpec, heads: int, *, joined: bool
) -> list[WeightRule]:
    """Rules for all but the output's matrix; `joined` says that one matrix makes keys and values.

    Rows of queries and keys that are rotated come last in a checkpoint, pairs side by side.
    """
    param = "layers.{layer}.attention."

    def rule(name: str, source: str, size: int = 0) -> WeightRule:
        sizes = (size,) if size else ()
        turning = latent.rope_dim if size else None
        return WeightRule(
            f"{param}{name}.weight", (f"{source}.weight",), sizes, turning, turning_last=bool(size)
        )

    if latent.query_rank is None:
        queries = [rule("q", names.query, latent.query_dim)]
    else:
        queries = [
            rule("q_a", names.query_down),
            rule("q_norm", names.query_norm),
            rule("q_b", names.query_up, latent.query_dim),
        ]
    kv = [rule("kv_a", names.down, latent.rank + latent.rope_dim), rule("kv_norm", names.norm)]
    if not joined:
        stacked = ExpertTensors(heads, "stacked")
        each = [rule("k_b", names.keys), rule("v_b", names.values)]
        return [*queries, *kv, *(replace(x, experts=stacked) for x in each)]
    period, rows = latent.key_dim + latent.value_dim, ExpertTensors(heads, "rows")
    keys = RowPiece(period, 0, latent.key_dim)
    values = RowPiece(period, latent.key_dim, latent.value_dim)
    both = names.keys_and_values
    return [
        *queries,
        *kv,
        replace(rule("k_b", both), pieces=(keys,), experts=rows, transposed=True),
        replace(rule("v_b", both), pieces=(values,), experts=rows),
    ]


def indexer_rules(
    names: LatentNames, latent: LatentSpec, layers: tuple[int, ...], *, pairs: bool
) -> list[WeightRule]:
    """Rules for the indexers of some layers. With `pairs` rows that are rotated lie side by side,
    else in halves, in front of the others."""
    indexer = latent.indexer
    assert indexer is not None
    turned = (indexer.head_dim,) if pairs else ()
    rules = []
    for name, source in names.indexer.items():
        kinds = ("weight", "bias") if name == "k_norm" else ("weight",)
        for kind in kinds:
            rule = WeightRule(
                f"layers.{{layer}}.attention.indexer.{name}.{kind}",
                (f"{source}.{kind}",),
                layers=layers,
            )
            if pairs and name != "weights":
                rule = replace(rule, unpermute=turned, turning=latent.rope_dim)
            rules.append(rule)
    return rules
