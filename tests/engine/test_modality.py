"""A kind of media that src knows nothing of, from a chat request to the model's encoder; and what
the table says of those that it knows."""

import asyncio
import base64
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pagoda.base.errors import RequestError
from pagoda.config.engine import EngineConfig, MediaConfig, ModelConfig
from pagoda.config.modality import MODALITIES, modality_in
from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from pagoda.engine.aside.jobs import RenderChat
from pagoda.engine.aside.workers import Workers
from pagoda.engine.core import EngineCore
from pagoda.engine.media import MediaFiles
from pagoda.engine.offline_media import OfflineMedia, message_media, prompt_media
from pagoda.engine.startup import start_engine
from pagoda.layers.patches import Grid, Slices
from pagoda.models import llama
from pagoda.server.anthropic.blocks import part_of
from pagoda.server.context import ReplyHead
from pagoda.server.metrics import Metrics
from pagoda.server.protocol.chat import ChatCompletionRequest
from pagoda.server.replies.chat_job import chat_job
from pagoda.text.media.options import media_options
from pagoda.text.media.select import loader_of
from tests.engine import tones
from tests.engine.running import run, tokens
from tests.server.fakes import FakeClient, FakeTextSide, served_model
from tests.unit.config.test_flags import engine

NUMBERS = [7, 70, 200, 7, 13]


class HearingLlama(llama.LlamaForCausalLM):
    @property
    def encoders(self) -> Mapping[str, Any]:
        return {"tone": self._hear}

    def _hear(self, patches: torch.Tensor, grid: Grid) -> Slices:
        yield
        return self.embed_tokens(patches[:, 0].long())[None]


@pytest.fixture(autouse=True)
def tone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODALITIES, "tone", tones.TONE)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def url(numbers: list[int] = NUMBERS) -> str:
    body = base64.b64encode(np.array(numbers, np.float32).tobytes()).decode()
    return f"data:tone/raw;base64,{body}"


def hear(*urls: str) -> list[dict[str, Any]]:
    parts = [{"type": "tone_url", "tone_url": {"url": each}} for each in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "Hear "}, *parts]}]


@pytest.fixture
def core(tiny_config: EngineConfig, monkeypatch: pytest.MonkeyPatch) -> Iterator[EngineCore]:
    monkeypatch.setattr(llama, "LlamaForCausalLM", HearingLlama)
    core, ready = start_engine(tiny_config, lambda message: None)
    assert ready.media == {"tone": 6}
    yield core


async def sent(
    *urls: str, work: Workers | None = None, **body: Any
) -> tuple[AddRequest, dict[str, Any]]:
    """What a chat request becomes, and the values of its media."""
    client = FakeClient(abilities={"media": {"tone": 6}, "vocab_size": 260})
    served = served_model(client, **tones.text_side())
    served.work = work
    request = ChatCompletionRequest(messages=hear(*urls), max_tokens=9, temperature=0, **body)
    head, metrics = ReplyHead("r", "fake"), Metrics(lambda: [served])
    job = await chat_job(request, served, head, metrics)
    with job.generation.started():
        return client.requests[0], client.pixels


async def sent_by_workers(*urls: str) -> tuple[AddRequest, dict[str, Any]]:
    workers = Workers(ModelConfig(model="tones"), size=2, module=tones.MODULE)
    try:
        return await sent(*urls, work=workers)
    finally:
        await workers.close()


def test_a_third_kind_needs_no_new_path(core: EngineCore, tmp_path: Path) -> None:
    """The model reads a tone of numbers as it reads the tokens of these numbers."""
    request, values = asyncio.run(sent_by_workers(url(), url([3, 4])))
    heard = [*b"Hear ", *[tones.TOKEN] * 5, *[tones.TOKEN] * 2]
    assert request.prompt_token_ids == heard
    first, second = request.media
    assert [(item.start, item.length, item.encoder) for item in request.media] == [
        (5, 5, "tone"), (10, 2, "tone"),
    ]  # fmt: skip
    assert values[first.content_hash].tolist() == NUMBERS
    assert values[second.content_hash].dtype == np.float32
    files = MediaFiles()
    files.hold(request, tmp_path, values)
    plain = AddRequest(
        req_id="plain",
        prompt_token_ids=[*b"Hear ", *NUMBERS, 3, 4],
        sampling=SamplingParams(temperature=0, max_tokens=9),
    )
    found = run(core, request, plain)
    assert tokens(found[request.req_id]) == tokens(found["plain"])
    assert core.executor.runner.media.num_encoded == 2
    files.release(request.req_id)
    assert not list(tmp_path.iterdir())


