"""What a model that chats writes down of a sound: one reply to one prompt."""

from collections.abc import Callable, Coroutine
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.core.sampling import SamplingParams
from pagoda.engine.media import place_media
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import Prompt, encode
from pagoda.server.context import Context, ReplyHead
from pagoda.server.protocol.transcription import TIMED, Transcription, TranscriptionRequest
from pagoda.server.replies.generation import Generation
from pagoda.server.replies.reply import Answer
from pagoda.server.replies.transcription import sound_usage
from pagoda.server.replies.windows import collected
from pagoda.text.media.base import Medium
from pagoda.text.sounds.dictation import Dictation


def check_dictation(body: TranscriptionRequest, task: str) -> None:
    """RequestError for what only a model with tokens of time does."""
    if task == "translate":
        raise RequestError(
            "This model writes down what is said in its own language; ask for a translation in a "
            "chat, with the sound as an input_audio part.",
            "model",
        )
    if body.response_format in TIMED:
        raise RequestError(
            "This model tells no times; send response_format json or text.", "response_format"
        )
    if body.prompt.strip():
        raise RequestError("This model takes no text before; leave prompt out.", "prompt")


async def dictated(
    served: ServedModel,
    dictation: Dictation,
    body: TranscriptionRequest,
    medium: Medium,
    head: ReplyHead,
    context: Context,
) -> Generation:
    """Asks for the text of a sound."""
    text = dictation.prompt(medium, body.language)
    ids = await encode(served, text, add_special_tokens=True, truncates=False, param="file")
    prompt = Prompt(*place_media(ids, {served.text.media["audio"]: [medium]}))
    params = SamplingParams(temperature=body.temperature, seed=body.seed, max_tokens=None)
    return Generation(served, [prompt], params, body, head.id, context.metrics)


def whole_dictation(
    generation: Generation, body: TranscriptionRequest, seconds: float, context: Context
) -> Callable[[], Coroutine[Any, Any, Answer]]:
    """What answers with all of it; `seconds` of sound."""

    async def whole() -> Answer:
        (found,) = await collected(generation, context)
        text = found.text.strip()
        as_text = body.response_format == "text"
        return text + "\n" if as_text else Transcription(text, sound_usage(seconds))

    return whole
