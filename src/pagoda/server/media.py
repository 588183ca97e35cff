"""Media of a conversation: found, fetched where that is allowed, and decoded."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.modality import MODALITIES, Modality, modality_of_part
from pagoda.engine.aside.jobs import Decode, Rendered
from pagoda.engine.media import media_key, place_media, write_media
from pagoda.engine.served.model import ServedModel
from pagoda.server.bodies.prompts import Prompt
from pagoda.server.protocol.chat import ChatMessage
from pagoda.text.media.base import Medium, Options
from pagoda.text.media.dataurl import is_data_url, url_of

# Each may have 32 MB on its way.
_AT_ONCE = 2

Encode = Callable[[str], Awaitable[list[int]]]
"""A prompt's text to its token ids."""
Part = dict[str, Any]


class MediaLoader:
    """Loads the media of one request: what it names several times, or looks at again, is loaded
    once."""

    def __init__(self, served: ServedModel, options: Mapping[str, Options] | None = None):
        """`options` by kind."""
        self._served = served
        self._options = options or {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._loading: dict[tuple[str, str], asyncio.Task[Medium]] = {}

    async def prompt(
        self, shown: Rendered, messages: Sequence[ChatMessage], encode: Encode
    ) -> Prompt:
        """`messages`, rendered as `shown`, as the engine gets them: with as many tokens for each
        medium as it has.

        RequestError for too many, and for what is no medium or may not be fetched. A model that
        reads text only has none: its template says so.
        """
        inputs = self._served.text.media
        loaded = {
            inputs[kind]: await self._all(modality, messages)
            for kind, modality in MODALITIES.items()
            if kind in self._served.modalities
        }
        found = {media_input: media for media_input, media in loaded.items() if media}
        text = write_media(shown.text, found)
        if shown.ids is not None and text == shown.text:
            ids = shown.ids
        else:
            ids = await encode(text)
        return Prompt(*place_media(ids, found))

    async def _all(self, modality: Modality, messages: Sequence[ChatMessage]) -> list[Medium]:
        urls = [
            _url(modality, part)
            for message in messages
            for part in _parts(message)
            if modality_of_part(part["type"]) is modality
        ]
        most = self._served.media.most(modality.kind)
        if len(urls) > most:
            raise RequestError(
                f"The messages hold {len(urls)} {modality.kind}s, and at most {most} are taken; "
                "--limit-mm-per-prompt raises that.",
                "messages",
            )
        try:
            return list(await asyncio.gather(*(self._one(modality.kind, url) for url in urls)))
        except RequestError as error:
            raise RequestError(error.message, error.param or "messages") from error

    def _one(self, kind: str, url: str) -> Awaitable[Medium]:
        if (kind, url) not in self._loading:
            self._loading[kind, url] = asyncio.create_task(self._load(kind, url))
        return self._loading[kind, url]

    async def _load(self, kind: str, url: str) -> Medium:
        served, options = self._served, self._options.get(kind, {})
        inputs, ready = served.text.media[kind], served.client.ready
        assert ready is not None  # else it has no modalities
        async with self._gate:
            inline = is_data_url(url)
            if inline:
                file = await asyncio.to_thread(url.encode)
            else:
                from pagoda.server.fetch import MediaFetcher  # httpx, which most servers never need

                domains = served.media.allowed_media_domains
                file = await MediaFetcher(domains, inputs.loader.max_bytes).fetch(url)
            key = await asyncio.to_thread(media_key, file, options, ready.media)
            medium = inputs.known.get(key)
            if medium is None:
                job = Decode(kind, dict(options), dict(ready.media), inline)
                medium = await served.aside.decode(job, file)
                inputs.known.put(key, medium)
            return medium


def has_media(messages: Sequence[ChatMessage]) -> bool:
    return any(True for message in messages for _ in _parts(message))


def _parts(message: ChatMessage) -> Iterator[Part]:
    content = message.fields()["content"]
    for part in content if isinstance(content, list) else ():
        if isinstance(part, dict) and modality_of_part(part["type"]) is not None:
            yield part


def _url(modality: Modality, part: Part) -> str:
    """`{"url": ...}`, as OpenAI's chat API has it, or the URL itself, or `{"data": ...}`."""
    url = url_of(modality, part)
    if not isinstance(url, str):
        inline = part["type"] in modality.inline
        wanted = "base64 in input_audio.data" if inline else f"a URL in {modality.url_part}.url"
        raise RequestError(f"A part of type {part['type']!r} needs {wanted}.", "messages")
    return url
