"""Fake KVMs before a desktop, each in a thread of its own as a computer of its own would be."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path

from tests.agent.fakes.nanokvm import NANOKVM, OLD_NANOKVM, PRO, FakeNanoKvm, Firmware
from tests.agent.fakes.pikvm import FakePiKvm
from tests.agent.fakes.screens import XScreen
from tests.agent.fakes.site import self_signed
from tests.agent.rig.desktop import Desktop, require


@contextmanager
def threaded(make: Callable[[], AbstractAsyncContextManager[str]]) -> Iterator[str]:
    """What `make` gives, while an event loop in a thread keeps it open."""
    given: list[str] = []
    failures: list[BaseException] = []
    ready, loops = threading.Event(), []

    async def live() -> None:
        stop = asyncio.Event()
        loops.append((asyncio.get_running_loop(), stop))
        async with make() as value:
            given.append(value)
            ready.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(live())
        except BaseException as error:  # noqa: BLE001 (raised by the test's own thread)
            failures.append(error)
        finally:
            ready.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait()
        if given:
            yield given[0]
    finally:
        for loop, stop in loops:
            if not loop.is_closed():
                loop.call_soon_threadsafe(stop.set)
        thread.join()
    if failures:
        raise failures[0]


@asynccontextmanager
async def _nanokvm(display: str, firmware: Firmware, folder: Path | None) -> AsyncIterator[str]:
    screen = XScreen(display)
    kvm = FakeNanoKvm(screen, firmware)
    kvm.stream.detects = firmware.detects
    certificate = self_signed(folder) if folder else None
    try:
        async with kvm.run(certificate):
            if certificate is None:
                yield kvm.url()
            else:
                yield kvm.url(f"?fingerprint={certificate.fingerprint}", "nanokvms")
    finally:
        screen.close()


@asynccontextmanager
async def _pikvm(display: str, folder: Path) -> AsyncIterator[str]:
    screen = XScreen(display)
    certificate = self_signed(folder)
    try:
        async with FakePiKvm(screen).run(certificate) as kvm:
            yield kvm.url(f"?fingerprint={certificate.fingerprint}")
    finally:
        screen.close()


@contextmanager
def nanokvm(desktop: Desktop) -> Iterator[str]:
    """New firmware, with a resting screen's pictures left out."""
    require("openssl")
    with threaded(lambda: _nanokvm(desktop.display, NANOKVM, None)) as url:
        yield url


@contextmanager
def old_nanokvm(desktop: Desktop) -> Iterator[str]:
    require("openssl")
    with threaded(lambda: _nanokvm(desktop.display, OLD_NANOKVM, None)) as url:
        yield url


@contextmanager
def pro(desktop: Desktop) -> Iterator[str]:
    require("openssl")
    with threaded(lambda: _nanokvm(desktop.display, PRO, desktop.folder)) as url:
        yield url


@contextmanager
def pikvm(desktop: Desktop) -> Iterator[str]:
    require("openssl")
    with threaded(lambda: _pikvm(desktop.display, desktop.folder)) as url:
        yield url
