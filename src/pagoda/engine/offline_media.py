"""Pictures and videos that a script hands over, in the forms that vLLM takes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from pagoda.base.errors import RequestError
from pagoda.config.engine import MediaConfig
from pagoda.core.messages import AddRequest
from pagoda.engine.media import Marks, MediaFiles, PlacedImage, media_items, place_media
from pagoda.engine.text_side import TextSide
from pagoda.text.images.base import Pixels, ProcessedImage
from pagoda.text.images.dataurl import image_bytes, is_data_url, video_bytes
from pagoda.text.images.decode import check_size, to_pixels
from pagoda.text.images.video import FrameChoice, ProcessedVideo
from pagoda.text.template.content_format import IMAGE_PARTS, VIDEO_PARTS

_FRAMES_PER_SECOND = 2.0
"""Of frames without metadata: as many as models look at."""


@dataclass
class MediaData:
    """What one prompt holds, in its order."""

    images: Sequence[Any] = ()
    """PIL images, uint8 arrays [height, width, 3] or data URLs."""
    videos: Sequence[Any] = ()
    """uint8 arrays [frames, height, width, 3], alone or with a dict of their fps; lists of images;
    data URLs."""
    choice: FrameChoice = field(default_factory=FrameChoice)


class OfflineMedia:
    """For one model."""

    def __init__(self, text: TextSide, sizes: Mapping[str, int], config: MediaConfig):
        """`sizes` as EngineReady.media has them."""
        self._text = text
        self._sizes = sizes
        self._config = config

    def place(
        self, prompt: str | Sequence[int], data: MediaData, *, add_special_tokens: bool = True
    ) -> tuple[list[int], list[PlacedImage]]:
        """Token ids of a prompt with all that stands for its media; RequestError for media that
        cannot be read or placed."""
        side = self._text
        found: dict[Marks, Sequence[ProcessedImage]] = {}
        if data.images:
            self._check("image", len(data.images))
            assert side.images is not None
            found[side.images.marks] = [self._image(image) for image in data.images]
        if data.videos:
            self._check("video", len(data.videos))
            assert side.videos is not None
            videos = [self._video(video, data.choice) for video in data.videos]
            if not isinstance(prompt, str):
                raise RequestError(
                    "Videos need a prompt of text, in which the times of their frames are written.",
                    "prompts",
                )
            prompt = side.videos.text(prompt, videos)
            found[side.videos.marks] = [frame for video in videos for frame in video.frames]
        ids = (
            side.tokenizer.encode(prompt, add_special_tokens=add_special_tokens)
            if isinstance(prompt, str)
            else list(prompt)
        )
        return place_media(ids, found) if found else (ids, [])

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

    def _image(self, image: Any) -> ProcessedImage:
        images, most = self._text.images, self._sizes["image"]
        assert images is not None
        if isinstance(image, str):
            return images.process(image_bytes(_data_url(image)), most)
        return images.process_pixels(_pixels(image), most)

    def _video(self, video: Any, choice: FrameChoice) -> ProcessedVideo:
        videos, sizes = self._text.videos, (self._sizes["video"], self._sizes["image"])
        assert videos is not None
        if isinstance(video, str):
            return videos.process(video_bytes(_data_url(video)), choice, *sizes)
        metadata: Mapping[str, Any] = {}
        if isinstance(video, tuple):
            video, metadata = video
        frames = np.concatenate([_pixels(frame) for frame in video])
        fps = choice.fps or metadata.get("fps") or _FRAMES_PER_SECOND
        return videos.process_frames(frames, float(fps), choice.num_frames, *sizes)


def attach(
    request: AddRequest, placed: Sequence[PlacedImage], files: MediaFiles, folder: Path
) -> None:
    """Give a request its media, whose pixels are written to `folder`; RequestError for one whose
    prompt is cut."""
    if placed and request.sampling.truncate_prompt_tokens is not None:
        raise RequestError(
            "truncate_prompt_tokens would cut pictures; leave it out, or leave them out.",
            "truncate_prompt_tokens",
        )
    request.media = media_items(placed)
    files.hold(request, folder, {item.image.content_hash: item.image.pixels for item in placed})


def prompt_media(prompt: Mapping[str, Any], choice: FrameChoice) -> MediaData:
    """`multi_modal_data` of a prompt: one of a kind or several."""
    data = prompt.get("multi_modal_data") or {}
    unknown = data.keys() - {"image", "video"}
    if unknown:
        raise RequestError(f"multi_modal_data.{min(unknown)} is not served.", "prompts")
    image, video = data.get("image"), data.get("video")
    images = [] if image is None else image if isinstance(image, list) else [image]
    several = isinstance(video, list) and bool(video) and not _is_image(video[0])
    videos = [] if video is None else video if several else [video]
    return MediaData(images, videos, choice)


def message_media(conversation: Sequence[Mapping[str, Any]], choice: FrameChoice) -> MediaData:
    """Of the parts of a conversation's messages."""
    parts = [
        part
        for message in conversation
        if isinstance(message, Mapping) and isinstance(message.get("content"), list)
        for part in message["content"]
        if isinstance(part, Mapping)
    ]
    return MediaData(
        [_part_data(part) for part in parts if part.get("type") in IMAGE_PARTS],
        [_part_data(part) for part in parts if part.get("type") in VIDEO_PARTS],
        choice,
    )


def _part_data(part: Mapping[str, Any]) -> Any:
    kind = "image_url" if part["type"] == "input_image" else part["type"]
    value = part.get(kind)
    return value.get("url") if isinstance(value, Mapping) else value


def _data_url(url: str) -> str:
    if not is_data_url(url):
        raise RequestError(
            f"{url[:100]!r} is not fetched here; open it and hand over a PIL image, an array or a "
            "data URL.",
            "prompts",
        )
    return url


def _is_image(value: Any) -> bool:
    return isinstance(value, Image.Image) or (isinstance(value, np.ndarray) and value.ndim == 3)


def _pixels(image: Any) -> Pixels:
    if isinstance(image, Image.Image):
        check_size(*image.size)
        image.load()
        return to_pixels(image)
    if isinstance(image, np.ndarray) and image.dtype == np.uint8 and image.shape[2:] == (3,):
        check_size(*image.shape[:2])
        return image[None]
    raise RequestError(
        "An image is a PIL image, a uint8 array of [height, width, 3] or a data URL, not "
        f"{type(image).__name__}.",
        "prompts",
    )
