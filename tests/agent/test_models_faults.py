"""Servers that fail, in every way that servers do."""

import asyncio
import email.utils
import json
import logging
import re
import socket
import time

import pytest

from pagoda_agent.base.errors import ConfigError, ModelError
from pagoda_agent.models import transport
from pagoda_agent.models.dialogue import Message
from pagoda_agent.models.endpoint import Endpoint
from pagoda_agent.models.openai_chat import OpenAIChat
from pagoda_agent.models.registry import APIS, make_model
from tests.agent.model_server import ModelServer, Step
from tests.agent.tls import own_certificate

KEY = "sk-very-secret-key-123"
HELLO = [Message("system", "Be brief."), Message("user", "Hello")]
GOOD = Step("Hi.")


def base(api, server):
    return f"{server.url}/api/v1" if api == "dashscope" else f"{server.url}/v1"


async def ask(server, api="openai", **how):
    settings = {"backoff_seconds": 0.01, "api_key": KEY, **how}
    model = make_model(api, Endpoint(base(api, server), "scripted", **settings))
    try:
        return await model.complete(HELLO)
    finally:
        await model.close()


async def failure(server, api="openai", **how):
    with pytest.raises(ModelError) as caught:
        await ask(server, api, **how)
    assert KEY not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("api", list(APIS))
@pytest.mark.parametrize(
    "fault",
    [
        Step(status=429, headers={"Retry-After": "0"}),
        Step(status=500),
        Step(status=503, body="<html>busy</html>", content_type="text/html"),
        Step(status=529),
        Step("Hi.", cut=True),
        Step("Hi.", cut=True, plain=True),
        Step("Hi.", hang="before headers"),
        Step("Hi.", hang="in the stream"),
        Step(body='{"half": ', content_type="application/json"),
        Step(body="[]", content_type="application/json"),
        Step(body="data: {not json}\n\n", content_type="text/event-stream"),
        Step(body="", content_type="text/event-stream"),
        Step(
            body='data: {"error": {"message": "engine died"}}\n\n', content_type="text/event-stream"
        ),
    ],
    ids=lambda step: f"{step.status}-{step.content_type}-{step.hang}-{step.cut}-{step.body}"[:60],
)
async def test_what_may_pass_is_tried_again(api, fault):
    # On a busy machine a good reply may be silent for as long as a hanging one is given.
    patience = {"read_seconds": 0.3, "retries": 19} if fault.hang else {}
    with ModelServer([fault, *[GOOD] * 20]) as server:
        assert (await ask(server, api, **patience)).text == "Hi."
        assert len(server.requests) == 2 or (fault.hang and len(server.requests) > 2)
        assert len({request.raw for request in server.requests}) == 1


@pytest.mark.parametrize("api", list(APIS))
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Step(status=401), "refused the API key [(]401[)]: scripted error 401"),
        (Step(status=403), "does not allow this with your API key [(]403[)]"),
        (Step(status=400), "refused the request [(]400[)]: scripted error 400"),
        (Step(status=413), "413"),
        (Step(status=429, headers={"Retry-After": "3600"}), "asks to wait 3600 s"),
        (
            Step(status=429, body='{"error": {"message": "Pay.", "code": "insufficient_quota"}}'),
            "no credit left [(]429[)]: Pay.",
        ),
        (Step(body="<html>", content_type="text/html"), "text/html instead of JSON"),
        (Step(status=307, headers={"Location": "/x"}), "307"),
    ],
)
async def test_what_will_not_pass_fails_at_once(api, fault, said):
    with ModelServer([fault, GOOD]) as server:
        text = await failure(server, api)
        assert len(server.requests) == 1
    assert re.search(said, text), text


