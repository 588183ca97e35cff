"""A certificate for 127.0.0.1 that nobody signed but itself."""

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest


def own_certificate(folder: Path) -> tuple[Path, ssl.SSLContext]:
    """(the certificate, a server's context with it)."""
    if shutil.which("openssl") is None:
        pytest.skip("the openssl program is missing")
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "ec"),
            *("-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return certificate, context
