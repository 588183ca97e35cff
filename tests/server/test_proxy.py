"""nginx in front of the server: both see the same requests, so that none hides in another."""

import asyncio
import contextlib
import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import wait_until
from tests.server.fakes import FakeClient
from tests.server.served import free_port
from tests.server.test_framing import CASES, Recorder

NGINX = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
pytestmark = pytest.mark.skipif(
    NGINX is None, reason="nginx is not installed (on Debian: apt install nginx-light)"
)
# Both know the client's port, so that all cases run at once.
CLIENT = b"x-client-port"
CONFIG = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  log_format seen escape=json
    '{{"client": "$remote_port", "method": "$request_method", "target": "$request_uri",'
    ' "body": "$request_body", "status": "$upstream_status"}}';
  access_log {folder}/access.log seen;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  client_header_timeout 1s; client_body_timeout 1s; keepalive_timeout 1s;
  upstream pagoda {{ server 127.0.0.1:{behind}; keepalive 4; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://pagoda; proxy_http_version 1.1; proxy_request_buffering {buffering};
      proxy_set_header Connection ""; proxy_set_header X-Client-Port $remote_port;
      proxy_set_header Host $host;
    }}
  }}
}}
"""


class ByClient(Recorder):
    """Notes from whom a request came, as nginx says."""

    def note(self, scope: Any, body: bytes) -> None:
        client = dict(scope["headers"]).get(CLIENT, b"nobody").decode()
        self.requests.append(
            (client, scope["method"], scope["raw_path"].decode(), body.decode("latin-1"))
        )

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, ...]] = []


@contextlib.contextmanager
def nginx(folder: Path, behind: int, buffering: str) -> Iterator[int]:
    """Its port."""
    assert NGINX is not None
    port = free_port()
    config, log = folder / "nginx.conf", folder / "error.log"
    config.write_text(CONFIG.format(folder=folder, behind=behind, port=port, buffering=buffering))
    process = subprocess.Popen([NGINX, "-p", folder, "-c", config, "-e", log])
    try:
        wait_until(lambda: process.poll() is not None or (folder / "pid").exists())
        assert process.poll() is None, log.read_text()
        yield port
    finally:
        process.terminate()
        process.wait()


async def send_all(port: int) -> None:
    async def send(data: bytes) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        await reader.read()  # until nginx closes it
        writer.close()

    await asyncio.gather(*(send(case.data) for case in CASES.values()), return_exceptions=True)


@pytest.mark.parametrize("buffering", ["on", "off"])
def test_nginx_and_the_server_see_the_same_requests(
    start: Any, tmp_path: Path, buffering: str
) -> None:
    """Whether nginx reads a body first or passes it on as it comes."""
    ours = ByClient()
    server = start(FakeClient(), wrap=lambda app: ours)
    with nginx(tmp_path, server.address[1], buffering) as port:
        asyncio.run(send_all(port))
    lines = (tmp_path / "access.log").read_text("latin-1").splitlines()
    entries = [json.loads(line) for line in lines]
    # nginx has the bodies only where it reads them first.
    names = ("client", "method", "target", "body")[: 4 if buffering == "on" else 3]
    theirs = [tuple(e[name] for name in names) for e in entries if e["status"] == "200"]
    assert len(theirs) > 30
    assert Counter(request[: len(names)] for request in ours.requests) == Counter(theirs)
