"""Tiny random models that hear behind `pagoda serve`, with the official client and transformers."""

import base64
import json
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig

from pagoda.text.media.select import processor_for
from pagoda.text.sounds.alignment import words_of
from pagoda.text.sounds.speech import Speech
from pagoda.text.sounds.whisper import window_starts
from pagoda.text.tokenizer import load_tokenizer
from pagoda.weights.files import open_model
from tests.models import sound
from tests.system.conftest import starter
from tests.system.harness import Served
from tests.unit.text.sounds import wav

COUNT = 8
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}:{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{% if part.type == 'audio' %}"
    "<|audio_bos|><|AUDIO|><|audio_eos|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}"
)


def write_tokenizer(folder: Path, marks: list[str], **config: str) -> Tokenizer:
    """200 texts of ASCII, so that any tokens in a row are text, then the marks."""
    printable = ["Ġ", *map(chr, range(33, 127))]
    pairs = [a + b for a in "abcdefghijk" for b in "abcdefghijk"]
    vocabulary = {text: index for index, text in enumerate([*printable, *pairs][:200])}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([f"<|{mark}|>" for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


@pytest.fixture(scope="module")
def chat_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("audio")
    sound.save(sound.qwen2_audio(), folder)
    marks = ["audio_bos", "AUDIO", "audio_eos", "im_start", "im_end"]
    write_tokenizer(folder, marks, eos_token="<|im_end|>", chat_template=TEMPLATE)
    return folder


@pytest.fixture(scope="module")
def server(chat_folder: Path) -> Iterator[Served]:
    with starter() as start:
        served = start(chat_folder, "--dtype", "float32", "--served-model-name", "hearing")
        served.wait_ready()
        yield served


def input_audio(seconds: float) -> dict:
    data = base64.b64encode(wav([sound.sound(seconds)], sound.RATE)).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def expected(folder: Path, seconds: float) -> tuple[int, list[int]]:
    """Of the conversation below: the prompt's length, and the most likely tokens behind it."""
    samples = samples_of(seconds)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    piece = sound.heard(processor_for(open_model(folder), "audio"), samples)
    heard = "<|audio_bos|>" + "<|AUDIO|>" * piece.num_tokens + "<|audio_eos|>"
    text = f"<|im_start|>user:Hear{heard}<|im_end|><|im_start|>assistant:"
    ids = list(tokenizer.encode(text, add_special_tokens=False).ids)
    length, model, inputs = len(ids), sound.qwen2_audio(), sound.extracted(samples)
    for _ in range(COUNT):
        with torch.inference_mode():
            logits = model(torch.tensor([ids]), **inputs).logits[0, -1]
        ids.append(int(logits.argmax()))
    return length, ids[length:]


def test_input_audio_gives_what_transformers_computes(server: Served, chat_folder: Path) -> None:
    client = server.openai()
    parts = [{"type": "text", "text": "Hear"}, input_audio(0.6)]
    length, tokens = expected(chat_folder, 0.6)
    for _ in range(2):  # the second time from cached blocks
        reply = client.chat.completions.create(
            model="hearing",
            messages=[{"role": "user", "content": parts}],
            temperature=0,
            max_tokens=COUNT,
            extra_body={"ignore_eos": True, "return_token_ids": True},
        )
        assert reply.usage.prompt_tokens == length
        assert reply.choices[0].token_ids == tokens
    (card,) = client.models.list().data
    assert card.architecture["input_modalities"] == ["text", "audio"]


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (input_audio(1.2), "lasts 1.2 s, and this model hears 1 s at most"),
        ({"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, "damaged"),
        ({"type": "input_audio", "input_audio": {"format": "wav"}}, "base64 in input_audio.data"),
        ({"type": "image_url", "image_url": {"url": "data:,"}}, "this model reads text and audios"),
    ],
)
def test_what_is_wrong_is_named(server: Served, part: dict, words: str) -> None:
    with pytest.raises(openai.BadRequestError, match=words):
        server.openai().chat.completions.create(
            model="hearing", messages=[{"role": "user", "content": [part]}]
        )


TIMES = [f"{step / 50:.2f}" for step in range(51)]
MARKS = ["pad", "endoftext", "startoftranscript", "en", "de", "translate", "transcribe",
         "startofprev", "notimestamps", *TIMES]  # fmt: skip
EOS, START, EN, DE, TRANSLATE, TRANSCRIBE, BEFORE, PLAIN = range(201, 209)
WRITTEN = sound.DECODER["max_target_positions"]
GENERATION = {
    "lang_to_id": {"<|en|>": EN, "<|de|>": DE},
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "is_multilingual": True,
    "no_timestamps_token_id": PLAIN,
    "suppress_tokens": [START, EN, DE, TRANSLATE, TRANSCRIBE, BEFORE],
    "begin_suppress_tokens": [0, EOS],
    "max_initial_timestamp_index": 10,
    "alignment_heads": [[2, 1], [0, 0], [1, 1]],
}
EASY = {"logprob_threshold": -1e9, "compression_ratio_threshold": 1e9}
"""Nothing is doubtful."""


@pytest.fixture(scope="module")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    sound.save(sound.whisper(), folder)
    tokenizer = write_tokenizer(folder, MARKS, eos_token="<|endoftext|>")
    assert tokenizer.get_vocab_size() == sound.DECODER["vocab_size"]
    path = folder / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **GENERATION}))
    return folder


