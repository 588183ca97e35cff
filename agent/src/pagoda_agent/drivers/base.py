"""What every driver does alike: clicks, drags and chords out of four primitives, and keeping track
of all that is held down so that it is always let go."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from pagoda_agent.base.errors import DriverError, UnsupportedActionError
from pagoda_agent.input.actions import Button, Point, Power
from pagoda_agent.screen.frame import Frame

# Between press and release of a key: USB keyboards are looked at every 8 ms.
_KEY_PAUSE = 0.012
# Steps of a drag between two of its points, and the pause at each: toolkits start a drag only
# after several motions (4 to 8 pixels).
DRAG_STEPS = 12
_DRAG_PAUSE = 0.012
# Lifting what is held must not hang on a connection that is gone.
_RELEASE_SECONDS = 3.0


@dataclass(frozen=True)
class Capabilities:
    """What a driver can do beyond pointing, clicking, ASCII text and the vertical wheel."""

    horizontal_wheel: bool = False
    unicode: bool = False
    """Types any character; else those of `layout`."""
    pointer_position: bool = False
    """`pointer()` asks the computer; else it is what was sent last."""
    power: bool = False
    hid_reset: bool = False
    captures: bool = False
    """Sees a cable's signal, so that a black screen may be a computer that is off."""
    delay: float = 0.0
    """Seconds until a change on the computer is in a frame: capture, encoding and network."""


