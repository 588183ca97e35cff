"""Media that a script hands over, in the forms that vLLM takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.engine import MediaConfig
from pagoda.config.modality import MODALITIES, modality_of_part
from pagoda.engine.media import Placed, place_media, write_media
from pagoda.engine.text_side import TextSide
from pagoda.text.media.base import Medium, Options, Sizes
from pagoda.text.media.dataurl import is_data_url
from pagoda.text.media.select import loader_of


@dataclass
class MediaData:
    """What one prompt holds."""

    given: Mapping[str, Sequence[Any]]
    """By kind, in the prompt's order: what the kind's loader takes, or data URLs."""
    options: Mapping[str, Options]
    """By kind."""


class OfflineMedia:
    """For one model."""

    def __init__(self, text: TextSide, sizes: Sizes, config: MediaConfig):
        """`sizes` as EngineReady.media has them."""
        self._text = text
        self._sizes = sizes
        self._config = config

    def place(
        self, prompt: str | Sequence[int], data: MediaData, *, add_special_tokens: bool = True
    ) -> tuple[list[int], list[Placed]]:
        """Token ids of a prompt with all that stands for its media; RequestError for media that
        cannot be read or placed."""
        inputs = self._text.media
        found: dict[str, list[Medium]] = {}
        for kind, given in data.given.items():
            if not given:
                continue
            self._check(kind, len(given))
            options = data.options.get(kind, {})
            found[kind] = [inputs[kind].take(_local(one), options, self._sizes) for one in given]
            written = any(medium.text is not None for medium in found[kind])
            if written and not isinstance(prompt, str):
                raise RequestError(
                    f"{MODALITIES[kind].words.capitalize()} need a prompt of text, in which the "
                    "times of their frames are written.",
                    "prompts",
                )
        if isinstance(prompt, str):
            ids = self._text.tokenizer.encode(
                write_media(prompt, inputs, found), add_special_tokens=add_special_tokens
            )
        else:
            ids = list(prompt)
        return place_media(ids, inputs, found)

    def _check(self, kind: str, count: int) -> None:
        if kind not in self._sizes:
            raise RequestError(f"This model takes no {kind}s.", "prompts")
        most = self._config.most(kind)
        if count > most:
            raise RequestError(
                f"A prompt holds {count} {kind}s, and at most {most} are taken; "
                "limit_mm_per_prompt raises that.",
                "prompts",
            )


def prompt_media(prompt: Mapping[str, Any], options: Mapping[str, Options]) -> MediaData:
    """`multi_modal_data` of a prompt: one of a kind or several."""
    data = prompt.get("multi_modal_data") or {}
    unknown = data.keys() - MODALITIES.keys()
    if unknown:
        raise RequestError(f"multi_modal_data.{min(unknown)} is not served.", "prompts")
    given = {
        kind: loader_of(modality).several(data[kind])
        for kind, modality in MODALITIES.items()
        if data.get(kind) is not None
    }
    return MediaData(given, options)


def message_media(
    conversation: Sequence[Mapping[str, Any]], options: Mapping[str, Options]
) -> MediaData:
    """Of the parts of a conversation's messages."""
    given: dict[str, list[Any]] = {kind: [] for kind in MODALITIES}
    for message in conversation:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            modality = modality_of_part(part.get("type")) if isinstance(part, Mapping) else None
            if modality is not None:
                value = part.get(part["type"], part.get(modality.url_part))
                given[modality.kind].append(
                    value.get("url") if isinstance(value, Mapping) else value
                )
    return MediaData(given, options)


def _local(given: Any) -> Any:
    if isinstance(given, str) and not is_data_url(given):
        raise RequestError(
            f"{given[:100]!r} is not fetched here; open it and hand over a PIL image, an array or "
            "a data URL.",
            "prompts",
        )
    return given
