import json
import re
from pathlib import Path

import pytest

from pagoda_agent.base.errors import ConfigError
from pagoda_agent.cli.main import parse_kind
from pagoda_agent.dialects.space import Space
from pagoda_agent.input.actions import Click
from pagoda_agent.models.dialogue import Reply, ToolCall
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.profiles import DEFAULT, PROFILES, dialect_of, profile_for
from pagoda_agent.models.registry import APIS, make_model
from tests.agent.dialect_cases import FULL, SCREEN

DOCUMENT = (Path(__file__).parents[2] / "docs" / "agent.md").read_text()
ANSWERS = DOCUMENT.partition("## What a model answers")[2].partition("\n## ")[0]


@pytest.mark.parametrize(
    ("model", "profile"),
    [
        ("Qwen/Qwen3-VL-8B-Instruct", "qwen3-vl"),
        ("qwen3-vl-plus", "qwen3-vl"),
        ("/models/Qwen3VL-8B-Q8_0.gguf", "qwen3-vl"),
        ("qwen-vl-max", "qwen3-vl"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "qwen2.5-vl"),
        ("ByteDance-Seed/UI-TARS-1.5-7B", "ui-tars-1.5"),
        ("UI-TARS-7B-DPO", "ui-tars-1.0"),
        ("claude-3-5-sonnet-20241022", "claude-20241022"),
        ("claude-3-7-sonnet-20250219", "claude-20250124"),
        ("claude-sonnet-4-20250514", "claude-20250124"),
        ("claude-sonnet-4-5", "claude-20250124"),
        ("claude-opus-4-5-20251101", "claude-20251124"),
        ("computer-use-preview-2025-03-11", "computer-use-preview"),
        ("gpt-5.4", "openai-computer"),
        ("smollm2", DEFAULT),
    ],
)
def test_the_models_name_chooses(model, profile):
    assert profile_for(model).name == profile


def test_overrides():
    profile = profile_for("Qwen3-VL-8B", "nanokvm", space=Space.UNIT, pictures=5)
    assert (profile.dialect, profile.space, profile.pictures) == ("nanokvm", Space.UNIT, 5)
    with pytest.raises(ConfigError, match="did you mean 'qwen3-vl'"):
        profile_for("x", "qwen3vl")


@pytest.mark.parametrize("name", PROFILES)
def test_each_profile_makes_its_dialect(name):
    profile = PROFILES[name]
    dialect = dialect_of(profile)
    assert dialect.name == profile.dialect
    assert dialect.instructions(SCREEN, FULL)
    tools = dialect.tools(SCREEN, FULL)
    assert bool(tools) == (profile.as_tools or profile.dialect in ("anthropic", "openai"))
    assert profile.api in APIS


async def test_apis_by_name():
    endpoint = Endpoint("http://127.0.0.1:1/v1", "m")
    for name in APIS:
        await make_model(name, endpoint).close()
    with pytest.raises(ConfigError, match="no model API 'opanai'; the nearest known is 'openai'"):
        make_model("opanai", endpoint)


def test_the_document_names_every_profile():
    assert set(re.findall(r"`([a-z0-9.-]+)`", ANSWERS)) >= set(PROFILES)


def test_the_documents_replies_are_clicks():
    lines, function, action, tools = re.findall(r"^```\n(.*?)\n```$", ANSWERS, re.DOTALL | re.M)
    claude, openai = (
        Reply("", (ToolCall("1", "computer", arguments),)) for arguments in tools.splitlines()
    )
    for name, reply in {
        "nanokvm": Reply(lines), "qwen3-vl": Reply(function), "ui-tars-1.0": Reply(action),
        "claude-20251124": claude, "openai-computer": openai,
    }.items():  # fmt: skip
        (click,) = dialect_of(PROFILES[name]).parse(reply, (1000, 1000)).actions
        assert isinstance(click, Click), name
        assert click.at == pytest.approx((0.5, 0.3), abs=0.001), name


def test_the_documents_configuration_of_a_client():
    configuration = json.loads(re.search(r"^```json\n(.*?)\n```$", DOCUMENT, re.DOTALL | re.M)[1])
    agent, *words = configuration["mcpServers"]["pagoda"]["args"]
    assert agent == "agent" and parse_kind(words)[1].driver.startswith("vnc://")
