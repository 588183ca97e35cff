"""Pictures on their way into prompts: in the model's size, and as files that the engine reads."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from pagoda.base.errors import CapacityError, CheckpointError, RequestError
from pagoda.core.messages import AddRequest, MediaItem
from pagoda.text.images.base import ImageProcessor, Pixels, ProcessedImage
from pagoda.text.images.decode import decode_image
from pagoda.text.images.film import Stills, open_film
from pagoda.text.images.video import FrameChoice, ProcessedVideo, VideoProcessor
from pagoda.text.tokenizer import Tokenizer

# Pictures come again with every turn of a conversation; one of a megapixel takes 3 MB.
_CACHE_BYTES = 256 << 20
# What vLLM assumes of frames that come one by one.
_STILLS_PER_SECOND = 1.0


VideoData = bytes | tuple[bytes, ...]
"""A video's file, or those of stills."""
ProcessedT = TypeVar("ProcessedT")


class Marks(NamedTuple):
    """Tokens that stand for a picture in a prompt."""

    token: int
    """Once in the text; then as many as the picture has."""
    begin: tuple[int, ...] = ()
    """What comes in front of those."""
    end: tuple[int, ...] = ()


@dataclass(frozen=True)
class PlacedImage:
    """A picture, and where its tokens begin in a prompt."""

    image: ProcessedImage
    start: int


class Remembered(Generic[ProcessedT]):
    """What was processed, by its file's contents; those used last stay. Thread-safe."""

    def __init__(self, room: int):
        self._room = room
        self._known: OrderedDict[bytes, tuple[ProcessedT, int]] = OrderedDict()
        self._lock = Lock()

    def get(self, key: bytes) -> ProcessedT | None:
        with self._lock:
            if key not in self._known:
                return None
            self._known.move_to_end(key)
            return self._known[key][0]

    def put(self, key: bytes, value: ProcessedT, nbytes: int) -> None:
        with self._lock:
            if key in self._known:
                return
            self._known[key] = (value, nbytes)
            self._room -= nbytes
            while self._room < 0:
                _, (_, oldest) = self._known.popitem(last=False)
                self._room += oldest


class ImageInput:
    """Pictures for one model, each decoded once while it is remembered. Thread-safe."""

    def __init__(
        self, processor: ImageProcessor, tokenizer: Tokenizer, cache_bytes: int = _CACHE_BYTES
    ):
        """CheckpointError where the tokenizer has no token for pictures."""
        self.marks = Marks(
            _single(tokenizer, processor.token),
            _marks(tokenizer, processor.begin),
            _marks(tokenizer, processor.end),
        )
        self.known = Remembered[ProcessedImage](cache_bytes)
        self._processor = processor

    def process(self, data: bytes, max_tokens: int) -> ProcessedImage:
        """Of an image file's bytes; RequestError where it is none, or too large."""
        key = sha256(data).digest() + max_tokens.to_bytes(8, "little")
        image = self.known.get(key)
        if image is None:
            image = self.decode(data, max_tokens)
            self.known.put(key, image, image.pixels.nbytes)
        return image

    def decode(self, data: bytes, max_tokens: int) -> ProcessedImage:
        """The same, and nothing is remembered."""
        return self.process_pixels(decode_image(data), max_tokens)

    def process_pixels(self, pixels: Pixels, max_tokens: int) -> ProcessedImage:
        """Of [1, height, width, 3], which are not remembered."""
        return self._processor.limited(max_tokens).process(pixels)


class VideoInput:
    """Videos for one model, likewise."""

    def __init__(
        self, processor: VideoProcessor, tokenizer: Tokenizer, cache_bytes: int = _CACHE_BYTES
    ):
        """CheckpointError where the tokenizer has no token for them."""
        self.marks = Marks(_single(tokenizer, processor.token))
        self.known = Remembered[ProcessedVideo](cache_bytes)
        self._processor = processor

    def process(
        self, data: VideoData, choice: FrameChoice, max_tokens: int, max_frame_tokens: int
    ) -> ProcessedVideo:
        """RequestError for what is no video, or exceeds a bound."""
        files = (data,) if isinstance(data, bytes) else data
        hashes = [sha256(file).digest() for file in files]
        given = (type(data), hashes, choice, max_tokens, max_frame_tokens)
        key = sha256(repr(given).encode()).digest()
        video = self.known.get(key)
        if video is None:
            video = self.decode(data, choice, max_tokens, max_frame_tokens)
            self.known.put(key, video, video.nbytes)
        return video

    def process_frames(
        self,
        frames: Pixels,
        fps: float,
        num_frames: int | None,
        max_tokens: int,
        max_frame_tokens: int,
    ) -> ProcessedVideo:
        """Of all `frames` or so many of them; nothing is remembered. RequestError for too many."""
        processor = self._processor.limited(max_tokens, max_frame_tokens)
        indices = list(range(len(frames)))
        if num_frames is not None:
            indices = processor.choose(len(frames), fps, FrameChoice(num_frames=num_frames))
        _check_count(len(indices), processor)
        return processor.process(iter(frames[indices][:, None]), indices, fps)

    def text(self, prompt: str, videos: Sequence[ProcessedVideo]) -> str:
        """`prompt` with the times of the videos' frames, and one token for each of those.

        RequestError unless it has one token for each video.
        """
        parts = prompt.split(self._processor.token)
        if len(parts) - 1 != len(videos):
            raise _miscounted(len(parts) - 1, len(videos), "videos")
        texts = [*map(self._processor.text, videos), ""]
        return "".join(part + text for part, text in zip(parts, texts, strict=True))

    def decode(
        self, data: VideoData, choice: FrameChoice, max_tokens: int, max_frame_tokens: int
    ) -> ProcessedVideo:
        """As `process`, and nothing is remembered."""
        processor = self._processor.limited(max_tokens, max_frame_tokens)
        if not isinstance(data, bytes):
            stills = Stills(data[: choice.num_frames], choice.fps or _STILLS_PER_SECOND)
            _check_count(stills.num_frames, processor)
            indices = range(stills.num_frames)
            return processor.process(stills.frames(indices), indices, stills.fps)
        with open_film(data) as film:
            chosen = processor.choose(film.num_frames, film.fps, choice)
            return processor.process(film.frames(chosen), chosen, film.fps)


