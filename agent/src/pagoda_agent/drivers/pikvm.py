"""PiKVM, by kvmd's API: snapshots by HTTP, keys and pointer as events on its WebSocket."""

import base64
import json
from collections.abc import Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection

from pagoda_agent.base.errors import DriverError, LoginError, NoSignalError
from pagoda_agent.drivers.base import Capabilities
from pagoda_agent.drivers.kvm.address import KvmAddress, read_address
from pagoda_agent.drivers.kvm.driver import DELAY, KvmDriver, fetch
from pagoda_agent.drivers.kvm.link import Message, dial
from pagoda_agent.drivers.kvm.pictures import MAX_BYTES, decode
from pagoda_agent.input.actions import Button, Point, Power
from pagoda_agent.screen.frame import Frame

# kvmd names the side buttons by where they are on a mouse.
_BUTTONS: dict[Button, str] = {
    "left": "left", "right": "right", "middle": "middle", "back": "up", "forward": "down",
}  # fmt: skip
_POWER = {"press": "power", "hold": "power_long", "reset": "reset"}


def _event(kind: str, **event: Any) -> str:
    return json.dumps({"event_type": kind, "event": event})


def _credentials(user: str, password: str) -> dict[str, str]:
    """Headers, in the one of kvmd's forms that can have the password: its own are of ASCII, and
    its reading of Basic ends at a colon."""
    if (user + password).isascii():
        return {"X-KVMD-User": user, "X-KVMD-Passwd": password}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


class PiKvmDriver(KvmDriver):
    name = "pikvm"
    heartbeat = _event("ping")
    capabilities = Capabilities(
        horizontal_wheel=True, power=True, hid_reset=True, captures=True, delay=DELAY
    )

    def __init__(self, address: KvmAddress):
        super().__init__(address)
        self._number = 0
        self._headers = _credentials(address.user, address.password)

    async def _enter(self) -> None:
        state = await self._call("GET", "/api/hid")
        mouse = state.get("mouse") if isinstance(state, dict) else None
        if isinstance(mouse, dict) and mouse.get("absolute") is False:
            raise DriverError(
                f"The mouse of {self.address} is relative, so clicks would miss. Set it to "
                "absolute on the PiKVM's page (System, Mouse mode)."
            )

    async def _dial(self) -> ClientConnection:
        return await dial(self.address, "/api/ws?stream=0", self._headers, self._context)

    async def _call(self, method: str, path: str) -> Any:
        """The `result` of the answer."""
        status, body = await self._fetch(method, path)
        if status == 409:
            raise DriverError(f"{self.address} is busy with what was asked before; try it later.")
        try:
            answer = json.loads(body)
            result, fine = answer["result"], answer["ok"]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise DriverError(
                f"{self.address} answers {path} ({status}) like no PiKVM; is another program at "
                "this address?"
            ) from None
        if not fine:
            raise DriverError(f"{self.address} answers {path} ({status}) with {str(result)[:200]}.")
        return result

    async def _fetch(self, method: str, path: str, limit: int = 1 << 20) -> tuple[int, bytes]:
        response, body = await fetch(self.http, method, path, limit, headers=self._headers)
        if response.status_code in (401, 403):
            raise LoginError(
                f"{self.address} refused the password of {self.address.user!r}. Check both; the "
                "password comes from the URL, the file that it names, or PAGODA_DRIVER_PASSWORD."
            )
        return response.status_code, body

    async def screenshot(self) -> Frame:
        status, body = await self._fetch("GET", "/api/streamer/snapshot", MAX_BYTES)
        if status == 503:
            raise NoSignalError(
                f"{self.address} gets no picture: the computer is off, asleep, or unplugged."
            )
        if status != 200:
            raise DriverError(f"{self.address} answers {status} instead of a picture.")
        self._number += 1
        return Frame(await decode(body, str(self.address)), self._number)

    def _all_up(self) -> Sequence[Message]:
        keys = [_event("key", key=code, state=False) for code in reversed(self._held_keys)]
        buttons = [self._button(button, False) for button in sorted(self._held_buttons)]
        return keys + buttons

    def _button(self, button: Button, pressed: bool) -> str:
        return _event("mouse_button", button=_BUTTONS[button], state=pressed)

    async def _send_move(self, to: Point) -> None:
        x, y = (min(max(round(share * 65535) - 32768, -32768), 32767) for share in to)
        await self._tell([_event("mouse_move", to={"x": x, "y": y})], "mouse")

    async def _send_button(self, button: Button, pressed: bool) -> None:
        await self._tell([self._button(button, pressed)], "mouse")

    async def _send_wheel(self, dx: int, dy: int) -> None:
        # kvmd puts both into the USB report as they are, where right (AC Pan) and up are positive.
        await self._tell([_event("mouse_wheel", delta={"x": dx, "y": dy})], "mouse")

    async def _send_key(self, code: str, pressed: bool) -> None:
        await self._tell([_event("key", key=code, state=pressed)], "keyboard")

    async def power(self, action: Power) -> None:
        await self._call("POST", f"/api/atx/click?button={_POWER[action.what]}")

    async def hid_reset(self) -> None:
        await self._call("POST", "/api/hid/reset")


def make(url: str) -> PiKvmDriver:
    """For `pikvm://`, always by https; see `read_address` for the rest of the URL."""
    return PiKvmDriver(read_address(url, secure=True))