@pytest.fixture(scope="module")
def writer(whisper_folder: Path) -> Iterator[Served]:
    with starter() as start:
        served = start(whisper_folder, "--dtype", "float32", "--served-model-name", "whisper-1")
        served.wait_ready()
        yield served


def samples_of(seconds: float) -> np.ndarray:
    """As a file of 16 bits keeps them, in which the loudest run over."""
    return (sound.sound(seconds) * 32767).round().astype("<i2").astype("f4") / 32768


@torch.no_grad()
def next_logits(samples: np.ndarray, ids: list[int]) -> torch.Tensor:
    features = sound.extracted(samples)["input_features"]
    return sound.whisper()(features, decoder_input_ids=torch.tensor([ids])).logits[0, -1]


def generated(samples: np.ndarray, prompt: list[int], **options: object) -> dict:
    """By transformers: `sequences` without the prompt, `scores`, and what `options` ask for."""
    model = sound.whisper()
    config = GenerationConfig(
        **GENERATION, eos_token_id=EOS, pad_token_id=EOS, decoder_start_token_id=START,
        max_length=WRITTEN,
    )  # fmt: skip
    before = prompt[: prompt.index(START)]
    names = {EN: "en", DE: "de", TRANSCRIBE: "transcribe", TRANSLATE: "translate"}
    language, task = (names[token] for token in prompt[len(before) + 1 : len(before) + 3])
    found = model.generate(
        sound.extracted(samples)["input_features"], generation_config=config, language=language,
        task=task, prompt_ids=torch.tensor(before) if before else None,
        return_timestamps=prompt[-1] != PLAIN, force_unique_generate_call=True,
        return_dict_in_generate=True, output_scores=True, **options,
    )  # fmt: skip
    found["sequences"] = found["sequences"][0, len(prompt) :].tolist()
    return found


def greedy(samples: np.ndarray, prompt: list[int]) -> list[int]:
    """The tokens that transformers generates."""
    return [token for token in generated(samples, prompt)["sequences"] if token != EOS]


def text_of(folder: Path, ids: list[int]) -> str:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return tokenizer.decode([token for token in ids if token <= PLAIN], skip_special_tokens=True)


