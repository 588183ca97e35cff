"""A tiny random Voxtral behind `pagoda serve`, with the official client and transformers."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import torch

from pagoda.text.gguf.pretokenizers import PRE_TOKENIZERS
from tests.models import sound
from tests.system.conftest import starter
from tests.system.harness import Served
from tests.system.test_hearing import file_of, input_audio, samples_of

COUNT = 8
MARKS = {
    "<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3, "[/INST]": 4, "[AUDIO]": 24, "[BEGIN_AUDIO]": 25,
    "[TRANSCRIBE]": 34,
}  # fmt: skip
RESERVED = 36
VOCAB = RESERVED + 256
BEGIN, INST, END_INST, AUDIO, BEGIN_AUDIO, TRANSCRIBE = 1, 3, 4, 24, 25, 34


def letters(text: str) -> list[int]:
    """A token for each byte."""
    return [RESERVED + byte for byte in text.encode()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("voxtral")
    sound.save(sound.voxtral(VOCAB, AUDIO), folder, sound.VOXTRAL_EXTRACTOR)
    tekken = {
        "config": {
            "pattern": PRE_TOKENIZERS["tekken"].patterns[0], "version": "v7",
            "default_vocab_size": VOCAB, "default_num_special_tokens": RESERVED,
        },
        "vocab": [
            {"rank": rank, "token_bytes": base64.b64encode(bytes([rank])).decode()}
            for rank in range(256)
        ],
        "special_tokens": [{"rank": rank, "token_str": text} for text, rank in MARKS.items()],
        "audio": {"sampling_rate": 16000},
    }  # fmt: skip
    (folder / "tekken.json").write_text(json.dumps(tekken))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Served]:
    with starter() as start:
        served = start(folder, "--dtype", "float32", "--served-model-name", "voxtral")
        served.wait_ready()
        yield served


def expected(samples: np.ndarray, behind: list[int]) -> tuple[int, list[int]]:
    """The prompt's length, and the most likely tokens behind a sound and these tokens."""
    features, model = sound.voxtral_features(samples), sound.voxtral(VOCAB, AUDIO)
    heard = [AUDIO] * (sound.VOXTRAL_WINDOW * len(features))
    ids = [BEGIN, INST, BEGIN_AUDIO, *heard, *behind]
    length = len(ids)
    for _ in range(COUNT):
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), input_features=features).logits[0, -1]
        ids.append(int(logits.argmax()))
    return length, ids[length:]


@pytest.mark.parametrize("seconds", [0.6, 3.3])
def test_chats_hear_any_number_of_windows(server: Served, seconds: float) -> None:
    length, tokens = expected(samples_of(seconds), [*letters("Hear"), END_INST])
    parts = [input_audio(seconds), {"type": "text", "text": "Hear"}]
    reply = server.openai().chat.completions.create(
        model="voxtral",
        messages=[{"role": "user", "content": parts}],
        temperature=0,
        max_tokens=COUNT,
        extra_body={"ignore_eos": True, "return_token_ids": True},
    )
    assert reply.usage.prompt_tokens == length
    assert reply.choices[0].token_ids == tokens


@pytest.mark.parametrize("language", ["en", None])
def test_files_are_written_down(server: Served, language: str | None) -> None:
    told = letters(f"lang:{language}") if language else []
    _, tokens = expected(samples_of(2.4), [END_INST, *told, TRANSCRIBE])
    data = bytes(token - RESERVED for token in tokens if token >= RESERVED)
    # A character that may go on behind the last token is not compared.
    wanted = data.decode(errors="replace").strip().rstrip("\N{REPLACEMENT CHARACTER}")
    assert wanted
    client = server.openai().audio.transcriptions
    asked = {"model": "voxtral", "file": file_of(2.4)}
    asked |= {"language": language} if language else {}
    reply = client.create(**asked)
    assert reply.text.startswith(wanted) and reply.usage.seconds == 2.4
    events = list(client.create(**asked, stream=True))
    assert events[-1].type == "transcript.text.done" and events[-1].text.strip() == reply.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"response_format": "srt"}, "tells no times"),
        ({"language": "English"}, "no code of two letters"),
        ({"prompt": "Before"}, "leave prompt out"),
    ],
)
def test_what_is_wrong_is_named(server: Served, changes: dict, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        server.openai().audio.transcriptions.create(model="voxtral", file=file_of(0.5), **changes)
