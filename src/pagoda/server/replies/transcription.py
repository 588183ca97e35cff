"""What was heard in the windows of a sound, whole and streamed."""

from pagoda.server.protocol.transcription import (
    SoundUsage,
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    TranscriptionRequest,
    TranscriptionSegment,
    VerboseTranscription,
)
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.reply import Answer, Reply
from pagoda.server.replies.sse import data_event
from pagoda.text.sounds.speech import Segment, Speech, segments_of, written


class TranscriptionReply(Reply):
    """A choice for each window. A stream tells them in order: what later ones say waits."""

    def __init__(
        self,
        generation: Generation,
        body: TranscriptionRequest,
        speech: Speech,
        starts: list[float],
        seconds: float,
        task: str,
        language: str,
    ):
        """`starts` of the windows, and where the last one ends, in seconds."""
        super().__init__(ReplyStream(generation))
        self._body, self._speech, self._task, self._language = body, speech, task, language
        self._starts, self._seconds = starts, seconds
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
        return data_event(TranscriptDone(self._told, self._usage()))

    def whole(self) -> Answer:
        form = self._body.response_format
        if form in ("json", "text"):
            text = "".join(event.text for event in self.sums).strip()
            return text + "\n" if form == "text" else Transcription(text, self._usage())
        windows = self._segments()
        segments = [segment for window in windows for segment in window]
        if form != "verbose_json":
            return written(segments, form)
        told = [
            TranscriptionSegment(
                id=0, seek=round(100 * start), start=round(segment.start, 2),
                end=round(segment.end, 2), text=segment.text, tokens=list(segment.tokens),
                temperature=self._body.temperature,
            )
            for start, window in zip(self._starts, windows, strict=False)
            for segment in window
        ]  # fmt: skip
        for number, segment in enumerate(told):
            segment.id = number
        text = "".join(segment.text for segment in segments).strip()
        return VerboseTranscription(
            self._task, self._language, round(self._seconds, 2), text, told, self._usage()
        )

    def _segments(self) -> list[list[Segment]]:
        """Those of each window."""
        ends = [*self._starts[1:], self._seconds]
        tokenizer = self.generation.served.tokenizer
        return [
            segments_of(event.token_ids, self._speech, tokenizer, start, end)
            for event, start, end in zip(self.sums, self._starts, ends, strict=True)
        ]

    def _usage(self) -> SoundUsage:
        return SoundUsage(round(self._seconds, 2))
