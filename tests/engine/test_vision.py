"""A tiny Qwen3-VL through the whole engine: chunks, cached prefixes, neighbours and faults."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pagoda.config.engine import CacheConfig, DeviceConfig, EngineConfig, ModelConfig
from pagoda.config.engine import SchedulerConfig as Scheduling
from pagoda.core.messages import AbortRequests, AddRequest, EngineReady, is_progress
from pagoda.core.sampling import SamplingParams
from pagoda.engine.core import EngineCore
from pagoda.engine.startup import start_engine
from pagoda.kernels import ops
from pagoda.layers.patches import UNIT_FLOPS
from tests.engine.running import run, tokens
from tests.models import tiny, vision
from tests.models.vision import VisionPrompt, picture
from tests.unit.planner.test_vision import CONFIG as QWEN3_VL_2B

COUNT = 8
SIZES = [("gradient", 64, 64), ("noise", 97, 203), ("letters", 310, 51)]
"""4, 21 and 16 tokens, with blocks of 16."""


@pytest.fixture(scope="module")
def reference():
    return vision.make()


@pytest.fixture(scope="module")
def folder(reference, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3vl")
    vision.save(reference, folder)
    return folder


def start(folder: Path, batched: int = 64, **model: Any) -> tuple[EngineCore, EngineReady]:
    config = EngineConfig(
        model=ModelConfig(model=str(folder), **{"dtype": "float32", **model}),
        cache=CacheConfig(num_gpu_blocks_override=80),
        scheduler=Scheduling(max_num_batched_tokens=batched, max_num_seqs=4),
        device=DeviceConfig("cpu", threads=1),
    )
    return start_engine(config, lambda message: None)


@pytest.fixture(scope="module")
def engine(folder):
    return start(folder)


def words(count: int, seed: int) -> list[int]:
    return [token % 200 for token in tiny.random_ids(count, seed=seed)]


def prompt(folder: Path, sizes: list, lead: int = 9, tail: int = 12) -> VisionPrompt:
    """A text, and pictures with a text behind each."""
    images = vision.processed(folder, [picture(*size) for size in sizes])
    pieces: list[Any] = [words(lead, 1)]
    for number, image in enumerate(images):
        pieces += [[200], image, [202], words(tail, 2 + number)]
    return vision.prompt_of(pieces, folder)


def request(req_id: str, given: VisionPrompt, **fields: Any) -> AddRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=COUNT, ignore_eos=True)
    return AddRequest(
        req_id=req_id, prompt_token_ids=given.ids, media=given.items, sampling=sampling, **fields
    )


def expected(reference, given: VisionPrompt, sizes: list) -> list[int]:
    ids = list(given.ids)
    for _ in range(COUNT):
        logits = vision.reference_logits(reference, ids, [picture(*size) for size in sizes])
        ids.append(int(logits[-1].argmax()))
    return ids[len(given.ids) :]


def encoder(core: EngineCore):
    return core.executor.runner.media


@pytest.mark.parametrize("batched", [4, 13, 512])
def test_replies_equal_transformers_in_chunks_of_any_size(batched, folder, reference):
    core, ready = start(folder, batched)
    assert ready.media == {"image": 256, "video": 256}  # half of the context
    given = prompt(folder, SIZES)
    (deltas,) = run(core, request("r", given)).values()
    assert tokens(deltas) == expected(reference, given, SIZES)
    assert encoder(core).num_encoded == 3


def test_neighbours_change_nothing(engine, folder, reference):
    core, _ = engine
    text = VisionPrompt(words(30, 5), [])
    first, second = prompt(folder, SIZES[:1]), prompt(folder, SIZES[1:], lead=3)
    requests = (request("text", text), request("one", first), request("two", second))
    found = run(core, *requests)
    assert tokens(found["text"]) == expected(reference, text, [])
    assert tokens(found["one"]) == expected(reference, first, SIZES[:1])
    assert tokens(found["two"]) == expected(reference, second, SIZES[1:])


def test_text_steps_are_replayed(folder, monkeypatch):
    if not ops.can_pack("cpu"):
        pytest.skip("no native kernels")
    core, _ = start(folder, dtype="auto")
    program, sizes = core.executor.runner.replays.program, []
    replay = program.run

    def noted(arrays, samples):
        sizes.append(arrays.num_tokens)
        return replay(arrays, samples)

    monkeypatch.setattr(program, "run", noted)
    run(core, request("r", prompt(folder, SIZES[:1], lead=5)))
    # All but the step with the picture: what stands in front of it, which is computed before it is
    # encoded, and the tokens behind the first sampled one.
    assert sizes == [6] + [1] * (COUNT - 1)
    run(core, request("t", VisionPrompt(words(20, 8), [])))
    assert sizes[COUNT:] == [20] + [1] * (COUNT - 1)


@pytest.mark.parametrize("lead", [3, 7, 8, 14, 15, 30])
def test_a_cached_picture_is_not_encoded_again(lead, folder, reference):
    """The cached prefix ends before, within and behind the picture."""
    core, _ = start(folder)
    given = prompt(folder, SIZES[1:2], lead=lead)
    again = VisionPrompt(given.ids[:-3] + words(9, 7), given.items)
    (first,) = run(core, request("a", given)).values()
    (second,) = run(core, request("b", again)).values()
    assert tokens(first) == expected(reference, given, SIZES[1:2])
    assert tokens(second) == expected(reference, again, SIZES[1:2])
    assert second[0].num_cached_tokens == (len(given.ids) - 3) // 16 * 16 > 0
    assert encoder(core).num_encoded == 1


def test_another_picture_is_no_prefix_hit(folder, reference):
    core, _ = start(folder)
    # Both 21 tokens, so that nothing but the pixels differs.
    sizes = [("noise", 97, 203)], [("gradient", 97, 203)]
    prompts = [prompt(folder, size, lead=20) for size in sizes]
    assert prompts[0].ids == prompts[1].ids
    run(core, request("a", prompts[0]))
    (deltas,) = run(core, request("b", prompts[1])).values()
    assert tokens(deltas) == expected(reference, prompts[1], sizes[1])
    assert deltas[0].num_cached_tokens == 16  # the text in front
    assert encoder(core).num_encoded == 2


@pytest.fixture
def sliced(folder, monkeypatch) -> EngineCore:
    """With as many slices of an image as there can be, one to a step."""
    monkeypatch.setitem(UNIT_FLOPS, "cpu", 1.0)
    core, _ = start(folder)
    work = encoder(core).work
    monkeypatch.setattr(encoder(core), "work", lambda items, seconds: work(items, 0.0))
    return core


def test_a_stream_goes_on_while_an_image_is_encoded(sliced, reference, folder):
    text = VisionPrompt(words(30, 5), [])
    given = prompt(folder, SIZES[1:2])
    sliced.handle(request("text", text))
    first = list(sliced.step())
    sliced.handle(request("seeing", given))
    found: dict[str, list] = {"text": first, "seeing": []}
    order = []
    while sliced.has_work():
        for delta in sliced.step():
            if not is_progress(delta):
                found[delta.req_id].append(delta)
                order.append(delta.req_id)
    assert "text" not in order[order.index("seeing") :]  # all of it came before
    assert tokens(found["text"]) == expected(reference, text, [])
    assert tokens(found["seeing"]) == expected(reference, given, SIZES[1:2])
    assert encoder(sliced).num_encoded == 1


def test_an_abort_gives_up_what_is_half_encoded(sliced, reference, folder):
    given = prompt(folder, SIZES[:1])
    sliced.handle(request("left", given))
    for _ in range(5):
        sliced.step()
    sliced.handle(AbortRequests(["left"]))
    assert [delta.finish_reason for delta in sliced.step()] == ["abort"]
    assert encoder(sliced).num_encoded == 0 and encoder(sliced)._unfinished is not None
    other = prompt(folder, SIZES[1:2])
    (deltas,) = run(sliced, request("other", other)).values()
    assert tokens(deltas) == expected(reference, other, SIZES[1:2])
    assert encoder(sliced).num_encoded == 1 and encoder(sliced)._unfinished is None


def test_a_step_ends_what_was_begun_ahead(sliced, folder):
    """What the scheduler thinks encoded may have been dropped for others."""
    item = prompt(folder, SIZES[:1]).items[0]
    assert encoder(sliced).work([item], 0.0) == []
    whole = encoder(sliced).encoded(item)
    assert encoder(sliced).num_encoded == 1
    assert encoder(sliced).work([item], 0.0) == [item.content_hash]
    fresh, _ = start(folder)
    with torch.inference_mode():
        torch.testing.assert_close(encoder(fresh).encoded(item), whole, rtol=0, atol=1e-5)


def test_a_payload_that_is_gone_ends_its_own_request(engine, folder):
    core, _ = engine
    given = prompt(folder, SIZES[:1], lead=21)
    for item in given.items:
        item.content_hash, item.payload = "unknown", str(folder / "missing.npy")
    found = run(core, request("bad", given), request("good", VisionPrompt(words(9, 4), [])))
    assert found["bad"][-1].finish_reason == "error"
    assert "image could not be encoded" in found["bad"][-1].error
    assert len(tokens(found["good"])) == COUNT


@pytest.mark.parametrize("change", [{"start": 60}, {"length": 5}, {"grid": (1, 3, 2)}])
def test_items_that_fit_no_prompt_are_refused(change, engine, folder):
    core, _ = engine
    given = prompt(folder, SIZES[:1])
    for name, value in change.items():
        setattr(given.items[0], name, value)
    (deltas,) = run(core, request("bad", given)).values()
    assert deltas[-1].bad_request and "does not fit" in deltas[-1].error


def test_a_model_of_text_refuses_pictures(folder, tmp_path):
    tiny.make("qwen3", head_dim=16).save_pretrained(tmp_path)
    core, ready = start(tmp_path)
    assert ready.media == {}
    (deltas,) = run(core, request("r", prompt(folder, SIZES[:1]))).values()
    assert deltas[-1].bad_request and "text only" in deltas[-1].error


def test_a_hybrid_model_sees_likewise(tmp_path):
    """Qwen3.5: a prefix with a picture is found again, recurrent state and all."""
    reference, sizes = vision.make(family="qwen3_5"), SIZES[:2]
    vision.save(reference, tmp_path)
    core, _ = start(tmp_path, 13)
    given = prompt(tmp_path, sizes)
    again = VisionPrompt(given.ids[:-3] + words(9, 7), given.items)
    for number, each in enumerate((given, again)):
        (deltas,) = run(core, request(str(number), each)).values()
        assert tokens(deltas) == expected(reference, each, sizes)
    assert deltas[0].num_cached_tokens > 0
    assert encoder(core).num_encoded == 2


@pytest.mark.slow
def test_real_sizes_with_random_weights(tmp_path):
    """Qwen3-VL-2B's own sizes, with two layers of each kind."""
    config = {
        **QWEN3_VL_2B,
        "dtype": "bfloat16",
        "text_config": {**QWEN3_VL_2B["text_config"], "num_hidden_layers": 2},
        "vision_config": {
            **QWEN3_VL_2B["vision_config"], "depth": 2, "deepstack_visual_indexes": [1],
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    core, _ = start(tmp_path, 256, load_format="dummy", dtype="auto", max_model_len=512)
    images = vision.processed(tmp_path, [picture("letters", 300, 280)])
    given = vision.prompt_of([words(5, 1), images[0], words(5, 2)], tmp_path)
    (deltas,) = run(core, request("r", given)).values()
    assert len(tokens(deltas)) == COUNT
    assert torch.isfinite(encoder(core).encoded(given.items[0])).all()
