"""Where the ranks of one engine find each other before they compute together."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed

from pagoda.base.errors import ConfigError

# All ranks have said that they are there before the first one waits for them.
_MEETING = timedelta(minutes=1)


class PeerLostError(Exception):
    """Another rank did not answer: it is gone, or hangs.

    No RuntimeError: whoever goes on behind one of torch's cannot go on behind this one.
    """


@dataclass(frozen=True)
class Meeting:
    store: Any
    """One of torch's, which all ranks have in common."""
    address: str = "127.0.0.1"
    """The address of this machine by which the other ranks reach it."""
    num_beside: int | None = None
    """So many ranks that follow each other share a machine; None: all of them do."""
    port: int = 0
    """Where the store listens; 0: it is a file."""

    def is_beside(self, first: int, last: int) -> bool:
        """Whether all ranks from the first to the last one share a machine."""
        beside = self.num_beside
        return beside is None or first // beside == last // beside


def meet_in(folder: Path, size: int) -> Meeting:
    """The meeting of `size` ranks that can all enter a private folder."""
    _check_torch()
    with peers_needed():
        store = distributed.FileStore(str(folder / "store"), size)  # type: ignore[attr-defined]  # not in stubs
        store.set_timeout(_MEETING)
    return Meeting(store)


def meet_at(address: str, num_beside: int) -> Meeting:
    """Rank 0's, which listens at an address of this machine and nowhere else. Whoever reaches the
    port may read and write: torch knows no passwords there."""
    _check_torch()
    family = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0][0]
    listening = socket.create_server((address, 0), family=family)
    port = listening.getsockname()[1]
    with peers_needed():
        store = distributed.TCPStore(  # type: ignore[attr-defined]  # not in stubs
            address, port, is_master=True, wait_for_workers=False, timeout=_MEETING,
            master_listen_fd=listening.detach(),
        )  # fmt: skip
    return Meeting(store, address, num_beside, port)


def meet_with(host: str, port: int, address: str, num_beside: int) -> Meeting:
    """The meeting of another rank, whose own address is `address`; rank 0 listens at `host`."""
    _check_torch()
    with peers_needed():
        store = distributed.TCPStore(host, port, is_master=False, timeout=_MEETING)  # type: ignore[attr-defined]  # not in stubs
    return Meeting(store, address, num_beside)


def no_library(name: str) -> ConfigError:
    """For a build of torch without what connects ranks."""
    return ConfigError(
        f"This torch cannot connect several devices: it has no {name}. Install a build with it, or "
        "leave out --tensor-parallel-size and --pipeline-parallel-size."
    )


def _check_torch() -> None:
    if not distributed.is_available():
        raise no_library("torch.distributed")


@contextmanager
def peers_needed() -> Iterator[None]:
    """PeerLostError for what torch's libraries raise where another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLostError(str(error)) from error
