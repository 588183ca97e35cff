"""The process that workers are forked from: it loads a model's text side once, computes nothing,
and has one thread. A worker does one job at a time, within the job's bounds.

Both end with the server: the zygote when its socket closes, workers with the zygote.
"""

import gc
import os
import resource
import signal
import socket
import traceback
from typing import NoReturn

import msgspec

from pagoda.base.errors import RequestError
from pagoda.base.process import signal_when_parent_ends
from pagoda.config.engine import ModelConfig
from pagoda.engine.aside import wire
from pagoda.engine.aside.jobs import Bounds, perform
from pagoda.engine.served.text_side import TextSide, load_text_side

LINK = 0
"""Its standard input is its socket to the server."""
# Memory that is never given back is nobody's fault, but a worker with so much of it is replaced.
_MOST_KEPT = 128 << 20


class Forked(msgspec.Struct):
    """The id of a worker, with its pidfd; or why there is none."""

    problem: str | None = None


def main() -> NoReturn:
    # Both are told to leave by their sockets: a service that ends gets its signal in all of its
    # processes, and the server answers for a while.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The kernel takes ended workers away.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    link = socket.socket(fileno=LINK)
    config = wire.receive(link, ModelConfig)
    if config is None:
        os._exit(0)
    side = load_text_side(config[0])
    for media in side.media.values():
        media.loader.preload()
    gc.collect()
    gc.freeze()
    wire.send(link, Forked())
    while True:
        _, files, _, _ = socket.recv_fds(link, 1, 1)
        if not files:
            os._exit(0)
        end = socket.socket(fileno=files[0])
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            end.close()
            wire.send(link, Forked(f"{error.strerror}"))
            continue
        if pid == 0:
            link.close()
            signal_when_parent_ends(signal.SIGKILL)
            if os.getppid() != zygote:
                os._exit(0)
            _work(end, side)
        end.close()
        file = os.pidfd_open(pid)
        data = wire.frame(Forked())
        socket.send_fds(link, [data], [file])
        os.close(file)


def _work(link: socket.socket, side: TextSide) -> NoReturn:
    try:
        statm = os.open("/proc/self/statm", os.O_RDONLY)
        base = _address_space(statm)
        while (got := wire.receive(link, wire.Order)) is not None:
            if not _answer(link, side, *got, base):
                break
            del got
            if _address_space(statm) > base + _MOST_KEPT:
                break
    except ConnectionError:
        pass  # the server has lost its interest
    except BaseException:  # noqa: BLE001 - a process's edge
        traceback.print_exc()
    os._exit(0)


def _answer(
    link: socket.socket, side: TextSide, order: wire.Order, raw: memoryview, base: int
) -> bool:
    """Whether the worker may go on."""
    answer: wire.Answer
    arrays: list[memoryview] = []
    try:
        _limit(order.bounds, base)
        answer, arrays = wire.packed(perform(side, order.job, bytes(raw)))
        wire.send(link, answer, arrays)
        return True
    except MemoryError:
        pass
    except RequestError as error:
        wire.send(link, wire.Refused(error.message, error.param))
        return True
    except ConnectionError:
        return False
    except Exception:  # noqa: BLE001 - a process's edge
        wire.send(link, wire.Failed(traceback.format_exc()))
        return False
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    wire.send(link, wire.Exhausted())
    return False


def _limit(bounds: Bounds, base: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime) + bounds.cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (base + bounds.memory, resource.RLIM_INFINITY))


def _address_space(statm: int) -> int:
    """Bytes of the process's address space."""
    return int(os.pread(statm, 64, 0).split()[0]) * resource.getpagesize()


if __name__ == "__main__":
    main()
