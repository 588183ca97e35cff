"""Gemma 3n's vision tower: MobileNet-V5 300M, and the embedder behind it."""

from collections.abc import Mapping
from typing import Any

from pagoda.arch.mobilenet import EPS, Block, EdgeBlock, InvertedBlock, MobileNetSpec, QueryBlock
from pagoda.arch.read import MAX_VOCAB, MAX_WIDTH, Reader
from pagoda.arch.spec import WeightRule
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import UnsupportedModelError

_ARCHITECTURE = "mobilenetv5_300m_enc"
# timm has it as a constant, and so has the size of a token's grid.
_HIDDEN_SIZE, _TOKENS_SIDE = 2048, 16
# Gemma3nVisionConfig and Gemma3nConfig, where config.json leaves them out.
_WORDS, _FIRST_WORD, _END = 128, 262144, 262144
_TOWER = "model.vision_tower.timm_model."
_EMBEDDER = "model.embed_vision."
_STEM = 64
_UNIT = 8  # numbers of channels are rounded to multiples of it
# By stage; an inverted block is (first, middle, stride, ratio), an edge block (stride,), and "a"
# stands for attention.
_STAGES: tuple[tuple[int, tuple[Any, ...]], ...] = (
    (128, ((2,), (1,), (1,))),
    (256, ((3, 5, 2, 6), (5, 0, 1, 4), (3, 0, 1, 4), (5, 0, 1, 4), (3, 0, 1, 4))),
    (640, ((5, 5, 2, 6), *((5, 0, 1, 4),) * 7, (0, 0, 1, 1), *("a", (0, 0, 1, 2)) * 14)),
    (1280, ((5, 5, 2, 6), *("a", (0, 0, 1, 2)) * 19)),
)
# Heads, their size, and the stride of keys and values, by stage.
_ATTENTION = {2: (12, 64, 2), 3: (16, 96, 1)}
_EDGE_KERNEL, _EDGE_RATIO, _KV_KERNEL = 3, 4, 3


def vision_from_config(config: Mapping[str, Any]) -> VisionSpec:
    """`vision_config` of a config.json that has one."""
    reader = Reader(config, "config.json")
    tower = reader.section("vision_config")
    assert tower is not None
    architecture = tower.text("architecture", _ARCHITECTURE)
    hidden = tower.integer("hidden_size", MAX_WIDTH, _HIDDEN_SIZE)
    tokens = reader.integer("vision_soft_tokens_per_image", MAX_WIDTH, _TOKENS_SIDE**2)
    if (architecture, hidden, tokens) != (_ARCHITECTURE, _HIDDEN_SIZE, _TOKENS_SIDE**2):
        raise UnsupportedModelError(
            f"config.json: the vision tower is a {architecture!r} of width {hidden} that makes "
            f"{tokens} tokens of a picture; in Gemma 3n known is {_ARCHITECTURE!r} of width "
            f"{_HIDDEN_SIZE} with {_TOKENS_SIDE**2} tokens."
        )
    words = tower.integer("vocab_size", MAX_VOCAB, _WORDS)
    end = reader.integer("eoi_token_id", MAX_VOCAB, _END)
    end -= tower.integer("vocab_offset", MAX_VOCAB, _FIRST_WORD, minimum=0)
    if not 0 <= end < words:
        raise reader.error("eoi_token_id", "must be one of the tokens that vision_config embeds")
    mobile = _mobile_net(_multiplier(tower), words, end)
    return VisionSpec(
        hidden_size=hidden,
        num_layers=sum(map(len, mobile.stages)),
        num_heads=1,
        intermediate_size=mobile.inner,
        activation="gelu_tanh",
        patch_size=1,
        temporal_patch=1,
        merge=1,
        num_positions=tokens,
        rope_theta=0.0,
        norm_eps=tower.number("rms_norm_eps", EPS, below=1.0),
        weights=_rules(mobile),
        pooled=True,
        mobile_net=mobile,
    )


def _multiplier(tower: Reader) -> float:
    """By which all numbers of channels are multiplied (timm's `channel_multiplier`)."""
    args = tower.section("model_args") or Reader({}, "config.json")
    others = set(tower.raw("model_args") or ()) - {"channel_multiplier"}
    if others:
        raise UnsupportedModelError(
            f"config.json: vision_config.model_args has {min(others)!r}, which is not supported; "
            "published Gemma 3n have no model_args."
        )
    return args.number("channel_multiplier", 1.0, below=16.0)


