"""`pagoda launch` with the real Codex and opencode: one edit, by a model that plays its part."""

import os
import sys
from pathlib import Path

import pytest

from pagoda.config.server import ServerConfig
from tests.clients.agents import PATIENCE, Home, call, find_program, scripted, shell
from tests.clients.test_agents import ASK, CONTEXT, KEY, PATCH, TOOLS
from tests.server.fakes import FakeClient

pytestmark = pytest.mark.timeout(2 * PATIENCE)

WORDS = {
    "codex": (
        "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", ASK,
    ),
    "opencode": ("run", ASK),
}  # fmt: skip
# What says how a program of no network behaves; all else is the launcher's.
QUIET = {
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
}
# (opencode itself adds a missing $schema.)
OWN = {
    ".codex/config.toml": '# mine\nmodel = "nobody"\nmodel_provider = "nobody"\n'
    '[model_providers.nobody]\nname = "Nobody"\nbase_url = "http://127.0.0.1:9/v1"\n',
    ".config/opencode/opencode.jsonc": '{\n  // mine\n  "$schema": '
    '"https://opencode.ai/config.json",\n  "model": "nobody/none",\n}\n',
}


@pytest.mark.parametrize("name", WORDS)
def test_one_edit(name: str, start, tmp_path: Path) -> None:
    program = find_program(name)
    home = Home(tmp_path)
    for path, text in OWN.items():
        (home.user / path).parent.mkdir(parents=True, exist_ok=True)
        (home.user / path).write_text(text)
    path = str(home.work / "hello.txt")
    edit = {
        "codex": call("apply_patch", input=PATCH),
        "opencode": call("write", filePath=path, content="hello from Pagoda\n"),
    }
    script = scripted(edit[name], shell("cat hello.txt"), "All done.")
    config = ServerConfig(api_key=(KEY,), disable_uvicorn_access_log=True)
    server = start(FakeClient(script=script, abilities=CONTEXT), config, **TOOLS)
    printed = home.run(
        sys.executable, "-m", "pagoda", "launch", name, "--base-url", server.url,
        "--", *WORDS[name],
        PATH=f"{Path(program).parent}{os.pathsep}{os.environ['PATH']}", PAGODA_API_KEY=KEY, **QUIET,
    )  # fmt: skip
    assert f"is set up with fake at {server.url}/v1." in printed and "All done." in printed
    assert Path(path).read_text() == "hello from Pagoda\n"
    assert all((home.user / path).read_text() == text for path, text in OWN.items())
