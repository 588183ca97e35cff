"""Pictures and videos for `LLM`, in the forms that vLLM's users have them."""

import base64
from pathlib import Path

import numpy as np
import pytest

from pagoda import LLM, SamplingParams
from pagoda.base.errors import RequestError
from tests.models import vision
from tests.models.vision import picture
from tests.system.test_vision import (
    COUNT,
    SIZE,
    expected,
    expected_of_video,
    png,
    url,
    write_tokenizer,
)

SAMPLING = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=COUNT)
PROMPT = "<|im_start|>user:See{}<|im_end|><|im_start|>assistant:"
IMAGE, VIDEO = (f"<|vision_start|><|{kind}_pad|><|vision_end|>" for kind in ("image", "video"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vl")
    vision.save(vision.make(), folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def llm(folder) -> LLM:
    return LLM(
        str(folder), dtype="float32", device="cpu", threads=1, num_gpu_blocks_override=80,
        limit_mm_per_prompt={"image": 2},
    )  # fmt: skip


def user(*parts: dict) -> list[dict]:
    return [{"role": "user", "content": [{"type": "text", "text": "See"}, *parts]}]


@pytest.fixture(scope="module")
def of_image(folder) -> list[int]:
    return expected(folder)[1]


def test_chat_takes_pil_images_and_data_urls(llm: LLM, of_image: list[int]) -> None:
    pil = {"type": "image_pil", "image_pil": picture(*SIZE)}
    data = {"type": "image_url", "image_url": {"url": url()}}
    outputs = llm.chat([user(pil), user(data)], SAMPLING)
    assert [output.outputs[0].token_ids for output in outputs] == [of_image] * 2


def test_generate_takes_multi_modal_data(llm: LLM, folder: Path, of_image: list[int]) -> None:
    (folder / "a.png").write_bytes(png(picture(*SIZE)))
    image, text = picture(*SIZE), PROMPT.format(IMAGE)
    ids = llm.get_tokenizer().encode(text, add_special_tokens=False)
    prompts = [
        {"prompt": text, "multi_modal_data": {"image": image}},
        {"prompt": text, "multi_modal_data": {"image": [np.asarray(image)]}},
        {"prompt_token_ids": ids, "multi_modal_data": {"image": image}},
        {"prompt": text, "multi_modal_data": {"image": folder / "a.png"}},
    ]
    outputs = llm.generate(prompts, SAMPLING)
    assert [output.outputs[0].token_ids for output in outputs] == [of_image] * 4
    several = llm.generate(prompts[0], SamplingParams(n=2, seed=1, max_tokens=2, ignore_eos=True))
    assert len(several[0].outputs) == 2


def test_frames(llm: LLM, folder: Path) -> None:
    stills = [picture("letters", 90 + side, 60).resize((90, 60)) for side in (0, 30, 30, 50, 0)]
    ids, tokens = expected_of_video(folder, stills)
    frames = np.stack([np.asarray(still) for still in stills])
    text = PROMPT.format(VIDEO)
    prompts = [
        {"prompt": text, "multi_modal_data": {"video": video}}
        for video in (frames, (frames, {"fps": 2.0}), stills, [(frames, {"fps": 2.0})])
    ]
    prompts.append({**prompts[0], "mm_processor_kwargs": {"fps": 2}})
    fewer = {**prompts[0], "mm_processor_kwargs": {"num_frames": 2}}
    (output,) = llm.generate(fewer, SAMPLING)
    assert len(output.prompt_token_ids) < len(ids)
    for output in llm.generate(prompts, SAMPLING):
        assert output.prompt_token_ids == ids
        assert output.outputs[0].token_ids == tokens
    body = ",".join(base64.b64encode(png(still)).decode() for still in stills)
    part = {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{body}"}}
    (output,) = llm.chat(user(part), SAMPLING, mm_processor_kwargs={"fps": 2})
    assert output.outputs[0].token_ids == tokens


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"image": [picture(*SIZE)] * 3}, "3 images, and at most 2"),
        ({"image": []}, None),
        ({"smell": 1}, "multi_modal_data.smell is not served"),
        ({"audio": np.zeros(9)}, "takes no sounds"),
        ({"image": "http://images.example/a.png"}, "is not fetched here"),
        ({"image": Path("/nowhere/a.png")}, "/nowhere/a.png can't be read: No such file"),
        ({"image": np.zeros((4, 4, 3))}, "uint8 array"),
        ({"video": [picture(*SIZE)]}, "0 places for 1 videos"),
        ({"image": [picture(*SIZE)] * 2}, "1 places for 2 pictures"),
    ],
)
def test_what_is_wrong_is_named(llm: LLM, data: dict, words: str | None) -> None:
    prompt = {"prompt": PROMPT.format(IMAGE), "multi_modal_data": data}
    if words is None:
        assert llm.generate(prompt, SAMPLING)[0].finished  # the mark is a token as any other
        return
    with pytest.raises(RequestError, match=words):
        llm.generate(prompt, SAMPLING)


def test_prompts_with_pictures_are_not_cut(llm: LLM) -> None:
    prompt = {"prompt": PROMPT.format(IMAGE), "multi_modal_data": {"image": picture(*SIZE)}}
    with pytest.raises(RequestError, match="would cut pictures or sounds"):
        llm.generate(prompt, SamplingParams(truncate_prompt_tokens=3))
