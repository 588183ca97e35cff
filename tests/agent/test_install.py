"""What a driver lacks: said alike everywhere, and installed on request and in no other case."""

import asyncio
import json
import sys
import tomllib
from pathlib import Path

import pytest

from pagoda.cli.main import main
from pagoda_agent.base.errors import ConfigError
from pagoda_agent.drivers import needs
from pagoda_agent.drivers.absent import AbsentDriver
from pagoda_agent.drivers.needs import EXTRAS, LacksError, install_command, lacks
from pagoda_agent.drivers.registry import DRIVERS, make_driver
from pagoda_agent.task.operator import Operator
from tests.agent.fake_computer import FakeComputer
from tests.agent.test_operator import PATIENCE, computer, make, until
from tests.agent.test_service import serve

__all__ = ["computer", "make", "serve"]

ROOT = Path(__file__).parents[2]
MISSING = "pagoda-agent-tiny"
"""A package that no machine has; its module is called like it."""
MODULE = "pagoda_agent_tiny"


@pytest.fixture
def lacking(monkeypatch):
    monkeypatch.setitem(needs.EXTRAS, "vnc", ((f"{MISSING}>=1,<2", MODULE),))


def python(code):
    """In place of pip: a program that is given the packages as its arguments."""
    return lambda packages: [sys.executable, "-c", code, *packages]


async def said(client, driver="vnc"):
    reply = await client.post("/api/install", json={"driver": driver})
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.split("\n") if line.startswith("data: ")]
    parts = [json.loads(line[6:]) for line in lines]
    return "".join(part.get("text", "") for part in parts), parts[-1]["error"]


def test_the_extras_of_the_distribution_are_what_the_page_installs():
    project = tomllib.loads((ROOT / "agent" / "pyproject.toml").read_text())["project"]
    declared = {name: tuple(wanted) for name, wanted in project["optional-dependencies"].items()}
    assert declared.pop("mcp")
    assert declared == {
        driver: tuple(requirement for requirement, _ in packages)
        for driver, packages in EXTRAS.items()
    }
    assert {needs.driver_of(scheme + "://host") for scheme in DRIVERS} == set(EXTRAS)


def test_here_nothing_is_missing():
    assert not any(lacks(driver).packages for driver in EXTRAS)


def test_the_command_line_says_what_is_missing_and_what_installs_it(lacking, capsys):
    command = f"{sys.executable} -m pip install '{MISSING}>=1,<2'"
    with pytest.raises(LacksError, match="vnc driver needs") as error:
        make_driver("vnc://desk")
    assert str(error.value).endswith(command)
    assert main(["agent", "run", "a task", "--driver", "vnc://desk"]) == 1
    assert str(error.value) in capsys.readouterr().err
    assert main(["agent", "drivers"]) == 0
    told = capsys.readouterr().out
    assert lacks("vnc").sentence in told and command in told
    assert "pikvm    ready" in told