async def test_the_last_fault_is_told_and_how_often():
    with ModelServer([Step(status=500)] * 3) as server:
        assert "answered 500: scripted error 500 (tried 3 times)." in await failure(
            server, retries=2
        )
        assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (
            400,
            "A message has a content part of type 'image_url', but this model reads text only; "
            "send parts of type 'text'.",
        ),
        (400, "At most 0 image(s) may be provided in one request."),
        (400, "glm is not a multimodal model"),
        (500, "image input is not supported - hint: you may need to provide the mmproj"),
        (400, "this model does not support image input"),
        (500, "failed to process inputs: this model is missing data required for image input"),
    ],
)
async def test_a_model_that_cannot_see(status, said):
    step = Step(status=status, body=json.dumps({"error": {"message": said}}))
    with ModelServer([step, GOOD]) as server:
        text = await failure(server)
        assert text.startswith(f"scripted cannot see: {said.rstrip('.')}. Serve a model that ")
        assert len(server.requests) == 1, "asking again does not help"


async def test_too_many_pictures_are_no_blindness():
    many = {"error": {"message": "At most 1 image(s) may be provided in one request."}}
    with ModelServer([Step(status=400, body=json.dumps(many))]) as server:
        assert "refused the request (400): At most 1 image" in await failure(server)


async def test_a_missing_key_says_where_keys_are_taken_from():
    with ModelServer([Step(status=401)]) as server:
        text = await failure(server, api_key=None)
    assert "wants an API key (401): scripted error 401. It is taken from the page's" in text
    assert "PAGODA_API_KEY" in text


@pytest.fixture
def told(monkeypatch, caplog):
    """Gives what whoever watches was told."""
    # Whatever ran before may have called `setup_logging`, which ends propagation.
    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)
    caplog.set_level(logging.WARNING, "pagoda")
    return lambda: [
        record.message for record in caplog.records if record.name == transport.__name__
    ]


async def test_a_long_wait_is_told_and_ends_with_advice(monkeypatch, told):
    monkeypatch.setattr(transport, "_LONG_SECONDS", 0.01)
    with ModelServer([Step(hang="before headers")]) as server:
        text = await failure(server, total_seconds=0.5)
    assert text.endswith("If the model is slow, --reply-seconds gives it more time.")
    (line,) = told()
    assert "Waiting for the reply of scripted at " in line and "for 0.5 s at most." in line


async def test_retries_are_told_and_quick_replies_are_silent(told):
    with ModelServer([Step(status=429, headers={"Retry-After": "0"}), GOOD, GOOD]) as server:
        await ask(server)
        (line,) = told()
        assert "answered 429: scripted error 429. Asking again in 0.0 s." in line
        await ask(server)
    assert len(told()) == 1


@pytest.fixture
def slept(monkeypatch):
    """The seconds of every sleep; none takes any."""
    sleep, seconds = asyncio.sleep, []

    async def note(delay):
        seconds.append(delay)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    return seconds


async def test_a_wanted_pause_is_kept(slept):
    date = email.utils.formatdate(time.time() + 60, usegmt=True)
    for header in ("7", date):
        with ModelServer([Step(status=429, headers={"Retry-After": header}), GOOD]) as server:
            await ask(server)
    assert 7 in slept
    assert any(0 < seconds <= 60 and seconds != 7 for seconds in slept)


async def test_pauses_grow(slept):
    with ModelServer([Step(status=500)] * 4 + [GOOD]) as server:
        await ask(server, backoff_seconds=10)
    # The server's own delays are 0.
    pauses = [seconds for seconds in slept if seconds > 1]
    assert pauses == [pytest.approx(seconds, rel=0.26) for seconds in (10, 20, 30, 30)]


@pytest.mark.parametrize("header", ["soon", "-5", "Mon, 01 Jan 1990 00:00:00 GMT", "nan"])
async def test_a_pause_that_makes_no_sense_is_none(header):
    with ModelServer([Step(status=503, headers={"Retry-After": header}), GOOD]) as server:
        assert (await ask(server)).text == "Hi."


