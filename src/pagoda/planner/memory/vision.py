"""What pictures and sounds in prompts cost, and how large they may be."""

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from pagoda.arch.hearing import AudioSpec
from pagoda.arch.spec import ModelSpec
from pagoda.arch.vision import VisionSpec
from pagoda.base.errors import ConfigError
from pagoda.base.words import say
from pagoda.config.engine import EngineConfig
from pagoda.config.modality import MODALITIES
from pagoda.core.plan import ENCODE_AHEAD
from pagoda.planner.memory.mobile_net import picture_bytes
from pagoda.planner.memory.plan import DTYPE_BYTES
from pagoda.planner.reason import Reason
from pagoda.planner.resolved import ResolvedConfig


def resolve_media(config: EngineConfig, spec: ModelSpec, reasons: list[Reason]) -> EngineConfig:
    """`config` with numbers of tokens for the largest of each kind of media, where the model sees.

    ConfigError for a picture of more tokens than a step has, where one step must take them all.
    """
    if spec.vision is None:
        return config
    device = config.device.device
    defaults = {
        f"{kind}_max_tokens": _default(kind, config, spec.max_position) for kind in MODALITIES
    }
    if spec.vision.image_tokens is not None:
        most = min(defaults["image_max_tokens"], spec.vision.image_tokens)
        defaults["image_max_tokens"] = most
    if spec.vision.both_ways:
        step, asked = int(config.scheduler.max_num_batched_tokens), config.media.image_max_tokens
        if isinstance(asked, int) and asked > step:
            raise ConfigError(
                f"--image-max-tokens {asked} is more than --max-num-batched-tokens {step}, and "
                "this model reads a picture in one step. Lower the one or raise the other."
            )
        defaults["image_max_tokens"] = min(defaults["image_max_tokens"], step)
    chosen: dict[str, Any] = {
        name: most for name, most in defaults.items() if getattr(config.media, name, 0) == "auto"
    }
    reasons += [
        Reason(name, most, say("default on {device}", device=device))
        for name, most in chosen.items()
    ]
    return replace(config, media=replace(config.media, **chosen))


def media_sizes(config: ResolvedConfig, kinds: Iterable[str]) -> dict[str, int]:
    """The most tokens that one of each kind becomes."""
    return {
        kind: int(getattr(config.media, f"{kind}_max_tokens", _default(kind, config, 0)))
        for kind in kinds
    }


def _default(kind: str, config: EngineConfig | ResolvedConfig, max_position: int) -> int:
    modality = MODALITIES[kind]
    if not modality.shrinks:
        return modality.max_tokens[config.device.device]
    length = config.model.max_model_len
    half = (length if isinstance(length, int) else max_position) // 2
    return max(1, min(modality.max_tokens[config.device.device], half))


def media_budget(config: ResolvedConfig, spec: ModelSpec, encoders: Collection[str]) -> int:
    """Bytes of the embeddings that are kept of media by the kinds that have encoders."""
    width, sizes = DTYPE_BYTES[config.model.dtype], media_sizes(config, encoders)
    most = max(sizes.values(), default=0)
    return kept_bytes(spec.vision, spec.hidden_size, width, most)


def kept_bytes(vision: VisionSpec | None, hidden_size: int, width: int, max_tokens: int) -> int:
    """Bytes of the embeddings of as many media as are encoded ahead of their steps; `width` is the
    bytes of one number."""
    layers = 1 if vision is None else 1 + len(vision.deepstack)
    return ENCODE_AHEAD * max_tokens * hidden_size * width * layers


def encoder_bytes(vision: VisionSpec, hidden_size: int, width: int, max_tokens: int) -> int:
    """Peak of encoding one picture, and what is kept of others.

    Per patch the fp32 values it is made of, twice, x, its norm, q, k and v with their rotations,
    what is attended and the sums, and up with its activation (and a gate). Measured on a CPU for
    1024 tokens of Qwen3-VL-2B's tower: 210 MiB (368 predicted, without what is kept).
    """
    if vision.mobile_net is not None:
        kept = kept_bytes(vision, hidden_size, width, max_tokens)
        return picture_bytes(vision.mobile_net, width) + kept
    patches = max_tokens * vision.merge**2
    if vision.class_token:  # one tile at a time
        patches = min(patches, vision.num_positions) + 1
    per_patch = 2 * 4 * vision.patch_values
    wide = (3 if vision.gated else 2) * vision.intermediate_size
    per_patch += (12 * vision.hidden_size + wide) * max(width, 4)
    return patches * per_patch + kept_bytes(vision, hidden_size, width, max_tokens)


def hearing_bytes(audio: AudioSpec, hidden_size: int, width: int) -> int:
    """Peak of encoding one sound of the longest, and what is kept of others.

    In front of the second convolution there are two frames to a place, which are unfolded thrice;
    then per place x, its norm, q, k and v, what is attended, the sums, and up with its activation.
    """
    width = max(width, 4)
    frames = 2 * audio.num_positions * (3 * audio.num_mels + 5 * audio.hidden_size) * width
    places = audio.num_positions * (10 * audio.hidden_size + 2 * audio.intermediate_size) * width
    return max(frames, places) + kept_bytes(None, hidden_size, width, audio.max_tokens)
