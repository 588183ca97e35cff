"""What the URL of a KVM says: `nanokvms://admin@host?fingerprint=...&layout=de`."""

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from pagoda.agent.layouts import LAYOUTS
from pagoda.base import env
from pagoda.base.errors import ConfigError

_OPTIONS = ("layout", "fingerprint", "insecure", "password_file")


@dataclass(frozen=True)
class Address:
    secure: bool
    host: str
    port: int
    user: str
    password: str
    """Empty where none was given."""
    layout: str = "us"
    fingerprint: str = ""
    """SHA-256 of the only certificate to accept, as 64 hexadecimal digits in lower case."""
    insecure: bool = False
    """Accept any certificate."""

    def __str__(self) -> str:
        """Without the password, for messages."""
        return f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def read_address(url: str, secure: bool) -> Address:
    """The parts of a KVM's URL.

    The password is the URL's, else that in the file `?password_file=` names, else the variable
    PAGODA_KVM_PASSWORD. Raises ConfigError for what cannot be used, never quoting a password.
    """
    parts = urlsplit(url)
    try:
        port = parts.port or (443 if secure else 80)
    except ValueError as error:
        raise ConfigError(f"The port in the KVM's URL is not one: {error}.") from error
    if not parts.hostname:
        raise ConfigError(
            f"The KVM's URL names no host; write it as {parts.scheme}://admin@192.168.1.20."
        )
    if parts.path not in ("", "/"):
        raise ConfigError(f"The KVM's URL has a path, {parts.path!r}; leave it out.")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise ConfigError(
                f"The KVM's URL has no option {name!r}; known are {', '.join(_OPTIONS)}."
            )
    layout = options.get("layout", "us")
    if layout not in LAYOUTS:
        raise ConfigError(
            f"There is no keyboard layout {layout!r}; known are {', '.join(LAYOUTS)}."
        )
    fingerprint = options.get("fingerprint", "").replace(":", "").lower()
    if fingerprint and (len(fingerprint) != 64 or not set(fingerprint) <= set("0123456789abcdef")):
        raise ConfigError(
            "The fingerprint in the KVM's URL must be the certificate's SHA-256: 64 hexadecimal "
            "digits, with or without colons."
        )
    insecure = options.get("insecure", "0")
    if insecure not in ("0", "1"):
        raise ConfigError(f"The option insecure is {insecure!r}; write 1 or leave it out.")
    user = unquote(parts.username or "admin")
    password = _password(parts.password, options.get("password_file"))
    if not (user + password).isprintable():
        raise ConfigError("The KVM's user name or password has control characters.")
    return Address(
        secure=secure,
        host=parts.hostname,
        port=port,
        user=user,
        password=password,
        layout=layout,
        fingerprint=fingerprint,
        insecure=insecure == "1",
    )


def _password(in_url: str | None, file: str | None) -> str:
    if in_url is not None:
        return unquote(in_url)
    if file is not None:
        try:
            return Path(file).expanduser().read_text("utf-8").splitlines()[0]
        except (OSError, UnicodeDecodeError, IndexError) as error:
            raise ConfigError(f"No password can be read from {file!r}: {error}.") from error
    return str(env.get("PAGODA_KVM_PASSWORD") or "")
