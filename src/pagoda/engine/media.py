"""Media on their way into prompts: in the model's size, and as files that the engine reads."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from pagoda.base.errors import CapacityError, CheckpointError, RequestError
from pagoda.config.modality import Modality
from pagoda.core.messages import AddRequest, MediaItem
from pagoda.text.media.base import Data, Medium, Options, Piece, Processor, Sizes, Values
from pagoda.text.media.select import loader_of
from pagoda.text.tokenizer import Tokenizer

# Pictures come again with every turn of a conversation; one of a megapixel takes 3 MB.
_CACHE_BYTES = 256 << 20


class Marks(NamedTuple):
    """Tokens that stand for a piece of a medium in a prompt."""

    token: int
    """Once in the text; then as many as the piece has."""
    begin: tuple[int, ...] = ()
    """What comes in front of those."""
    end: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    """What comes between two rows of them, a single one."""

    def of(self, piece: Piece) -> list[int]:
        """The tokens of a piece, without what begins and ends it but is not its own."""
        if piece.ends:
            return [*[self.token] * (piece.num_tokens - len(self.end)), *self.end]
        if piece.row is None:
            return [self.token] * piece.num_tokens
        row = [self.token] * piece.row
        rows = (piece.num_tokens + 1) // (piece.row + 1)
        return [*row, *((*self.between, *row) * (rows - 1))]


@dataclass(frozen=True)
class Placed:
    """A piece of a medium, and where its tokens begin in a prompt."""

    piece: Piece
    start: int


class Remembered:
    """Media that were processed, by what they were made of; those used last stay. Thread-safe."""

    def __init__(self, room: int):
        self._room = room
        self._known: OrderedDict[bytes, Medium] = OrderedDict()
        self._lock = Lock()

    def get(self, key: bytes) -> Medium | None:
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
            return self._known.get(key)

    def put(self, key: bytes, medium: Medium) -> None:
        with self._lock:
            if key in self._known:
                return
            self._known[key] = medium
            self._room -= medium.nbytes
            while self._room < 0:
                _, oldest = self._known.popitem(last=False)
                self._room += oldest.nbytes


class MediaInput:
    """Media of one kind for one model. Thread-safe."""

    def __init__(
        self,
        modality: Modality,
        processor: Processor,
        tokenizer: Tokenizer,
        cache_bytes: int = _CACHE_BYTES,
    ):
        """CheckpointError where the tokenizer has no token for them."""

        def ids(text: str) -> tuple[int, ...]:
            return (_single(tokenizer, text, modality.words),) if text else ()

        (token,) = ids(processor.token)
        self.words = modality.words
        around = ids(processor.begin), ids(processor.end)
        self.marks = Marks(token, *around, ids(processor.between))
        self.placeholder = processor.placeholder
        self.known = Remembered(cache_bytes)
        self.loader = loader_of(modality)
        self._processor = processor

    def decode(self, data: Data, options: Options, sizes: Sizes) -> Medium:
        """The medium in a file's bytes; RequestError where it is none of this kind, or exceeds a
        bound."""
        with self.loader.opened(data, options) as opened:
            return self._processor.limited(sizes).process(opened)

    def take(self, given: Any, options: Options, sizes: Sizes) -> Medium:
        """The medium in an object that a script has, a file's path, or a data URL, which is decoded
        once while it is remembered."""
        if isinstance(given, Path):
            return self.decode(_read(given, self.loader.max_bytes), options, sizes)
        if not isinstance(given, str):
            opened = self.loader.given(given, options)
            return self._processor.limited(sizes).process(opened)
        key = media_key(given, options, sizes)
        medium = self.known.get(key)
        if medium is None:
            medium = self.decode(self.loader.data(given), options, sizes)
            self.known.put(key, medium)
        return medium

    def write(self, prompt: str, media: Sequence[Medium]) -> str:
        """`prompt` with what takes the place of each medium's one token there, or of what is
        written instead.

        RequestError unless it has one for each, where any is replaced by text.
        """
        if all(medium.text is None for medium in media):
            return prompt
        token = self._processor.token
        parts = prompt.split(self._processor.written or token)
        if len(parts) - 1 != len(media):
            raise _miscounted(len(parts) - 1, len(media), self.words)
        texts = [token if medium.text is None else medium.text for medium in media]
        return "".join(part + text for part, text in zip(parts, [*texts, ""], strict=True))


def media_key(given: str | bytes, options: Options, sizes: Sizes) -> bytes:
    """The key of a medium as it came: a known one is not even decoded from base64."""
    data = given.encode() if isinstance(given, str) else given
    form = (sorted(options.items()), sorted(sizes.items()))
    return sha256(sha256(data).digest() + repr(form).encode()).digest()


def _read(path: Path, max_bytes: int) -> bytes:
    """A byte more than a file may have tells the loader that it is too large."""
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError as error:
        raise RequestError(f"{path} can't be read: {error.strerror}.", "prompts") from error


def _single(tokenizer: Tokenizer, text: str, words: str) -> int:
    ids = tokenizer.encode(text, add_special_tokens=False)
    if len(ids) != 1:
        raise CheckpointError(
            f"The tokenizer has no token {text!r}, which stands for {words} in this model's "
            "prompts. It belongs to another model; fetch the files again."
        )
    return ids[0]


Found = Mapping[MediaInput, Sequence[Medium]]
"""Media of a prompt, each kind's in its order."""


