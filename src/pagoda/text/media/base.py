"""The seams of a medium: what reads one that was sent, and what a family of models makes of it
before its encoder sees it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
"""As a processor makes them and the encoder's processor reads them, in uint8, int16 or float32: of
a picture uint8 [frames, height, width, 3], red, green and blue."""
Grid = tuple[int, int, int]
"""Frames, rows and columns."""
Data = bytes | tuple[bytes, ...]
"""A file, or several of one medium."""
Options = Mapping[str, Any]
"""What a request says of its media, by `Modality.options`."""
Sizes = Mapping[str, int]
"""The most tokens that one of each kind becomes."""


@dataclass(frozen=True)
class Piece:
    """What one run of a prompt's tokens stands for."""

    values: Values
    num_tokens: int
    grid: Grid | None = None
    """The grid of tokens, where these are their positions; None where they stand in a row, as
    text."""
    encoder: str = "image"
    """The kind whose encoder reads the values."""
    seconds_on: float | None = None
    """How much later it is than the piece right before it, whose film or sound it goes on with;
    None: it is a picture, or begins one."""
    row: int | None = None
    """Its tokens lie in rows of so many, between which stands the processor's `between`, one of
    `num_tokens` each time; None: all of them are its own."""
    ends: bool = False
    """The last of its tokens is the processor's `end`, which the encoder embeds, too."""

    @cached_property
    def content_hash(self) -> str:
        """A hash of the values and their shape: equal hashes mean equal embeddings."""
        values = np.ascontiguousarray(self.values)
        form = (self.encoder, values.dtype.str, values.shape, self.num_tokens, self.grid)
        digest = sha256(repr(form).encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
        return digest.hexdigest()


@dataclass(frozen=True)
class Medium:
    """A picture, a video, ... as the model takes it."""

    pieces: tuple[Piece, ...]
    text: str | None = None
    """What takes the place of its one token in a prompt, with one for each piece; None: the token
    itself, for the one piece."""
    seconds: float | None = None
    """How long a sound lasts."""

    @property
    def nbytes(self) -> int:
        return sum(piece.values.nbytes for piece in self.pieces)


class Loader(ABC):
    """Reads media of one kind, for whatever model."""

    @property
    @abstractmethod
    def max_bytes(self) -> int:
        """The most bytes of a file."""

    @abstractmethod
    def data(self, url: str) -> Data:
        """The bytes in a data URL; RequestError for any other."""

    @abstractmethod
    def opened(self, data: Data, options: Options) -> AbstractContextManager[Any]:
        """What the processors of this kind take; RequestError for what is none, is damaged or
        exceeds a bound, here or while it is read."""

    @abstractmethod
    def given(self, value: Any, options: Options) -> Any:
        """The same of an object that a script has; RequestError for others."""

    def several(self, value: Any) -> list[Any]:
        """Each medium in what a script gives for one or more of this kind."""
        return value if isinstance(value, list) else [value]

    def preload(self) -> None:
        """Import what reading needs, in a process that others are forked from."""
        return


class Processor(ABC):
    """Prepares media for one model and one kind of media; thread-safe."""

    token: str
    """Text of the token that stands for a part of a medium; a prompt has it once for each medium
    until it is expanded."""
    placeholder: str
    """What templates that take strings get for a medium; has `token` once."""
    written: str = ""
    """What a prompt has for a medium instead of `token`, where `Medium.text` takes its place."""
    begin: str = ""
    end: str = ""
    """Texts of tokens that a prompt is given around a piece's."""
    between: str = ""
    """Likewise between rows of a piece's (`Piece.row`)."""
    encoder: str
    """The kind whose encoder reads the pieces."""

    @abstractmethod
    def process(self, opened: Any) -> Medium:
        """What a loader has opened, in the model's size; RequestError where it has none."""

    @abstractmethod
    def limited(self, sizes: Sizes) -> "Processor":
        """The same with media of so many tokens at most."""

    def patches(self, values: Values) -> tuple[npt.NDArray[np.float32], Grid]:
        """[patches, values] of a piece as the model's encoder takes them, and how many frames,
        rows and columns of patches these are. Of kinds that have an encoder."""
        raise NotImplementedError
