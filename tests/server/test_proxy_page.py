"""The configurations of docs/proxy.md, in front of a server: streams, WebSockets, large bodies, and
clients that leave."""

import contextlib
import json
import os
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from pagoda.config.server import ServerConfig
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import FakeClient
from tests.server.served import free_port
from tests.server.test_listening import certificate

__all__ = ["certificate"]

PAGES = [Path(__file__).parents[2] / "docs" / name for name in ("proxy.md", "zh/proxy.md")]
NAME = "localhost"
SAID = "one two three"
"""Seconds between its tokens are long enough to see them come apart."""
DELAY = 0.05


def config(program: str) -> str:
    """The block of the page."""
    found = [re.findall(rf"```{program}\n(.*?)```", page.read_text(), re.DOTALL) for page in PAGES]
    assert found[0] == found[1]
    (block,) = found[0]
    return block.replace("llm.example", NAME)


def binary(name: str) -> str:
    path = shutil.which(name, path=f"{os.environ.get('PATH')}:/usr/sbin:/usr/local/sbin")
    if path is None:
        pytest.skip(f"{name} is not installed (on Debian: apt install {name})")
    return path


def nginx(folder: Path, behind: int, port: int, cert: Path, key: Path) -> list[str]:
    text = config("nginx")
    for old, new in (
        ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
        ("listen 80", f"listen 127.0.0.1:{free_port()}"),
        ("127.0.0.1:8000", f"127.0.0.1:{behind}"),
        (f"/etc/letsencrypt/live/{NAME}/fullchain.pem", str(cert)),
        (f"/etc/letsencrypt/live/{NAME}/privkey.pem", str(key)),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    (folder / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {folder}/pid; error_log {folder}/log;"
        f"events {{}} http {{ access_log off; {temporary}\n{text}}}"
    )
    path = str(folder / "nginx.conf")
    return [binary("nginx"), "-p", str(folder), "-c", path, "-e", str(folder / "log")]


def caddy(folder: Path, behind: int, port: int, cert: Path, key: Path) -> list[str]:
    text = config("caddy").replace("127.0.0.1:8000", f"127.0.0.1:{behind}")
    head = "{\nadmin off\nauto_https disable_redirects\n}\n"
    site = f"https://{NAME}:{port} {{\ntls {cert} {key}"
    path = folder / "Caddyfile"
    path.write_text(head + text.replace(f"{NAME} {{", site, 1))
    return [binary("caddy"), "run", "--config", str(path), "--adapter", "caddyfile"]


@pytest.fixture(params=[nginx, caddy])
def proxied(
    request: Any, tmp_path: Path, start: Callable[..., RunningServer], certificate: Any
) -> Iterator[tuple[RunningServer, httpx.Client, int]]:
    """A server, a client of the proxy in front of it, and that one's port."""
    client = FakeClient(script=lambda _: SAID.encode(), delay=DELAY)
    server = start(client, ServerConfig(allowed_hosts=(NAME,)))
    port = free_port()
    command = request.param(tmp_path, server.address[1], port, *certificate)
    process = subprocess.Popen(
        command, env={**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)},
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    context = ssl.create_default_context(cafile=certificate[0])
    try:
        with httpx.Client(
            base_url=f"https://{NAME}:{port}", verify=context, trust_env=False, timeout=30
        ) as http:
            wait_until(lambda: process.poll() is not None or answers(http))
            assert process.poll() is None
            yield server, http, port
    finally:
        process.terminate()
        process.wait()


def answers(http: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return http.get("/health/live").status_code == 200
    return False


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], **fields}


def test_through_the_proxy(proxied: Any, certificate: Any) -> None:
    """In one test, for each proxy takes a second to start."""
    server, http, port = proxied
    another = http.get("/v1/models", headers={"Host": "other.example"})
    assert another.status_code == 403 or not another.content  # Caddy knows its own name alone
    tokens_come_apart(http)
    sockets_pass(port, certificate[0])
    bodies_have_the_servers_limit(server, http)
    who_leaves_ends_the_request(server, http)


def tokens_come_apart(http: httpx.Client) -> None:
    times, text = [], ""
    with http.stream("POST", "/v1/chat/completions", json=body(stream=True)) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                delta = json.loads(line[6:])["choices"][0]["delta"]
                if delta.get("content"):
                    times.append(time.monotonic())
                    text += delta["content"]
    assert text == SAID
    assert len(times) > 5
    assert times[-1] - times[0] > 0.7 * DELAY * (len(SAID) - 1)


def sockets_pass(port: int, cert: Path) -> None:
    url = f"wss://{NAME}:{port}/v1/responses"
    with connect(
        url, ssl=ssl.create_default_context(cafile=cert), open_timeout=30, proxy=None
    ) as socket:
        socket.send(json.dumps({"type": "response.create", "model": "fake", "input": "hi"}))
        kinds = []
        while "response.completed" not in kinds:
            kinds.append(json.loads(socket.recv(30))["type"])
    assert kinds.count("response.output_text.delta") > 5


def bodies_have_the_servers_limit(server: RunningServer, http: httpx.Client) -> None:
    before = len(server.client.requests)
    large = http.post("/v1/chat/completions", json=body(user="x" * (4 << 20)))
    assert large.status_code == 200
    assert len(server.client.requests) == before + 1
    with contextlib.suppress(httpx.TransportError):  # it may hang up before all is sent
        too_large = http.post("/v1/chat/completions", json=body(user="x" * (33 << 20)))
        assert too_large.status_code == 413
    assert len(server.client.requests) == before + 1


def who_leaves_ends_the_request(server: RunningServer, http: httpx.Client) -> None:
    aborted = len(server.client.aborted)
    server.client.script = lambda _: b"x" * 2000
    with http.stream("POST", "/v1/chat/completions", json=body(stream=True)) as reply:
        assert reply.status_code == 200, reply.read()
        lines = reply.iter_lines()  # to let go of it is to leave
        next(lines)
        assert server.client.num_running == 1
    wait_until(lambda: len(server.client.aborted) == aborted + 1, seconds=10)
    assert server.client.num_running == 0
