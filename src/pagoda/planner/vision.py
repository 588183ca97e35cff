"""What pictures in prompts cost, and how large they may be."""

from dataclasses import replace
from typing import Any

from pagoda.arch.spec import ModelSpec, VisionSpec
from pagoda.base.errors import ConfigError
from pagoda.config.engine import EngineConfig
from pagoda.core.plan import ENCODE_AHEAD
from pagoda.planner.reason import Reason

# A picture of 1024 tokens has a megapixel (patches of 16 pixels, four to a token): a screenshot.
_MAX_TOKENS = {"cpu": 1024, "cuda": 4096}
# A minute of video, two frames to a row of tokens, has 68 tokens for each row then.
_MAX_VIDEO_TOKENS = {"cpu": 4096, "cuda": 16384}


def resolve_media(config: EngineConfig, spec: ModelSpec, reasons: list[Reason]) -> EngineConfig:
    """`config` with numbers of tokens for the largest picture and video, where the model sees any.

    ConfigError for a picture of more tokens than a step has, where one step must take them all.
    """
    if spec.vision is None:
        return config
    length, device = config.model.max_model_len, config.device.device
    half = max(1, (length if isinstance(length, int) else spec.max_position) // 2)
    defaults = {
        "image_max_tokens": min(_MAX_TOKENS[device], half),
        "video_max_tokens": min(_MAX_VIDEO_TOKENS[device], half),
    }
    if spec.vision.both_ways:
        step, asked = int(config.scheduler.max_num_batched_tokens), config.media.image_max_tokens
        if isinstance(asked, int) and asked > step:
            raise ConfigError(
                f"--image-max-tokens {asked} is more than --max-num-batched-tokens {step}, and "
                "this model reads a picture in one step. Lower the one or raise the other."
            )
        defaults["image_max_tokens"] = min(defaults["image_max_tokens"], step)
    chosen: dict[str, Any] = {
        name: most for name, most in defaults.items() if getattr(config.media, name) == "auto"
    }
    reasons += [Reason(name, most, f"default on {device}") for name, most in chosen.items()]
    return replace(config, media=replace(config.media, **chosen))


def kept_bytes(vision: VisionSpec, hidden_size: int, width: int, max_tokens: int) -> int:
    """Budget of the embeddings that are kept, as many as are encoded ahead of their steps; `width`
    is the bytes of one number."""
    return ENCODE_AHEAD * max_tokens * hidden_size * width * (1 + len(vision.deepstack))


def encoder_bytes(vision: VisionSpec, hidden_size: int, width: int, max_tokens: int) -> int:
    """Peak of encoding one picture, and what is kept of others.

    Per patch the fp32 values it is made of, twice, x, its norm, q, k and v with their rotations,
    what is attended and the sums, and up with its activation (and a gate). Measured on a CPU for
    1024 tokens of Qwen3-VL-2B's tower: 303 MiB (368 predicted, without what is kept).
    """
    patches = max_tokens * vision.merge**2
    per_patch = 2 * 4 * vision.patch_values
    wide = (3 if vision.pooled else 2) * vision.intermediate_size
    per_patch += (12 * vision.hidden_size + wide) * max(width, 4)
    return patches * per_patch + kept_bytes(vision, hidden_size, width, max_tokens)