class Driver(ABC):
    """One computer's screen, keyboard and pointer.

    Subclasses implement the primitives that begin with `_send_` and those below; all raise
    DriverError (ConnectionLostError when the connection goes). Positions are shares of the
    screen, key codes are `keys.KEYS`. Methods may be cancelled at any await; whoever cancels
    calls `release_all`.
    """

    name: str
    """As in its URL: x11, vnc, nanokvm, pikvm."""
    capabilities: Capabilities
    click_pause = 0.03
    """Seconds between move, press and release: KVMs send them through separate queues (20 ms), and
    a USB mouse is looked at every 8 ms. Desktops take 500 ms for a double click."""

    def __init__(self) -> None:
        self._held_buttons: set[Button] = set()
        self._held_keys: list[str] = []
        self._pointer: Point | None = None

    @property
    def target(self) -> str:
        """The computer, in the same words however its URL was written; without secrets."""
        return self.name

    @abstractmethod
    async def open(self) -> None:
        """Connect and log in. Raises DriverError, saying what to check."""

    @abstractmethod
    async def close(self) -> None:
        """Release everything and disconnect. Harmless when repeated; never raises DriverError."""

    @abstractmethod
    async def screenshot(self) -> Frame:
        """The screen as it is now, within about a second; `stale` where nothing newer came.

        Raises NoSignalError where there is no picture, DriverError for a broken one.
        """

    @abstractmethod
    async def _send_move(self, to: Point) -> None:
        """Put the pointer there, at once."""

    @abstractmethod
    async def _send_button(self, button: Button, pressed: bool) -> None:
        """Where the pointer is."""

    @abstractmethod
    async def _send_wheel(self, dx: int, dy: int) -> None:
        """One notch in one direction: of dx and dy one is 0, the other 1 or -1; up is +1."""

    @abstractmethod
    async def _send_key(self, code: str, pressed: bool) -> None: ...

    @abstractmethod
    async def type_text(self, text: str) -> None:
        """Type all of it, newlines as Enter and tabs as Tab.

        UntypeableError, before anything is typed, for characters that cannot be. Typed in small
        parts, so that cancelling stops within a tenth of a second.
        """

    async def power(self, action: Power) -> None:
        raise UnsupportedActionError(f"The {self.name} driver has no power buttons.")

    async def hid_reset(self) -> None:
        raise UnsupportedActionError(f"The {self.name} driver has no USB devices to reset.")

    async def pointer(self) -> Point | None:
        """Where the pointer is; None where nobody knows."""
        return self._pointer

    async def screen_size(self) -> tuple[int, int] | None:
        """(width, height) of the screen now, for a look at whether it is still that of a frame;
        None where only a screenshot tells."""
        return None

    async def taken_over(self) -> bool:
        """Whether somebody else moved the pointer since we did, or since this was asked last."""
        return False

    async def focused_program(self) -> str | None:
        """What has the keyboard's focus, as it names itself (WM_CLASS, in small letters); None
        where nobody knows."""
        return None

    @property
    def held(self) -> tuple[str, ...]:
        """Keys and buttons that are down because of us."""
        return (*self._held_keys, *sorted(self._held_buttons))

    async def move(self, to: Point) -> None:
        await self._send_move(to)
        self._pointer = to

    async def press(self, button: Button) -> None:
        # Noted first: a press whose answer is lost may have arrived.
        self._held_buttons.add(button)
        await self._send_button(button, True)

    async def release(self, button: Button) -> None:
        await self._send_button(button, False)
        self._held_buttons.discard(button)

    async def key_down(self, code: str) -> None:
        if code not in self._held_keys:
            self._held_keys.append(code)
        await self._send_key(code, True)

    async def key_up(self, code: str) -> None:
        await self._send_key(code, False)
        if code in self._held_keys:
            self._held_keys.remove(code)

    @asynccontextmanager
    async def holding(self, codes: Sequence[str]) -> AsyncIterator[None]:
        """Keys down in order, and up in reverse order whatever happens in between."""
        pressed: list[str] = []
        try:
            for code in codes:
                pressed.append(code)
                await self.key_down(code)
                await asyncio.sleep(_KEY_PAUSE)
            yield
        finally:
            for code in reversed(pressed):
                await self.key_up(code)

    async def click(
        self, at: Point | None, button: Button, count: int, modifiers: Sequence[str]
    ) -> None:
        async with self.holding(modifiers):
            if at is not None:
                await self.move(at)
                await asyncio.sleep(self.click_pause)
            for number in range(count):
                if number:
                    await asyncio.sleep(self.click_pause)
                await self.press(button)
                await asyncio.sleep(self.click_pause)
                await self.release(button)

    async def drag(self, path: Sequence[Point], button: Button, modifiers: Sequence[str]) -> None:
        """Through all points of the path with the button down, in small steps."""
        start = await self.pointer() if len(path) == 1 else path[0]
        if start is None:
            raise UnsupportedActionError(
                "Nobody knows where the pointer is; name the drag's first position too."
            )
        async with self.holding(modifiers):
            await self.move(start)
            await asyncio.sleep(self.click_pause)
            await self.press(button)
            await asyncio.sleep(self.click_pause)
            for point in path if len(path) == 1 else path[1:]:
                await self._glide(point)
            await asyncio.sleep(self.click_pause)
            await self.release(button)

    async def _glide(self, to: Point) -> None:
        assert self._pointer is not None
        start = self._pointer
        for step in range(1, DRAG_STEPS + 1):
            share = step / DRAG_STEPS
            x = start.x + (to.x - start.x) * share
            y = start.y + (to.y - start.y) * share
            await self.move(to if step == DRAG_STEPS else Point(x, y))
            await asyncio.sleep(_DRAG_PAUSE)

    async def scroll(self, at: Point | None, dx: int, dy: int, modifiers: Sequence[str]) -> None:
        if dx and not self.capabilities.horizontal_wheel:
            raise UnsupportedActionError(
                f"The {self.name} driver has no horizontal wheel; hold ShiftLeft and scroll "
                "vertically, or use the arrow keys."
            )
        async with self.holding(modifiers):
            if at is not None:
                await self.move(at)
                await asyncio.sleep(self.click_pause)
            for x, y in ((0, dy), (dx, 0)):
                for _ in range(abs(x or y)):
                    await self._send_wheel((x > 0) - (x < 0), (y > 0) - (y < 0))
                    await asyncio.sleep(_KEY_PAUSE)

    async def chord(self, codes: Sequence[str], hold: float = 0.0) -> None:
        async with self.holding(codes):
            await asyncio.sleep(hold)

    async def release_all(self) -> None:
        """Lift every button and key that is down because of us, as far as the connection lets us.

        What could not be lifted stays in `held`, for the next try.
        """
        with contextlib.suppress(DriverError, TimeoutError):
            async with asyncio.timeout(_RELEASE_SECONDS):
                for button in sorted(self._held_buttons):
                    await self.release(button)
                for code in reversed(self._held_keys.copy()):
                    await self.key_up(code)
