"""The agent by itself: what its wheel has and wants, and that it runs where Pagoda is not."""

import subprocess
import sys
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest

from pagoda.version import __version__
from pagoda_agent import version
from pagoda_agent.drivers.needs import EXTRAS

ROOT = Path(__file__).parents[2]
# Pure Python, or with wheels for x86-64 and ARM64.
SMALL = {
    "starlette", "uvicorn", "h11", "httpx", "msgspec", "pillow", "jinja2",
}  # fmt: skip
_BLOCKED = """
import importlib, pkgutil, sys
for name in ("pagoda", "torch", "numpy", "rich", "nicegui"):
    sys.modules[name] = None
import pagoda_agent
for module in pkgutil.walk_packages(pagoda_agent.__path__, "pagoda_agent."):
    importlib.import_module(module.name)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built offline from a copy, so that nothing is left in the clone."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = "cp -rL {0}/pyproject.toml {0}/README.md {0}/src {1}"
    subprocess.run(["sh", "-c", copy.format(ROOT / "agent", folder)], check=True)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    subprocess.run([*build, "--wheel-dir", folder / "dist", folder], check=True)
    (path,) = (folder / "dist").glob("pagoda_agent-*-none-any.whl")
    return zipfile.ZipFile(path)


def test_the_wheel_wants_only_what_a_small_board_has(wheel: zipfile.ZipFile) -> None:
    (path,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    facts = BytesParser().parsebytes(wheel.read(path))
    wanted = [line for line in facts.get_all("Requires-Dist") or [] if "extra ==" not in line]
    names = {line.split("<")[0].split(">")[0].split("=")[0].strip() for line in wanted}
    assert names == SMALL


def test_the_wheel_has_all_files_of_the_page(wheel: zipfile.ZipFile) -> None:
    page = "pagoda_agent/service/assets/"
    packed = {name.removeprefix(page) for name in wheel.namelist() if name.startswith(page)}
    folder = ROOT / "agent" / "src" / page
    assert packed == {path.name for path in folder.iterdir()}
    assert wheel.read(page + "dom.js") == (folder / "dom.js").read_bytes()


def test_the_wheel_has_copies_of_the_modules_that_are_links_in_a_clone(
    wheel: zipfile.ZipFile,
) -> None:
    links = [path for path in (ROOT / "agent" / "src").rglob("*.py") if path.is_symlink()]
    assert {path.name for path in links} == {
        "columns.py", "forms.py", "near.py", "printable.py", "site.py", "whole.py",
    }  # fmt: skip
    for path in links:
        packed = wheel.read(str(path.relative_to(ROOT / "agent" / "src")))
        assert packed == path.read_bytes()


def test_it_is_installed_with_pagoda_of_the_same_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version.__version__ == __version__
    extras = ",".join(sorted(["mcp", *EXTRAS]))
    assert f"pagoda-agent[{extras}]=={__version__}" in project["dependencies"]


def test_it_imports_neither_pagoda_nor_torch() -> None:
    subprocess.run([sys.executable, "-c", _BLOCKED], check=True)


def test_its_own_command_and_that_of_pagoda_name_themselves(monkeypatch, capsys) -> None:
    from pagoda.cli.main import main as pagoda
    from pagoda_agent.cli.main import main as alone

    monkeypatch.setattr(sys, "argv", ["/usr/bin/pagoda-agent", "nonsense"])
    assert alone() == 1
    assert capsys.readouterr().err.startswith("pagoda-agent: There is no 'nonsense' of agents")
    monkeypatch.setattr(sys, "argv", ["/usr/bin/pagoda"])
    assert pagoda(["agent", "nonsense"]) == 1
    assert capsys.readouterr().err.startswith("pagoda agent: There is no 'nonsense' of agents")
