"""A tiny random Qwen3-VL behind `pagoda serve`, with the official clients and transformers."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path

import anthropic
import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from pagoda.cli.talk.chat_commands import run_command
from pagoda.cli.talk.conversation import Conversation
from pagoda.cli.talk.source_engine import EngineSource
from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.text.images.film import Stills
from pagoda.text.media.select import processor_for
from pagoda.weights.files import open_model
from tests.models import vision
from tests.models.vision import picture
from tests.system.conftest import starter
from tests.system.harness import Served, wait_until

BEGUN = len("<|im_start|>assistant:") - len("<|im_start|>") + 1
"""Tokens that begin a reply."""
SIZE = ("letters", 310, 51)
COUNT = 12
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part.type == 'video' %}"
    "<|vision_start|><|video_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)


def write_tokenizer(folder: Path) -> Tokenizer:
    """200 bytes, then the marks of pictures where the tiny model has them, then those of turns."""
    letters = sorted(set(pre_tokenizers.ByteLevel.alphabet()) - {"Ġ"})
    vocabulary = {letter: index for index, letter in enumerate(["Ġ", *letters][:200])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    marks = ["vision_start", "image_pad", "vision_end", "video_pad", "im_start", "im_end"]
    tokenizer.add_special_tokens([f"<|{mark}|>" for mark in marks])
    assert tokenizer.token_to_id("<|video_pad|>") == vision.VIDEO
    assert tokenizer.token_to_id("<|image_pad|>") == vision.IMAGE
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vl")
    vision.save(vision.make(), folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with starter() as start:
        served = start(folder, "--dtype", "float32", "--served-model-name", "vl")
        served.wait_ready(60)
        yield served


def url() -> str:
    return "data:image/png;base64," + base64.b64encode(png(picture(*SIZE))).decode()


def png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def expected(folder: Path) -> tuple[int, list[int]]:
    """Of the conversation below: the prompt's length, and the most likely tokens behind it."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    (image,) = vision.processed(folder, [picture(*SIZE)])
    marks = "<|image_pad|>" * image.num_tokens
    text = f"<|im_start|>user:See<|vision_start|>{marks}<|vision_end|><|im_end|>"
    ids = list(tokenizer.encode(text + "<|im_start|>assistant:", add_special_tokens=False).ids)
    length, model = len(ids), vision.make()
    for _ in range(COUNT):
        ids.append(int(vision.reference_logits(model, ids, [picture(*SIZE)])[-1].argmax()))
    return length, ids[length:]


def test_both_clients_get_what_transformers_computes(server: Served, folder: Path) -> None:
    parts = [
        {"type": "text", "text": "See"},
        {"type": "image_url", "image_url": {"url": url()}},
    ]
    length, tokens = expected(folder)
    for _ in range(2):  # the second time from cached blocks
        reply = server.openai().chat.completions.create(
            model="vl",
            messages=[{"role": "user", "content": parts}],
            temperature=0,
            max_tokens=COUNT,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        assert reply.usage.prompt_tokens == length
        assert reply.choices[0].token_ids == tokens
    text = reply.choices[0].message.content
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model="vl",
            max_tokens=COUNT,
            messages=[{"role": "user", "content": [
                {"type": "text", "text": "See"},
                {"type": "image", "source": {"type": "url", "url": url()}},
            ]}],
            extra_body={"ignore_eos": True, "temperature": 0},
        )  # fmt: skip
    assert "".join(block.text for block in message.content if block.type == "text") == text
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) >= length


async def test_a_chat_without_a_server_sees_the_same(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "letters.png").write_bytes(png(picture(*SIZE)))
    chat = Conversation(options={"temperature": 0.0, "max_tokens": 1})
    source = await EngineSource.start(EngineConfig(ModelConfig(str(folder), dtype="float32")))
    try:
        assert source.sees
        run_command(f"/image {tmp_path}/letters.png", chat, source)
        chat.ask("See")
        (message,) = chat.turns
        message["content"].reverse()  # as below, the text stands first
        items = [item async for item in source.chat(chat.messages(), chat.options)]
        length, tokens = expected(folder)
        assert items[-1].prompt_tokens == await source.count(chat.messages()) + BEGUN == length
        first = Tokenizer.from_file(str(folder / "tokenizer.json")).decode(tokens[:1])
        assert "".join(item.text for item in items[:-1]) == first
    finally:
        await source.close()


def test_a_video_gives_what_transformers_computes(server: Served, folder: Path) -> None:
    stills = [picture("letters", 70 + side, 50) for side in (0, 0, 30, 30, 0)]
    stills = [still.resize((90, 60)) for still in stills]
    body = ",".join(base64.b64encode(png(still)).decode() for still in stills)
    parts = [
        {"type": "text", "text": "See"},
        {"type": "video_url", "video_url": {"url": f"data:video/jpeg;base64,{body}"}},
    ]
    reply = server.openai().chat.completions.create(
        model="vl",
        messages=[{"role": "user", "content": parts}],
        temperature=0,
        max_tokens=COUNT,
        extra_body={
            "ignore_eos": True, "return_token_ids": True,
            "media_io_kwargs": {"video": {"fps": 2}},
        },
    )  # fmt: skip
    ids, tokens = expected_of_video(folder, stills)
    assert reply.prompt_token_ids == ids
    assert reply.choices[0].token_ids == tokens


def expected_of_video(folder: Path, stills: list[Image.Image]) -> tuple[list[int], list[int]]:
    """Prompt and reply; 3 pairs of frames, the last one alone. The pixels are held against
    transformers' in tests/models/test_qwen_video.py."""
    files = open_model(folder)
    frames = np.stack([np.asarray(still) for still in stills])
    video = processor_for(files, "video").process(Stills(frames, 2.0))
    patches = [processor_for(files, "image").patches(frame.values) for frame in video.pieces]
    features = {
        "pixel_values_videos": torch.from_numpy(np.concatenate([values for values, _ in patches])),
        "video_grid_thw": torch.tensor([[3, *patches[0][1][1:]]]),
    }
    pads = "<|video_pad|>" * video.pieces[0].num_tokens
    times = ("0.2", "1.2", "2.0")
    shown = "".join(f"<{at} seconds><|vision_start|>{pads}<|vision_end|>" for at in times)
    text = f"<|im_start|>user:See<|vision_start|>{shown}<|vision_end|><|im_end|>"
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ids = list(tokenizer.encode(text + "<|im_start|>assistant:", add_special_tokens=False).ids)
    length, model = len(ids), vision.make()
    for _ in range(COUNT):
        kinds = torch.tensor([[2 * (token == vision.VIDEO) for token in ids]])
        model.model.rope_deltas = None
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), mm_token_type_ids=kinds, **features).logits[0, -1]
        ids.append(int(logits.argmax()))
    return ids[:length], ids[length:]


def test_no_picture_is_left_behind(server: Served) -> None:
    """Neither of a reply that ends, nor of one whose reader leaves."""
    (private,) = server.socket_folders()
    messages = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url()}}]}]
    with server.openai().chat.completions.create(
        model="vl", messages=messages, stream=True, extra_body={"ignore_eos": True}
    ) as stream:
        next(iter(stream))
        assert len(list(private.glob("*.npy"))) == 1
    wait_until(lambda: not list(private.glob("*.npy")))
