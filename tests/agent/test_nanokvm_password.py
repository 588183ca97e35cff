"""The password's form on the wire, against openssl's own."""

import base64
import shutil
import subprocess
from urllib.parse import unquote

import pytest

from pagoda_agent.drivers.nanokvm.password import obfuscated

PASSPHRASE = "nanokvm-sipeed-2024"


def openssl(*arguments: str, stdin: bytes) -> bytes:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    return subprocess.run(
        ["openssl", "enc", "-aes-256-cbc", "-md", "md5", "-base64", "-A", "-pass",
         f"pass:{PASSPHRASE}", *arguments],
        input=stdin, capture_output=True, check=True,
    ).stdout  # fmt: skip


def test_known_answer():
    assert (
        obfuscated("admin", bytes(range(8))) == "U2FsdGVkX18AAQIDBAUGB7RQW%2Bo4DxJ1XwZq5sFeCig%3D"
    )


@pytest.mark.parametrize(
    "password", ["", "a", "fifteen letters", "sixteen letters.", "pä$$ wörd 中 €" * 9, "x" * 500]
)
def test_openssl_reads_what_was_written(password):
    form = obfuscated(password)
    assert "+" not in form and "/" not in form and "=" not in form
    assert openssl("-d", stdin=unquote(form).encode()).decode() == password


def test_openssl_writes_the_same():
    salt = bytes.fromhex("8877665544332211")
    # With a salt given, openssl leaves the header out.
    written = openssl("-S", salt.hex(), stdin="pä$$".encode())
    body = base64.b64decode(unquote(obfuscated("pä$$", salt)))
    assert body[:16] == b"Salted__" + salt
    assert base64.b64decode(written).removeprefix(b"Salted__" + salt) == body[16:]


def test_salts_differ():
    assert obfuscated("admin") != obfuscated("admin")
