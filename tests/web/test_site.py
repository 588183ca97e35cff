"""What the server answers for the page, without a browser."""

import re
from pathlib import Path

import httpx
import pytest

import pagoda.web
from pagoda.base.errors import ConfigError
from pagoda.cli import serve
from pagoda.cli.main import parse_command
from pagoda.config.server import ServerConfig
from pagoda.server import launch
from pagoda.web.files import Files
from pagoda.web.site import Site
from tests.server.conftest import RunningServer, running
from tests.server.fakes import FakeClient


@pytest.fixture(scope="module")
def paged():
    with running(FakeClient(), ServerConfig(api_key=("sesame",)), Site) as server:
        yield server


def test_document_asks_only_its_own_server(paged: RunningServer) -> None:
    html = paged.http.get("/").text
    loaded = re.findall(r'(?:src|href)="([^"]+)"', html)
    assert len(loaded) > 5
    for address in loaded:
        assert not re.match(r"(https?:)?//", address), address
        assert paged.http.get(f"/{address}").status_code == 200, address


def test_modules_are_asked_for_at_once(paged: RunningServer) -> None:
    """Not one after the other, as they import each other."""
    html = paged.http.get("/").text
    preloaded = re.findall(r'rel="modulepreload" href="pages/chat/([^"]+)"', html)
    modules, left = set(), ["main.js"]
    while left:
        if (module := left.pop()) not in modules:
            modules.add(module)
            text = paged.http.get(f"/pages/chat/{module}").text
            left += re.findall(r'^(?:import|\}|export) .*?"\./([^"]+)";$', text, re.MULTILINE)
            left += re.findall(r'^import "\./([^"]+)";$', text, re.MULTILINE)
    assert sorted(preloaded) == sorted(modules - {"main.js"})


def test_the_page_is_light() -> None:
    assets = Path(pagoda.web.__file__).parent / "assets"
    assert sum(file.stat().st_size for file in assets.iterdir()) < 300_000


@pytest.mark.parametrize("name", ["chat_words.js", "tool_words.js", "agent_words.js"])
def test_both_languages_say_the_same_things(name: str) -> None:
    text = (Path(pagoda.web.__file__).parent / "assets" / name).read_text()
    english, chinese = text.split("const CHINESE")
    entry = re.compile(r'^ {2}(\w+):\s+"(.*)",$', re.MULTILINE)
    told = {key: set(re.findall(r"{\w+}", words)) for key, words in entry.findall(english)}
    assert len(told) > 10
    assert {key: set(re.findall(r"{\w+}", words)) for key, words in entry.findall(chinese)} == told


def test_policy_allows_only_the_document_s_own_scripts(paged: RunningServer) -> None:
    for path in ("/", "/pages/chat/index.html", "/pages/chat/icon.svg"):
        policy = paged.http.get(path).headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == "'none'" and rules["frame-ancestors"] == "'none'"
        assert rules["script-src"] == rules["style-src"] == rules["connect-src"] == "'self'"
    # So none may stand in the document itself.
    html = paged.http.get("/").text
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", html, re.DOTALL)
    assert scripts and all(" src=" in words and not text for words, text in scripts)
    assert "<style" not in html and not re.search(r"<[^>]+ (style|on\w+)=", html)


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
        "/pages/chatter/main.js",
    ],
)
def test_nothing_else_is_served(paged: RunningServer, path: str) -> None:
    reply = paged.http.get(path, headers={"Origin": "https://elsewhere.example"})
    assert reply.status_code in (401, 404), reply.text


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html; charset=utf-8"), ("/pages/chat/main.js", "text/javascript")],
)
def test_files_are_checked_for_changes(paged: RunningServer, path: str, kind: str) -> None:
    reply = paged.http.get(path)
    assert reply.headers["content-type"].startswith(kind)
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-content-type-options"] == "nosniff"
    again = paged.http.get(path, headers={"If-None-Match": reply.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["content-security-policy"] == reply.headers["content-security-policy"]
    head = paged.http.head(path)
    assert head.headers["content-length"] == str(len(reply.content)) and not head.content
    assert paged.http.post(path).status_code == 405


async def test_below_a_root_path() -> None:
    transport = httpx.ASGITransport(Site(None, "/llm"))  # type: ignore[arg-type]  # no API behind it
    async with httpx.AsyncClient(transport=transport, base_url="http://page") as client:
        for path in ("/llm/", "/", "/llm/pages/chat/main.js", "/pages/chat/main.js"):
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
