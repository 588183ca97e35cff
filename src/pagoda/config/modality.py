"""What prompts may hold beside text: one value for each kind, and the table of them.

Another kind is a row here and what it names: a loader, a processor for each family of models that
takes it, and an encoder among the model's. Nothing else knows which kinds there are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Modality:
    kind: str
    """What templates, flags and `/v1/models` call it."""
    words: str
    """What errors about a prompt call several of them."""
    parts: tuple[str, ...]
    """Types of message parts that hold one; the first is what errors tell people to send."""
    most: int
    """In one prompt, unless --limit-mm-per-prompt says otherwise."""
    max_tokens: Mapping[str, int]
    """Tokens that one may take, by device, unless a flag says otherwise
    (`MediaConfig.KIND_max_tokens`)."""
    loader: str
    """`module:class` of its `text.media.base.Loader`."""
    families: Mapping[str, str]
    """`module:function` that makes a `Processor` of a checkpoint's settings, by architecture."""
    projectors: Mapping[str, str] = field(default_factory=dict)
    """Likewise of GGUF metadata, by the projector's type."""
    settings: tuple[str, ...] = ("processor_config.json",)
    """Files that may hold a checkpoint's settings, the best first."""
    inline: tuple[str, ...] = ()
    """Those of `parts` that hold base64 and its format, in the field of their own name."""
    dialects: Mapping[str, str] = field(default_factory=dict)
    """What APIs other than the chat API call a part that holds one."""
    options: tuple[str, ...] = ()
    """What a request may choose of it, in `media_io_kwargs` and `mm_processor_kwargs`."""
    shrinks: bool = True
    """A large one is made smaller, so that it leaves room in the context."""
    seconds: float = 30
    """Most that decoding may take, with..."""
    memory: int = 1024 << 20
    """...so many bytes."""

    @property
    def url_part(self) -> str:
        """The field of a part that holds a URL."""
        return f"{self.kind}_url"


_QWEN = (
    "Qwen3VLForConditionalGeneration", "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
)  # fmt: skip

_QWEN2 = ("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
_QWEN2_PROJECTORS = ("qwen2vl_merger", "qwen2.5vl_merger")

_IMAGE = Modality(
    kind="image",
    words="pictures",
    parts=("image_url", "input_image", "image_pil"),
    most=64,
    # One of 1024 tokens has a megapixel (patches of 16 pixels, four to a token): a screenshot.
    max_tokens={"cpu": 1024, "cuda": 4096},
    loader="pagoda.text.images.picture:PictureLoader",
    families={
        **dict.fromkeys(_QWEN, "pagoda.text.images.qwen_vl:from_config"),
        "Gemma3ForConditionalGeneration": "pagoda.text.images.gemma3:from_config",
        "Gemma3nForConditionalGeneration": "pagoda.text.images.gemma3n:from_config",
        **dict.fromkeys(_QWEN2, "pagoda.text.images.qwen_vl:qwen2_from_config"),
        "Gemma4ForConditionalGeneration": "pagoda.text.images.gemma4:from_config",
        "Mistral3ForConditionalGeneration": "pagoda.text.images.pixtral:from_config",
        "InternVLForConditionalGeneration": "pagoda.text.images.internvl:from_config",
        "Llama4ForConditionalGeneration": "pagoda.text.images.llama4:from_config",
        "Phi4MultimodalForCausalLM": "pagoda.text.images.phi4:from_config",
        "Phi4MMForCausalLM": "pagoda.text.images.phi4:published_from_config",
    },
    projectors={
        "qwen3vl_merger": "pagoda.text.images.qwen_vl:from_gguf",
        "gemma3": "pagoda.text.images.gemma3:from_gguf",
        **dict.fromkeys(_QWEN2_PROJECTORS, "pagoda.text.images.qwen_vl:qwen2_from_gguf"),
        "gemma4v": "pagoda.text.images.gemma4:from_gguf",
        "pixtral": "pagoda.text.images.pixtral:from_gguf",
        "internvl": "pagoda.text.images.internvl:from_gguf",
        "llama4": "pagoda.text.images.llama4:from_gguf",
    },
    settings=("preprocessor_config.json", "processor_config.json"),
    dialects={"anthropic": "image", "responses": "input_image"},
)
_VIDEO = Modality(
    kind="video",
    words="videos",
    parts=("video_url",),
    most=8,
    # A minute of video, two frames to a row of tokens, has 68 tokens for each row then.
    max_tokens={"cpu": 4096, "cuda": 16384},
    loader="pagoda.text.images.video:VideoLoader",
    families={
        **dict.fromkeys(_QWEN, "pagoda.text.images.qwen_video:from_config"),
        **dict.fromkeys(_QWEN2, "pagoda.text.images.qwen2_video:from_config"),
    },
    projectors={
        "qwen3vl_merger": "pagoda.text.images.qwen_video:from_gguf",
        **dict.fromkeys(_QWEN2_PROJECTORS, "pagoda.text.images.qwen2_video:from_gguf"),
    },
    # A video processor without a file of its own has the sizes of the images'.
    settings=(
        "video_preprocessor_config.json", "processor_config.json", "preprocessor_config.json",
    ),
    options=("fps", "num_frames"),
    # Decoding has a limit of 120 s of its own, which gives the better error.
    seconds=150,
    memory=2048 << 20,
)  # fmt: skip

_AUDIO = Modality(
    kind="audio",
    words="sounds",
    parts=("input_audio", "audio_url"),
    most=16,
    # A window of 30 s; its tokens can't be fewer.
    max_tokens={"cpu": 1500, "cuda": 1500},
    shrinks=False,
    loader="pagoda.text.sounds.sound:SoundLoader",
    families={
        "Qwen2AudioForConditionalGeneration": "pagoda.text.sounds.whisper:qwen2_from_config",
        "VoxtralForConditionalGeneration": "pagoda.text.sounds.voxtral:from_config",
        "WhisperForConditionalGeneration": "pagoda.text.sounds.whisper:from_config",
    },
    settings=("preprocessor_config.json", "processor_config.json"),
    inline=("input_audio",),
    dialects={"responses": "input_audio"},
    # Decoding has a limit of 120 s of its own, which gives the better error.
    seconds=150,
    memory=2048 << 20,
)

MODALITIES = {modality.kind: modality for modality in (_IMAGE, _VIDEO, _AUDIO)}
"""By kind, in the order in which they are counted, loaded and told."""


def modality_of_part(type_: object) -> Modality | None:
    """The kind that a message part of such a type holds; None for text and what is not known."""
    return next((found for found in MODALITIES.values() if type_ in found.parts), None)


def modality_in(dialect: str, type_: object) -> Modality | None:
    """Likewise in another API than the chat API."""
    kinds = MODALITIES.values()
    return next((found for found in kinds if found.dialects.get(dialect) == type_), None)
