"""Estimates of what vLLM's profiling run finds: the peak of a step's temporaries. The formulas'
structure is read from its code, their factors are measured (see `setup.VERSIONS`)."""

from dataclasses import dataclass
from math import floor, sqrt

from pagoda.arch.spec import AttentionSpec, LayerSpec, ModelSpec
from pagoda.arch.vision import VisionSpec
from pagoda.planner.estimate import Estimate
from pagoda.planner.vllm.setup import Run
from pagoda.planner.vllm.weights import padded_experts

_GIB = 1 << 30
_LOGIT = 4  # bytes: the sampler computes in fp32
# Measured start-ups lie within 0.1 GiB of the estimate, those of models with vision within 0.2,
# beside what kernels take on their own (`Version.non_torch`).
_TEXT_ERROR = 0.1 * _GIB
_VISION_ERROR = 0.2 * _GIB
# Qwen's preprocessor_config.json: pixels of the largest image, and of the largest video times its
# frames. 0.11 tries videos of up to so many frames, and counts 12.5 tokens for each of them (with
# the text between frames).
_IMAGE_PIXELS = 16777216
_VIDEO_PIXELS = 25165824
_MOST_FRAMES = 24576
_TOKENS_OF_VIDEO = 12.5
# Gemma 4: videos of 32 frames with 70 tokens each and 8 of text.
_GEMMA_TOKENS = 32 * (70 + 8)
# Bytes of a graph, at least and at most: 0.80 GiB of 35 (0.7.1, V100), 1.92 of 102 (0.11, 3090),
# 0.69 of 118 (0.19, A100).
_GRAPH_BYTES = (5 << 20, 24 << 20)
# What vLLM itself estimates beforehand, least, likely and most: 0.42 GiB of 118 (0.19, A100), 0.73
# of 86 and 0.27 of 28 in public logs of 0.19 and 0.21.
_ESTIMATED_BYTES = (int(3.6 * 1024 * 1024), int(8.7 * 1024 * 1024), 10 << 20)
_GRAPHS_MOST = 1 * _GIB
_GRAPHS_MOST_OF_SPLIT_EXPERTS = 2 * _GIB


@dataclass(frozen=True)
class Encoder:
    """The dummy input that the tower is profiled with."""

    budget: int
    """Tokens of the cache for its outputs, as logged."""
    items: int
    item_tokens: int
    output_size: int
    """Numbers of one token's output."""


def activation_peak(spec: ModelSpec, run: Run, held: range, stored: str) -> Estimate:
    """The peak of a rank that holds these layers, whose weights are `stored` as `weights.storage`
    says."""
    first, last = held.start == 0, held.stop == len(spec.layers)
    encoder = profiled_encoder(spec, run) if first else None
    kept = _encoder_outputs(encoder, run) + _pixels(spec.vision, encoder, run)
    workspace = max((_workspace(spec.layers[i], spec, run, stored) for i in held), default=0)
    persistent = workspace if run.version.keeps_experts_workspace else 0
    forward = max((_forward(spec.layers[i], spec, run) for i in held), default=0)
    forward += workspace - persistent
    hidden = run.tokens * spec.hidden_size * run.width
    logits = run.requests * spec.vocab_size * _LOGIT if last and spec.writes_text else 0
    encoding = _encoding(spec.vision, encoder, run)
    peaks = [
        max(encoding, kept + persistent + max(forward, hidden + round(factor * logits)))
        for factor in run.version.sampler
    ]
    error = round(_TEXT_ERROR if encoder is None else _VISION_ERROR)
    at = "of the sampler" if hidden + run.version.sampler[1] * logits > forward else "of a layer"
    if encoder is not None:
        at += f" beside an encoder cache of {encoder.budget:,} tokens"
    if encoding == peaks[1]:
        at = "of the vision tower"
    return Estimate(max(0, peaks[0] - error), peaks[1], peaks[2] + error, at)


