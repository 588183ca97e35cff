"""llama-server's /completion and /infill; names and forms are those of its README."""

import json
import math
from typing import Any

import httpx
import pytest

from pagoda.config.sampling import ABSENT
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import REPLY, FakeClient, FimTokenizer
from tests.server.test_errors import error_of

TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
    "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip
KEYS = {
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted",
    "tokens_evaluated", "generation_settings", "prompt", "has_new_line", "truncated", "stop_type",
    "stopping_word", "tokens_cached", "timings",
}  # fmt: skip


def chunks_of(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in reply.text.split("\n\n") if line]
    assert all(line.startswith("data: {") for line in lines), "and no [DONE] at the end"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_whole_reply(shared: RunningServer) -> None:
    for path in ("/completion", "/completions"):
        reply = shared.post(path, prompt="abc").json()
        assert set(reply) == KEYS
        assert reply["content"] == REPLY and reply["tokens"] == []
        assert reply["stop"] is True and reply["stop_type"] == "eos"
        assert reply["prompt"] == "abc" and reply["model"] == "fake"
        assert reply["tokens_evaluated"] == 3
        assert reply["tokens_predicted"] == len(REPLY.encode()) + 1
        assert (reply["truncated"], reply["has_new_line"]) == (False, False)
        assert reply["generation_settings"]["n_predict"] == -1


def test_timings(shared: RunningServer) -> None:
    timings = shared.post("/completion", prompt="abcd", n_predict=3).json()["timings"]
    assert set(timings) == TIMINGS
    assert (timings["cache_n"], timings["prompt_n"], timings["predicted_n"]) == (2, 2, 3)
    assert timings["prompt_per_second"] == pytest.approx(2000 / timings["prompt_ms"])
    assert timings["predicted_per_second"] == pytest.approx(2000 / timings["predicted_ms"])


def test_stream(shared: RunningServer) -> None:
    chunks = chunks_of(shared.post("/completion", prompt="abc", stream=True, n_predict=3))
    assert [c["content"] for c in chunks] == ["H", "e", "l", ""]
    assert [c["tokens"] for c in chunks] == [[72], [101], [108], []]
    assert [c["stop"] for c in chunks] == [False, False, False, True]
    assert set(chunks[0]) == {
        "index", "content", "tokens", "stop", "id_slot", "tokens_predicted", "tokens_evaluated",
    }  # fmt: skip
    assert set(chunks[-1]) == KEYS and chunks[-1]["stop_type"] == "limit"


def test_stream_with_all_there_is_to_tell(shared: RunningServer) -> None:
    options = {"n_probs": 2, "timings_per_token": True, "return_progress": True, "n_predict": 2}
    first, second, last = chunks_of(shared.post("/completion", prompt="ab", stream=True, **options))
    assert first["timings"]["predicted_n"] == 1 and second["timings"]["predicted_n"] == 2
    progress = first["prompt_progress"]
    assert (progress["total"], progress["cache"], progress["processed"]) == (2, 1, 2)
    assert "prompt_progress" not in second
    assert first["completion_probabilities"] == [
        {
            "id": 72, "token": "H", "bytes": [72], "logprob": -0.5,
            "top_logprobs": [
                {"id": 72, "token": "H", "bytes": [72], "logprob": -0.5},
                {"id": 73, "token": "I", "bytes": [73], "logprob": -1.5},
            ],
        }
    ]  # fmt: skip
    assert "completion_probabilities" not in last


def test_probabilities_of_a_whole_reply(shared: RunningServer) -> None:
    reply = shared.post("/completion", prompt="a", n_probs=1, n_predict=2).json()
    assert [entry["token"] for entry in reply["completion_probabilities"]] == ["H", "e"]


