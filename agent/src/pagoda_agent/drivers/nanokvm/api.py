"""A NanoKVM's HTTP: its envelope, its logins, what it is."""

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any

import httpx

from pagoda_agent.base.errors import DriverError, LoginError
from pagoda_agent.drivers.kvm.address import KvmAddress
from pagoda_agent.drivers.kvm.driver import fetch
from pagoda_agent.drivers.nanokvm.password import obfuscated

_COOKIE = "nano-kvm-token"
_WRONG, _LOCKED = -2, -5
# The first that take USB reports.
_BINARY_SINCE, _BINARY_SINCE_PRO = (2, 3, 2), (1, 2, 6)


class Api:
    """Requests with the session's cookie, logging in again once when it is refused."""

    def __init__(self, address: KvmAddress, http: httpx.AsyncClient):
        self._address = address
        self._http = http
        self.token = ""
        """The session; empty where the KVM wants none."""
        self._forms: tuple[Callable[[str], str], ...] = (obfuscated, str)
        """How the password may be sent; only the one that worked once one has."""
        self._login = asyncio.Lock()
        self._refusal = ""
        """Why the password was refused. It is not tried again then: tries lock the account."""

    @property
    def headers(self) -> dict[str, str]:
        return {"Cookie": f"{_COOKIE}={self.token}"} if self.token else {}

    async def enter(self) -> None:
        """Log in where the KVM wants it. Raises LoginError."""
        # Before the password: a KVM of https sends plain requests elsewhere.
        response, _ = await fetch(self._http, "GET", "/api/vm/info")
        if response.status_code == 401:
            await self.login(self.token)

    async def login(self, refused: str) -> None:
        """A session other than the `refused` one, unless another task has just got it."""
        async with self._login:
            if self.token != refused:
                return
            if self._refusal:
                raise LoginError(self._refusal)
            if not self._address.password:
                raise LoginError(
                    f"{self._address} wants a password. Put it into the variable "
                    "PAGODA_DRIVER_PASSWORD, or into a file that ?password-file= in the URL names."
                )
            for form in self._forms:
                if await self._try_login(form(self._address.password)):
                    self._forms = (form,)
                    return
            self._refusal = (
                f"{self._address} refused the password of {self._address.user!r}. Check both; the "
                "password comes from the URL, the file that it names, or PAGODA_DRIVER_PASSWORD."
            )
            raise LoginError(self._refusal)

    async def _try_login(self, password: str) -> bool:
        """False where the KVM calls the password wrong."""
        body = {"username": self._address.user, "password": password}
        response, content = await fetch(self._http, "POST", "/api/auth/login", json=body)
        code, text, data = self._opened(response, content, "/api/auth/login")
        if code == _WRONG:
            return False
        if code != 0:
            hint = " Too many tries; wait some minutes." if code == _LOCKED else ""
            raise LoginError(f"{self._address} let nobody in: {text!r} ({code}).{hint}")
        # 2.5.1 and later have the token in the cookie alone, the others in the answer.
        given = response.cookies.get(_COOKIE) or (
            data.get("token") if isinstance(data, dict) else ""
        )
        self._http.cookies.clear()
        if not isinstance(given, str) or not re.fullmatch(r"[\w.~+/=-]+", given, re.ASCII):
            raise LoginError(f"{self._address} took the password but opened no session.")
        self.token = given
        return True

    async def call(self, method: str, path: str, body: object = None) -> Any:
        """The `data` of the answer. Raises DriverError for a code other than 0."""
        for last in (False, True):
            token = self.token
            response, content = await fetch(
                self._http, method, path, json=body, headers=self.headers
            )
            if response.status_code != 401:
                break
            if last:
                raise LoginError(f"{self._address} refuses the session that it has just opened.")
            await self.login(token)
        code, text, data = self._opened(response, content, path)
        if code != 0:
            raise DriverError(f"{self._address} answers {path} with {text!r} ({code}).")
        return data

    def _opened(self, response: httpx.Response, content: bytes, path: str) -> tuple[int, str, Any]:
        """(code, message, data) of an envelope."""
        try:
            envelope = json.loads(content)
            return int(envelope["code"]), str(envelope.get("msg", ""))[:200], envelope.get("data")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise DriverError(
                f"{self._address} answers {path} ({response.status_code}) like no NanoKVM; is "
                "another program at this address?"
            ) from None

    async def takes_reports(self) -> bool:
        """Whether the firmware takes USB reports on its WebSocket, rather than JSON."""
        info = await self.call("GET", "/api/vm/info")
        version = info.get("application") if isinstance(info, dict) else None
        found = re.match(r"v?(\d+)\.(\d+)\.(\d+)", str(version))
        if not found:
            return True  # a build of somebody's own, newer than these numbers
        try:
            hardware = await self.call("GET", "/api/vm/hardware")
        except LoginError:
            raise
        except DriverError:
            hardware = None  # too old to say
        pro = isinstance(hardware, dict) and hardware.get("version") == "Pro"
        since = _BINARY_SINCE_PRO if pro else _BINARY_SINCE
        return tuple(int(number) for number in found.groups()) >= since
