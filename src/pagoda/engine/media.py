"""Pictures on their way into prompts: in the model's size, and as files that the engine reads."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock

import numpy as np

from pagoda.base.errors import CheckpointError, RequestError
from pagoda.core.messages import AddRequest, MediaItem
from pagoda.text.images.base import ImageProcessor, Pixels, ProcessedImage
from pagoda.text.images.decode import decode_image
from pagoda.text.tokenizer import Tokenizer

# Pictures come again with every turn of a conversation; one of a megapixel takes 3 MB.
_CACHE_BYTES = 256 << 20
_THREADS = 2


@dataclass(frozen=True)
class PlacedImage:
    """A picture, and where its tokens begin in a prompt."""

    image: ProcessedImage
    start: int


class ImageInput:
    """Pictures for one model, each decoded once while it is remembered. Thread-safe."""

    def __init__(
        self, processor: ImageProcessor, tokenizer: Tokenizer, cache_bytes: int = _CACHE_BYTES
    ):
        """CheckpointError where the tokenizer has no token for pictures."""
        self.token = _token(processor.token, tokenizer)
        self.around = [
            [_token(text, tokenizer)] if text else [] for text in (processor.begin, processor.end)
        ]
        self.threads = ThreadPoolExecutor(_THREADS, "images")
        """What pictures are to be processed on: the largest take 400 MB while they are decoded."""
        self._processor = processor
        self._room = cache_bytes
        self._known: OrderedDict[bytes, ProcessedImage] = OrderedDict()
        self._lock = Lock()

    def place(
        self, ids: list[int], images: Sequence[ProcessedImage]
    ) -> tuple[list[int], list[PlacedImage]]:
        """A prompt in which each picture's one token has become as many as the picture has, with
        what begins and ends one around them.

        RequestError unless there is one for each: who writes the token's text into a message must
        not move pictures.
        """
        count = ids.count(self.token)
        if count != len(images):
            raise RequestError(
                f"The prompt has {count} places for {len(images)} pictures. Leave the model's own "
                "token for pictures out of the text, and send pictures only in messages whose "
                "pictures its chat template shows.",
                "messages",
            )
        begin, end = self.around
        expanded: list[int] = []
        placed: list[PlacedImage] = []
        for index in ids:
            if index != self.token:
                expanded.append(index)
                continue
            image = images[len(placed)]
            expanded += begin
            placed.append(PlacedImage(image, len(expanded)))
            expanded += [self.token] * image.num_tokens + end
        return expanded, placed

    def process(self, data: bytes, max_tokens: int) -> ProcessedImage:
        """Of an image file's bytes; RequestError where it is none, or too large."""
        key = sha256(data).digest() + max_tokens.to_bytes(8, "little")
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        image = self._processor.limited(max_tokens).process(decode_image(data))
        self._remember(key, image)
        return image

    def _remember(self, key: bytes, image: ProcessedImage) -> None:
        with self._lock:
            if key in self._known:
                return
            self._known[key] = image
            self._room -= image.pixels.nbytes
            while self._room < 0:
                _, oldest = self._known.popitem(last=False)
                self._room += oldest.pixels.nbytes


def _token(text: str, tokenizer: Tokenizer) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise CheckpointError(
            f"The tokenizer has no token {text!r}, which stands for pictures in this model's "
            "prompts. It belongs to another model; fetch the files again."
        )
    return ids[0]


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
            except OSError:
                self.release(request.req_id)
                raise

    def release(self, req_id: str) -> None:
        """A request has ended; those without pictures are fine."""
        for path in self._files.pop(req_id, ()):
            self._users[path] -= 1
            if not self._users[path]:
                del self._users[path]
                path.unlink(missing_ok=True)

    def clear(self) -> None:
        """The folder is gone, and the requests with it."""
        self._files.clear()
        self._users.clear()