async def test_an_unknown_model_names_the_known_ones():
    names = [f"model-{number}" for number in range(25)]
    with ModelServer([Step(status=404)], models=names) as server:
        text = await failure(server)
        assert "has no model 'scripted'; it has: model-0, model-1," in text
        assert text.endswith("model-19 and 5 more.")
    with ModelServer([Step(status=404)], models=["scripted"]) as server:
        assert "has the model 'scripted', but not this API (404)" in await failure(server)


async def test_a_wrong_base_url():
    with ModelServer() as server:
        model = OpenAIChat(Endpoint(f"{server.url}/other", "m"))
        with pytest.raises(
            ModelError, match="is not there .404.: an HTML page.* often ends in /v1"
        ):
            await model.complete(HELLO)
        await model.close()


async def test_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    model = OpenAIChat(
        Endpoint(f"http://127.0.0.1:{port}/v1", "m", retries=1, backoff_seconds=0.01)
    )
    with pytest.raises(ModelError, match="nothing answers at .* is the server running.*tried 2"):
        await model.complete(HELLO)
    with pytest.raises(ModelError, match=r"is the server running\?$"):
        await model.served()
    await model.close()


async def test_a_name_that_is_not_known():
    model = OpenAIChat(Endpoint("http://no-such-host.invalid/v1", "m", retries=0))
    with pytest.raises(ModelError, match="'no-such-host.invalid' is not known .DNS."):
        await model.complete(HELLO)
    await model.close()


async def test_certificates(tmp_path):
    certificate, context = own_certificate(tmp_path)
    with ModelServer([GOOD, GOOD], tls=context) as server:
        text = await failure(server)
        assert "is not trusted" in text and "CA file" in text
        assert (await ask(server, ca_file=certificate)).text == "Hi."
        assert (await ask(server, insecure=True)).text == "Hi."
        plain = Endpoint(server.url.replace("https", "http") + "/v1", "m", retries=0)
        model = OpenAIChat(plain)
        with pytest.raises(ModelError, match="broke"):
            await model.complete(HELLO)
        await model.close()
    with ModelServer([GOOD]) as server:
        secure = server.url.replace("http", "https") + "/v1"
        model = OpenAIChat(Endpoint(secure, "m", retries=0, connect_seconds=0.3))
        with pytest.raises(ModelError, match="did not answer within 0.3 s"):
            await model.complete(HELLO)
        await model.close()
    with pytest.raises(ConfigError, match="cannot be read"):
        OpenAIChat(Endpoint("https://x/v1", "m", ca_file=tmp_path / "none"))
    (tmp_path / "broken").write_text("no certificate")
    with pytest.raises(ConfigError, match="cannot be read"):
        OpenAIChat(Endpoint("https://x/v1", "m", ca_file=tmp_path / "broken"))


async def test_the_time_for_all_tries_together():
    with ModelServer([Step(status=500)] + [Step("Hi.", hang="in the stream")] * 9) as server:
        text = await failure(server, total_seconds=2)
        assert "no whole reply within 2 s. Before that, " in text
        assert "answered 500" in text


@pytest.mark.parametrize("hang", ["before headers", "in the stream"])
@pytest.mark.parametrize("api", list(APIS))
async def test_cancelling_tells_the_server(api, hang):
    with ModelServer([Step("Hi.", hang=hang)]) as server:
        model = make_model(api, Endpoint(base(api, server), "scripted"))
        asking = asyncio.ensure_future(model.complete(HELLO))
        while not server.requests:
            await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await asyncio.to_thread(server.requests[0].left.wait, 20)
        await model.close()


@pytest.mark.parametrize("api", list(APIS))
@pytest.mark.parametrize("plain", [True, False])
async def test_a_megabyte_is_cut_off(api, plain):
    with ModelServer([Step("long " * 200_000, plain=plain)]) as server:
        reply = await ask(server, api)
        assert reply.finish_reason == "length"
        assert len(reply.text) <= 256 * 1024