def _mobile_net(multiplier: float, words: int, end: int) -> MobileNetSpec:
    stem = _STEM if multiplier < 1 else _rounded(_STEM * multiplier)
    channels, stages = stem, []
    for index, (base, kinds) in enumerate(_STAGES):
        out, blocks = _rounded(base * multiplier), []
        for kind in kinds:
            blocks.append(_block(kind, channels, out, index))
            channels = out
        stages.append(tuple(blocks))
    fused = sum(stage[-1].channels for stage in stages[-2:])
    return MobileNetSpec(stem, tuple(stages), 2 * fused, _TOKENS_SIDE, words, end)


def _block(kind: Any, channels: int, out: int, stage: int) -> Block:
    if kind == "a":
        return QueryBlock(out, *_ATTENTION[stage], kernel=_KV_KERNEL)
    if len(kind) == 1:
        return EdgeBlock(channels, channels * _EDGE_RATIO, out, _EDGE_KERNEL, *kind)
    first, middle, stride, ratio = kind
    return InvertedBlock(channels, channels * ratio, out, first, middle, stride)


def _rounded(channels: float) -> int:
    """To the nearest multiple of `_UNIT`, and up where that takes more than a tenth off."""
    nearest = max(_UNIT, int(channels + _UNIT / 2) // _UNIT * _UNIT)
    return nearest + _UNIT if nearest < 0.9 * channels else nearest


# Our parameters and timm's.
_EDGE = {
    "up": "conv_exp", "up_norm": "bn1", "down": "conv_pwl", "norm": "bn2",
}  # fmt: skip
_INVERTED = {
    "first": "dw_start.conv", "first_norm": "dw_start.bn", "up": "pw_exp.conv",
    "up_norm": "pw_exp.bn", "middle": "dw_mid.conv", "middle_norm": "dw_mid.bn",
    "down": "pw_proj.conv", "norm": "pw_proj.bn",
}  # fmt: skip
_QUERY = {
    "input_norm": "norm", "query": "attn.query.proj", "key.conv": "attn.key.down_conv",
    "key.norm": "attn.key.norm", "key.projection": "attn.key.proj",
    "value.conv": "attn.value.down_conv", "value.norm": "attn.value.norm",
    "value.projection": "attn.value.proj", "output": "attn.output.proj",
}  # fmt: skip
_FUSION = ("up", "up_norm", "down", "norm")


def _rules(spec: MobileNetSpec) -> tuple[WeightRule, ...]:
    names = {
        "stem.weight": "conv_stem.conv.weight",
        "stem.bias": "conv_stem.conv.bias",
        "stem_norm.weight": "conv_stem.bn.weight",
    }
    index = 0
    for number, stage in enumerate(spec.stages):
        for place, block in enumerate(stage):
            found = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in _names(block).items()}
            if not isinstance(block, EdgeBlock):
                found["scale.weight"] = "layer_scale.gamma"
            names |= {
                f"blocks.{index}.{ours}": f"blocks.{number}.{place}.{theirs}"
                for ours, theirs in found.items()
            }
            index += 1
    names |= {f"fusion.{ours}.weight": f"msfa.ffn.{_INVERTED[ours]}.weight" for ours in _FUSION}
    names["fusion.token_norm.weight"] = "msfa.norm.weight"
    embedder = {
        "words": "embedding",
        "word_norm": "hard_embedding_norm",
        "token_norm": "soft_embedding_norm",
        "projection": "embedding_projection",
    }
    return (
        *(WeightRule(f"vision.{ours}", (_TOWER + theirs,)) for ours, theirs in names.items()),
        *(
            WeightRule(f"vision.{ours}.weight", (f"{_EMBEDDER}{theirs}.weight",))
            for ours, theirs in embedder.items()
        ),
    )


def _names(block: Block) -> Mapping[str, str]:
    if isinstance(block, EdgeBlock):
        return _EDGE
    left_out: tuple[str, ...]
    if isinstance(block, QueryBlock):
        left_out = ("key.conv", "key.norm", "value.conv", "value.norm")
        left_out = left_out if block.kv_stride == 1 else ()
        return {ours: theirs for ours, theirs in _QUERY.items() if ours not in left_out}
    convolutions = {"first": block.first, "middle": block.middle}
    left_out = tuple(name for name, kernel in convolutions.items() if not kernel)
    return {
        ours: theirs
        for ours, theirs in _INVERTED.items()
        if ours.removesuffix("_norm") not in left_out
    }