def test_without_pip_uv_installs(monkeypatch):
    monkeypatch.setattr(needs.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(needs.shutil, "which", lambda name: f"/bin/{name}")
    uv = ["/bin/uv", "pip", "install", "--python", sys.executable, "a>=1"]
    assert install_command(["a>=1"]) == uv


def test_a_machine_without_a_display_is_told_how_to_have_one(monkeypatch):
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.setattr(needs.shutil, "which", lambda name: None)
    assert lacks("x11").system.command == "sudo apt install xvfb"
    assert lacks("vnc").system is None
    monkeypatch.setenv("DISPLAY", ":0")
    assert lacks("x11").system is None


async def test_it_is_installed_and_what_was_said_is_streamed(make, serve, lacking, monkeypatch):
    running = await serve(make()[0], installs=True)
    client = await running.controller()
    code = "import sys; print('Collecting', *sys.argv[1:], flush=True)"
    running.service.installer.command = python(code)
    text, error = await said(client)
    assert text == f"Collecting {MISSING}>=1,<2\n"
    assert error == "It was installed, but this agent does not find it; start the agent again."
    shown = (await client.get("/api/drivers")).json()
    vnc = next(entry for entry in shown["drivers"] if entry["driver"] == "vnc")
    assert vnc["sentence"] == lacks("vnc").sentence and vnc["command"] == lacks("vnc").command
    assert shown["refused"] == ""


async def test_a_failure_is_shown(make, serve, lacking):
    running = await serve(make()[0], installs=True)
    client = await running.controller()
    running.service.installer.command = python("print('No network'); raise SystemExit(3)")
    assert await said(client) == ("No network\n", "The installation failed (exit status 3).")
    running.service.installer.command = lambda packages: ["/no/such/program"]
    text, error = await said(client)
    assert not text and "No such file" in error


@pytest.mark.parametrize("driver", ["requests", "vnc; rm -rf /", "mcp", "", "--index-url=x"])
async def test_nothing_but_a_drivers_packages_is_installed(make, serve, lacking, driver):
    running = await serve(make()[0], installs=True)
    client = await running.controller()
    running.service.installer.command = lambda packages: pytest.fail("it ran")
    reply = await client.post("/api/install", json={"driver": driver})
    assert reply.status_code == 400 and "There is no driver" in reply.json()["error"]
    more = {"driver": "vnc", "packages": ["requests"]}
    assert (await client.post("/api/install", json=more)).status_code == 400
    nothing = await client.post("/api/install", json={"driver": "pikvm"})
    assert nothing.status_code == 409 and "lacks nothing" in nothing.json()["error"]


async def test_only_the_controller_installs_and_only_from_its_page(make, serve, lacking):
    running = await serve(make()[0], installs=True)
    running.service.installer.command = lambda packages: pytest.fail("it ran")
    client = await running.controller()
    wanted = {"driver": "vnc"}
    foreign = {"origin": "https://evil.test"}
    assert (await client.post("/api/install", json=wanted, headers=foreign)).status_code == 403
    assert (await running.browser().post("/api/install", json=wanted)).status_code == 403
    assert (await client.get("/api/install")).status_code == 405


async def test_beyond_this_machine_it_installs_nothing(make, serve, lacking):
    running = await serve(make()[0])
    running.service.installer.command = lambda packages: pytest.fail("it ran")
    client = await running.controller()
    reply = await client.post("/api/install", json={"driver": "vnc"})
    assert reply.status_code == 409 and "--allow-install" in reply.json()["error"]
    assert (await client.get("/api/drivers")).json()["refused"] == reply.json()["error"]


async def test_who_stops_listening_stops_the_installer(make, serve, lacking, tmp_path):
    running = await serve(make()[0], installs=True)
    client = await running.controller()
    mark = tmp_path / "interrupted"
    code = f"""
import pathlib, signal, time
# Shells let what they start in the background ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    print("begun", flush=True); time.sleep(60)
except KeyboardInterrupt:
    pathlib.Path({str(mark)!r}).touch()
"""
    running.service.installer.command = python(code)
    async with client.stream("POST", "/api/install", json={"driver": "vnc"}) as reply:
        await anext(reply.aiter_lines())
        second = await client.post("/api/install", json={"driver": "vnc"})
        assert second.status_code == 409 and "is being installed" in second.json()["error"]
    await until(mark.exists)
    await until(running.service.installer._task.done)


async def test_not_while_a_task_goes_on(make, serve, lacking):
    hangs = asyncio.Event()
    operator, _script = make(hangs)
    running = await serve(operator, installs=True)
    client = await running.controller()
    assert (await client.post("/api/start", json={"task": "x"})).status_code == 200
    reply = await client.post("/api/install", json={"driver": "vnc"})
    assert reply.status_code == 409 and "A task is going on" in reply.json()["error"]


async def test_pip_installs_it_and_the_computer_is_taken(
    make, serve, lacking, tmp_path, monkeypatch
):
    """With pip itself, from a folder, into a folder of its own."""
    operator, _script = make(driver="vnc://:hunter2@desk")
    operator.driver = AbsentDriver("vnc://:hunter2@desk", lacks("vnc"))
    taken = FakeComputer()
    operator.make_driver = lambda url: taken
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    running = await serve(operator, installs=True)
    await operator.open()
    client = await running.controller()
    status = (await client.get("/api/status")).json()
    assert status["driver"] == "vnc" and status["lacks"] == lacks("vnc").sentence
    refused = await client.post("/api/start", json={"task": "x"})
    assert refused.status_code == 502 and refused.json()["error"] == lacks("vnc").sentence

    offered, target = tmp_path / "offered", tmp_path / "target"
    await asyncio.to_thread(_make_wheel, offered)
    target.mkdir()
    monkeypatch.syspath_prepend(str(target))
    for name, value in {"NO_INDEX": "1", "FIND_LINKS": str(offered), "TARGET": str(target)}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    text, error = await asyncio.wait_for(said(client), PATIENCE)
    assert error == "" and f"Successfully installed {MISSING}-1.0" in text
    assert not lacks("vnc").packages and operator.driver is taken
    assert "lacks" not in (await client.get("/api/status")).json()


def _make_wheel(folder):
    """The smallest that pip takes."""
    import zipfile

    folder.mkdir()
    name = MISSING.replace("-", "_")
    facts = f"{name}-1.0.dist-info"
    files = {
        f"{MODULE}.py": "",
        f"{facts}/METADATA": f"Metadata-Version: 2.1\nName: {MISSING}\nVersion: 1.0\n",
        f"{facts}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{facts}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{facts}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)


def test_the_page_comes_up_without_the_drivers_packages(lacking, monkeypatch, tmp_path):
    from pagoda_agent.cli.flags import make_operator
    from pagoda_agent.cli.main import parse_kind

    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    flags = ["--driver", "vnc://:secret@desk", "--runs-dir", str(tmp_path / "runs")]
    args = parse_kind(["serve", *flags])[1]
    operator = make_operator(args, absent=True)
    assert isinstance(operator.driver, AbsentDriver) and isinstance(operator, Operator)
    assert operator.driver.target == "vnc://desk"
    with pytest.raises(ConfigError):
        make_operator(args)
