"""The default model, the real command line, the official client; transformers as the judge."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import openai
import pytest
import torch

from tests.golden.reference import load_reference, logits_after
from tests.system.conftest import starter

STORY = "Once upon a time"
CAPITAL = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
# Between fp32 here and fp32 in transformers, on the same weights.
BOUND = 1e-3


@pytest.fixture(scope="module")
def client(smollm2_gguf: Path) -> Iterator[openai.OpenAI]:
    with starter() as start:
        served = start(smollm2_gguf, "--dtype", "float32", "--served-model-name", "smollm2")
        served.wait_ready(60)
        yield served.openai()


def complete(client: openai.OpenAI, **fields):
    return client.completions.create(**{"model": "smollm2", "prompt": STORY, **fields})


def chat(client: openai.OpenAI, **fields):
    fields = {"model": "smollm2", "messages": CAPITAL, "temperature": 0, **fields}
    return client.chat.completions.create(**fields)


def test_the_model_has_its_name(client):
    (model,) = client.models.list().data
    assert (model.id, model.max_model_len) == ("smollm2", 8192)


def test_chat_answers_the_question(client):
    reply = chat(client)
    assert "Paris" in reply.choices[0].message.content
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens


def test_a_streamed_reply_is_the_whole_one(client):
    whole = chat(client, max_tokens=24)
    chunks = list(chat(client, max_tokens=24, stream=True, stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens


@pytest.mark.parametrize("stream", [False, True])
def test_the_three_dialects_say_the_same(client, stream):
    asked = {"model": "smollm2", "temperature": 0}
    text = chat(client, max_tokens=24).choices[0].message.content
    response = client.responses.create(
        **asked, input=CAPITAL, max_output_tokens=24, stream=stream, store=False
    )
    if stream:
        response = list(response)[-1].response
    messages = httpx.post(
        str(client.base_url) + "messages",
        json={**asked, "messages": CAPITAL, "max_tokens": 24, "stream": stream},
        timeout=60,
    )
    if stream:
        events = [line[6:] for line in messages.text.splitlines() if line.startswith("data: ")]
        deltas = [json.loads(event).get("delta", {}) for event in events]
        message = "".join(delta.get("text", "") for delta in deltas)
    else:
        message = messages.json()["content"][0]["text"]
    assert response.output_text == message == text


def test_logprobs_are_those_of_transformers(client, smollm2_gguf):
    reply = complete(
        client, temperature=0, max_tokens=8, logprobs=3, extra_body={"return_token_ids": True}
    )
    (choice,) = reply.choices
    tokens, logprobs = choice.token_ids, choice.logprobs
    assert len(tokens) == len(logprobs.token_logprobs) == reply.usage.completion_tokens == 8
    theirs = logits_after(load_reference(smollm2_gguf), choice.prompt_token_ids, tokens)
    expected = theirs.log_softmax(-1)
    rows = torch.arange(8)
    ours = torch.tensor(logprobs.token_logprobs)
    assert (ours - expected[rows, torch.tensor(tokens)]).abs().max() <= BOUND
    for alternatives, row in zip(logprobs.top_logprobs, expected.topk(3).values, strict=True):
        found = torch.tensor(sorted(alternatives.values(), reverse=True)[:3])
        assert (found - row).abs().max() <= BOUND


def test_token_ids_are_a_prompt_like_text(client):
    text = complete(client, temperature=0, max_tokens=8, extra_body={"return_token_ids": True})
    ids = text.choices[0].prompt_token_ids
    by_ids = complete(client, prompt=ids, temperature=0, max_tokens=8)
    assert by_ids.choices[0].text == text.choices[0].text
    assert by_ids.usage.prompt_tokens == len(ids)


def test_a_seed_repeats_its_text(client):
    def text(seed: int) -> str:
        return complete(client, temperature=1, seed=seed, max_tokens=12).choices[0].text

    first = text(1)
    assert text(1) == first
    assert text(2) != first


def test_two_choices_differ_and_repeat(client):
    def texts() -> list[str]:
        choices = complete(client, temperature=1, seed=7, n=2, max_tokens=16).choices
        assert [choice.index for choice in choices] == [0, 1]
        return [choice.text for choice in choices]

    first, second = texts()
    assert first != second
    assert texts() == [first, second]


def test_a_stop_string_cuts_the_text(client):
    whole = complete(client, temperature=0, max_tokens=32).choices[0].text
    word = whole.split()[6]
    reply = complete(client, temperature=0, max_tokens=32, stop=word)
    assert reply.choices[0].text == whole.partition(word)[0]
    assert reply.choices[0].finish_reason == "stop"


def test_a_prompt_that_came_before_is_not_computed_again(client):
    prompt = "The seven floors of the old pagoda stand above the river. " * 8
    fields = {"prompt": prompt, "temperature": 0, "max_tokens": 4}
    first, again = complete(client, **fields), complete(client, **fields)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    cached = again.usage.prompt_tokens_details.cached_tokens
    assert again.usage.prompt_tokens - 16 <= cached < again.usage.prompt_tokens
    assert again.choices[0].text == first.choices[0].text


def test_a_prompt_beyond_the_context_is_refused(client):
    with pytest.raises(openai.BadRequestError, match="8,?192"):
        complete(client, prompt=[1] * 9000)
