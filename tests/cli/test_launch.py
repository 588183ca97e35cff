"""`pagoda launch`: what it writes and runs, with a program that only takes notes. The real ones are
in tests/clients."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pagoda.base import runfile
from pagoda.cli.clients import server
from pagoda.cli.clients.client import Setup, Target
from pagoda.cli.clients.program import run_program
from pagoda.cli.clients.registry import CLIENTS
from pagoda.cli.main import main
from tests.server.served import free_port

NOTES = """#!{python}
import json, os, sys
with open({notes!r}, "w") as file:
    json.dump({{"argv": sys.argv[1:], "env": dict(os.environ)}}, file)
sys.exit(7)
"""
# What users have, with comments and keys that are nobody's business.
OWN = {
    ".codex/config.toml": '# mine\nmodel = "gpt-5.5"  # keep\n[profiles.work]\nmodel = "o9"\n',
    ".config/opencode/opencode.jsonc": '{\n  // mine\n  "model": "anthropic/opus",\n}\n',
    ".claude/settings.json": '{"env": {"ANTHROPIC_BASE_URL": "http://gateway.invalid"}}',
    ".cline/data/settings/providers.json": '{"lastUsedProvider": "cline",\r\n "providers": {}}',
    ".aider.conf.yml": "# mine\nmodel: sonnet\n",
    ".copilot/config.json": '{"model": "gpt-5.5"}  \n',
}


class Home:
    def __init__(self, folder: Path):
        self.folder = folder
        self.notes = folder.parent / "notes.json"
        self.programs = folder.parent / "programs"
        self.programs.mkdir()
        for name, text in OWN.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())

    def install(self, name: str) -> None:
        program = self.programs / name
        program.write_text(NOTES.format(python=sys.executable, notes=str(self.notes)))
        program.chmod(0o755)

    def files(self) -> dict[str, bytes]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found}

    @property
    def noted(self):
        return json.loads(self.notes.read_text())


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = Home(tmp_path / "home")
    monkeypatch.setenv("HOME", str(home.folder))
    monkeypatch.setenv("PATH", str(home.programs))
    for name in ("XDG_CONFIG_HOME", "OPENCODE_CONFIG_CONTENT"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.mark.parametrize("name", CLIENTS)
def test_nothing_of_the_user_is_touched(name, home, fake_server, capsys):
    client = CLIENTS[name]
    home.install(client.program)
    before = home.files()
    for _ in range(2):
        line = ["launch", name, "--base-url", fake_server.url, "--", "--do", "it = 1", "--print"]
        assert main(line) == 7
    assert home.noted["argv"][-3:] == ["--do", "it = 1", "--print"]
    added = {path for path in home.files() if path not in before}
    folder = Path(".config/pagoda/launch") / name
    assert added == {str(folder / file) for file in client.files} - CATALOG_ONLY
    for path in added:
        assert (home.folder / path).stat().st_mode & 0o077 == 0
    assert main(["launch", name, "--undo"]) == 0
    assert home.files() == before and not (home.folder / ".config/pagoda").exists()
    assert main(["launch", name, "--undo"]) == 0
    assert f"Nothing was written for {client.title}" in capsys.readouterr().out


# The stand-in for a server does not describe its models as Codex wants it.
CATALOG_ONLY = {".config/pagoda/launch/codex/models.json"}


@pytest.mark.parametrize("name", CLIENTS)
def test_a_program_that_is_not_installed(name, home, capsys):
    before = home.files()
    assert main(["launch", name, "--port", "9"]) == 1
    error = capsys.readouterr().err
    assert f"`{CLIENTS[name].install}` installs it" in error and len(error.splitlines()) == 1
    assert home.files() == before and not Path(os.environ["PAGODA_CACHE"]).exists()


@pytest.mark.parametrize("name", CLIENTS)
def test_print_does_nothing(name, home, fake_server, capsys):
    home.install(CLIENTS[name].program)
    before = home.files()
    fake_server.api_key = "sk-secret"
    where = ["--base-url", fake_server.url, "--api-key", "sk-secret"]
    assert main(["launch", name, *where, "--print", "--", "-x"]) == 0
    printed = capsys.readouterr().out
    assert fake_server.url in printed and "fake-model" in printed and printed.count(" -x\n") == 1
    assert "sk-secret" not in printed and "$PAGODA_API_KEY" in printed
    assert home.files() == before and not home.notes.exists()


@pytest.mark.parametrize("name", CLIENTS)
def test_a_shell_runs_what_is_printed(name, home, fake_server, monkeypatch, capsys):
    client = CLIENTS[name]
    home.install(client.program)
    fake_server.api_key = "sk-secret"
    monkeypatch.setenv("PAGODA_API_KEY", "sk-secret")
    line = ["launch", name, "--base-url", fake_server.url, "--", "a b", "it's"]
    assert main(line) == 7
    launched = home.noted
    main([*line[:-3], "--print", *line[-3:]])
    command = capsys.readouterr().out.partition("# The command:\n")[2].partition("\n\n")[0]
    assert subprocess.run(["/bin/sh", "-c", command]).returncode == 7
    assert home.noted["argv"] == launched["argv"]
    own = launched["env"].items() - os.environ.items()
    assert own <= home.noted["env"].items()


def test_print_without_a_server_says_which_would_be_started(home, capsys):
    assert main(["launch", "claude", "--port", "9", "--model", "hf:a/B-GGUF:Q8_0", "--print"]) == 0
    printed = capsys.readouterr().out
    assert "pagoda serve hf:a/B-GGUF:Q8_0 --port 9 --max-model-len auto" in printed
    assert "ANTHROPIC_MODEL=claude-B-GGUF-Q8_0" in printed
    assert CLIENTS["claude"].install in printed


def test_the_docs_know_every_program():
    text = (Path(__file__).parents[2] / "docs" / "launch.md").read_text()
    for name, client in CLIENTS.items():
        assert f"| `{name}` | {client.title}" in text or f"| `{name}` | GitHub" in text
        assert f"`{client.install}`" in text
        assert all(f"`{file}`" in text for file in client.files)
        assert f" {client.prompt_tokens:,}" in text
    assert "https://" not in text


def setup_of(name, **changes) -> Setup:
    facts = {"context": 100_000, "api_key": "sk-1"} | changes
    target = Target("http://127.0.0.1:9", "some-model", Path("/own"), **facts)
    return CLIENTS[name].configure(target)


def test_codex_gets_overrides_that_are_toml():
    import tomllib

    setup = setup_of("codex", catalog=({"slug": "some-model"},))
    assert set(setup.words[::2]) == {"-c"}
    read = {}
    for word in setup.words[1::2]:
        read |= tomllib.loads(word)
    assert read["model"] == "some-model" and read["model_context_window"] == 100_000
    provider = read["model_providers"]["pagoda"]
    assert provider["base_url"] == "http://127.0.0.1:9/v1" and provider["wire_api"] == "responses"
    assert setup.environment == {provider["env_key"]: "sk-1"}
    assert read["model_catalog_json"] == "/own/models.json"
    assert json.loads(setup.files["models.json"]) == {"models": [{"slug": "some-model"}]}
    assert "env_key" not in str(setup_of("codex", api_key=None).words)


def test_opencode_keeps_the_settings_of_its_variable(monkeypatch):
    own = {"theme": "mine", "model": "a/b", "provider": {"a": {"npm": "x"}}}
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", json.dumps(own))
    config = json.loads(setup_of("opencode", sees=True).environment["OPENCODE_CONFIG_CONTENT"])
    assert config["theme"] == "mine" and config["provider"]["a"] == {"npm": "x"}
    assert config["model"] == config["small_model"] == "pagoda/some-model"
    pagoda = config["provider"]["pagoda"]
    assert pagoda["options"] == {"baseURL": "http://127.0.0.1:9/v1", "apiKey": "sk-1"}
    model = pagoda["models"]["some-model"]
    assert model["limit"] == {"context": 100_000, "output": 25_000}
    assert model["modalities"]["input"] == ["text", "image"]


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_opencode_with_a_broken_variable(text, home, fake_server, monkeypatch, capsys):
    home.install("opencode")
    monkeypatch.setenv("OPENCODE_CONFIG_CONTENT", text)
    assert main(["launch", "opencode", "--base-url", fake_server.url]) == 1
    assert "unset it, or mend it" in capsys.readouterr().err and not home.notes.exists()


def test_claude_settings_win_over_the_users_own():
    setup = setup_of("claude")
    assert setup.words == ("--settings", "/own/settings.json")
    environment = json.loads(setup.files["settings.json"])["env"]
    assert environment == setup.environment
    assert environment["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:9"
    assert environment["ANTHROPIC_AUTH_TOKEN"] == "sk-1"
    assert environment["ANTHROPIC_API_KEY"] == ""
    assert environment["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "some-model"


def test_aider_knows_the_length_of_the_context():
    setup = setup_of("aider")
    assert setup.words[:4] == (
        "--model", "openai/some-model", "--openai-api-base", "http://127.0.0.1:9/v1",
    )  # fmt: skip
    described = json.loads(setup.files["model-metadata.json"])["openai/some-model"]
    assert described["max_input_tokens"] == 100_000
    assert setup.environment == {"AIDER_OPENAI_API_KEY": "sk-1"}
    assert not setup_of("aider", context=None).files


def test_copilot_leaves_room_for_replies():
    environment = setup_of("copilot").environment
    assert environment["COPILOT_PROVIDER_MAX_PROMPT_TOKENS"] == "75000"
    assert environment["COPILOT_PROVIDER_MAX_OUTPUT_TOKENS"] == "25000"
    assert environment["COPILOT_PROVIDER_BASE_URL"] == "http://127.0.0.1:9/v1"


@pytest.mark.parametrize("name", ["cline", "copilot"])
def test_editors_are_told_what_to_type(name):
    target = Target("http://127.0.0.1:9", "some-model", Path("/own"), context=8192)
    told = CLIENTS[name].editor(target)
    assert "http://127.0.0.1:9/v1" in told and "some-model" in told and "VS Code" in told


def test_a_short_context_is_told(home, fake_server, capsys):
    home.install("claude")
    main(["launch", "claude", "--base-url", fake_server.url])
    assert "fake-model reads 4,096 tokens, and Claude Code sends" in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "starts"), [("y\n", True), ("\n", False), ("", False)])
def test_a_terminal_is_asked_about_a_short_context(typed, starts, home, fake_server, monkeypatch):
    home.install("claude")
    keyboard = io.StringIO(typed)
    monkeypatch.setattr(keyboard, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", keyboard)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    main(["launch", "claude", "--base-url", fake_server.url])
    assert home.notes.exists() == starts


def test_a_name_without_an_address_is_told(home, capsys):
    home.install("codex")
    assert main(["launch", "codex", "--base-url", "http://gpu-box.invalid:8000"]) == 1
    assert "'gpu-box.invalid' leads to no address here" in capsys.readouterr().err


def test_claude_gets_the_name_that_it_lists():
    cards = [{"id": "small", "root": "hub/small"}, {"id": "other"}]
    cards.append({"id": "claude-small", "root": "hub/small"})
    models = server.Models("http://127.0.0.1:9", tuple(cards), ())
    for asked in (None, "small", "hub/small"):
        assert models.choose(asked, "claude")["id"] == "claude-small"
    assert models.choose("other", "claude")["id"] == "other"
    assert models.choose("hub/small")["id"] == "small"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "other"], "no model 'other'; its models: fake-model"),
        (["--port", "7"], "--base-url and --port both say where"),
    ],
)
def test_what_does_not_fit_the_server(words, said, home, fake_server, capsys):
    home.install("codex")
    assert main(["launch", "codex", "--base-url", fake_server.url, *words]) == 1
    assert said in capsys.readouterr().err and not home.notes.exists()


def test_a_server_that_wants_a_key(home, fake_server, monkeypatch, capsys):
    home.install("aider")
    fake_server.api_key = "sk-secret"
    where = ["launch", "aider", "--base-url", fake_server.url]
    assert main(where) == 1
    assert "give it with --api-key" in capsys.readouterr().err
    monkeypatch.setenv("PAGODA_API_KEY", "sk-secret")
    assert main(where) == 7
    assert home.noted["env"]["AIDER_OPENAI_API_KEY"] == "sk-secret"


def test_a_server_that_is_none(home, capsys):
    home.install("codex")
    assert main(["launch", "codex", "--base-url", "http://127.0.0.1:9/v1"]) == 1
    assert "Nothing answers at http://127.0.0.1:9;" in capsys.readouterr().err
    assert main(["launch", "codex", "--base-url", "http://"]) == 1
    assert "is no address" in capsys.readouterr().err


STUB = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
words = sys.argv[1:]
if "broken" in words:
    sys.exit("pagoda serve: There is no model 'broken'.")
names = words[words.index("--served-model-name") + 1:]
asked = 0
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        body = {"error": {"message": f"The model is still loading (phase: {asked})."}}
        if asked > 2:
            body = {"data": [{"id": name, "root": words[1]} for name in names]}
        data = json.dumps(body).encode()
        self.send_response(200 if asked > 2 else 503)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
HTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def port():
    return free_port()


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """In the place of `pagoda serve`: one that takes a while to load. The processes started."""
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    started = []

    def popen(command, **options):
        place = command.index("pagoda")
        started.append(real([*command[: place - 1], str(script), *command[place + 1 :]], **options))
        return started[-1]

    real = server.subprocess.Popen
    monkeypatch.setattr(server, "_popen", popen)
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_server_is_started_and_found_again(home, stub, port, capsys):
    home.install("claude")
    line = ["launch", "claude", "--port", str(port), "--model", "models/some.gguf"]
    assert main(line) == 7
    error = capsys.readouterr().err
    assert f"Starting a server for models/some.gguf on port {port}" in error
    assert "still loading (phase: 1)" in error
    assert f"`pagoda stop {port}` ends it" in error
    assert home.noted["env"]["ANTHROPIC_MODEL"] == "claude-some"
    assert main(line) == 7 and len(stub) == 1 and stub[0].poll() is None
    assert "ends it" not in capsys.readouterr().err


def test_a_server_on_another_port_is_found(home, fake_server, capsys):
    home.install("copilot")
    port = int(fake_server.url.rpartition(":")[2])
    runfile.register(port)
    runfile.register(9)  # of this process, too, and nothing listens there
    assert [server.port for server in runfile.running()] == [9, port]
    for words in ([], ["--model", "org/fake"]):
        assert main(["launch", "copilot", *words]) == 7
        assert home.noted["env"]["COPILOT_PROVIDER_BASE_URL"] == f"{fake_server.url}/v1"
    capsys.readouterr()
    assert main(["launch", "copilot", "--model", "other", "--print"]) == 0
    assert "pagoda serve other --port 8000" in capsys.readouterr().out


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http", "²"])
def test_what_is_no_port(port, home, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["launch", "codex", "--port", port])
    assert ended.value.code == 2 and "port" in capsys.readouterr().err


def test_a_server_that_does_not_start(home, stub, port, capsys):
    home.install("codex")
    assert main(["launch", "codex", "--port", str(port), "--model", "broken"]) == 1
    error = capsys.readouterr().err
    assert "The server did not start" in error and "There is no model 'broken'" in error
    assert str(server.log_file(port)) in error and not home.notes.exists()


def test_ctrl_c_while_it_loads_ends_what_was_started(home, stub, port, monkeypatch):
    home.install("codex")

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(server.time, "sleep", interrupted)
    assert main(["launch", "codex", "--port", str(port)]) == 130
    assert stub[0].poll() is not None and not home.notes.exists()


SIGNALS = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
os.kill(os.getppid(), signal.{number})
if signal.{number} == signal.SIGTERM:
    time.sleep(60)
sys.exit(5)
"""


@pytest.mark.parametrize(("number", "status"), [("SIGINT", 5), ("SIGTERM", 9)])
def test_signals_are_the_programs(number, status):
    """Ctrl-C is for the program alone; what ends the launcher ends the program."""
    before = signal.getsignal(signal.SIGINT)
    words = [sys.executable, "-c", SIGNALS.format(number=number)]
    assert run_program(words, Setup()) == status
    assert signal.getsignal(signal.SIGINT) is before


def test_a_program_that_a_signal_ended():
    words = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
    assert run_program(words, Setup()) == 128 + signal.SIGKILL
