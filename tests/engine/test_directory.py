import asyncio
import logging
from dataclasses import replace

import pytest

from pagoda.base.errors import ConfigError, ContextLengthError, ModelNotFoundError, PagodaError
from pagoda.config.engine import ModelConfig
from pagoda.core.sampling import SamplingParams
from pagoda.engine.client import EngineClient
from pagoda.engine.directory import start_served_model
from pagoda.engine.fleet import Fleet
from pagoda.engine.outputs import OutputProcessor
from pagoda.engine.text_side import sampling_defaults
from pagoda.weights.files import open_model
from tests.engine.conftest import with_model


async def test_a_model_is_found_under_its_names_and_answers(tiny_config, tiny_chat_model):
    config = with_model(
        tiny_config, model=str(tiny_chat_model), served_model_name=("first", "second")
    )
    served = start_served_model(config)
    try:
        assert served.max_model_len == 0 and served.root == str(tiny_chat_model)
        await served.client.wait_ready(60)
        fleet = Fleet.of([served])
        assert fleet.find("second") is fleet.find(None) is fleet.entries[0]
        assert await fleet.ready(fleet.entries[0]) is fleet.models()[0] is served
        with pytest.raises(ModelNotFoundError, match="third") as caught:
            fleet.find("third")
        assert caught.value.param == "model"
        assert served.max_model_len == 512
        assert await complete(served, "hello") == await complete(served, "hello") != ""
        with pytest.raises(ContextLengthError):
            served.make_request("long", [1] * 512, SamplingParams())
    finally:
        await served.client.shutdown()


async def complete(served, prompt):
    ids = served.tokenizer.encode(prompt)
    sampling = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True)
    processor = OutputProcessor(served.tokenizer, sampling, ids)
    text = ""
    async with asyncio.timeout(60):
        async for delta in served.client.generate(served.make_request("r", ids, sampling)):
            text += processor.process(delta).text
    return text


def test_a_broken_text_side_leaves_no_engine(tiny_config, monkeypatch):
    launched = []
    launch = EngineClient.launch

    def spy(*args, **kwargs):
        launched.append(launch(*args, **kwargs))
        return launched[-1]

    monkeypatch.setattr(EngineClient, "launch", spy)
    with pytest.raises(PagodaError, match="tokenizer"):
        start_served_model(tiny_config)  # the tiny folder has none
    (client,) = launched
    assert client._child.process.returncode is not None
    assert not client._child.folder.exists()


def test_sampling_defaults(tiny_chat_model, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="pagoda")
    files = open_model(tiny_chat_model)
    model = ModelConfig(model=str(tiny_chat_model))
    assert sampling_defaults(model, files) == {"temperature": 0.5, "top_k": 7}
    assert "temperature=0.5, top_k=7" in caplog.text
    assert sampling_defaults(replace(model, generation_config="vllm"), files) == {}
    override = replace(model, override_generation_config={"temperature": 0.1, "max_new_tokens": 9})
    assert sampling_defaults(override, files) == {
        "temperature": 0.1, "top_k": 7, "max_tokens": 9,
    }  # fmt: skip
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.3}')
    other = replace(model, generation_config=str(tmp_path))
    assert sampling_defaults(other, files) == {"top_p": 0.3}


@pytest.mark.parametrize("content", ['{"temperature": -1}', "no json", '{"top_p": "high"}'])
def test_unusable_defaults_are_an_error_at_start(tiny_chat_model, tmp_path, content):
    (tmp_path / "generation_config.json").write_text(content)
    model = ModelConfig(model=str(tiny_chat_model), generation_config=str(tmp_path))
    with pytest.raises(ConfigError):
        sampling_defaults(model, open_model(tiny_chat_model))
