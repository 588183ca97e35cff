import ast
from pathlib import Path

import pytest

import pagoda
from pagoda.base import env
from pagoda.base.errors import ConfigError


def test_unset_and_empty_give_the_default(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    assert env.get("HF_HUB_OFFLINE") is False
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    assert env.get("HF_HUB_OFFLINE") is False
    monkeypatch.setenv("HF_HUB_OFFLINE", "yes")
    assert env.get("HF_HUB_OFFLINE") is True


def test_an_unreadable_value_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "maybe")
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE is 'maybe'"):
        env.get("HF_HUB_OFFLINE")


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("PAGODA_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert env.cache_dir() == tmp_path / "pagoda"
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "own"))
    assert env.cache_dir() == tmp_path / "own"


def test_nothing_else_reads_the_environment():
    """Linting forbids it too; this also finds `from os import environ`."""
    for path in Path(pagoda.__path__[0]).rglob("*.py"):
        if path.name == "env.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "attr", getattr(node, "id", None))
            assert name not in ("environ", "getenv"), path
