"""Media that a script hands over, in the forms that vLLM takes."""

from collections.abc import Mapping, Sequence
from typing import Any

from pagoda.base.errors import RequestError
from pagoda.config.engine import MediaConfig
from pagoda.config.modality import MODALITIES, modality_of_part
from pagoda.engine.media import MediaInput, Placed, place_media, write_media
from pagoda.engine.served.text_side import TextSide
from pagoda.text.media.base import Medium, Options, Sizes
from pagoda.text.media.dataurl import is_data_url, url_of
from pagoda.text.media.select import loader_of

Given = Mapping[str, Sequence[Any]]
"""By kind, in a prompt's order: paths, data URLs and what the kind's loader takes."""


class OfflineMedia:
    """For one model."""

    def __init__(self, text: TextSide, sizes: Sizes, config: MediaConfig):
        """`sizes` as EngineReady.media has them."""
        self._text = text
        self._sizes = sizes
        self._config = config

    def place(
        self,
        prompt: str | Sequence[int],
        given: Given,
        options: Mapping[str, Options],
        *,
        add_special_tokens: bool = True,
    ) -> tuple[list[int], list[Placed]]:
        """Token ids of a prompt with all that stands for its media; RequestError for media that
        cannot be read or placed."""
        found: dict[MediaInput, list[Medium]] = {}
        for kind, values in given.items():
            if not values:
                continue
            self._check(kind, len(values))
            inputs, chosen = self._text.media[kind], options.get(kind, {})
            media = [inputs.take(_local(value), chosen, self._sizes) for value in values]
            if any(medium.text is not None for medium in media) and not isinstance(prompt, str):
                raise RequestError(
                    f"{inputs.words.capitalize()} need a prompt of text, into which what stands "
                    "for their frames is written.",
                    "prompts",
                )
            found[inputs] = media
        if isinstance(prompt, str):
            text = write_media(prompt, found)
            ids = self._text.tokenizer.encode(text, add_special_tokens=add_special_tokens)
        else:
            ids = list(prompt)
        return place_media(ids, found)

    def _check(self, kind: str, count: int) -> None:
        if kind not in self._sizes:
            raise RequestError(f"This model takes no {MODALITIES[kind].words}.", "prompts")
        most = self._config.most(kind)
        if count > most:
            raise RequestError(
                f"A prompt holds {count} {kind}s, and at most {most} are taken; "
                "limit_mm_per_prompt raises that.",
                "prompts",
            )


def prompt_media(prompt: Mapping[str, Any]) -> Given:
    """`multi_modal_data` of a prompt: one of a kind or several."""
    data = prompt.get("multi_modal_data") or {}
    unknown = data.keys() - MODALITIES.keys()
    if unknown:
        raise RequestError(f"multi_modal_data.{min(unknown)} is not served.", "prompts")
    return {
        kind: loader_of(modality).several(data[kind])
        for kind, modality in MODALITIES.items()
        if data.get(kind) is not None
    }


def message_media(conversation: Sequence[Mapping[str, Any]]) -> Given:
    """The media among the parts of a conversation's messages."""
    given: dict[str, list[Any]] = {kind: [] for kind in MODALITIES}
    for message in conversation:
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, list) else ():
            modality = modality_of_part(part.get("type")) if isinstance(part, Mapping) else None
            if modality is not None:
                given[modality.kind].append(url_of(modality, part))
    return given


def _local(given: Any) -> Any:
    if isinstance(given, str) and not is_data_url(given):
        raise RequestError(
            f"{given[:100]!r} is not fetched here; open it and hand over a PIL image, an array, a "
            "pathlib.Path or a data URL.",
            "prompts",
        )
    return given
