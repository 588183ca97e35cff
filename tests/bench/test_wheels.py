"""The workflow that builds wheels, and what it calls."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from tools import wheels

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_commands_of_a_workflow_are_there(path):
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = yaml.safe_load(path.read_text())["jobs"]
    lines = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert lines
    for line in lines:
        program, what, *_ = line.split()
        assert what in targets if program == "make" else (ROOT / what).is_file(), line


def test_what_is_published_was_tested_and_is_signed():
    jobs = yaml.safe_load((ROOT / ".github/workflows/wheels.yml").read_text())["jobs"]
    assert (jobs["publish"]["needs"], jobs["test"]["needs"]) == ("test", "build")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "startsWith(github.ref, 'refs/tags/v')" in jobs["publish"]["if"]


def test_a_version_that_is_not_there_is_named(capsys):
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert set(wheels._found([here, "3.99"])) <= {here}
    assert "There is no python3.99 on PATH: no wheel for it." in capsys.readouterr().out


def test_pythons_are_those_of_the_metadata():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.search(r'requires-python = ">=3.11', text)
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", text)
    assert list(wheels._PYTHONS) == named