@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_of_the_draw(shared: RunningServer, stream: bool) -> None:
    asked = {"n_probs": 2, "post_sampling_probs": True, "n_predict": 1, "stream": stream}
    reply = shared.post("/completion", prompt="a", **asked)
    assert shared.client.requests[-1].sampling.logprobs_after_sampling
    (entry,) = (chunks_of(reply)[0] if stream else reply.json())["completion_probabilities"]
    assert (entry["id"], entry["prob"]) == (72, pytest.approx(math.exp(-0.5)))
    assert [set(one) for one in entry["top_probs"]] == [{"id", "token", "bytes", "prob"}] * 2
    assert [one["prob"] for one in entry["top_probs"]] == pytest.approx(
        [math.exp(-0.5), math.exp(-1.5)]
    )


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [b"ab"]),
        ([97, 98], [b"ab"]),
        ([97, "bc", 100], [b"abcd"]),
        (["x", 121], [b"xy"]),
        ({"prompt_string": "ab"}, [b"ab"]),
        (["ab", "cd"], [b"ab", b"cd"]),
        ([[97, "b"], "c", {"prompt_string": "d"}, [101]], [b"ab", b"c", b"d", b"e"]),
        (["ab"], [b"ab"]),
    ],
)
def test_every_form_of_prompt(start, prompt: Any, expected: list[bytes]) -> None:
    client = FakeClient()
    reply = start(client).post("/completion", prompt=prompt, n_predict=1).json()
    assert [bytes(request.prompt_token_ids) for request in client.requests] == expected
    replies = reply if len(expected) > 1 else [reply]
    assert [entry["prompt"].encode() for entry in replies] == expected
    assert [entry["index"] for entry in replies] == list(range(len(expected)))


def test_text_at_the_beginning_gets_a_bos(start) -> None:
    client = FakeClient(abilities={"vocab_size": 263})
    server = start(client, tokenizer=FimTokenizer())
    for prompt, has in (("a", True), (["b", 99], True), ([97, "b"], False), ([97], False)):
        server.post("/completion", prompt=prompt, n_predict=1)
        assert (client.requests[-1].prompt_token_ids[0] == FimTokenizer.bos) is has


@pytest.mark.parametrize("prompt", [[], 5, [True], [[]], {"a": 1}, [1.5], ["a", []], None])
def test_bad_prompts(shared: RunningServer, prompt: Any) -> None:
    error = error_of(shared.post("/completion", prompt=prompt))
    assert error["param"] == "prompt"


def test_sampling_reaches_the_engine(start) -> None:
    client = FakeClient()
    sent = {
        "temperature": 0.5, "top_k": 7, "top_p": 0.25, "min_p": 0.125, "repeat_penalty": 1.5,
        "presence_penalty": 1, "frequency_penalty": -1, "top_n_sigma": 1.5, "seed": 3,
        "ignore_eos": True, "stop": ["zzz", ""], "n_predict": 9, "n_cmpl": 2,
    }  # fmt: skip
    reply = start(client).post("/completion", prompt="a", **sent).json()
    sampling = client.requests[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.5, 7, 0.25)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.125, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert sampling.top_n_sigma == 1.5
    assert (sampling.seed, sampling.ignore_eos, sampling.stop) == (3, True, ["zzz"])
    assert sampling.max_tokens == 9 and len(client.requests) == 2
    settings = reply[0]["generation_settings"]
    assert {name: settings[name] for name in sent.keys() - {"stop", "n_cmpl"}} == {
        name: value for name, value in sent.items() if name not in ("stop", "n_cmpl")
    }
    assert settings["stop"] == ["zzz"]


