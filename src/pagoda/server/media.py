"""Pictures and videos of a conversation: found, fetched where that is allowed, and decoded."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.engine.aside.jobs import DecodeImage, DecodeVideo, Rendered
from pagoda.engine.directory import ServedModel
from pagoda.engine.media import Marks, place_media
from pagoda.server.fetch import MediaFetcher
from pagoda.server.prompts import Prompt
from pagoda.server.protocol.chat import ChatMessage
from pagoda.text.images import film
from pagoda.text.images.base import ProcessedImage
from pagoda.text.images.dataurl import is_data_url
from pagoda.text.images.decode import MAX_BYTES
from pagoda.text.images.video import FrameChoice, ProcessedVideo
from pagoda.text.template.content_format import IMAGE_PARTS, VIDEO_PARTS

# Each may have 32 MB on its way.
_AT_ONCE = 2

Encode = Callable[[str], Awaitable[list[int]]]
"""A prompt's text to its token ids."""


class MediaLoader:
    """Of one request: what it names several times, or looks at again, is loaded once."""

    def __init__(self, served: ServedModel, choice: FrameChoice | None = None):
        self._served = served
        self._choice = choice or FrameChoice()
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._images: dict[str, asyncio.Task[ProcessedImage]] = {}
        self._videos: dict[str, asyncio.Task[ProcessedVideo]] = {}

    async def prompt(
        self, shown: Rendered, messages: Sequence[ChatMessage], encode: Encode
    ) -> Prompt:
        """`messages`, rendered as `shown`, as the engine gets them: with as many tokens for each
        picture and frame as it has.

        RequestError for too many, and for what is no picture or video or may not be fetched. A
        model that reads text only has none: its template says so.
        """
        images = await self._all("image", _urls(messages, IMAGE_PARTS), self._image)
        videos = await self._all("video", _urls(messages, VIDEO_PARTS), self._video)
        side, text = self._served.text, shown.text
        found: dict[Marks, Sequence[ProcessedImage]] = {}
        if images and side.images is not None:
            found[side.images.marks] = images
        if videos and side.videos is not None:
            text = side.videos.text(text, videos)
            found[side.videos.marks] = [frame for video in videos for frame in video.frames]
        if shown.ids is not None and text == shown.text:
            ids = shown.ids
        else:
            ids = await encode(text)
        return Prompt(*place_media(ids, found)) if found else Prompt(ids)

    async def _all(
        self, kind: str, urls: list[str], load: Callable[[str], Awaitable[Any]]
    ) -> list[Any]:
        if not urls or kind not in self._served.modalities:
            return []
        most = self._served.media.most(kind)
        if len(urls) > most:
            raise RequestError(
                f"The messages hold {len(urls)} {kind}s, and at most {most} are taken; "
                "--limit-mm-per-prompt raises that.",
                "messages",
            )
        try:
            return list(await asyncio.gather(*map(load, urls)))
        except RequestError as error:
            raise RequestError(error.message, error.param or "messages") from error

    def _image(self, url: str) -> Awaitable[ProcessedImage]:
        if url not in self._images:
            self._images[url] = asyncio.create_task(self._load_image(url))
        return self._images[url]

    def _video(self, url: str) -> Awaitable[ProcessedVideo]:
        if url not in self._videos:
            self._videos[url] = asyncio.create_task(self._load_video(url))
        return self._videos[url]

    async def _load_image(self, url: str) -> ProcessedImage:
        images, limits = self._served.text.images, self._limits()
        assert images is not None
        async with self._gate:
            file = None if is_data_url(url) else await self._fetched(url, MAX_BYTES)
            job = DecodeImage(limits["image"], url if file is None else None)
            key = await asyncio.to_thread(_key, url if file is None else file, limits["image"])
            image = images.known.get(key)
            if image is None:
                image = await self._served.aside.image(job, file)
                images.known.put(key, image, image.pixels.nbytes)
            return image

    async def _load_video(self, url: str) -> ProcessedVideo:
        videos, limits = self._served.text.videos, self._limits()
        assert videos is not None
        async with self._gate:
            file = None if is_data_url(url) else await self._fetched(url, film.MAX_BYTES)
            given = (self._choice, limits["video"], limits["image"])
            job = DecodeVideo(*given, url if file is None else None)
            key = await asyncio.to_thread(_key, url if file is None else file, *given)
            video = videos.known.get(key)
            if video is None:
                video = await self._served.aside.video(job, file)
                videos.known.put(key, video, video.nbytes)
            return video

    async def _fetched(self, url: str, max_bytes: int) -> bytes:
        return await MediaFetcher(self._served.media.allowed_media_domains, max_bytes).fetch(url)

    def _limits(self) -> Mapping[str, int]:
        ready = self._served.client.ready
        assert ready is not None  # else it has no modalities
        return ready.media


def _key(given: str | bytes, *options: object) -> bytes:
    """Of what a request brought, as it came: a known picture is not even decoded from base64."""
    data = given.encode() if isinstance(given, str) else given
    return sha256(sha256(data).digest() + repr(options).encode()).digest()


def has_media(messages: Sequence[ChatMessage]) -> bool:
    return any(_parts(message, IMAGE_PARTS | VIDEO_PARTS) for message in messages)


def _urls(messages: Sequence[ChatMessage], kinds: frozenset[str]) -> list[str]:
    return [_url(part) for message in messages for part in _parts(message, kinds)]


def _parts(message: ChatMessage, kinds: frozenset[str]) -> list[dict[str, Any]]:
    content = message.fields()["content"]
    parts = content if isinstance(content, list) else []
    return [part for part in parts if isinstance(part, dict) and part["type"] in kinds]


def _url(part: dict[str, Any]) -> str:
    """`{"url": ...}`, as OpenAI's chat API has it, or the URL itself."""
    kind = "video" if part["type"] in VIDEO_PARTS else "image"
    value = part.get(f"{kind}_url")
    url = value.get("url") if isinstance(value, dict) else value
    if not isinstance(url, str):
        raise RequestError(
            f"A part of type {part['type']!r} needs a URL in {kind}_url.url.", "messages"
        )
    return url
