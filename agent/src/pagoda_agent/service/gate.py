"""Who may speak to the agent: the one browser that opened its address first.

The address carries a token behind its `#`, which browsers keep to themselves. The first visitor
trades it for a cookie and it is worth nothing from then on, so a copied address shows nothing. When
that visitor is gone there is a new token, for whoever can read the agent's terminal.
"""

import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import ip_address

from starlette.requests import HTTPConnection

COOKIE = "pagoda-agent"
GONE_SECONDS = 10.0
"""Without its stream of events for so long, a visitor counts as gone."""


def _new_token() -> str:
    return secrets.token_urlsafe(24)


@dataclass
class Gate:
    host: str
    """Where the agent listens."""
    port: int
    clock: Callable[[], float] = time.monotonic
    token: str = field(default_factory=_new_token, repr=False)

    def __post_init__(self) -> None:
        self._session: str | None = None
        self._listening = False
        self._last_seen = 0.0

    @property
    def address(self) -> str:
        """What to open in a browser."""
        name = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        name = f"[{name}]" if ":" in name else name
        return f"http://{name}:{self.port}/#{self.token}"

    def enter(self, token: str) -> str | None:
        """The cookie for the holder of the token, or None."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        self.token = _new_token()
        self._session = secrets.token_urlsafe(32)
        self._listening, self._last_seen = False, self.clock()
        return self._session

    def knows(self, request: HTTPConnection) -> bool:
        """Whether the request is the controller's."""
        cookie = request.cookies.get(COOKIE, "")
        session = self._session
        return session is not None and hmac.compare_digest(cookie.encode(), session.encode())

    def listen(self) -> bool:
        """The controller's stream of events begins; False while it has one in another tab."""
        if self._listening:
            return False
        self._listening = True
        return True

    def stop_listening(self) -> None:
        self._listening, self._last_seen = False, self.clock()

    def is_gone(self) -> bool:
        """There was a controller, and it left. Then it may not come back with its cookie."""
        if self._session is None or self._listening:
            return False
        return self.clock() - self._last_seen >= GONE_SECONDS

    def forget(self) -> None:
        self._session = None

    def is_ours(self, request: HTTPConnection) -> bool:
        """Whether a browser sent this to us on purpose: a foreign page's requests carry its
        Origin, and a name that was bent to our address (DNS rebinding) a foreign Host."""
        host = request.headers.get("host", "")
        if not self._is_our_name(host):
            return False
        origin = request.headers.get("origin")
        return origin is None or origin in (f"http://{host}", f"https://{host}")

    def _is_our_name(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
        name = name.strip("[]")
        if name in ("localhost", self.host):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True  # an address cannot be bent
