"""What was heard in the windows of a sound, whole and streamed."""

from pagoda.server.protocol.transcription import (
    SoundUsage,
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    TranscriptionSegment,
    TranscriptionWord,
    VerboseTranscription,
)
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.reply import Answer, Reply
from pagoda.server.replies.sse import data_event
from pagoda.server.replies.windows import Asked, Texts, Window
from pagoda.server.replies.words import words_of_windows
from pagoda.text.sounds.speech import Segment, segments_of, written


class TranscriptionStream(Reply):
    """A choice for each window, told in order: what later ones say waits."""

    def __init__(self, generation: Generation, seconds: float):
        """`seconds` of sound."""
        super().__init__(ReplyStream(generation))
        self._seconds = seconds
        self._told = ""
        self._window = 0
        self._waiting = [""] * generation.num_choices
        self._ended = [False] * generation.num_choices

    def tell(self, event: ReplyEvent) -> bytes:
        self._waiting[event.index] += event.text
        self._ended[event.index] |= event.finish_reason is not None
        ready = ""
        while self._window < len(self._waiting):
            ready += self._waiting[self._window]
            self._waiting[self._window] = ""
            if not self._ended[self._window]:
                break
            self._window += 1
        if not self._told:
            ready = ready.lstrip()
        self._told += ready
        return data_event(TranscriptDelta(ready)) if ready else b""

    def waiting(self) -> bytes:
        return data_event(TranscriptDelta(""))

    def end(self) -> bytes:
        return data_event(TranscriptDone(self._told, sound_usage(self._seconds)))

    def whole(self) -> Answer:
        return Transcription(self._told, sound_usage(self._seconds))


class Transcript:
    """What the windows of a file say, in the form that was asked for."""

    def __init__(self, asked: Asked, task: str, language: str):
        self._asked, self._task, self._language = asked, task, language
        self._seconds = asked.medium.seconds or 0.0

    async def whole(self, texts: Texts, windows: list[Window]) -> Answer:
        form = self._asked.body.response_format
        usage = sound_usage(self._seconds)
        if form in ("json", "text"):
            text = "".join(window.text for window in windows).strip()
            return text + "\n" if form == "text" else Transcription(text, usage)
        speech, tokenizer = self._asked.speech, self._asked.served.tokenizer
        segments = [
            segments_of([id_ for id_ in window.ids if id_ != speech.end], speech, tokenizer, *span)
            for window, span in zip(windows, self._asked.spans, strict=True)
        ]
        flat = [segment for found in segments for segment in found]
        if form != "verbose_json":
            return written(flat, form)
        text = "".join(segment.text for segment in flat).strip()
        granularities = self._asked.body.timestamp_granularities or ["segment"]
        reply = VerboseTranscription(
            self._task, self._language, round(self._seconds, 2), text, usage
        )
        if "segment" in granularities:
            reply.segments = self._segments(windows, segments)
        if "word" in granularities:
            words = await words_of_windows(self._asked, texts, windows, self._language)
            reply.words = [
                TranscriptionWord(word.text, round(word.start, 2), round(word.end, 2))
                for word in words
            ]
        return reply

    def _segments(
        self, windows: list[Window], segments: list[list[Segment]]
    ) -> list[TranscriptionSegment]:
        told: list[TranscriptionSegment] = []
        for (begin, _), window, found in zip(self._asked.spans, windows, segments, strict=True):
            told += [
                TranscriptionSegment(
                    id=len(told) + place, seek=round(100 * begin), start=round(segment.start, 2),
                    end=round(segment.end, 2), text=segment.text, tokens=list(segment.tokens),
                    temperature=window.temperature, avg_logprob=window.avg_logprob,
                    compression_ratio=window.compression_ratio,
                    no_speech_prob=window.no_speech_prob,
                )
                for place, segment in enumerate(found)
            ]  # fmt: skip
        return told


def sound_usage(seconds: float) -> SoundUsage:
    return SoundUsage(round(seconds, 2))
