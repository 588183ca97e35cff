"""POST /v1/audio/transcriptions and /v1/audio/translations: what is said in a file."""

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.core.sampling import SamplingParams
from pagoda.engine.aside.jobs import Decode
from pagoda.engine.media import Placed
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.form import read_form
from pagoda.server.bodies.prompts import Prompt, encode
from pagoda.server.context import Context, ReplyHead, context_of, reply_head
from pagoda.server.openapi import describe
from pagoda.server.protocol.transcription import (
    TIMED,
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    TranscriptionRequest,
)
from pagoda.server.replies.generation import Generation, check_ready
from pagoda.server.replies.respond import respond
from pagoda.server.replies.transcription import TranscriptionReply
from pagoda.server.requestlog import log_request
from pagoda.text.media.base import Medium
from pagoda.text.sounds.speech import Speech

router = APIRouter()

_DESCRIPTION: dict[str, Any] = describe(
    TranscriptionRequest,
    Transcription,
    TranscriptDelta,
    TranscriptDone,
    takes="multipart/form-data",
)
_DESCRIPTION["responses"]["200"]["content"]["text/plain"] = {"schema": {"type": "string"}}
_LOWEST = -100.0


@router.post("/audio/transcriptions", openapi_extra=_DESCRIPTION)
@router.post("/v1/audio/transcriptions", openapi_extra=_DESCRIPTION)
async def create_transcription(request: Request) -> Response:
    return await _written_down(request, "transcribe")


@router.post("/v1/audio/translations", openapi_extra=_DESCRIPTION)
async def create_translation(request: Request) -> Response:
    """Into English, which is the only language that Whisper translates into."""
    return await _written_down(request, "translate")


@dataclass(frozen=True)
class _Work:
    """What all requests of a file have in common."""

    served: ServedModel
    speech: Speech
    body: TranscriptionRequest
    medium: Medium
    head: ReplyHead
    context: Context

    def generation(self, text: list[int], windows: int, **sampling: Any) -> Generation:
        """Asks for the first windows; `text` are ids behind what is heard in each."""
        pieces = self.medium.pieces[:windows]
        # Whose token it is does not matter: embeddings take its place.
        prompts = [
            Prompt([self.speech.start] * piece.num_tokens + text, [Placed(piece, 0)])
            for piece in pieces
        ]
        params = SamplingParams(seed=self.body.seed, **sampling)
        metrics = self.context.metrics
        return Generation(self.served, prompts, params, self.body, self.head.id, metrics)


async def _written_down(request: Request, task: str) -> Response:
    body = await read_form(request, TranscriptionRequest, ("timestamp_granularities", "include"))
    context = context_of(request)
    served = await context.served(request, body.model)
    speech = _checked(body, served, task)
    language = speech.language(body.language)
    medium = await _heard(served, body.file)
    head = reply_head(request, "trsc", body.request_id, body.model or served.names[0])
    work = _Work(served, speech, body, medium, head, context)
    if language is None and speech.languages:
        language = await _language(work)
    timed = body.response_format in TIMED
    context_left = served.max_model_len - medium.pieces[0].num_tokens
    previous = await _previous(served, body.prompt, context_left // 2 - 1)
    text = speech.prompt(language, task, previous, times=timed)
    room = context_left - len(text)
    generation = work.generation(
        text,
        len(medium.pieces),
        temperature=body.temperature,
        max_tokens=room,
        min_tokens=min(1, room),
        logit_bias=dict.fromkeys(speech.suppressed, _LOWEST) or None,
    )
    starts = list(accumulate(piece.seconds_on or 0.0 for piece in medium.pieces))
    codes = {id_: code for code, id_ in speech.languages.items()}
    seconds = medium.seconds or 0.0
    reply = TranscriptionReply(
        generation, body, speech, starts, seconds, task, codes.get(language or -1, "en")
    )
    log_request(context.config, head.id, generation)
    return await respond(request, context, reply, streamed=body.stream)


def _checked(body: TranscriptionRequest, served: ServedModel, task: str) -> Speech:
    check_ready(served)
    speech = served.text.speech
    if speech is None:
        advice = (
            "send the sound to /v1/chat/completions as an input_audio part"
            if "audio" in served.modalities
            else "serve one that hears, such as openai/whisper-large-v3-turbo"
        )
        raise RequestError(f"This model writes down no sounds; {advice}.", "model")
    if not isinstance(body.file, bytes):
        raise RequestError("The form needs a file in its field `file`.", "file")
    if "word" in body.timestamp_granularities:
        raise RequestError(
            "Times of words are not told; leave timestamp_granularities out or send `segment`.",
            "timestamp_granularities",
        )
    if body.stream and body.response_format in TIMED:
        raise RequestError(
            f"{body.response_format} is not streamed; send response_format json or text.", "stream"
        )
    if task == "translate" and not speech.languages:
        raise RequestError("This model knows English only, and translates nothing.", "model")
    return speech


async def _heard(served: ServedModel, file: bytes) -> Medium:
    ready = served.client.ready
    assert ready is not None  # else it is not ready
    try:
        return await served.aside.decode(Decode("audio", {}, dict(ready.media)), file)
    except RequestError as error:
        raise RequestError(error.message, "file") from error


async def _previous(served: ServedModel, prompt: str, room: int) -> list[int]:
    """Ids of the end of the text before."""
    if not prompt.strip():
        return []
    ids = await encode(
        served, f" {prompt.strip()}", add_special_tokens=False, truncates=True, param="prompt"
    )
    return ids[-max(1, room) :]


async def _language(work: _Work) -> int:
    """What the first window is spoken in, by the most likely token."""
    known = sorted(work.speech.languages.values())
    generation = work.generation(
        [work.speech.start], 1, temperature=0.0, max_tokens=1, allowed_token_ids=known
    )
    with generation.started():
        while generation.running:
            await generation.arrival()
            for _, output in generation.take():
                if output.token_ids:
                    return output.token_ids[0]
    return known[0]