@pytest.mark.parametrize(
    ("sent", "name", "value"),
    [
        ({"temperature": -1}, "temperature", 0),
        ({"top_k": -5}, "top_k", 0),
        ({"seed": -1}, "seed", None),
        ({"seed": 4294967295}, "seed", None),
        ({"max_tokens": 5}, "max_tokens", 5),
        ({"n_predict": 100_000}, "max_tokens", 2047),
        ({}, "max_tokens", 2047),
        ({"samplers": ["top_k"], "temperature": 0.5, "top_k": 4}, "temperature", 1),
        ({"samplers": ["top_k"], "temperature": 0.5, "top_k": 4}, "top_k", 4),
        ({"samplers": "kt", "min_p": 0.5}, "min_p", 0),
        ({"repeat_last_n": 0, "repeat_penalty": 1.5}, "repetition_penalty", 1),
        ({"repeat_last_n": 64}, "repetition_penalty", 1),
        ({"logit_bias": [[5, -1.5], [6, False]]}, "logit_bias", {5: -1.5, 6: -100}),
        ({"logit_bias": [["ab", 2]]}, "logit_bias", {97: 2, 98: 2}),
        ({"logit_bias": {"5": 500, "c": 1}}, "logit_bias", {5: 100, 99: 1}),
    ],
)
def test_values_of_its_own(start, sent: dict[str, Any], name: str, value: Any) -> None:
    client = FakeClient()
    reply = start(client).post("/completion", prompt="a", **sent)
    assert reply.status_code == 200, reply.text
    assert getattr(client.requests[0].sampling, name) == value


def test_samplers_of_llama_cpp_reach_the_engine_in_their_order(start) -> None:
    client = FakeClient()
    server = start(client)
    sent = {
        "dry_multiplier": 0.8, "dry_sequence_breakers": ["b"], "xtc_probability": 0.5, "top_k": 4,
        "samplers": ["xtc", "top-k", "dry", "temp", "adaptive_p"], "top_p": 0.5,
    }  # fmt: skip
    reply = server.post("/completion", prompt="a", **sent).json()
    sampling = client.requests[0].sampling
    assert sampling.samplers == ["xtc", "top_k", "dry", "temperature"]
    assert (sampling.dry_multiplier, sampling.xtc_probability) == (0.8, 0.5)
    assert sampling.top_p == 1  # not named
    assert client.requests[0].dry_breaker_ids == [[98]]
    settings = reply["generation_settings"]
    assert settings["samplers"] == sampling.samplers and settings["dry_base"] == 1.75
    chat = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "typical_p": 0.5}
    assert server.post("/v1/chat/completions", **chat, samplers="yk").status_code == 200
    assert client.requests[1].sampling.chain == ["typ_p"]


@pytest.mark.parametrize(
    ("sent", "param"),
    [
        ({"samplers": ["top_k", "luck"]}, "samplers"),
        ({"samplers": "kz"}, "samplers"),
        ({"xtc_probability": 2}, "xtc_probability"),
        ({"mirostat": 3}, "mirostat"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": [""]}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ["a" * 41]}, "dry_sequence_breakers"),
        ({"dry_multiplier": 1, "dry_sequence_breakers": ["a"] * 33}, "dry_sequence_breakers"),
    ],
)
@pytest.mark.parametrize("route", ["/completion", "/v1/completions"])
def test_bad_samplers(shared: RunningServer, route: str, sent: dict[str, Any], param: str) -> None:
    model = {} if route == "/completion" else {"model": "fake"}
    assert error_of(shared.post(route, prompt="a", **model, **sent))["param"] == param


@pytest.mark.parametrize(
    ("field", "refused", "neutral"),
    [(absent.native, 0.5, float(absent.neutral[0])) for absent in ABSENT],
)
def test_what_would_change_the_result_is_refused_by_name(
    shared: RunningServer, field: str, refused: Any, neutral: Any
) -> None:
    error = error_of(shared.post("/completion", prompt="a", **{field: refused}))
    assert error["param"] == field and field in error["message"]
    assert shared.post("/completion", prompt="a", **{field: neutral}).status_code == 200


@pytest.mark.parametrize(
    "fields", [{"grammar": "root ::= [ab]+"}, {"json_schema": {"type": "integer"}}]
)
def test_a_grammar_reaches_the_engine(start, fields: dict[str, Any]) -> None:
    client = FakeClient()
    assert start(client).post("/completion", prompt="a", **fields).status_code == 200
    assert client.requests[0].grammar is not None


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"grammar": "root ::= [a"}, "grammar"),
        ({"json_schema": {"type": "nothing"}}, "json_schema"),
        ({"grammar": "root ::= [a]", "json_schema": {}}, "json_schema"),
    ],
)
def test_a_grammar_never_fails_open(
    shared: RunningServer, fields: dict[str, Any], param: str
) -> None:
    assert error_of(shared.post("/completion", prompt="a", **fields))["param"] == param


