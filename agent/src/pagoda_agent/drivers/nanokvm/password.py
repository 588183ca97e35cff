"""The password as the NanoKVM's own page sends it: encrypted with a passphrase that all know.

It hides nothing; the KVM just takes no other form since 2.1 (`web/src/lib/encrypt.ts`).
"""

import base64
import hashlib
import os
from urllib.parse import quote

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.padding import PKCS7

_PASSPHRASE = b"nanokvm-sipeed-2024"


def obfuscated(password: str, salt: bytes | None = None) -> str:
    """AES-256-CBC in OpenSSL's container, key and IV by EVP_BytesToKey with one round of MD5, as
    Base64, percent-encoded. `salt` is 8 bytes, random where there is none."""
    salt = os.urandom(8) if salt is None else salt
    derived = digest = b""
    while len(derived) < 48:
        digest = hashlib.md5(digest + _PASSPHRASE + salt, usedforsecurity=False).digest()
        derived += digest
    padder = PKCS7(128).padder()
    padded = padder.update(password.encode()) + padder.finalize()
    encryptor = Cipher(algorithms.AES256(derived[:32]), modes.CBC(derived[32:])).encryptor()
    encrypted = encryptor.update(padded) + encryptor.finalize()
    return quote(base64.b64encode(b"Salted__" + salt + encrypted), safe="")
