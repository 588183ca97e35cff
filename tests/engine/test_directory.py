import asyncio
import logging
from dataclasses import replace

import pytest

from pagoda.base.errors import (
    CheckpointError,
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    ModelNotFoundError,
    PagodaError,
)
from pagoda.config.engine import ModelConfig
from pagoda.core.messages import EngineProgress
from pagoda.core.sampling import SamplingParams
from pagoda.engine.outputs import OutputProcessor
from pagoda.engine.processes.client import EngineClient
from pagoda.engine.served.fleet import Fleet
from pagoda.engine.served.model import both_sides, start_served_model
from pagoda.engine.served.text_side import sampling_defaults
from pagoda.weights.files import open_model
from tests.engine.conftest import with_model


async def test_a_model_is_found_under_its_names_and_answers(tiny_config, tiny_chat_model):
    config = with_model(
        tiny_config, model=str(tiny_chat_model), served_model_name=("first", "second")
    )
    phases = []
    served = await start_served_model(config, lambda step: phases.append(step.phase))
    try:
        assert served.root == str(tiny_chat_model) and "load weights" in phases
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


async def test_a_broken_text_side_leaves_no_engine(tiny_config, monkeypatch):
    launched = []
    launch = EngineClient.launch

    def spy(*args, **kwargs):
        launched.append(launch(*args, **kwargs))
        return launched[-1]

    monkeypatch.setattr(EngineClient, "launch", spy)
    with pytest.raises(PagodaError, match="tokenizer"):
        await start_served_model(tiny_config, lambda step: None)  # the tiny folder has none
    (client,) = launched
    assert client._child.process.returncode is not None
    assert not client._child.folder.exists()


class FakeStart:
    """An engine that starts as the test says."""

    def __init__(self):
        self.died = asyncio.get_running_loop().create_future()
        self.progress = None

    async def wait_ready(self, timeout, progress):
        self.progress = progress
        await self.died


async def fails(error):
    raise error


NO_TOKENIZER = CheckpointError("There is no tokenizer.json.")
WRONG_SIZE = EngineDeadError("config.json belongs to another model.")


async def test_weights_that_do_not_fit_are_named_before_a_missing_tokenizer():
    client = FakeStart()
    both = asyncio.create_task(both_sides(fails(NO_TOKENIZER), client, progress=lambda step: None))
    while client.progress is None:
        await asyncio.sleep(0)
    client.progress(EngineProgress("read headers"))
    client.progress(EngineProgress("load weights"))
    client.died.set_exception(WRONG_SIZE)
    with pytest.raises(EngineDeadError, match="another model"):
        await both


async def test_a_missing_tokenizer_waits_for_no_weights_that_fit():
    client, seen = FakeStart(), []
    both = asyncio.create_task(both_sides(fails(NO_TOKENIZER), client, progress=seen.append))
    while client.progress is None:
        await asyncio.sleep(0)
    client.progress(EngineProgress("load weights", 1, 100))
    with pytest.raises(CheckpointError, match="no tokenizer"):
        await both
    assert seen == [EngineProgress("load weights", 1, 100)] and client.died.cancelled()


async def test_an_engine_that_died_waits_for_no_tokenizer():
    client, tokenizer = FakeStart(), asyncio.get_running_loop().create_future()
    client.died.set_exception(WRONG_SIZE)
    with pytest.raises(EngineDeadError, match="another model"):
        await both_sides(tokenizer, client, progress=lambda step: None)


def test_sampling_defaults(tiny_chat_model, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="pagoda")
    files = open_model(tiny_chat_model)
    model = ModelConfig(model=str(tiny_chat_model))
    assert sampling_defaults(model, files) == {"temperature": 0.5, "top_k": 7}
    assert "temperature=0.5, top_k=7" in caplog.text and "flags" not in caplog.text
    assert sampling_defaults(replace(model, generation_config="vllm"), files) == {}
    override = replace(model, override_generation_config={"temperature": 0.1, "max_new_tokens": 9})
    assert sampling_defaults(override, files) == {
        "temperature": 0.1, "top_k": 7, "max_tokens": 9,
    }  # fmt: skip
    assert "ignores it) and flags: max_tokens=9, temperature=0.1, top_k=7." in caplog.text
    (tmp_path / "generation_config.json").write_text('{"top_p": 0.3}')
    other = replace(model, generation_config=str(tmp_path))
    assert sampling_defaults(other, files) == {"top_p": 0.3}


@pytest.mark.parametrize("content", ['{"temperature": -1}', "no json", '{"top_p": "high"}'])
def test_unusable_defaults_are_an_error_at_start(tiny_chat_model, tmp_path, content):
    (tmp_path / "generation_config.json").write_text(content)
    model = ModelConfig(model=str(tiny_chat_model), generation_config=str(tmp_path))
    with pytest.raises(ConfigError):
        sampling_defaults(model, open_model(tiny_chat_model))
