"""The real Codex and opencode edit a file and run a command with a model that plays its part."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from pagoda.config.server import ServerConfig
from pagoda.text.parsers.select import parser_for
from pagoda.text.template.chat import ChatTemplate
from tests.clients.agents import PATIENCE, Home, Turn, call, find_program, scripted, shell
from tests.server.conftest import RunningServer
from tests.server.fakes import FakeClient
from tests.unit.text.templates import QWEN_TOOLS

pytestmark = pytest.mark.timeout(2 * PATIENCE)

KEY = "sk-played"
ASK = "Write hello.txt and show it."
TOOLS = {
    "parser": parser_for(QWEN_TOOLS),
    "chat_template": ChatTemplate({"default": QWEN_TOOLS}, {}),
}
CONTEXT = {"max_model_len": 1_000_000}


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def play(start):
    """Start a server whose model writes the next of some turns after each result."""

    def play(*turns: Turn, **options: Any) -> RunningServer:
        return start(
            FakeClient(script=scripted(*turns), abilities=CONTEXT, **options),
            ServerConfig(api_key=(KEY,), disable_uvicorn_access_log=True),
            **TOOLS,
        )

    return play


def prompts(server: RunningServer) -> list[str]:
    return [bytes(r.prompt_token_ids).decode() for r in server.client.requests]


def routes(server: RunningServer) -> set[str]:
    """Those that were posted to."""
    told = server.http.get("/metrics").text
    return set(re.findall(r'http_requests_total{handler="([^"]+)",method="POST"', told))


def codex(home: Home, server: RunningServer, *provider: str, catalog: bool = False) -> str:
    """What `codex exec` printed."""
    program = find_program("codex")
    folder = home.user / ".codex"
    folder.mkdir()
    settings = ['model = "fake"', 'model_provider = "pagoda"']
    if catalog:
        listed = server.http.get("/v1/models", headers={"Authorization": f"Bearer {KEY}"}).json()
        (folder / "models.json").write_text(json.dumps({"models": listed["models"]}))
        settings.append(f"model_catalog_json = {json.dumps(str(folder / 'models.json'))}")
    settings += [
        "[model_providers.pagoda]", 'name = "Pagoda"', f'base_url = "{server.url}/v1"',
        'wire_api = "responses"', 'env_key = "PAGODA_KEY"', "request_max_retries = 0",
        "stream_max_retries = 0", *provider,
    ]  # fmt: skip
    (folder / "config.toml").write_text("\n".join(settings))
    return home.run(
        program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox",
        ASK, CODEX_HOME=str(folder), PAGODA_KEY=KEY,
    )  # fmt: skip


def test_codex_runs_commands(play, home: Home) -> None:
    """With nothing configured but the address, it does not know the model, and has a shell."""
    server = play(
        shell("echo hello from Pagoda > hello.txt"),
        shell("cat hello.txt"),
        "All done.",
    )
    assert "All done." in codex(home, server)
    assert (home.work / "hello.txt").read_text() == "hello from Pagoda\n"
    assert "hello from Pagoda" in prompts(server)[-1].rpartition("<tool_response>")[2]


PATCH = "*** Begin Patch\n*** Add File: hello.txt\n+hello from Pagoda\n*** End Patch\n"


@pytest.mark.parametrize("provider", [(), ("supports_websockets = true",)], ids=["http", "ws"])
def test_codex_applies_patches(play, home: Home, provider: tuple[str, ...]) -> None:
    """It knows the model from `models`, and offers apply_patch as a custom tool."""
    server = play(
        call("apply_patch", input=PATCH),
        shell("cat hello.txt"),
        "All done.",
    )
    printed = codex(home, server, *provider, catalog=True)
    assert "All done." in printed and "Falling back" not in printed
    assert "Model metadata" not in printed
    assert routes(server) == (set() if provider else {"/v1/responses"})
    assert (home.work / "hello.txt").read_text() == "hello from Pagoda\n"
    asked = prompts(server)[-1]
    assert "hello from Pagoda" in asked.rpartition("<tool_response>")[2]
    assert "You are a coding agent" in asked


class Slow(FakeClient):
    """Computes each prompt for longer than the program waits for an event."""

    async def _feed(self, *args: Any) -> None:
        await asyncio.sleep(7)
        await super()._feed(*args)


@pytest.mark.parametrize("provider", [(), ("supports_websockets = true",)], ids=["http", "ws"])
def test_codex_waits_for_a_long_prompt(start, home: Home, provider: tuple[str, ...]) -> None:
    """Its timer, shortened here, counts events alone."""
    config = ServerConfig(api_key=(KEY,), sse_keep_alive_interval=0.2)
    server = start(Slow(script=scripted("All done."), abilities=CONTEXT), config, **TOOLS)
    printed = codex(home, server, "stream_idle_timeout_ms = 3000", *provider)
    assert "All done." in printed and len(server.client.requests) <= 2


PROVIDERS = {
    "/v1/chat/completions": "@ai-sdk/openai-compatible",
    "/v1/responses": "@ai-sdk/openai",
    "/v1/messages": "@ai-sdk/anthropic",
}


@pytest.mark.parametrize("route", PROVIDERS)
def test_opencode_edits_files(play, home: Home, route: str) -> None:
    program = find_program("opencode")
    path = str(home.work / "hello.txt")
    server = play(
        call("write", filePath=path, content="hello from nobody\n"),
        call("edit", filePath=path, oldString="nobody", newString="Pagoda"),
        shell("cat hello.txt"),
        "All done.",
    )
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "permission": "allow",
        "model": "pagoda/fake",
        "provider": {
            "pagoda": {
                "npm": PROVIDERS[route],
                "options": {"baseURL": f"{server.url}/v1", "apiKey": KEY},
                "models": {"fake": {"limit": {"context": 100_000, "output": 4_000}}},
            }
        },
    }
    (home.work / "opencode.json").write_text(json.dumps(settings))
    printed = home.run(
        program, "run", ASK, OPENCODE_DISABLE_MODELS_FETCH="1", OPENCODE_DISABLE_LSP_DOWNLOAD="1"
    )
    assert "All done." in printed and routes(server) == {route}
    assert (home.work / "hello.txt").read_text() == "hello from Pagoda\n"
    results = [p.rpartition("<tool_response>")[2] for p in prompts(server)]
    assert any("hello from Pagoda" in result for result in results)
