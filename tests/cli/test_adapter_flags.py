"""Flags of adapters: those of the page, vLLM's, llama.cpp's, and what is wrong with others."""

import shlex
from pathlib import Path

import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli.main import parse_command
from pagoda.config import compat, flags
from pagoda.config.adapters import AdapterConfig, NamedAdapter, ScaledAdapter
from pagoda.config.engine import EngineConfig
from pagoda.engine.served.entries import model_entries

PAGE = Path(__file__).parents[2] / "docs" / "adapters.md"
LINES = [line for line in PAGE.read_text().splitlines() if line.startswith("pagoda serve ")]


def parse(line: str) -> AdapterConfig:
    _, name, *words = shlex.split(line, comments=True)
    args = parse_command(name, words)[1]
    assert compat.answers(args) == []
    return flags.engine_config(args).adapters


def test_lines_of_the_page():
    by_name, as_json, of_llama = map(parse, LINES)
    sql = NamedAdapter("sql", "./adapters/sql")
    assert by_name.named == [sql, NamedAdapter("support", "./adapters/support")]
    assert as_json.named == [sql] and (as_json.max_loras, as_json.max_lora_rank) == (8, 32)
    assert of_llama.applied == [ScaledAdapter("style.gguf", 1.0), ScaledAdapter("tone.gguf", 0.5)]
    assert all(config.enabled for config in (by_name, as_json, of_llama))


def test_spellings_of_others():
    assert not parse("pagoda serve m").enabled
    config = parse("pagoda serve m --lora a.gguf,b.gguf --lora-init-without-apply")
    assert [each.path for each in config.applied] == ["a.gguf", "b.gguf"]
    old = parse("pagoda serve m --lora-scaled a.gguf 0.25")
    assert old.applied == [ScaledAdapter("a.gguf", 0.25)]
    listed = """pagoda serve m --lora-modules '[{"name": "a", "path": "/a"}]'"""
    assert parse(listed).named == [NamedAdapter("a", "/a")]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"lora_modules": ("x",)}, "neither NAME=FOLDER nor"),
        ({"lora_modules": ('{"name": "x"}',)}, "neither NAME=FOLDER nor"),
        ({"lora_modules": ("a=1", "a=2")}, "names 'a' twice"),
        ({"lora_scaled": ("a.gguf",)}, "is not FILE:SCALE"),
        ({"lora_scaled": ("a.gguf:nan",)}, "is not FILE:SCALE"),
        ({"max_loras": 0}, "--max-loras is 0; it must be at least 1"),
    ],
)
def test_what_is_wrong_is_said(fields, words):
    with pytest.raises(ConfigError, match=words):
        AdapterConfig(**fields)


def test_those_that_flags_name_are_the_first_models():
    config = EngineConfig(adapters=AdapterConfig(lora_modules=("sql=/a",)))
    first, second = model_entries(config, ["other=minilm"], (), {})
    assert first.adapters == {"sql": "/a"} and second.adapters == {}
    assert second.config.adapters == AdapterConfig(enable_lora=True)
