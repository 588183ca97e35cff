"""Unix sockets and TLS."""

import shutil
import signal
import ssl
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagoda.base.errors import ConfigError
from pagoda.config.server import ServerConfig
from pagoda.server.http.listen import listen_unix
from pagoda.server.http.tls import tls_context
from tests.server.conftest import wait_until

BODY = {"messages": [{"role": "user", "content": "hi"}], "stream": True}


@pytest.fixture
def unix() -> Iterator[Path]:
    """A path short enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="pagoda-") as folder:
        yield Path(folder) / "own" / "s"


def test_unix_socket(launch, unix: Path) -> None:
    served = launch(f"--uds={unix}")
    served.wait_ready()
    assert f"Ready: fake at unix:{unix}, /v1 (this user only)" in served.log
    assert unix.stat().st_mode & 0o777 == 0o600
    assert unix.parent.stat().st_mode & 0o777 == 0o700
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(unix)), base_url="http://any") as http:
        assert http.get("/health").status_code == 200
        text = http.post("/v1/chat/completions", json=BODY).text
        assert text.endswith("data: [DONE]\n\n")
    wait_until(lambda: '"POST /v1/chat/completions HTTP/1.1" 200' in served.log)
    assert '- "GET /health' not in served.log  # probes are no news
    second = launch(f"--uds={unix}")
    assert second.exit_code() == 1
    assert f"A server listens on {unix}" in second.log
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code() == 0
    assert not unix.exists()


def test_unix_socket_that_nobody_listens_on_is_replaced(unix: Path) -> None:
    unix.parent.mkdir()
    for _ in range(2):
        with listen_unix(str(unix)) as listener:
            assert listener.getsockname() == str(unix)


def test_unix_socket_does_not_replace_a_file(unix: Path) -> None:
    unix.parent.mkdir()
    unix.write_text("mine")
    with pytest.raises(ConfigError, match="is no socket"):
        listen_unix(str(unix))
    assert unix.read_text() == "mine"
    with pytest.raises(ConfigError, match="--uds"):
        listen_unix(str(unix.parent / ("x" * 200)))


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", str(key), "-out", str(cert)],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


def test_tls(launch, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    served = launch(f"--ssl-certfile={cert}", f"--ssl-keyfile={key}", "--root-path=llm/")
    served.wait_ready()
    url = served.url.replace("http", "https")
    assert f"Ready: fake at {url}/llm/v1 (this machine only" in served.log
    trust = ssl.create_default_context(cafile=str(cert))
    with httpx.Client(base_url=url, verify=trust, timeout=20) as http:
        assert http.get("/v1/models").json()["data"]
        stream = http.post("/llm/v1/chat/completions", json=BODY).text
        assert stream.endswith("data: [DONE]\n\n")
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{served.url}/health")


def test_tls_with_certificates_of_clients(launch, certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    served = launch(f"--ssl-cert-file={cert}", f"--ssl-key-file={key}",
                   f"--ssl-ca-certs={cert}", "--ssl-cert-reqs=2")  # fmt: skip
    served.wait_ready()
    url = served.url.replace("http", "https")
    trust = ssl.create_default_context(cafile=str(cert))
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"{url}/health", verify=trust)
    trust.load_cert_chain(cert, key)
    assert httpx.get(f"{url}/health", verify=trust).status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"ssl_keyfile": "k"},
        {"ssl_cert_reqs": 2},
        {"ssl_certfile": "/nowhere"},
        {"ssl_certfile": __file__},
    ],
)
def test_tls_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="--ssl-certfile"):
        tls_context(ServerConfig(**fields))