def test_a_window_of_penalties_is_refused_only_where_it_matters(shared: RunningServer) -> None:
    sent = {"prompt": "a", "repeat_last_n": 64}
    error = error_of(shared.post("/completion", **sent, repeat_penalty=1.1))
    assert error["param"] == "repeat_last_n"
    assert shared.post("/completion", **sent, repeat_penalty=1.0).status_code == 200


@pytest.mark.parametrize(
    "bias", [5, "x", [[1]], [[1, "a"]], [[1, True]], {"a": None}, [[None, 1]], [1, 2]]
)
def test_bad_bias(shared: RunningServer, bias: Any) -> None:
    error = error_of(shared.post("/completion", prompt="a", logit_bias=bias))
    assert error["param"] == "logit_bias"


def test_stop_words(shared: RunningServer) -> None:
    reply = shared.post("/completion", prompt="a", stop=["zzz", "counts"]).json()
    assert reply["content"] == REPLY.partition("counts")[0]
    assert (reply["stop_type"], reply["stopping_word"]) == ("word", "counts")


def test_the_end_of_the_context_truncates(start) -> None:
    server = start(FakeClient(abilities={"max_model_len": 20}))
    reply = server.post("/completion", prompt="x" * 15, n_predict=100).json()
    assert (reply["stop_type"], reply["truncated"]) == ("limit", True)
    assert reply["tokens_predicted"] == 5
    reply = server.post("/completion", prompt="x" * 15, n_predict=2).json()
    assert (reply["stop_type"], reply["truncated"]) == ("limit", False)


def test_response_fields(shared: RunningServer) -> None:
    fields = ["content", "generation_settings/n_predict", "nothing", "timings/nothing"]
    sent = {"prompt": "a", "n_predict": 2, "response_fields": fields}
    assert shared.post("/completion", **sent).json() == {
        "content": "He", "generation_settings/n_predict": 2,
    }  # fmt: skip
    chunks = chunks_of(shared.post("/completion", **sent, stream=True))
    assert chunks[-1] == {"content": "", "generation_settings/n_predict": 2}
    assert "tokens_predicted" in chunks[0]


def test_tokens_come_back(shared: RunningServer) -> None:
    reply = shared.post("/completion", prompt="a", n_predict=2, return_tokens=True).json()
    assert reply["tokens"] == [72, 101]


def test_without_the_cache_no_prefix_is_shared(start) -> None:
    client = FakeClient()
    server = start(client)
    for _ in range(2):
        server.post("/completion", prompt="a", cache_prompt=False)
    server.post("/completion", prompt="a")
    salts = [request.cache_salt for request in client.requests]
    assert salts[0] and salts[1] and salts[0] != salts[1] and salts[2] is None


def test_a_time_limit_ends_the_reply_with_a_line(start) -> None:
    client = FakeClient(script=lambda request: b"abc\n" * 500, delay=0.005)
    server = start(client)
    reply = server.post("/completion", prompt="a", t_max_predict_ms=50).json()
    assert reply["stop_type"] == "limit" and reply["has_new_line"]
    assert 4 < reply["tokens_predicted"] < 1900
    assert len(client.aborted) == 1
    chunks = chunks_of(server.post("/completion", prompt="a", t_max_predict_ms=50, stream=True))
    assert chunks[-1]["stop"] is True and chunks[-1]["stop_type"] == "limit"


@pytest.mark.parametrize("delay", [0.0, 0.002])
def test_the_reply_ends_where_the_indentation_does(start, delay: float) -> None:
    """Byte by byte, or several bytes in one delta."""
    text = b"x = 1\n    y = 2\n\t \tz = 3\n  out = 4\nmore"
    server = start(FakeClient(script=lambda request: text, delay=delay))
    expected = "x = 1\n    y = 2\n\t \tz = 3\n  "
    reply = server.post("/completion", prompt="a", n_indent=3).json()
    assert (reply["content"], reply["stop_type"]) == (expected, "limit")
    chunks = chunks_of(server.post("/completion", prompt="a", n_indent=3, stream=True))
    assert "".join(chunk["content"] for chunk in chunks) == expected
    assert server.post("/completion", prompt="a", n_indent=2).json()["content"].endswith("= 4\n")


