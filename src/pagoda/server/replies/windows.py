"""A sound's windows, each written down by a request of its own, and again where what came of it is
doubtful (openai/whisper, transcribe.py)."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

from pagoda.core.messages import SpeechRules
from pagoda.core.sampling import SamplingParams
from pagoda.engine.media import Placed
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import Prompt
from pagoda.server.context import Context, ReplyHead
from pagoda.server.protocol.transcription import TranscriptionRequest
from pagoda.server.replies.events import ReplyEvent, ReplyStream
from pagoda.server.replies.generation import Generation, ReplyRules
from pagoda.text.media.base import Medium
from pagoda.text.sounds.speech import Speech

_WARMER = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures that are tried behind 0."""


@dataclass(frozen=True)
class Asked:
    """What all requests of a file have in common."""

    served: ServedModel
    speech: Speech
    body: TranscriptionRequest
    medium: Medium
    head: ReplyHead
    context: Context

    def generation(
        self, windows: Sequence[int], text: list[int], rules: SpeechRules | None, **sampling: Any
    ) -> Generation:
        """Asks for some windows; `text` are ids behind what is heard in each."""
        params = SamplingParams(**sampling)
        prompts = [self.prompt(window, text) for window in windows]
        metrics, about = self.context.metrics, ReplyRules(speech=rules)
        return Generation(self.served, prompts, params, self.body, self.head.id, metrics, about)

    @cached_property
    def spans(self) -> list[tuple[float, float]]:
        """Where each window begins and ends, in seconds."""
        starts = list(accumulate(piece.seconds_on or 0.0 for piece in self.medium.pieces))
        return list(zip(starts, [*starts[1:], self.medium.seconds or 0.0], strict=True))

    def prompt(self, window: int, text: list[int]) -> Prompt:
        piece = self.medium.pieces[window]
        # Whose token it is does not matter: embeddings take its place.
        return Prompt([self.speech.start] * piece.num_tokens + text, [Placed(piece, 0)])


async def collected(generation: Generation, context: Context) -> list[ReplyEvent]:
    """All of what each choice has to say."""
    sums = [ReplyEvent(i, starts=True) for i in range(generation.num_choices)]
    context.generations.add(generation)
    try:
        with generation.started():
            stream = ReplyStream(generation)
            while generation.running:
                await generation.arrival()
                for event in stream.take():
                    sums[event.index].add(event)
    finally:
        context.generations.discard(generation)
    return sums


@dataclass(frozen=True)
class Texts:
    """How the texts of windows are asked for."""

    prompt: list[int]
    """Ids behind what is heard."""
    rules: SpeechRules
    room: int
    """Tokens that each may have."""

    def generation(self, asked: Asked, windows: Sequence[int], temperature: float) -> Generation:
        return asked.generation(
            windows,
            self.prompt,
            self.rules,
            temperature=temperature,
            max_tokens=self.room,
            # Without a seed a repetition's noise is the same each time, as a greedy text is.
            seed=asked.body.seed if asked.body.temperature or asked.body.seed is not None else 0,
            logprobs=0,
        )


@dataclass
class Window:
    """What was written down of one; numbers are those of OpenAI's program."""

    ids: list[int]
    """Tokens, with the one that ends the text where it is there."""
    text: str
    avg_logprob: float
    """The average of its tokens and the end, where what can't stand there is left out."""
    compression_ratio: float
    temperature: float
    no_speech_prob: float = 0.0

    def doubtful(self, body: TranscriptionRequest) -> bool:
        """Whether it repeats itself or is unlikely, unless nobody speaks."""
        if self.silent(body):
            return False
        unlikely = self.avg_logprob < body.logprob_threshold
        return unlikely or self.compression_ratio > body.compression_ratio_threshold

    def silent(self, body: TranscriptionRequest) -> bool:
        """Whether nobody speaks, so that what was written is none of it."""
        unlikely = self.avg_logprob < body.logprob_threshold
        return unlikely and self.no_speech_prob > body.no_speech_threshold


async def written_windows(asked: Asked, texts: Texts, first: Generation) -> list[Window]:
    """Each window's text, of which `first` asks for all. A request with temperature 0 has doubtful
    ones written again, warmer each time; the last attempt is taken as it is."""
    body = asked.body
    sums = await collected(first, asked.context)
    windows = [_window(asked, event, body.temperature) for event in sums]
    every = range(len(windows))
    reported = body.response_format == "verbose_json"
    chosen = [i for i in every if reported or windows[i].doubtful(body)]
    await _hear_silence(asked, texts, windows, chosen)
    for temperature in () if body.temperature else _WARMER:
        again = [i for i in every if windows[i].doubtful(body)]
        if not again:
            break
        warmer = texts.generation(asked, again, temperature)
        sums = await collected(warmer, asked.context)
        for i, event in zip(again, sums, strict=True):
            silence = windows[i].no_speech_prob
            windows[i] = _window(asked, event, temperature)
            windows[i].no_speech_prob = silence
    for window in windows:
        if window.silent(body):
            window.ids, window.text = [], ""
    return windows


def _window(asked: Asked, event: ReplyEvent, temperature: float) -> Window:
    words = [token for token in event.token_ids if token != asked.speech.end]
    text = event.text.strip()
    data = text.encode()
    logprobs = sum(entry.logprob for entry in event.logprobs)
    return Window(
        event.token_ids,
        event.text,
        avg_logprob=logprobs / (len(words) + 1),
        compression_ratio=len(data) / len(zlib.compress(data)),
        temperature=temperature,
    )


async def _hear_silence(
    asked: Asked, texts: Texts, windows: list[Window], chosen: list[int]
) -> None:
    """How likely it is that nobody speaks in some windows. These requests find the sound in the
    prefix cache."""
    if not chosen:
        return
    start = texts.prompt[: texts.prompt.index(asked.speech.start) + 1]
    generation = asked.generation(
        chosen, start, None, temperature=0.0, max_tokens=1,
        allowed_token_ids=[asked.speech.silence], logprobs=0,
    )  # fmt: skip
    sums = await collected(generation, asked.context)
    for i, event in zip(chosen, sums, strict=True):
        windows[i].no_speech_prob = math.exp(event.logprobs[0].logprob)
