"""NanoKVM and NanoKVM-Pro, old and new firmware, through what their own web page uses.

Its MJPEG is all that a NanoKVM offers to look at without an encoder of video. A Pro has one stream
for all, so whoever watches it as H.264 meanwhile sees nothing.
"""

import asyncio
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection

from pagoda_agent.base.errors import DriverError, LoginError, NoSignalError, UnsupportedActionError
from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.drivers.kvm.address import KvmAddress, read_address
from pagoda_agent.drivers.kvm.driver import DELAY, KvmDriver
from pagoda_agent.drivers.kvm.link import Message, dial
from pagoda_agent.drivers.kvm.pictures import decode
from pagoda_agent.drivers.nanokvm.api import Api
from pagoda_agent.drivers.nanokvm.reports import BinaryReports, JsonReports, Reports
from pagoda_agent.drivers.nanokvm.video import Arrival, Video
from pagoda_agent.input.actions import Button, Point, Power
from pagoda_agent.screen.frame import Frame

# A screenshot waits this long for a picture, then as long as below once it has asked for one even
# though the screen rests. Streams have 10 pictures a second and more.
_FRESH = 0.25
_ASKED = 0.4
_FIRST = 3.0
"""For the first of all, which is there only after the encoder has started."""
# The KVM sends resting screens too for these seconds.
_AWAKE = 10
_POWER = {"press": ("power", 800), "hold": ("power", 5000), "reset": ("reset", 800)}
"""What is pressed, and for how many milliseconds."""


class NanoKvmDriver(KvmDriver):
    name = "nanokvm"
    heartbeat = b"\x00"
    # Keyboard and mouse have queues of their own in the KVM.
    gap = 0.02
    capabilities = Capabilities(power=True, hid_reset=True, captures=True, delay=DELAY)

    def __init__(self, address: KvmAddress):
        super().__init__(address)
        self._opened_api: Api | None = None
        self._video: Video | None = None
        self._reports: Reports = BinaryReports()
        self._frame: Frame | None = None
        self._no_signal = ""
        """Why there is no picture, as the KVM says."""
        self._waking: asyncio.Task[None] | None = None

    @property
    def _api(self) -> Api:
        if self._opened_api is None:
            raise self._closed()
        return self._opened_api

    async def _enter(self) -> None:
        self._opened_api = Api(self.address, self.http)
        await self._api.enter()
        self._reports = BinaryReports() if await self._api.takes_reports() else JsonReports()
        self._video = Video(self._api, self.http)
        self._video.start()

    async def close(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if self._video is not None:
            await self._video.close()
            self._video = None
        await super().close()
        self._opened_api = None

    async def _dial(self) -> ClientConnection:
        token = self._api.token
        try:
            return await dial(self.address, "/api/ws", self._api.headers, self._context)
        except LoginError:
            await self._api.login(token)
            return await dial(self.address, "/api/ws", self._api.headers, self._context)

    # Screen

    async def screenshot(self) -> Frame:
        if self._video is None:
            raise self._closed()
        arrival = await self._video.next(_FRESH)
        if arrival is None:
            self._wake()
            arrival = await self._video.next(_FIRST if self._video.newest is None else _ASKED)
        if arrival is not None:
            self._no_signal = ""
            return await self._fresh(self._video, arrival)
        if self._no_signal:
            raise NoSignalError(f"{self.address} gets no picture: {self._no_signal}.")
        if self._video.trouble:
            raise DriverError(
                f"{self.address} sends no pictures: {self._video.trouble.rstrip('.')}."
            )
        if self._video.newest is None:
            raise NoSignalError(
                f"{self.address} sends no picture: the computer is off, asleep, or unplugged."
            )
        return replace(await self._decoded(self._video.newest), stale=True)

    async def _fresh(self, video: Video, arrival: Arrival) -> Frame:
        """The picture, or the next one where it is broken."""
        try:
            return await self._decoded(arrival)
        except DriverError:
            following = await video.next(_FRESH)
            if following is None:
                raise
        return await self._decoded(following)

    async def _decoded(self, arrival: Arrival) -> Frame:
        if self._frame is None or self._frame.number != arrival.number:
            image = await decode(arrival.jpeg, str(self.address))
            self._frame = Frame(image, arrival.number, arrival.at)
        return self._frame

    def _wake(self) -> None:
        """Ask for pictures although nothing changes; the KVM answers when it stops to."""
        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(self._stop_detection())

    async def _stop_detection(self) -> None:
        # Setting `detect` itself toggles it on older firmware; a Pro has neither.
        with suppress(DriverError):
            await self._api.call("POST", "/api/stream/mjpeg/detect/stop", {"duration": _AWAKE})

    def _hear(self, message: str) -> None:
        with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
            event = json.loads(message)
            if event["type"] == "capture-status":
                status = json.loads(event["data"])
                if status.get("mode", "mjpeg") == "mjpeg":
                    failed = int(status["result"]) < 0
                    self._no_signal = repr(status.get("message"))[:200] if failed else ""

    # Keys and pointer

    def _all_up(self) -> Sequence[Message]:
        return [*self._reports.keys(()), *self._reports.buttons(self._pointer, ())]

    async def _send_move(self, to: Point) -> None:
        await self._tell(self._reports.move(to, self._held_buttons), "mouse")

    async def _send_button(self, button: Button, pressed: bool) -> None:
        down = self._held_buttons | {button} if pressed else self._held_buttons - {button}
        await self._tell(self._reports.buttons(self._pointer, down), "mouse")

    async def _send_wheel(self, dx: int, dy: int) -> None:
        if dx:
            raise UnsupportedActionError("The nanokvm driver has no horizontal wheel.")
        await self._tell(self._reports.wheel(self._pointer, self._held_buttons, dy), "mouse")

    async def _send_key(self, code: str, pressed: bool) -> None:
        down = [held for held in self._held_keys if held != code] + [code] * pressed
        await self._tell(self._reports.keys(down), "keyboard")

    # The KVM's own buttons

    async def power(self, action: Power) -> None:
        kind, duration = _POWER[action.what]
        await self._api.call("POST", "/api/vm/gpio", {"type": kind, "duration": duration})

    async def hid_reset(self) -> None:
        await self._api.call("POST", "/api/hid/reset")


def make(url: str) -> NanoKvmDriver:
    """For `nanokvm://` and, by https, `nanokvms://`; see `read_address` for the rest of the URL."""
    return NanoKvmDriver(read_address(url, secure=urlsplit(url).scheme == "nanokvms"))