def test_its_limits_hold_as_those_of_others(capsys: pytest.CaptureFixture[str]) -> None:
    async def failing() -> list[Exception]:
        asked = ([url()] * 3, ["data:tone/raw;base64,AAA="], ["http://127.0.0.1/x"])
        wrong = {"media_io_kwargs": {"tone": {"pitch": 2}}}
        jobs = [*(sent(*urls) for urls in asked), sent(url(), **wrong)]
        return await asyncio.gather(*jobs, return_exceptions=True)

    several, damaged, fetched, option = asyncio.run(failing())
    for error, words in (
        (several, "hold 3 tones, and at most 2"),
        (damaged, "must be 32-bit numbers"),
        (fetched, "no public address"),
        (option, "media_io_kwargs.tone.pitch is not supported"),
    ):
        assert isinstance(error, RequestError) and words in str(error), error
    long, values = asyncio.run(sent(url([1] * 30)))
    assert [item.length for item in long.media] == [6] == [len(each) for each in values.values()]
    config = engine('./m --limit-mm-per-prompt {"tone":7}')
    assert config.media.most("tone") == 7 and config.media.most("image") == 64
    with pytest.raises(SystemExit):
        engine('./m --limit-mm-per-prompt {"smell":7}')
    assert "known are 'image' and 'video' and 'audio' and 'tone'" in capsys.readouterr().err


def test_scripts_hand_it_over_as_others() -> None:
    side = FakeTextSide(**tones.text_side())
    offline = OfflineMedia(side, {"tone": 6}, MediaConfig())
    given = prompt_media({"multi_modal_data": {"tone": np.array(NUMBERS)}})
    ids, (placed,) = offline.place("A<|tone|>", given, {})
    assert ids == [ord("A"), *[tones.TOKEN] * 5] and placed.piece.values.tolist() == NUMBERS
    again, (placed,) = offline.place("A<|tone|>", message_media(hear(url())), {})
    assert again == ids and placed.piece.values.tolist() == NUMBERS
    assert media_options({}, {"volume": 2})["tone"] == {"volume": 2}


def test_dialects_spell_it_by_the_table() -> None:
    source = {"type": "base64", "media_type": "tone/raw", "data": "AAAA"}
    part = part_of({"type": "tone", "source": source}, "messages.0")
    assert part == {"type": "tone_url", "tone_url": {"url": "data:tone/raw;base64,AAAA"}}
    assert modality_in("responses", "input_image") is MODALITIES["image"]
    assert modality_in("responses", "text") is None


def test_templates_see_marks_and_no_data() -> None:
    """A megabyte of base64 would be worked through on the event loop."""
    seen: list[RenderChat] = []

    async def run() -> None:
        client = FakeClient(abilities={"media": {"tone": 6}, "vocab_size": 260})
        served = served_model(client, **tones.text_side())
        render = served.aside.render
        # Watched, not replaced.
        served.aside.render = lambda job: (seen.append(job), render(job))[1]  # type: ignore[method-assign]
        request = ChatCompletionRequest(messages=hear(url(), url()))
        await chat_job(request, served, ReplyHead("r", "fake"), Metrics(lambda: [served]))

    asyncio.run(run())
    (job,) = seen
    assert job.messages == [
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hear "}, *[{"type": "tone_url"}] * 2],
        }
    ]


def test_videos_are_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it the process that workers are forked from starts all the same."""
    monkeypatch.setitem(sys.modules, "av", None)
    for modality in MODALITIES.values():
        loader_of(modality).preload()
