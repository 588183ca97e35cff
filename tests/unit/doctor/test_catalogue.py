"""Models that are known by name are planned without a network."""

import json

import pytest

from pagoda.arch.registry import spec_for
from pagoda.base.errors import SourceError
from pagoda.cli.main import main
from pagoda.config.engine import ModelConfig
from pagoda.doctor.subject import config_of, find_subject, names
from pagoda.planner.memory.tensors import parameter_count

# As the repositories' headers sum up; of gpt-oss as their cards say, in billions.
PARAMETERS = {
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B": 7_615_616_512,
    "HuggingFaceTB/SmolLM3-3B": 3_075_098_624,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "microsoft/Phi-4-mini-instruct": 3_836_021_760,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "google/gemma-4-31B-it": 31_273_088_876,
    "google/gemma-4-26B-A4B-it": 25_805_936_206,
    "openai/gpt-oss-20b": 20.91e9,
    "openai/gpt-oss-120b": 116.83e9,
}


@pytest.fixture
def no_network(monkeypatch):
    def fetch(ref, **_):
        raise SourceError(f"{ref} could not be fetched from the hub.")

    monkeypatch.setattr("pagoda.weights.hub.remote.fetch_headers", fetch)


@pytest.mark.parametrize("name", names())
def test_every_model_is_planned_as_it_is(name, no_network):
    subject = find_subject(ModelConfig(name))
    assert subject.tensors and subject.unreached
    if name in PARAMETERS:
        spec = spec_for(config_of(name), {}, ())
        assert parameter_count(spec) == pytest.approx(PARAMETERS[name], rel=1e-3)


def test_a_plan_without_a_network(no_network, capsys):
    assert main(["doctor", "gpt-oss-20b", "--gpu", "A100-80G", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["fits"] and said["basis"] == "config.json alone"
    assert any("hub was not reached" in finding["text"] for finding in said["findings"])
    words = ["doctor", "modelscope:qwen/qwen3-8b", "--gpu", "3090", "--load-format", "dummy"]
    assert main(words) == 0


def test_another_engine_is_given_the_whole_name(no_network, capsys):
    words = ["doctor", "Qwen3-8B", "--gpu", "3090", "--engine", "vllm-0.19", "--json"]
    main(words)
    said = json.loads(capsys.readouterr().out)
    commands = [said["command"], *(remedy["command"] for remedy in said["remedies"])]
    assert all(one.startswith("vllm serve Qwen/Qwen3-8B ") for one in filter(None, commands))
    assert any(commands)


@pytest.mark.parametrize(
    "words",
    [["org/none"], ["Qwen/Qwen3-8B:Q4_K_M"], ["Qwen/Qwen3-8B", "--revision", "abc"]],
    ids=["unknown", "another file", "another state"],
)
def test_what_is_not_known_needs_a_config(words, no_network, capsys):
    assert main(["doctor", *words, "--gpu", "3090"]) == 1
    said = capsys.readouterr().err
    assert "a folder with its config.json is enough" in said and "Qwen/Qwen3-8B" in said
