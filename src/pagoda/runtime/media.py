"""Media in prompts: where they stand, and the embeddings that stand for them."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from pagoda.base.errors import RequestError
from pagoda.core.messages import MediaItem
from pagoda.layers.batch import ForwardBatch
from pagoda.layers.patches import Slices
from pagoda.models.base import Encoders
from pagoda.text.media.base import Processor

Ints = npt.NDArray[np.int64]


def check_media(items: Sequence[MediaItem], prompt_len: int) -> None:
    """RequestError for items that overlap, leave the prompt or do not fill their grid."""
    done = 0
    for item in items:
        whole = item.grid is None or math.prod(item.grid) == item.length
        if (
            not whole
            or item.length < 1
            or item.start < done
            or (item.seconds_on is not None and item.start > done)
            or item.start + item.length > prompt_len
        ):
            raise RequestError(
                f"A medium of {item.length} tokens (grid {item.grid}) at {item.start} does not "
                f"fit a prompt of {prompt_len}; please report this."
            )
        done = item.start + item.length


@dataclass(frozen=True)
class MediaRows:
    """Some of an item's tokens among those of a step."""

    item: MediaItem
    request: int
    """Index into the plan."""
    row: int
    """The first one among the step's tokens."""
    offset: int
    """The first one among the item's tokens."""
    count: int

    def embedded(self, device: torch.device) -> torch.Tensor:
        """bool [count]: the item's own tokens; others, between its rows, are text."""
        places = torch.arange(self.offset, self.offset + self.count, device=device)
        if self.item.row is None:
            return torch.ones_like(places, dtype=torch.bool)
        return places % (self.item.row + 1) < self.item.row


class RequestMedia:
    """What a request has of them, and the positions that follow (arXiv 2409.12191, section 2.1).

    A picture's tokens have three coordinates: the time at which it stands, their row and their
    column. In a film time goes on from piece to piece. What comes behind goes on from the largest
    of all three.
    """

    def __init__(
        self, items: Sequence[MediaItem], prompt_len: int, tokens_per_second: float | None = None
    ):
        """`tokens_per_second` as in VisionSpec. RequestError for films that last longer than they
        have tokens: positions would leave the context."""
        self.items = items
        self._positions = np.empty((3, prompt_len), np.int64)
        done = following = begin = step = 0
        for item in items:
            if item.grid is None:
                continue  # its tokens stand in a row, as text
            following = self._count_on(done, item.start, following)
            done = item.start + item.length
            step = 0 if item.seconds_on is None else step + 1
            begin = following if not step else begin
            corners = np.indices(item.grid).reshape(3, -1)
            corners[0] += _time(step, item.seconds_on, tokens_per_second)
            self._positions[:, item.start : done] = begin + corners
            following = max(following, begin + int(corners.max()) + 1)
        # Pictures take less room than they have tokens: generated ones are so much nearer.
        self._shift = self._count_on(done, prompt_len, following) - prompt_len
        if self._shift > 0:
            raise RequestError(
                f"A video lasts too long for the {sum(item.length for item in items)} tokens that "
                f"its frames have: its times take {self._shift} positions more. Send a shorter "
                "part of it, look at more frames (fps, num_frames), or raise --video-max-tokens.",
                "messages",
            )

    def _count_on(self, start: int, end: int, following: int) -> int:
        stop = following + end - start
        self._positions[:, start:end] = np.arange(following, stop)
        return stop

    def positions(self, start: int, end: int) -> Ints:
        """[3, end - start] of a request's tokens `start .. end`, generated ones included."""
        known = self._positions[:, start:end]
        generated = np.arange(start + known.shape[1], end) + self._shift
        return np.concatenate([known, np.broadcast_to(generated, (3, len(generated)))], axis=1)

    def rows(self, request: int, start: int, end: int, row: int) -> list[MediaRows]:
        """Those of the items' tokens in `start .. end`, whose first is row `row` of the step."""
        found = []
        for item in self.items:
            first, stop = max(item.start, start), min(item.start + item.length, end)
            if first < stop:
                offset = first - item.start
                place = row + first - start
                found.append(MediaRows(item, request, place, offset, stop - first))
        return found


MakeMedia = Callable[[Sequence[MediaItem], int], RequestMedia]
"""By a request's items and the length of its prompt."""


def _time(step: int, seconds: float | None, tokens_per_second: float | None) -> int:
    """Where a film's piece stands in time: the first one at 0."""
    if seconds is None or tokens_per_second is None:
        return step
    # In fp32, as the reference implementation rounds.
    return int(np.float32(step) * np.float32(tokens_per_second * seconds))


