"""Body and replies of /v1/audio/transcriptions and /v1/audio/translations."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from pydantic import Field, WithJsonSchema

from pagoda.server.protocol.common import Items, TextBody

TIMED = ("srt", "vtt", "verbose_json")
"""Forms that say when something was said."""


class TranscriptionRequest(TextBody):
    UNSUPPORTED: ClassVar[dict[str, tuple[Any, ...]]] = {"include": ([],)}
    IGNORED: ClassVar[Mapping[str, str]] = {
        "chunking_strategy": "A long sound is always cut at quiet places.",
    }

    file: Annotated[Any, WithJsonSchema({"type": "string", "format": "binary"})] = Field(
        description="The file of sound."
    )
    language: str | None = Field(None, max_length=20, description="`en`; heard by default.")
    prompt: str = Field("", description="What came before, in whose style the text goes on.")
    response_format: Literal["json", "text", "srt", "vtt", "verbose_json"] = "json"
    temperature: float = Field(0.0, ge=0.0, le=2.0)
    compression_ratio_threshold: float = Field(
        2.4, description="A text that packs better than so repeats itself, and is written again."
    )
    logprob_threshold: float = Field(
        -1.0, description="A text whose tokens are less likely on average is written again."
    )
    no_speech_threshold: float = Field(
        0.6, description="Unlikely texts where silence is more likely than so are left out."
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool = False
    timestamp_granularities: Items[Literal["segment", "word"]] = []


class SoundUsage(msgspec.Struct):
    seconds: float
    type: str = "duration"


class Transcription(msgspec.Struct):
    text: str
    usage: SoundUsage


class TranscriptionSegment(msgspec.Struct):
    id: int
    seek: int
    """Hundredths of a second at which its window begins."""
    start: float
    end: float
    text: str
    tokens: list[int]
    temperature: float
    avg_logprob: float
    compression_ratio: float
    no_speech_prob: float


class TranscriptionWord(msgspec.Struct):
    word: str
    start: float
    end: float


class VerboseTranscription(msgspec.Struct, omit_defaults=True):
    task: str
    language: str
    duration: float
    text: str
    usage: SoundUsage
    segments: list[TranscriptionSegment] | None = None
    words: list[TranscriptionWord] | None = None


class TranscriptDelta(msgspec.Struct):
    delta: str
    type: str = "transcript.text.delta"


class TranscriptDone(msgspec.Struct):
    text: str
    usage: SoundUsage
    type: str = "transcript.text.done"