def _check_count(num_frames: int, processor: VideoProcessor) -> None:
    if num_frames > processor.max_frames:
        raise RequestError(
            f"A video has {num_frames} frames, and this model takes at most "
            f"{processor.max_frames}; send fewer, or a video file of which it chooses."
        )


def _single(tokenizer: Tokenizer, text: str) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise CheckpointError(
            f"The tokenizer has no token {text!r}, which stands for pictures in this model's "
            "prompts. It belongs to another model; fetch the files again."
        )
    return ids[0]


def place_media(
    ids: list[int], found: Mapping[Marks, Sequence[ProcessedImage]]
) -> tuple[list[int], list[PlacedImage]]:
    """A prompt in which each picture's one token has become as many as the picture has, between
    what begins and ends one.

    RequestError unless there is one for each: who writes the token's text into a message must not
    move pictures.
    """
    for marks, images in found.items():
        if ids.count(marks.token) != len(images):
            raise _miscounted(ids.count(marks.token), len(images), "pictures")
    left = {marks.token: (marks, iter(images)) for marks, images in found.items() if images}
    expanded: list[int] = []
    placed: list[PlacedImage] = []
    for index in ids:
        if index not in left:
            expanded.append(index)
            continue
        marks, images_left = left[index]
        image = next(images_left)
        expanded += marks.begin
        placed.append(PlacedImage(image, len(expanded)))
        expanded += [index] * image.num_tokens
        expanded += marks.end
    return expanded, placed


def _marks(tokenizer: Tokenizer, text: str) -> tuple[int, ...]:
    return (_single(tokenizer, text),) if text else ()


def _miscounted(places: int, given: int, what: str) -> RequestError:
    return RequestError(
        f"The prompt has {places} places for {given} {what}. Leave the model's own token for "
        f"{what} out of the text, and send {what} only in messages whose {what} its chat template "
        "shows.",
        "messages",
    )


def media_items(images: Sequence[PlacedImage]) -> list[MediaItem]:
    """As the engine gets them; their payloads are `MediaFiles`' business."""
    return [
        MediaItem(
            content_hash=placed.image.content_hash,
            start=placed.start,
            length=placed.image.num_tokens,
            payload="",
            grid=None if placed.image.in_a_row else placed.image.grid,
        )
        for placed in images
    ]


class MediaFiles:
    """One file for each picture that running requests have, in a folder that ends with the engine.

    A picture's file goes with the last request that has it.
    """

    def __init__(self) -> None:
        self._files: dict[str, list[Path]] = {}
        self._users: dict[Path, int] = {}

    def hold(self, request: AddRequest, folder: Path, pixels: Mapping[str, Pixels]) -> None:
        """Write what is not there yet, and tell the request where it is."""
        for item in request.media:
            path = folder / f"{item.content_hash}.npy"
            item.payload = str(path)
            self._users[path] = self._users.get(path, 0) + 1
            self._files.setdefault(request.req_id, []).append(path)
            if self._users[path] > 1:
                continue
            try:
                np.save(path, pixels[item.content_hash], allow_pickle=False)
            except BaseException as error:
                self.release(request.req_id)
                if isinstance(error, OSError):
                    raise CapacityError(
                        f"A picture could not be handed to the engine through {folder}: "
                        f"{error.strerror or error}. Make room there, or start the server with "
                        "TMPDIR set to another folder."
                    ) from error
                raise

    def release(self, req_id: str) -> None:
        """A request has ended; those without pictures are fine."""
        for path in self._files.pop(req_id, ()):
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path]
                path.unlink(missing_ok=True)

    def move(self, requests: Iterable[AddRequest], folder: Path) -> None:
        """Take all files to another folder, and tell `requests`, the only ones that are left."""
        moved = {path: folder / path.name for path in self._users}
        for path, target in moved.items():
            path.replace(target)
        self._users = {moved[path]: users for path, users in self._users.items()}
        self._files = {req: [moved[path] for path in own] for req, own in self._files.items()}
        for request in requests:
            for item in request.media:
                item.payload = str(folder / Path(item.payload).name)