def profiled_encoder(spec: ModelSpec, run: Run) -> Encoder | None:
    """None for models without vision, and for the first engine, which is not modelled there."""
    if run.version.is_v0:
        return None
    vision = spec.vision
    # What it profiles the towers of Mistral, InternVL and Llama 4 with is not modelled.
    if vision is None or (vision.temporal_patch == 1 and not vision.pooled):
        return None
    if vision.pooled:
        # Gemma 3 has no films, and pictures of one size.
        tokens = vision.image_tokens or _GEMMA_TOKENS
        return _encoder(tokens, tokens, run, spec.hidden_size)
    outputs = spec.hidden_size * (1 + len(vision.deepstack))
    unit = (vision.patch_size * vision.merge) ** 2
    if not run.version.profiles_videos:
        return _encoder(_IMAGE_PIXELS // unit, _IMAGE_PIXELS // unit, run, outputs)
    tokens = _video_tokens(vision, run.length)
    return _encoder(int(tokens * _TOKENS_OF_VIDEO), tokens, run, outputs)


def _encoder(counted: int, tokens: int, run: Run, outputs: int) -> Encoder:
    """`counted` is what an item of `tokens` is taken for."""
    budget = max(run.tokens, counted)
    per_request = max(1, run.length // counted)
    items = max(1, min(budget // counted, run.requests * per_request))
    return Encoder(budget, items, tokens, outputs)


def _video_tokens(vision: VisionSpec, length: int) -> int:
    """Tokens of the longest video that 0.11 profiles with: frames are added while the next one fits
    the context, and the picture shrinks with them."""
    factor = vision.patch_size * vision.merge
    side = floor(sqrt(_IMAGE_PIXELS) / factor) * factor

    def tokens(frames: int) -> int:
        pairs = round(frames / vision.temporal_patch) * vision.temporal_patch
        edge = side
        if pairs * side * side > _VIDEO_PIXELS:
            shrink = sqrt(frames * side * side / _VIDEO_PIXELS)
            edge = max(factor, floor(side / shrink / factor) * factor)
        padded = frames + frames % vision.temporal_patch
        return max(padded // vision.temporal_patch, 1) * (edge // factor) ** 2

    frames = 2
    while frames < _MOST_FRAMES and tokens(frames + 1) <= length:
        frames += 1
    return tokens(frames)


def _encoder_outputs(encoder: Encoder | None, run: Run) -> int:
    """Kept while the language model and the sampler run."""
    if encoder is None:
        return 0
    tokens = encoder.item_tokens
    if run.version.profiles_videos and tokens < encoder.budget:
        tokens += encoder.budget
    return encoder.items * tokens * encoder.output_size * run.width


def _encoding(vision: VisionSpec | None, encoder: Encoder | None, run: Run) -> int:
    """The tower's own peak: pixels, and of each patch x, its norm, and either q, k and v with their
    copies and rotations or the mlp before and behind its activation. Gemma's is below the
    sampler's, as a log of 0.19 has it."""
    if vision is None or encoder is None or vision.pooled:
        return 0
    patches = encoder.items * encoder.item_tokens * vision.merge**2
    widest = max(8 * vision.hidden_size, 2 * vision.intermediate_size) // run.size
    numbers = vision.patch_values + 2 * vision.hidden_size + widest
    return patches * numbers * run.width


def _pixels(vision: VisionSpec | None, encoder: Encoder | None, run: Run) -> int:
    """Bytes of the dummy input, which profiling holds to its end."""
    if vision is None or encoder is None or vision.pooled:
        return 0
    return encoder.items * encoder.item_tokens * vision.merge**2 * vision.patch_values * run.width


def _forward(layer: LayerSpec, spec: ModelSpec, run: Run) -> int:
    """One layer: x and the sum before it, and the widest of what is computed of them."""
    mixer = layer.mixer
    if isinstance(mixer, AttentionSpec):
        heads = mixer.num_heads * (2 if mixer.output_gate else 1)
        shared = 2 * max(1, mixer.num_kv_heads // run.size)
        # q, k and v; q and k rotated; the result.
        wide = 3 * (heads // run.size + shared) * mixer.head_dim
    else:
        wide = 4 * mixer.inner_width // run.size
    if layer.mlp is not None:
        wide = max(wide, 3 * layer.mlp.intermediate_size // run.size)
    return run.tokens * (2 * spec.hidden_size + wide) * run.width


def _workspace(layer: LayerSpec, spec: ModelSpec, run: Run, stored: str) -> int:
    """What the experts' kernels write between their matrices."""
    experts = layer.experts
    if experts is None:
        return 0
    hidden, wide = spec.hidden_size, -(-experts.intermediate_size // run.size)
    if stored == "mxfp4":
        hidden, wide = padded_experts(hidden, experts.intermediate_size, run)
    rows = max(2 * wide, hidden) + max(wide, hidden)
    return run.tokens * experts.top_k * rows * run.width


def graph_memory(spec: ModelSpec, run: Run) -> Estimate:
    """Memory of CUDA graphs: no formula is known, the bounds are what start-ups showed. Versions
    that leave room for them leave what they estimate beforehand, which is less."""
    count = graph_count(spec, run)
    if not count:
        return Estimate.exactly(0, "eager")
    detail = f"{count} graphs, by what others took"
    if run.version.subtracts_graphs:
        low, likely, high = (count * each for each in _ESTIMATED_BYTES)
        return Estimate(low, likely, high, detail)
    split = run.size > 1 and any(layer.experts is not None for layer in spec.layers)
    most = _GRAPHS_MOST_OF_SPLIT_EXPERTS if split else _GRAPHS_MOST
    low, high = (count * each for each in _GRAPH_BYTES)
    high = min(high, max(most, low))
    return Estimate(low, (low + high) // 2, high, f"on top of the utilization, {detail}")


def graph_count(spec: ModelSpec, run: Run) -> int:
    """Graphs that are captured: of pieces for mixed steps, and from the second engine on of whole
    steps that only decode."""
    if run.eager:
        return 0
    if run.version.is_v0:
        return len(_sizes(min(run.requests, 256), fine_to=256))
    decode = run.requests * (1 + run.drafted)
    # GptOssForCausalLMConfig: "from 67 to 81" graphs in 0.11, "to 83" in 0.19.
    most = 992 if run.version.fine_graphs else 1024
    if spec.architecture != "GptOssForCausalLM":
        most = min(2 * decode, 512)
    fine_to = 512 if run.version.fine_graphs and most <= 512 else 256
    sizes = _sizes(min(most, run.tokens), fine_to)
    return len(sizes) + sum(size <= decode for size in sizes)


def _sizes(most: int, fine_to: int) -> list[int]:
    sizes = [1, 2, 4, *range(8, fine_to + 1, 8), *range(fine_to + 16, most + 1, 16)]
    return [size for size in sizes if size <= most]
