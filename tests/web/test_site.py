"""What the server answers for the page, without a browser."""

import importlib.util
import re
import sys

import httpx
import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli import serve
from pagoda.cli.main import parse_command
from pagoda.config.server import ServerConfig
from pagoda.server import launch
from pagoda.web import site
from pagoda.web.files import Files
from pagoda.web.site import Site
from tests.server.conftest import RunningServer, running
from tests.server.fakes import REPLY, FakeClient


@pytest.fixture(scope="module")
def paged():
    if importlib.util.find_spec("nicegui") is None:
        pytest.skip("NiceGUI is not installed")
    with running(FakeClient(), ServerConfig(api_key=("sesame",)), Site) as server:
        yield server


def test_nicegui_stays_out_of_the_server(paged: RunningServer) -> None:
    assert paged.http.get("/health").status_code == 200
    assert "nicegui" not in sys.modules
    assert paged.http.get("/").status_code == 200
    assert "nicegui" not in sys.modules


def test_document_asks_only_its_own_server(paged: RunningServer) -> None:
    html = paged.http.get("/").text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert len(loaded) > 5
    for address in loaded:
        assert not re.match(r"(https?:)?//", address), address
        if not address.startswith("data:"):
            assert paged.http.get(f"/{address}").status_code == 200, address


def test_policy_allows_only_the_document_s_own_scripts(paged: RunningServer) -> None:
    first, second = paged.http.get("/"), paged.http.get("/")
    policies = [reply.headers["content-security-policy"] for reply in (first, second)]
    assert policies[0] != policies[1]
    for reply, policy in zip((first, second), policies, strict=True):
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'" and rules["frame-ancestors"] == "'none'"
        assert "unsafe" not in rules["script-src"]
        nonce = re.fullmatch(r"'self' 'nonce-([\w-]{16,})'", rules["script-src"])
        assert nonce is not None
        scripts = re.findall(r"<script[^>]*>", reply.text)
        assert scripts and all(f'nonce="{nonce[1]}"' in script for script in scripts)


def test_page_tells_nothing_of_the_server_without_a_key(paged: RunningServer) -> None:
    assert "fake" not in paged.http.get("/").text
    assert paged.http.get("/v1/models").status_code == 401
    key = {"Authorization": "Bearer sesame"}
    assert paged.http.get("/v1/models", headers=key).status_code == 200


@pytest.mark.parametrize(
    "path",
    [
        "/pages/chat/../site.py",
        "/pages/chat/%2e%2e/site.py",
        "/pages/chat/..%2f..%2fversion.py",
        "/pages/chat/",
        "/_nicegui/1/static/../nicegui.py",
        "/_nicegui/1/static/%2e%2e/nicegui.py",
        "/_nicegui/1/components/x.js",
        "/_nicegui_ws/socket.io/?EIO=4&transport=polling",
    ],
)
def test_nothing_else_is_served(paged: RunningServer, path: str) -> None:
    reply = paged.http.get(path, headers={"Origin": "https://elsewhere.example"})
    assert reply.status_code in (401, 404), reply.text


def test_files_are_checked_for_changes(paged: RunningServer) -> None:
    reply = paged.http.get("/pages/chat/main.js")
    assert reply.headers["content-type"].startswith("text/javascript")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"
    again = paged.http.get("/pages/chat/main.js", headers={"If-None-Match": reply.headers["etag"]})
    assert again.status_code == 304


def test_without_the_extra_the_page_says_how_to_get_it(start, monkeypatch) -> None:
    monkeypatch.setattr(site, "_package_folder", lambda name: None)
    server = start(FakeClient())
    reply = server.http.get("/")
    assert reply.status_code == 200
    assert "pip install 'pagoda-llm[web]'" in reply.text
    assert server.chat().json()["choices"][0]["message"]["content"] == REPLY


def test_a_page_that_cannot_be_made_leaves_the_api_alone(start, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(site, "_package_folder", lambda name: tmp_path)
    monkeypatch.setattr(site.sys, "executable", "/nonexistent/python")
    server = start(FakeClient())
    for _ in range(2):
        reply = server.http.get("/")
        assert reply.status_code == 500 and "log" in reply.text
    assert server.chat().status_code == 200


async def test_below_a_root_path() -> None:
    transport = httpx.ASGITransport(Site(None, "/llm"))  # type: ignore[arg-type]  # no API behind it
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        for path in ("/llm/pages/chat/main.js", "/pages/chat/main.js"):
            assert (await client.get(path)).status_code == 200


@pytest.fixture
def wrapped(monkeypatch):
    """What `pagoda serve` with these words puts in front of the API."""

    def run(line: str) -> object:
        wraps = []
        monkeypatch.setattr(launch, "run_server", lambda *args, wrap, **_: wraps.append(wrap) or 0)
        monkeypatch.setattr(serve, "setup_logging", lambda *args: None)
        _, args = parse_command("serve", line.split())
        assert serve.run(args) == 0
        return wraps[0]("the API")

    return run


def test_serve_puts_the_page_in_front_of_the_api(wrapped) -> None:
    assert isinstance(wrapped("./m"), Site)


@pytest.mark.parametrize("line", ["./m --no-webui", "-m ./m --no-ui", "./m --webui false"])
def test_serve_without_a_page(wrapped, line) -> None:
    assert wrapped(line) == "the API"


def test_serve_with_files_of_its_own(wrapped, tmp_path) -> None:
    assert isinstance(wrapped(f"./m --path {tmp_path}"), Files)
    with pytest.raises(ConfigError, match="is no folder"):
        wrapped(f"./m --path {tmp_path}/none")