async def test_a_body_without_end_is_refused():
    huge = Step(body=b'{"a": "' + b"x" * (9 << 20), content_type="application/json")
    with ModelServer([huge]) as server:
        assert "sent a broken reply: it is not JSON" in await failure(server, retries=0)
    line = Step(body=b"data: " + b"x" * (9 << 20), content_type="text/event-stream")
    with ModelServer([line]) as server:
        assert "a line of the stream does not end" in await failure(server, retries=0)


@pytest.mark.parametrize(
    "completion",
    [
        {"choices": []},
        {},
        {"choices": "none"},
        {"choices": [3]},
        {"choices": [{"message": "text"}]},
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": {"content": [5]}}]},
        {"choices": [{"message": {"tool_calls": {}}}]},
        {"choices": [{"message": {"tool_calls": [{"function": 1}]}}]},
    ],
)
async def test_completions_of_wrong_types(completion):
    body = json.dumps(completion)
    with ModelServer([Step(body=body)]) as server:
        assert "sent a broken reply: " in await failure(server, retries=0)


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("anthropic", {"type": "message", "content": "text"}),
        ("anthropic", {"type": "other", "content": []}),
        ("responses", {"status": "completed", "output": None}),
        ("responses", {"status": "failed", "error": {"code": "server_error", "message": "x"}}),
        ("dashscope", {"output": {"choices": []}}),
        ("dashscope", {"code": "InternalError", "message": "x"}),
    ],
)
async def test_other_replies_of_wrong_types(api, body):
    with ModelServer([Step(body=json.dumps(body))]) as server:
        assert "sent a broken reply: " in await failure(server, api, retries=0)


async def test_what_may_be_absent():
    message = {"role": "assistant", "content": None}
    body = json.dumps({"choices": [{"index": 0, "message": message}]})
    with ModelServer([Step(body=body), Step("Hi.", usage=None)]) as server:
        reply = await ask(server)
        assert (reply.text, reply.tool_calls, reply.usage.input_tokens) == ("", (), 0)
        assert (await ask(server)).usage.output_tokens == 0


async def test_refusals_by_the_provider():
    refusal = {"type": "message", "content": [], "stop_reason": "refusal", "usage": {}}
    with ModelServer([Step(body=json.dumps(refusal))]) as server:
        assert "declined" in await failure(server, "anthropic")
    part = {"type": "refusal", "refusal": "I cannot."}
    output = [{"type": "message", "content": [part]}]
    body = json.dumps({"status": "completed", "output": output})
    with ModelServer([Step(body=body)]) as server:
        assert "declined: I cannot." in await failure(server, "responses")


async def test_the_key_is_sent_and_never_shown():
    echo = json.dumps({"error": {"message": f"Incorrect key {KEY} in header-secret"}})
    with ModelServer([Step(status=401, body=echo), GOOD]) as server:
        text = await failure(server, headers={"X-Team": "header-secret"})
        assert "Incorrect key [hidden] in [hidden]" in text
        sent = server.requests[0].headers
        assert sent["authorization"] == f"Bearer {KEY}"
        assert sent["x-team"] == "header-secret"
        await ask(server, "anthropic")
        assert server.requests[1].headers["x-api-key"] == KEY
    endpoint = Endpoint("http://u:pass-word@h/v1", "m", KEY, {"X": "header-secret"})
    assert KEY not in repr(endpoint) and "header-secret" not in repr(endpoint)
    assert "pass-word" not in endpoint.place


@pytest.mark.parametrize("key", ["sk-line\n", "sk-é", "sk-\x00x"])
def test_a_key_that_cannot_be_sent(key):
    with pytest.raises(ConfigError, match="API key has characters") as caught:
        Endpoint("http://h/v1", "m", key)
    assert key not in str(caught.value)


@pytest.mark.parametrize("url", ["", "h:8000", "ftp://h", "http://", "http://[::1", "/v1"])
def test_base_urls_that_cannot_be_used(url):
    with pytest.raises(ConfigError, match="base URL"):
        Endpoint(url, "m")