def write_media(prompt: str, found: Found) -> str:
    """`MediaInput.write` of all kinds."""
    for media_input, media in found.items():
        prompt = media_input.write(prompt, media)
    return prompt


def place_media(ids: list[int], found: Found) -> tuple[list[int], list[Placed]]:
    """A prompt in which each piece's one token has become as many as the piece has, between what
    begins and ends one.

    RequestError unless there is one for each: who writes the token's text into a message must not
    move media.
    """
    if not found:
        return ids, []
    left: dict[int, tuple[Marks, Iterator[Piece]]] = {}
    for media_input, media in found.items():
        marks, pieces = media_input.marks, [piece for medium in media for piece in medium.pieces]
        if ids.count(marks.token) != len(pieces):
            raise _miscounted(ids.count(marks.token), len(pieces), media_input.words)
        left[marks.token] = marks, iter(pieces)
    expanded: list[int] = []
    placed: list[Placed] = []
    for index in ids:
        if index not in left:
            expanded.append(index)
            continue
        marks, pieces_left = left[index]
        piece = next(pieces_left)
        expanded += marks.begin
        placed.append(Placed(piece, len(expanded)))
        expanded += marks.of(piece)
        expanded += () if piece.ends else marks.end
    return expanded, placed


def _miscounted(places: int, given: int, what: str) -> RequestError:
    return RequestError(
        f"The prompt has {places} places for {given} {what}. Leave the model's own token for "
        f"{what} out of the text, and send {what} only in messages whose {what} its chat template "
        "shows.",
        "messages",
    )


def attach_media(request: AddRequest, placed: Sequence[Placed]) -> None:
    """Give a request its media, whose payloads are `MediaFiles`' business; RequestError for one
    whose prompt is cut."""
    if placed and request.sampling.truncate_prompt_tokens is not None:
        raise RequestError(
            "truncate_prompt_tokens would cut pictures or sounds; leave it out, or leave them out.",
            "truncate_prompt_tokens",
        )
    request.media = [
        MediaItem(
            content_hash=place.piece.content_hash,
            start=place.start,
            length=place.piece.num_tokens,
            payload="",
            grid=place.piece.grid,
            encoder=place.piece.encoder,
            seconds_on=place.piece.seconds_on,
            row=place.piece.row,
        )
        for place in placed
    ]


def payloads(placed: Iterable[Placed]) -> dict[str, Values]:
    """What `MediaFiles` writes, by content hash."""
    return {place.piece.content_hash: place.piece.values for place in placed}


class MediaFiles:
    """One file for each piece that running requests have, in a folder that ends with the engine.

    A piece's file goes with the last request that has it.
    """

    def __init__(self) -> None:
        self._files: dict[str, list[Path]] = {}
        self._users: dict[Path, int] = {}

    def hold(self, request: AddRequest, folder: Path, values: Mapping[str, Values]) -> None:
        """Write what is not there yet, and tell the request where it is."""
        for item in request.media:
            path = folder / f"{item.content_hash}.npy"
            item.payload = str(path)
            self._users[path] = self._users.get(path, 0) + 1
            self._files.setdefault(request.req_id, []).append(path)
            if self._users[path] > 1:
                continue
            try:
                np.save(path, values[item.content_hash], allow_pickle=False)
            except BaseException as error:
                self.release(request.req_id)
                if isinstance(error, OSError):
                    raise CapacityError(
                        f"A picture or sound could not be handed to the engine through {folder}: "
                        f"{error.strerror or error}. Make room there, or start the server with "
                        "TMPDIR set to another folder."
                    ) from error
                raise

    def release(self, req_id: str) -> None:
        """A request has ended; those without media are fine."""
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
