"""The wire between rank 0 and the processes of the other ranks: one folder that only this user can
enter, with a socket for each of them and one on which rank 0 listens.
"""

from pathlib import Path

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


class RankLaunch(msgspec.Struct):
    """What a rank's process is told on its standard input: one line of JSON.

    The input stays open, and its end tells the process that rank 0 is gone.
    """

    config: EngineConfig
    rank: int
    model_path: str
    folder: str
    """Where the sockets are."""
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
    RankDevice | RankSetup | RankMeasure | RankPool
    | RankStep | RankCapture | RankBlocks | RankTiles | RankCall
)  # fmt: skip
FromRank = RankUp | RankReady | RankMeasured | RankDone | RankDied

_ENCODER = msgspec.msgpack.Encoder(enc_hook=pack_column)
_TO_RANK: msgspec.msgpack.Decoder[ToRank] = msgspec.msgpack.Decoder(ToRank, dec_hook=unpack_column)
_FROM_RANK: msgspec.msgpack.Decoder[FromRank] = msgspec.msgpack.Decoder(FromRank)


class LeaderEnd:
    """Rank 0's end."""

    def __init__(self, folder: Path, size: int):
        self._context = zmq.Context()
        self._words = receiver(self._context, folder / "leader")
        self._ranks = [sender(self._context, folder / f"rank-{rank}") for rank in range(1, size)]

    def send(self, message: ToRank) -> None:
        """To all ranks."""
        raw = _ENCODER.encode(message)
        for rank in self._ranks:
            rank.send(raw)

    def receive(self, timeout_ms: int) -> FromRank | None:
        """The next message of any rank; None when the time passes first."""
        if not self._words.poll(timeout_ms):
            return None
        return _FROM_RANK.decode(self._words.recv())

    def close(self) -> None:
        self._context.destroy(linger=0)


class RankEnd:
    """The end of one of the others."""

    def __init__(self, folder: Path, rank: int):
        self._context = zmq.Context()
        self._orders = receiver(self._context, folder / f"rank-{rank}")
        self._words = sender(self._context, folder / "leader")

    def receive(self) -> ToRank:
        """The next message, however long it takes."""
        return _TO_RANK.decode(self._orders.recv())

    def send(self, message: FromRank) -> None:
        self._words.send(_ENCODER.encode(message))

    def close(self) -> None:
        """Send what is queued, for a bounded time, and close."""
        self._orders.close(linger=0)
        self._words.close(linger=_LINGER_MS)
        self._context.term()