class MediaEncoder:
    """Embeddings of items, by their contents; those used last are kept up to `budget` bytes.

    A prompt that is read in chunks asks for the same item several times, and so do conversations.
    Items are encoded ahead, in slices between steps, or at the latest by the step that needs them.
    """

    def __init__(
        self,
        encoders: Callable[[], Encoders],
        processors: Mapping[str, Processor],
        budget: int,
        *,
        both_ways: bool = False,
        synchronize: Callable[[], None] = lambda: None,
    ):
        """`encoders` gives `Model.encoders`; `processors` by kind; `both_ways` as in VisionSpec;
        `synchronize` waits for the device."""
        self._encoders = encoders
        self._processors = processors
        self._budget = budget
        self._both_ways = both_ways
        self._kept: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._nbytes = 0
        self._synchronize = synchronize
        self._unfinished: tuple[str, Slices] | None = None
        self.num_encoded = 0

    def forget(self) -> None:
        """Drop what is kept, and what is half done."""
        self._kept.clear()
        self._nbytes = 0
        self._unfinished = None

    def work(self, items: Sequence[MediaItem], seconds: float) -> list[str]:
        """Go on encoding `items` in their order for about so long, a slice at least: content hashes
        of those that are done. What cannot be encoded counts as done: its step tells why.

        An item that was begun and is not among them is given up.
        """
        end = time.perf_counter() + seconds
        hashes = [item.content_hash for item in items]
        if self._unfinished is not None and self._unfinished[0] not in hashes:
            self._unfinished = None
        for number, item in enumerate(items):
            if item.content_hash in self._kept:
                self._kept.move_to_end(item.content_hash)
            elif not self._work(item, end):
                return hashes[:number]
        return hashes

    def _work(self, item: MediaItem, end: float) -> bool:
        """Whether an item is done at `end`."""
        slices = self._begun(item)
        try:
            while True:
                next(slices)
                self._synchronize()
                if time.perf_counter() >= end:
                    return False
        except StopIteration as stop:
            self._keep(item, stop.value)
        except (OSError, ValueError, RuntimeError):
            self._unfinished = None
        return True

    def encoded(self, item: MediaItem) -> torch.Tensor:
        """[1 + layers, item.length, hidden]: embeddings, and what is added behind each layer.

        OSError or ValueError where the payload is gone or does not fit the item.
        """
        encoded = self._kept.pop(item.content_hash, None)
        if encoded is None:
            encoded = finish(self._begun(item))
        else:
            self._nbytes -= encoded.nbytes
        return self._keep(item, encoded)

    def _keep(self, item: MediaItem, encoded: torch.Tensor) -> torch.Tensor:
        self._unfinished = None
        self._kept[item.content_hash] = encoded
        self._nbytes += encoded.nbytes
        while self._nbytes > self._budget:
            _, oldest = self._kept.popitem(last=False)
            self._nbytes -= oldest.nbytes
        return encoded

    def fill(
        self, batch: ForwardBatch, media: Sequence[MediaRows], encoded: dict[str, torch.Tensor]
    ) -> None:
        """Give a batch the embeddings of its items' tokens: rows of `encoded`, each [layers,
        tokens, hidden], by content."""
        first = next(iter(encoded.values()))
        shape = (len(first), batch.num_tokens, first.shape[2])
        embeds = torch.zeros(shape, dtype=first.dtype, device=first.device)
        rows = torch.zeros(batch.num_tokens, dtype=torch.bool, device=first.device)
        for part in media:
            target = slice(part.row, part.row + part.count)
            source = encoded[part.item.content_hash]
            embeds[:, target] = source[:, part.offset : part.offset + part.count]
            rows[target] = part.embedded(rows.device)
        batch.input_embeds, batch.embed_rows = embeds[0], rows
        batch.layer_embeds = embeds[1:].float().unbind()
        self.let_see(batch, media)

    def let_see(self, batch: ForwardBatch, media: Sequence[MediaRows]) -> None:
        """Have the tokens of a picture see all of it, where the model has them so."""
        if self._both_ways:
            batch.sees_until = _sight(batch, media)

    def _begun(self, item: MediaItem) -> Slices:
        if self._unfinished is None or self._unfinished[0] != item.content_hash:
            self._unfinished = (item.content_hash, self._slices(item))
        return self._unfinished[1]

    def _slices(self, item: MediaItem) -> Slices:
        values = np.load(item.payload, allow_pickle=False)
        patches, grid = self._processors[item.encoder].patches(values)
        yield
        encoded = yield from self._encoders()[item.encoder](torch.from_numpy(patches), grid)
        self.num_encoded += 1
        if item.row is not None and encoded.shape[1] % item.row == 0:
            encoded = _spread(encoded, item.row)
        if encoded.shape[1] != item.length:
            raise ValueError(f"it makes {encoded.shape[1]} tokens, and {item.length} were sent")
        return encoded


def _spread(encoded: torch.Tensor, row: int) -> torch.Tensor:
    """[layers, tokens, hidden] with zeros in the place of the token between two rows."""
    rows = encoded.unflatten(1, (-1, row))
    spread: torch.Tensor = torch.nn.functional.pad(rows, (0, 0, 0, 1)).flatten(1, 2)[:, :-1]
    return spread


def _sight(batch: ForwardBatch, media: Sequence[MediaRows]) -> torch.Tensor:
    """As `ForwardBatch.sees_until`, where positions count tokens."""
    sees = (batch.positions + 1).int()
    for part in media:
        end = part.item.start + part.item.length
        rows = slice(part.row, part.row + part.count)
        sees[rows] = torch.clamp(batch.kv_lens[part.request], max=end)
    return sees


def finish(slices: Slices) -> torch.Tensor:
    """The result of all slices at once, embeddings [layers, tokens, hidden]."""
    while True:
        try:
            next(slices)
        except StopIteration as stop:
            encoded: torch.Tensor = stop.value
            return encoded
