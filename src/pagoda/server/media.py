"""The pictures of a conversation: found, fetched where that is allowed, and decoded."""

import asyncio
import base64
import binascii
from collections.abc import Sequence
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.engine.directory import ServedModel
from pagoda.engine.media import ImageInput
from pagoda.server.fetch import MediaFetcher
from pagoda.server.prompts import Prompt
from pagoda.server.protocol.chat import ChatMessage
from pagoda.text.content_format import IMAGE_PARTS
from pagoda.text.images.base import ProcessedImage
from pagoda.text.images.decode import MAX_BYTES

# Each may have 32 MB on its way.
_AT_ONCE = 2


async def with_images(
    served: ServedModel, ids: list[int], messages: Sequence[ChatMessage]
) -> Prompt:
    """The rendered `messages` as the engine gets them: with as many tokens for each picture as it
    has."""
    images = await load_images(served, messages)
    if not images or served.text.images is None:
        return Prompt(ids)
    return Prompt(*served.text.images.place(ids, images))


async def load_images(served: ServedModel, messages: Sequence[ChatMessage]) -> list[ProcessedImage]:
    """In the order of the messages; none for a model that reads text only (its template says so).

    RequestError for too many, and for what is no image or may not be fetched.
    """
    urls = [_url(part) for message in messages for part in _parts(message)]
    images, ready = served.text.images, served.client.ready
    if not urls or images is None or ready is None or "image" not in ready.media:
        return []
    most = served.media.limit_mm_per_prompt.get("image", 0)
    if len(urls) > most:
        raise RequestError(
            f"The messages hold {len(urls)} images, and at most {most} are taken; "
            "--limit-mm-per-prompt raises that.",
            "messages",
        )
    gate = asyncio.Semaphore(_AT_ONCE)
    max_tokens = ready.media["image"]

    async def load(url: str) -> ProcessedImage:
        async with gate:
            return await _load(served, images, url, max_tokens)

    return list(await asyncio.gather(*map(load, urls)))


def has_images(messages: Sequence[ChatMessage]) -> bool:
    return any(_parts(message) for message in messages)


def _parts(message: ChatMessage) -> list[dict[str, Any]]:
    content = message.fields()["content"]
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part["type"] in IMAGE_PARTS]


def _url(part: dict[str, Any]) -> str:
    """`{"url": ...}`, as OpenAI's chat API has it, or the URL itself."""
    value = part.get("image_url")
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise RequestError("An image part needs a URL in image_url.url.", "messages")
    return url


async def _load(
    served: ServedModel, images: ImageInput, url: str, max_tokens: int
) -> ProcessedImage:
    try:
        if url[:5].lower() == "data:":
            data = await asyncio.to_thread(_data, url)
        else:
            data = await MediaFetcher(served.media.allowed_media_domains, MAX_BYTES).fetch(url)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(images.threads, images.process, data, max_tokens)
    except RequestError as error:
        raise RequestError(error.message, error.param or "messages") from error


def _data(url: str) -> bytes:
    head, comma, body = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise RequestError("A data URL of an image must be data:image/...;base64,... .")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise RequestError("The data URL of an image holds no valid base64.") from None
