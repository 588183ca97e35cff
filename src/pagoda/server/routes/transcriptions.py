"""POST /v1/audio/transcriptions and /v1/audio/translations: what is said in a file."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from pagoda.base.errors import RequestError
from pagoda.core.messages import SpeechRules
from pagoda.engine.aside.jobs import Decode
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.form import read_form
from pagoda.server.bodies.prompts import encode
from pagoda.server.context import Context, context_of, reply_head
from pagoda.server.openapi import describe
from pagoda.server.protocol.transcription import (
    TIMED,
    TranscriptDelta,
    TranscriptDone,
    Transcription,
    TranscriptionRequest,
)
from pagoda.server.replies.dictation import check_dictation, dictated, whole_dictation
from pagoda.server.replies.generation import check_ready
from pagoda.server.replies.reply import Answer
from pagoda.server.replies.respond import answer, respond
from pagoda.server.replies.transcription import Transcript, TranscriptionStream
from pagoda.server.replies.windows import Asked, Texts, collected, written_windows
from pagoda.server.requestlog import log_request
from pagoda.text.media.base import Medium
from pagoda.text.sounds.dictation import Dictation
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


@router.post("/audio/transcriptions", openapi_extra=_DESCRIPTION)
@router.post("/v1/audio/transcriptions", openapi_extra=_DESCRIPTION)
async def create_transcription(request: Request) -> Response:
    return await _written_down(request, "transcribe")


@router.post("/v1/audio/translations", openapi_extra=_DESCRIPTION)
async def create_translation(request: Request) -> Response:
    """Into English, which is the only language that Whisper translates into."""
    return await _written_down(request, "translate")


async def _written_down(request: Request, task: str) -> Response:
    body = await read_form(request, TranscriptionRequest, ("timestamp_granularities", "include"))
    context = context_of(request)
    served = await context.served(request, body.model)
    check_ready(served)
    if served.text.speech is None and served.text.dictation is not None:
        return await _dictated(request, body, context, served, served.text.dictation, task)
    speech = _checked(body, served, task)
    language = speech.language(body.language)
    medium = await _heard(served, body.file)
    head = reply_head(request, "trsc", body.request_id, body.model or served.names[0])
    asked = Asked(served, speech, body, medium, head, context)
    if language is None and speech.languages:
        language = await _language(asked)
    codes = {id_: code for code, id_ in speech.languages.items()}
    texts = await _texts(asked, language, task)
    every = range(len(medium.pieces))
    first = texts.generation(asked, every, body.temperature)
    log_request(context.config, head.id, first)
    if body.stream:
        reply = TranscriptionStream(first, medium.seconds or 0.0)
        return await respond(request, context, reply, streamed=True)
    told = Transcript(asked, task, codes.get(language or -1, "en"))

    async def whole() -> Answer:
        return await told.whole(texts, await written_windows(asked, texts, first))

    return await answer(request, context, whole)


async def _dictated(
    request: Request,
    body: TranscriptionRequest,
    context: Context,
    served: ServedModel,
    dictation: Dictation,
    task: str,
) -> Response:
    check_dictation(body, task)
    medium = await _heard(served, _file(body))
    head = reply_head(request, "trsc", body.request_id, body.model or served.names[0])
    generation = await dictated(served, dictation, body, medium, head, context)
    log_request(context.config, head.id, generation)
    seconds = medium.seconds or 0.0
    if body.stream:
        reply = TranscriptionStream(generation, seconds)
        return await respond(request, context, reply, streamed=True)
    return await answer(request, context, whole_dictation(generation, body, seconds, context))


async def _texts(asked: Asked, language: int | None, task: str) -> Texts:
    served, speech, body = asked.served, asked.speech, asked.body
    context_left = served.max_model_len - asked.medium.pieces[0].num_tokens
    previous = await _previous(served, body.prompt, context_left // 2 - 1)
    timed = body.response_format in TIMED
    prompt = speech.prompt(language, task, previous, times=timed)
    rules = SpeechRules(
        never=list(speech.suppressed),
        not_first=list(speech.not_first),
        first_time=speech.without_times + 1 if timed else None,
        end=speech.end,
        latest_begin=speech.latest_begin,
    )
    return Texts(prompt, rules, context_left - len(prompt))


def _checked(body: TranscriptionRequest, served: ServedModel, task: str) -> Speech:
    speech = served.text.speech
    if speech is None:
        advice = (
            "send the sound to /v1/chat/completions as an input_audio part"
            if "audio" in served.modalities
            else "serve one that hears, such as openai/whisper-large-v3-turbo"
        )
        raise RequestError(f"This model writes down no sounds; {advice}.", "model")
    _file(body)
    if "word" in body.timestamp_granularities:
        _check_words(body, speech)
    if body.stream and body.response_format in TIMED:
        raise RequestError(
            f"{body.response_format} is not streamed; send response_format json or text.", "stream"
        )
    if task == "translate" and not speech.languages:
        raise RequestError("This model knows English only, and translates nothing.", "model")
    return speech


def _file(body: TranscriptionRequest) -> bytes:
    if not isinstance(body.file, bytes):
        raise RequestError("The form needs a file in its field `file`.", "file")
    return body.file


def _check_words(body: TranscriptionRequest, speech: Speech) -> None:
    reason = None
    if body.response_format != "verbose_json":
        reason = "Times of words are told in response_format verbose_json alone"
    elif not speech.alignment_heads:
        reason = (
            "Times of words can't be told: this model's generation_config.json has no "
            "alignment_heads"
        )
    if reason is not None:
        raise RequestError(
            f"{reason}; leave timestamp_granularities out or send `segment`.",
            "timestamp_granularities",
        )


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


async def _language(asked: Asked) -> int:
    """What the first window is spoken in, by the most likely token."""
    known = sorted(asked.speech.languages.values())
    generation = asked.generation(
        [0], [asked.speech.start], None, temperature=0.0, max_tokens=1, allowed_token_ids=known
    )
    (found,) = await collected(generation, asked.context)
    return found.token_ids[0]
