"""What the URL of a KVM says: `nanokvms://admin@host?fingerprint=...&layout=de`."""

from dataclasses import dataclass, field

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.drivers.address import layout_of, parse_address

_OPTIONS = ("layout", "fingerprint", "insecure")


@dataclass(frozen=True)
class KvmAddress:
    secure: bool
    host: str
    port: int
    user: str
    password: str = field(repr=False)
    """Empty where none was given."""
    layout: str = "us"
    fingerprint: str = ""
    """SHA-256 of the only certificate to accept, as 64 hexadecimal digits in lower case."""
    insecure: bool = False
    """Accept any certificate."""

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def read_address(url: str, secure: bool) -> KvmAddress:
    """The parts of a KVM's URL; its password as `parse_address` finds it.

    Raises ConfigError for what cannot be used, never quoting a password.
    """
    address = parse_address(url, _OPTIONS)
    options = address.options
    layout = layout_of(address)
    fingerprint = options.get("fingerprint", "").replace(":", "").lower()
    if fingerprint and (len(fingerprint) != 64 or not set(fingerprint) <= set("0123456789abcdef")):
        raise ConfigError(
            "The fingerprint in the KVM's URL must be the certificate's SHA-256: 64 hexadecimal "
            "digits, with or without colons."
        )
    insecure = options.get("insecure", "0")
    if insecure not in ("0", "1"):
        raise ConfigError(f"The option insecure is {insecure!r}; write 1 or leave it out.")
    if not secure and (fingerprint or insecure == "1"):
        raise ConfigError(
            "The options fingerprint and insecure are about certificates, and this URL is not of "
            "https; write it with nanokvms://."
        )
    user = address.user or "admin"
    if not (user + address.password).isprintable():
        raise ConfigError("The KVM's user name or password has control characters.")
    port = address.port or (443 if secure else 80)
    return KvmAddress(
        secure, address.host, port, user, address.password, layout, fingerprint, insecure == "1"
    )