def letters(folder: Path, ids: list[int]) -> list[int]:
    """Without special tokens, times and blanks: segments of nothing else are left out."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [token for token in ids if token < EOS - 1 and tokenizer.decode([token]).strip()]


def file_of(seconds: float) -> tuple[str, bytes]:
    return ("speech.wav", wav([sound.sound(seconds)], sound.RATE))


def test_a_file_is_written_down(writer: Served, whisper_folder: Path) -> None:
    client = writer.openai().audio
    ids = greedy(samples_of(0.7), [START, EN, TRANSCRIBE, PLAIN])
    expected_text = text_of(whisper_folder, ids).strip()
    assert expected_text
    common = {
        "model": "whisper-1", "file": file_of(0.7), "language": "en", "extra_body": EASY,
    }  # fmt: skip
    reply = client.transcriptions.create(**common)
    assert reply.text == expected_text
    assert reply.usage.type == "duration" and reply.usage.seconds == 0.7
    text = client.transcriptions.create(**common, response_format="text")
    assert text == expected_text + "\n"
    events = list(client.transcriptions.create(**common, stream=True))
    assert "".join(e.delta for e in events if e.type == "transcript.text.delta") == events[-1].text
    assert events[-1].type == "transcript.text.done" and events[-1].text.strip() == expected_text
    translated = greedy(samples_of(0.7), [START, DE, TRANSLATE, PLAIN])
    with warnings.catch_warnings():
        # The client calls the method old; the route is the same.
        warnings.simplefilter("ignore", DeprecationWarning)
        reply = client.translations.create(
            model="whisper-1", file=file_of(0.7), extra_body={"language": "de", **EASY}
        )
    assert reply.text == text_of(whisper_folder, translated).strip()
    before = [
        BEFORE,
        *Tokenizer.from_file(str(whisper_folder / "tokenizer.json")).encode(" Ab").ids,
    ]
    ids = greedy(samples_of(0.7), [*before, START, EN, TRANSCRIBE, PLAIN])
    reply = client.transcriptions.create(**common, prompt="Ab")
    assert reply.text == text_of(whisper_folder, ids).strip()


def test_times_and_languages(writer: Served, whisper_folder: Path) -> None:
    """Of a sound of three windows, whose language is heard in the first."""
    samples = samples_of(2.3)
    cuts = [*window_starts(samples, sound.RATE), len(samples)]
    windows = [samples[a:b] for a, b in zip(cuts, cuts[1:], strict=False)]
    language = EN + int(next_logits(windows[0], [START])[[EN, DE]].argmax())
    prompt = [START, language, TRANSCRIBE]
    client = writer.openai().audio.transcriptions
    common = {"model": "whisper-1", "file": file_of(2.3), "extra_body": EASY}
    reply = client.create(**common, response_format="verbose_json")
    assert reply.language == MARKS[language - 200] and reply.duration == 2.3
    ids = [token for window in windows for token in greedy(window, prompt)]
    kept = [token for segment in reply.segments for token in segment.tokens]
    assert kept and letters(whisper_folder, kept) == letters(whisper_folder, ids)
    last = 0.0
    for number, segment in enumerate(reply.segments):
        assert segment.id == number and last <= segment.start <= segment.end <= 2.3
        last = segment.start
    assert {segment.seek for segment in reply.segments} <= {
        round(100 * cut / sound.RATE) for cut in cuts
    }
    srt = client.create(**common, response_format="srt")
    assert srt.startswith("1\n00:00:00,") and srt.count(" --> ") == len(reply.segments)
    vtt = client.create(**common, response_format="vtt")
    assert vtt.startswith("WEBVTT\n\n00:00:0") and vtt.count(" --> ") == len(reply.segments)


def test_segments_say_how_sure_the_model_was(writer: Served, whisper_folder: Path) -> None:
    samples, prompt = samples_of(0.9), [START, EN, TRANSCRIBE]
    found = generated(samples, prompt)
    scores = [step[0].log_softmax(-1) for step in found["scores"]]
    total = sum(float(s[t]) for s, t in zip(scores, found["sequences"], strict=True))
    tokens = [token for token in found["sequences"] if token != EOS]
    text = text_of(whisper_folder, tokens).strip().encode()
    client = writer.openai().audio.transcriptions
    common = {
        "model": "whisper-1", "file": file_of(0.9), "language": "en",
        "response_format": "verbose_json",
    }  # fmt: skip
    reply = client.create(**common, extra_body=EASY)
    told = [token for segment in reply.segments for token in segment.tokens]
    assert letters(whisper_folder, told) == letters(whisper_folder, tokens)
    for segment in reply.segments:
        assert segment.seek == 0 and segment.temperature == 0.0
        assert segment.tokens[0] > PLAIN, "a text begins with a time"
        assert segment.avg_logprob == pytest.approx(total / (len(tokens) + 1), abs=1e-4)
        assert segment.compression_ratio == pytest.approx(len(text) / len(zlib.compress(text)))
        silence = next_logits(samples, [START]).softmax(-1)[PLAIN - 1]
        assert segment.no_speech_prob == pytest.approx(float(silence), abs=1e-5)


def test_doubtful_windows_are_written_again(writer: Served) -> None:
    client = writer.openai().audio.transcriptions
    common = {"model": "whisper-1", "file": file_of(1.6), "response_format": "verbose_json"}
    wrong = {**EASY, "compression_ratio_threshold": 0}
    first, again = (client.create(**common, extra_body=wrong) for _ in range(2))
    assert first.segments and {segment.temperature for segment in first.segments} == {1.0}
    assert [segment.tokens for segment in first.segments] == [
        segment.tokens for segment in again.segments
    ]
    asked = client.create(**common, temperature=0.5, extra_body=wrong)
    assert {segment.temperature for segment in asked.segments} == {0.5}
    nobody = {"logprob_threshold": 1, "no_speech_threshold": -1}
    silent = client.create(**common, extra_body=nobody)
    assert silent.segments == [] and silent.text == ""


def test_words_have_times(writer: Served, whisper_folder: Path) -> None:
    samples = samples_of(0.9)
    found = generated(
        samples, [START, EN, TRANSCRIBE], return_token_timestamps=True,
        attention_mask=sound.extracted(samples)["feature_attention_mask"],
    )  # fmt: skip
    times = found["token_timestamps"][0, 3:].tolist()
    speech, tokenizer = Speech(START, EOS, PLAIN), load_tokenizer(open_model(whisper_folder))
    expected = words_of(found["sequences"], times, speech, tokenizer, "en")
    reply = writer.openai().audio.transcriptions.create(
        model="whisper-1", file=file_of(0.9), language="en", response_format="verbose_json",
        timestamp_granularities=["word"], extra_body=EASY,
    )  # fmt: skip
    assert reply.segments is None
    assert [word.word for word in reply.words] == [word.text for word in expected]
    for told, word in zip(reply.words, expected, strict=True):
        assert told.start == pytest.approx(min(word.start, 0.9), abs=0.011)
        assert told.end == pytest.approx(min(word.end, 0.9), abs=0.011)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"file": ("x.wav", b"RIFFxxxx")}, "damaged, cut off"),
        ({"language": "xx"}, "'xx' is not one of this model's"),
        ({"stream": True, "response_format": "srt"}, "srt is not streamed"),
        ({"response_format": "yaml"}, "response_format"),
        ({"timestamp_granularities": ["word"]}, "in response_format verbose_json alone"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(writer: Served, changes: dict, words: str) -> None:
    asked = {"model": "whisper-1", "file": file_of(0.5), **changes}
    with pytest.raises(openai.BadRequestError, match=words):
        writer.openai().audio.transcriptions.create(**asked)


def test_models_that_do_not_fit_the_route_say_so(server: Served, writer: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="input_audio part"):
        server.openai().audio.transcriptions.create(model="hearing", file=file_of(0.5))
    with pytest.raises(openai.BadRequestError, match="/v1/audio/transcriptions"):
        writer.openai().completions.create(model="whisper-1", prompt="A")
