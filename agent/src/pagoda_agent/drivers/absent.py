"""In the place of a computer whose driver cannot run yet: it says what the driver lacks."""

from typing import NoReturn

from pagoda_agent.base.errors import DriverError
from pagoda_agent.drivers.address import without_password
from pagoda_agent.drivers.base import Capabilities, Driver
from pagoda_agent.drivers.needs import Lacks
from pagoda_agent.input.actions import Button, Point
from pagoda_agent.screen.frame import Frame


class AbsentDriver(Driver):
    """Opens, so that the agent's page is there to install what is missing; does nothing else."""

    capabilities = Capabilities()

    def __init__(self, url: str, lacks: Lacks):
        super().__init__()
        self.name = lacks.driver
        self.lacks = lacks
        self._url = url

    @property
    def target(self) -> str:
        return without_password(self._url)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def screenshot(self) -> Frame:
        self._refuse()

    async def _send_move(self, to: Point) -> None:
        self._refuse()

    async def _send_button(self, button: Button, pressed: bool) -> None:
        self._refuse()

    async def _send_wheel(self, dx: int, dy: int) -> None:
        self._refuse()

    async def _send_key(self, code: str, pressed: bool) -> None:
        self._refuse()

    async def type_text(self, text: str) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise DriverError(self.lacks.sentence)
