"""The connection between rank 0 and the processes of the other ranks.

On one machine it is a folder that only this user can enter. It has one socket for each rank, and
one on which rank 0 listens. Between machines it is TCP (`engine.ranks.tcp`).
"""

from pathlib import Path
from typing import Protocol

import msgspec
import zmq

from pagoda.base.facts import DeviceName
from pagoda.config.engine import EngineConfig
from pagoda.core.plan import pack_column, unpack_column
from pagoda.core.ranks import RankBlocks, RankCall, RankCapture, RankStep, RankTiles
from pagoda.engine.processes.transport import receiver, sender
from pagoda.planner.attention import AttentionChoice
from pagoda.planner.captured import CapturedSize
from pagoda.planner.resolved import ResolvedConfig

# A last message (RankDied) may take so long to leave before the process does.
_LINGER_MS = 500


class FolderPlace(msgspec.Struct, tag="folder"):
    """Where ranks of one machine find rank 0."""

    folder: str


class TcpPlace(msgspec.Struct, tag="tcp"):
    """Where ranks of other machines find rank 0."""

    host: str
    port: int
    token: str
    """Tells the ranks of this start from those of an earlier one; no secret."""
    secret: bytes = b""
    """What both sides prove to each other; empty on one machine. It is not sent to a rank's
    machine, which has it."""


Place = FolderPlace | TcpPlace


class RankLaunch(msgspec.Struct):
    """What a rank's process is told on its standard input: one line of JSON.

    The input stays open, and its end tells the process that whoever started it is gone.
    """

    config: EngineConfig
    rank: int
    model_path: str
    place: Place
    device_index: int = 0
    """Which of its machine's devices is this rank's, counted from the first that the engine
    has there."""
    log_level: str = "warning"
    log_format: str = "text"


class RankDevice(msgspec.Struct, tag=True):
    """Where all ranks run."""

    name: DeviceName
    first_gpu: int = 0
    """Rank 0's."""


class RankSetup(msgspec.Struct, tag=True):
    """What rank 0 planned for all."""

    config: ResolvedConfig
    packed: bool
    attention: AttentionChoice = AttentionChoice()
    captured_bytes: int = 0
    """As `ModelRunner` has it, and the next."""
    captured_sizes: tuple[CapturedSize, ...] = ()
    in_host: frozenset[str] = frozenset()
    """Weights that are in the host's memory."""
    cuts: tuple[int, ...] = ()
    """As `StageSpec` has them; empty without a pipeline."""


class RankMeasure(msgspec.Struct, tag=True):
    """Tell what memory is left once the weights are there."""

    computes: bool
    """All compute the largest step together first; else rank 0 knows what that takes."""


class RankMeet(msgspec.Struct, tag=True):
    """All have loaded and connect now, to compute together."""

    num_beside: int
    """As `Meeting` has it."""
    store_port: int = 0
    """Where rank 0's TCPStore listens; 0: the store is a file in the folder."""


class RankPool(msgspec.Struct, tag=True):
    """Make the cache."""

    config: ResolvedConfig
    """That of `RankSetup`, with the context that fits."""
    num_slabs: int
    num_host_slabs: int = 0


class RankUp(msgspec.Struct, tag=True):
    """A rank has its device."""

    rank: int
    total_memory: int
    free_memory: int


class RankReady(msgspec.Struct, tag=True):
    """A rank has loaded its share and waits for the others."""

    rank: int


class RankMeasured(msgspec.Struct, tag=True):
    """As `Room`."""

    rank: int
    peak: int | None
    usable: int


class RankDone(msgspec.Struct, tag=True):
    """A rank has done what it was called for, or why it could not."""

    rank: int
    error: str = ""


class RankDied(msgspec.Struct, tag=True):
    """A rank's last message."""

    rank: int
    cause: str
    out_of_memory: bool = False
    lost_peer: bool = False
    """It ended because another rank did not answer."""


ToRank = (
    RankDevice | RankSetup | RankMeet | RankMeasure | RankPool
    | RankStep | RankCapture | RankBlocks | RankTiles | RankCall
)  # fmt: skip
FromRank = RankUp | RankReady | RankMeasured | RankDone | RankDied

_ENCODER = msgspec.msgpack.Encoder(enc_hook=pack_column)
_TO_RANK: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank, dec_hook=unpack_column)
_FROM_RANK: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)

encode = _ENCODER.encode
to_rank, from_rank = _TO_RANK.decode, _FROM_RANK.decode


class LeaderEnd(Protocol):
    """Rank 0's end; one thread uses it."""

    @property
    def place(self) -> Place:
        """What ranks need to find it."""

    @property
    def address(self) -> str:
        """The address of this machine by which other ranks reach it."""

    def send(self, message: ToRank) -> None:
        """To all ranks, those that are yet to come among them. Waits for none."""

    def receive(self, timeout_ms: int) -> FromRank | None:
        """The next message of any rank; None when the time passes first."""

    def close(self) -> None: ...


class RankEnd(Protocol):
    """The end of one of the others."""

    @property
    def address(self) -> str:
        """The address of this machine by which other ranks reach it."""

    def receive(self) -> ToRank:
        """The next message, however long it takes."""

    def send(self, message: FromRank) -> None: ...

    def close(self) -> None:
        """Send what is queued, for a bounded time, and close."""


class FolderLeader:
    """Rank 0's end, in a folder."""

    address = "127.0.0.1"

    def __init__(self, folder: Path, size: int):
        self.place: Place = FolderPlace(str(folder))
        self._context = zmq.Context()
        self._words = receiver(self._context, folder / "leader")
        self._ranks = [sender(self._context, folder / f"rank-{rank}") for rank in range(1, size)]

    def send(self, message: ToRank) -> None:
        raw = encode(message)
        for rank in self._ranks:
            rank.send(raw)

    def receive(self, timeout_ms: int) -> FromRank | None:
        if not self._words.poll(timeout_ms):
            return None
        return from_rank(self._words.recv())

    def close(self) -> None:
        self._context.destroy(linger=0)


class FolderEnd:
    """The end of one of the others, in a folder."""

    address = "127.0.0.1"

    def __init__(self, place: FolderPlace, rank: int):
        folder = Path(place.folder)
        self._context = zmq.Context()
        self._orders = receiver(self._context, folder / f"rank-{rank}")
        self._words = sender(self._context, folder / "leader")

    def receive(self) -> ToRank:
        return to_rank(self._orders.recv())

    def send(self, message: FromRank) -> None:
        self._words.send(encode(message))

    def close(self) -> None:
        self._orders.close(linger=0)
        self._words.close(linger=_LINGER_MS)
        self._context.term()