def test_errors_of_a_stream_are_events(start) -> None:
    chunks = chunks_of(start(FakeClient(die_after=2)).post("/completion", prompt="a", stream=True))
    assert "killed by a test" in chunks[-1]["error"]["message"]


def test_disconnect_aborts(start) -> None:
    client = FakeClient(delay=0.02)
    server = start(client)
    with server.http.stream("POST", "/completion", json={"prompt": "a", "stream": True}) as reply:
        next(reply.iter_lines())
    wait_until(lambda: len(client.aborted) == 1)


def test_infill(start) -> None:
    client = FakeClient(abilities={"vocab_size": 263})
    tokenizer = FimTokenizer()
    server = start(client, tokenizer=tokenizer)
    sent = {"input_prefix": "def f(", "input_suffix": "): pass", "prompt": "a", "n_predict": 4}
    reply = server.post("/infill", **sent).json()
    assert reply["content"] == "Hell"
    # <PRE>prefix + prompt<SUF>suffix<MID>, the README's pattern, with BOS.
    assert reply["prompt"] == ("<bos><|fim_prefix|>def f(a<|fim_suffix|>): pass<|fim_middle|>")
    extra = [{"filename": "x.py", "text": "import x"}, {"text": "2"}]
    reply = server.post("/infill", **sent, input_extra=extra).json()
    assert reply["prompt"].startswith("<|repo_name|>repository\n<|file_sep|>x.py\nimport x\n")
    assert reply["prompt"].endswith("<bos><|fim_prefix|>def f(a<|fim_suffix|>): pass<|fim_middle|>")


def test_other_files_of_an_infill_are_cut_to_the_context(start) -> None:
    client = FakeClient(abilities={"vocab_size": 263, "max_model_len": 100})
    server = start(client, tokenizer=FimTokenizer())
    extra = [{"filename": "x.py", "text": "z" * 500}]
    reply = server.post(
        "/infill", input_prefix="a", input_suffix="b", input_extra=extra, n_predict=10
    )
    assert reply.status_code == 200, reply.text
    assert len(client.requests[0].prompt_token_ids) == 90
    assert reply.json()["prompt"].endswith("<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>")


def test_a_special_token_in_code_is_text(start) -> None:
    client = FakeClient(abilities={"vocab_size": 263})
    server = start(client, tokenizer=FimTokenizer())
    server.post("/infill", input_prefix="<|fim_middle|>", input_suffix="")
    ids = client.requests[0].prompt_token_ids
    assert ids.count(FimTokenizer().encode("<|fim_middle|>")[0]) == 1


def test_infill_needs_a_model_for_it(shared: RunningServer) -> None:
    error = error_of(shared.post("/infill", input_prefix="a", input_suffix="b"), 501)
    assert "filling in the middle" in error["message"]
    assert error_of(shared.post("/infill", input_prefix="a"))["param"] == "input_suffix"


def test_apply_template_and_input_tokens(shared: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    prompt = shared.post("/apply-template", messages=messages).json()
    assert prompt == {"prompt": "user: hi\nassistant: "}
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert shared.post(path, messages=messages).json()["input_tokens"] == 20


def test_openai_without_the_prefix(shared: RunningServer) -> None:
    messages = [{"role": "user", "content": "hi"}]
    reply = shared.post("/chat/completions", messages=messages).json()
    assert reply["choices"][0]["message"]["content"] == REPLY
    assert _lasting(shared.http.get("/models")) == _lasting(shared.http.get("/v1/models"))
    assert shared.http.get("/v1/health").status_code == 200


def _lasting(listed: httpx.Response) -> dict[str, Any]:
    """A list of models without what changes between two looks: memory that is held."""
    found: dict[str, Any] = listed.json()
    for card in found["data"]:
        assert card["status"].pop("bytes") > 0
    return found
