"""The X11 display of this machine, or of another that lets this machine in."""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar
from urllib.parse import urlsplit

from Xlib import error

from pagoda_agent.base import env
from pagoda_agent.base.errors import ConfigError, ConnectionLostError, DriverError
from pagoda_agent.drivers.base import Capabilities, Driver
from pagoda_agent.drivers.x11.keyboard import LEARNING_SECONDS
from pagoda_agent.drivers.x11.screen import Screen
from pagoda_agent.drivers.x11.worker import Worker
from pagoda_agent.input.actions import Button, Point
from pagoda_agent.screen.frame import Frame, pixel

T = TypeVar("T")

_ANSWER_SECONDS = 10.0
# Characters that are typed in one go, and the pause after them, which lets slow programs follow.
_TYPED_AT_ONCE = 10
_TYPING_PAUSE = 0.01
# Pixels that a mouse moves by itself, on a desk that shakes.
_JITTER = 3
_SCREEN_NUMBER = re.compile(r"\.\d+$")
# `x11:1` and `x11::1`
_BARE_NUMBER = re.compile(r"x11:[:/]*(\d+(?:\.\d+)?)")


class X11Driver(Driver):
    name = "x11"
    capabilities = Capabilities(horizontal_wheel=True, unicode=True, pointer_position=True)
    click_pause = 0.008

    def __init__(self, display: str):
        """`display` is as in DISPLAY; empty takes the one of that variable."""
        super().__init__()
        self._display = display
        self._screen: Screen | None = None
        self._worker: Worker | None = None
        self._frames = 0
        self._put: tuple[int, int] | None = None

    @property
    def target(self) -> str:
        display = self._display or env.get("DISPLAY") or ""
        # The number behind the dot is a screen's, which share their pointer and keyboard.
        return f"the X display {_SCREEN_NUMBER.sub('', display)}"

    async def open(self) -> None:
        name = self._display or env.get("DISPLAY")
        if not name:
            raise DriverError(
                "There is no X display: the variable DISPLAY is not set. Start Pagoda on the "
                "desktop that it is to operate, or name the display, as in `--driver x11://:0`."
            )
        worker, given_up = Worker(), False

        def connect() -> Screen:
            screen = Screen(name)
            if given_up:
                screen.close()
            return screen

        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                self._screen = await worker.call(connect)
        except TimeoutError:
            raise DriverError(f"The X display {name} does not answer; its server hangs.") from None
        finally:
            if self._screen is None:
                given_up = True
                worker.close()
        self._worker = worker

    async def close(self) -> None:
        await self.release_all()
        screen, worker = self._screen, self._worker
        if screen is not None and worker is not None:
            with suppress(DriverError):
                await self._do(Screen.close)
            self._screen = None
            worker.close()

    async def screenshot(self) -> Frame:
        if self._screen is None:
            await self.open()
            await self.release_all()
        image = await self._do(Screen.image)
        self._frames += 1
        return Frame(image, self._frames)

    async def screen_size(self) -> tuple[int, int]:
        return await self._do(Screen.size)

    async def pointer(self) -> Point:
        (x, y), (width, height) = await self._do(lambda screen: (screen.pointer(), screen.size()))
        return Point((x + 0.5) / width, (y + 0.5) / height)

    async def taken_over(self) -> bool:
        put, at = self._put, await self._do(Screen.pointer)
        self._put = at
        return put is not None and max(abs(at[0] - put[0]), abs(at[1] - put[1])) > _JITTER

    async def focused_program(self) -> str | None:
        return await self._do(Screen.focused_program)

    async def type_text(self, text: str) -> None:
        text = text.replace("\r\n", "\n")
        await self._do(lambda screen: screen.keyboard.check(text))
        while text:
            ready, new = await self._do(_prepare(text))
            await asyncio.sleep(LEARNING_SECONDS if new else 0)
            for start in range(0, ready, _TYPED_AT_ONCE):
                part = text[start : min(start + _TYPED_AT_ONCE, ready)]
                await self._do(_type(part))
                await asyncio.sleep(_TYPING_PAUSE)
            text = text[ready:]

    async def _send_move(self, to: Point) -> None:
        def move(screen: Screen) -> None:
            self._put = pixel(to, screen.size())
            screen.move(*self._put)

        await self._do(move)

    async def _send_button(self, button: Button, pressed: bool) -> None:
        await self._do(lambda screen: screen.button(button, pressed))

    async def _send_wheel(self, dx: int, dy: int) -> None:
        await self._do(lambda screen: screen.wheel(dx, dy))

    async def _send_key(self, code: str, pressed: bool) -> None:
        await self._do(lambda screen: screen.key(code, pressed))

    async def _do(self, job: Callable[[Screen], T]) -> T:
        screen, worker = self._screen, self._worker
        if screen is None or worker is None:
            raise ConnectionLostError("The connection to the X display is gone.")
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await worker.call(lambda: job(screen))
        except TimeoutError:
            screen.abandon()
            self._lose()
            raise ConnectionLostError("The X display does not answer any more.") from None
        except (error.ConnectionClosedError, OSError) as problem:
            self._lose()
            raise ConnectionLostError(f"The X display is gone: {problem}.") from problem
        except error.XError as problem:
            raise DriverError(f"The X display refused a request: {problem}.") from problem

    def _lose(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._screen = self._worker = None


def _prepare(text: str) -> Callable[[Screen], tuple[int, bool]]:
    return lambda screen: screen.keyboard.prepare(text)


def _type(text: str) -> Callable[[Screen], None]:
    return lambda screen: screen.keyboard.type(text)


def make(url: str) -> X11Driver:
    """`x11:` is the display in DISPLAY, `x11://:1` and `x11://host:0` are others."""
    parts = urlsplit(url)
    if parts.path or parts.query or parts.fragment or "@" in parts.netloc:
        number = _BARE_NUMBER.fullmatch(url)
        raise ConfigError(
            "The driver's URL names no X display; write x11: (the one in DISPLAY), or "
            f"x11://:{number[1] if number else 1}."
        )
    return X11Driver(parts.netloc)
