"""Where a model is served, and how patient to be with it."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from pagoda_agent.base.errors import ConfigError

_LOCAL = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Endpoint:
    """Raises ConfigError, never quoting the key, for values that cannot be used."""

    base_url: str
    """As the API's documentation gives it, such as http://127.0.0.1:8000/v1."""
    model: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Sent with every request; they may hold keys too."""
    ca_file: Path | None = None
    """Certificates (PEM) to trust instead of the system's."""
    insecure: bool = False
    """Take any certificate."""
    connect_seconds: float = 10.0
    read_seconds: float = 120.0
    """The longest silence: before the reply begins (reading the pictures) or within it."""
    total_seconds: float = 600.0
    """For a reply, with retries and the waits between them."""
    retries: int = 4
    backoff_seconds: float = 0.5
    """Before the first retry; doubled for each further one, up to 30 s."""
    max_tokens: int | None = None
    """Most tokens of a reply; None: as many as the context has room for."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the request's body, such as temperature."""

    def __post_init__(self) -> None:
        try:
            url = httpx.URL(self.base_url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"The model's base URL cannot be read: {error}.") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigError(
                f"The model's base URL {self.base_url!r} must begin with http:// or https://."
            )
        # The HTTP library's own errors would quote the value.
        for name, value in {"API key": self.api_key or "", **self.headers}.items():
            if not (value.isascii() and (value.isprintable() or not value)):
                raise ConfigError(
                    f"The {name} has characters that cannot be sent in a header; look for line "
                    "breaks and quotes that were copied along."
                )

    def url(self, path: str) -> str:
        """Below the base URL; the slash is put where it belongs."""
        return f"{self.base_url.rstrip('/')}/{path.lstrip('/')}"

    @property
    def place(self) -> str:
        """The base URL for messages, without a password."""
        url = httpx.URL(self.base_url)
        return str(url.copy_with(username=None, password=None)) if url.userinfo else self.base_url

    def clean(self, text: str) -> str:
        """Text of a server or a library without the key and the headers' values."""
        for value in (self.api_key, httpx.URL(self.base_url).password, *self.headers.values()):
            if value and len(value) >= 4:
                text = text.replace(value, "[hidden]")
        return text

    def client(self) -> httpx.AsyncClient:
        url = httpx.URL(self.base_url)
        local = url.host in _LOCAL
        # Reading the system's certificates takes tens of milliseconds; nothing here needs them
        # for a server on this machine without TLS.
        verify: ssl.SSLContext | bool = not (self.insecure or (local and url.scheme == "http"))
        if self.ca_file is not None and not self.insecure:
            try:
                verify = ssl.create_default_context(cafile=self.ca_file)
            except (OSError, ssl.SSLError) as error:
                raise ConfigError(
                    f"The certificates in {self.ca_file} cannot be read: {error}."
                ) from error
        return httpx.AsyncClient(
            verify=verify,
            headers=dict(self.headers),
            timeout=httpx.Timeout(self.read_seconds, connect=self.connect_seconds),
            # A proxy from the environment is for the world outside.
            trust_env=not local,
        )
