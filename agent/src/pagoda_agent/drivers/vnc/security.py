"""How a VNC server lets us in: nothing, or a password (RFC 6143, section 7.2)."""

from collections.abc import Sequence

from cryptography.hazmat.decrepit.ciphers.algorithms import TripleDES
from cryptography.hazmat.primitives.ciphers import Cipher, modes

from pagoda_agent.base.errors import DriverError, LoginError

NONE, VNC_PASSWORD = 1, 2
CHALLENGE_BYTES = 16
# Those that people meet (IANA's registry of RFB security types), for the error message.
_NAMES = {
    5: "RA2", 6: "RA2ne", 16: "Tight", 18: "TLS", 19: "VeNCrypt", 20: "SASL", 22: "xvp",
    30: "Apple's login", 33: "Apple's login", 35: "Apple's login", 36: "Apple's login",
    129: "RSA-AES", 130: "RSA-AES unencrypted",
}  # fmt: skip


def choose(offered: Sequence[int], has_password: bool) -> int:
    """One of the security types that a server offers; the password is used where it can be.

    Raises LoginError where one is needed and missing, DriverError where none is known.
    """
    if VNC_PASSWORD in offered and (has_password or NONE not in offered):
        if not has_password:
            raise LoginError(
                "The VNC server wants a password: put it into PAGODA_DRIVER_PASSWORD, or into a "
                "file, as in vnc://host?password-file=PATH."
            )
        return VNC_PASSWORD
    if NONE in offered:
        return NONE
    names = ", ".join(dict.fromkeys(_NAMES.get(kind, f"type {kind}") for kind in offered))
    raise DriverError(
        f"The VNC server wants {names}, which is not supported. Allow plain VNC passwords there "
        "(TigerVNC: -SecurityTypes VncAuth; macOS: the password for VNC viewers in the settings of "
        "Screen Sharing), and reach it through SSH where the network is not your own."
    )


def answer(challenge: bytes, password: str) -> bytes:
    """The 16 bytes of the challenge, encrypted by DES with the password's first 8 bytes."""
    secret = password.encode("latin-1", "replace")[:8].ljust(8, b"\0")
    # VNC takes the bits of each byte of the key in reverse. Three times the same key makes
    # triple DES the same as DES.
    key = bytes(int(f"{byte:08b}"[::-1], 2) for byte in secret)
    encryptor = Cipher(TripleDES(key * 3), modes.ECB()).encryptor()
    return encryptor.update(challenge) + encryptor.finalize()
