"""Routes that tell the state of the server, and those that are not served."""

import threading
from pathlib import Path
from typing import Any

import pytest

from pagoda.config.engine import EngineConfig, ModelConfig
from pagoda.engine.served.model_entry import ModelEntry
from pagoda.server.routes.unserved import UNSERVED
from pagoda.version import __version__
from tests.server.conftest import RunningServer, wait_until
from tests.server.fakes import TEMPLATE, FakeClient, Guessing
from tests.server.test_errors import error_of


def test_props(start) -> None:
    server = start(FakeClient(), defaults={"temperature": 0.25, "max_tokens": 99})
    props = server.http.get("/props").json()
    settings = props["default_generation_settings"]
    assert settings["n_ctx"] == 2048
    assert (settings["params"]["temperature"], settings["params"]["n_predict"]) == (0.25, 99)
    assert props["total_slots"] == 4 and props["chat_template"] == TEMPLATE
    assert (props["model_alias"], props["model_path"]) == ("fake", "/models/fake")
    assert props["modalities"] == {"vision": False, "audio": False, "video": False}
    assert props["build_info"] == f"pagoda-{__version__}" and props["eos_token"] == "<eos>"


def test_props_of_a_model_that_is_not_loaded(start, smollm2_gguf: Path) -> None:
    server = start(FakeClient())
    config = EngineConfig(model=ModelConfig(model=str(smollm2_gguf)))
    entry = ModelEntry(("resting",), config)
    server.context.fleet.add(entry)
    props = server.http.get("/props", params={"model": "resting"}).json()
    assert props["is_sleeping"] and not server.http.get("/props").json()["is_sleeping"]
    assert props["default_generation_settings"]["n_ctx"] == 8192, "as it was trained"
    assert props["model_alias"] == "resting" and "<|im_start|>" in props["chat_template"]
    assert entry.state == "unloaded", "asking loads nothing"


def test_slots(start) -> None:
    client = FakeClient(delay=0.02)
    server = start(client)
    idle = server.http.get("/slots").json()
    assert [slot["id"] for slot in idle] == [0, 1, 2, 3]
    assert not any(slot["is_processing"] for slot in idle)
    body = {"prompt": "secret", "n": 2, "max_tokens": 40, "stop": "hidden"}
    thread = threading.Thread(target=lambda: server.post("/v1/completions", **body))
    thread.start()
    wait_until(lambda: len(client.running) == 2)
    reply = server.http.get("/slots")
    busy = [slot for slot in reply.json() if slot["is_processing"]]
    assert len(busy) == 2 and busy[0]["n_prompt_tokens"] == 6
    assert not any(slot["speculative"] for slot in reply.json())
    assert busy[0]["id_task"] + 1 == busy[1]["id_task"]
    token = busy[0]["next_token"][0]
    assert token["n_decoded"] + token["n_remain"] == 40
    assert "secret" not in reply.text and "hidden" not in reply.text
    thread.join()
    wait_until(lambda: not any(s["is_processing"] for s in server.http.get("/slots").json()))


def test_slots_tell_of_guesses(start) -> None:
    """Four in each step, of which two come true; half of the prompt was in the cache."""
    client = Guessing(delay=0.05, abilities={"speculation": "suffix"})
    server = start(client)
    assert all(slot["speculative"] for slot in server.http.get("/slots").json())
    body = {"prompt": "secret", "max_tokens": 60}
    thread = threading.Thread(target=lambda: server.post("/v1/completions", **body))
    thread.start()

    seen: list[dict[str, Any]] = []

    def ended() -> bool:
        slot = server.http.get("/slots").json()[0]
        if slot["is_processing"]:
            seen.append(slot)
        return bool(seen) and not slot["is_processing"]

    wait_until(ended)
    thread.join()
    assert all(slot["speculative"] and slot["n_prompt_tokens"] == 6 for slot in seen)
    begun = [slot for slot in seen if slot["n_past"]]
    for slot in begun:
        decoded = slot["next_token"][0]["n_decoded"]
        assert slot["n_past"] == 6 + decoded - 1
        assert (slot["n_prompt_tokens_processed"], slot["n_prompt_tokens_cache"]) == (3, 3)
    guessed = [(slot["draft_n"], slot["draft_n_accepted"]) for slot in begun if "draft_n" in slot]
    assert guessed and guessed == sorted(guessed)
    assert all(tried == 2 * right > 0 for tried, right in guessed)
    idle = server.http.get("/slots").json()[0]
    assert idle["speculative"] and "draft_n" not in idle


def test_no_slot_left(start) -> None:
    client = FakeClient(delay=0.02, abilities={"max_num_seqs": 1})
    server = start(client)
    assert server.http.get("/slots?fail_on_no_slot=1").status_code == 200
    thread = threading.Thread(target=lambda: server.post("/v1/completions", prompt="a", n=2))
    thread.start()
    wait_until(lambda: len(client.running) == 2)
    assert len(server.http.get("/slots").json()) == 1
    error_of(server.http.get("/slots?fail_on_no_slot=1"), 503)
    thread.join()


@pytest.mark.parametrize("path", ["/props", "/slots", "/tokenizer_info"])
def test_state_of_a_model_by_name(shared: RunningServer, path: str) -> None:
    assert shared.http.get(f"{path}?model=fake-alias").status_code == 200
    assert error_of(shared.http.get(f"{path}?model=other"), 404)["param"] == "model"


def test_server_info(shared: RunningServer) -> None:
    info = shared.http.get("/server_info").json()
    assert info["version"] == __version__
    model = info["models"][0]
    assert (model["names"], model["state"]) == (["fake", "fake-alias"], "ready")
    assert model["engine"]["block_size"] == 16


def test_state_while_loading(start) -> None:
    server = start(FakeClient(state="starting"))
    assert server.http.get("/server_info").json()["models"][0]["engine"] is None
    assert server.http.get("/slots").json() == []
    assert server.http.get("/props").json()["total_slots"] == 0
    error_of(server.http.post("/reset_prefix_cache"), 503)


def test_tokenizer_info(shared: RunningServer) -> None:
    info = shared.http.get("/tokenizer_info").json()
    assert (info["vocab_size"], info["model_max_length"]) == (257, 2048)
    assert info["special_tokens"] == {"eos_token": "<eos>"} and info["eos_token_ids"] == [256]
    assert info["chat_template"] == TEMPLATE


def test_reset_prefix_cache(start) -> None:
    client = FakeClient(delay=0.02)
    server = start(client)
    assert server.http.post("/reset_prefix_cache").json() == {"success": True}
    assert client.calls == ["reset_prefix_cache"]
    thread = threading.Thread(target=lambda: server.chat())
    thread.start()
    wait_until(lambda: len(client.running) == 1)
    assert server.http.post("/reset_prefix_cache").json() == {"success": False}
    thread.join()


@pytest.mark.parametrize("route", UNSERVED)
def test_unserved_routes_say_what_to_do_instead(shared: RunningServer, route: str) -> None:
    method, path = route.split()
    reply = shared.http.request(method, path)
    if path.startswith("/api/"):
        assert reply.status_code == 501 and UNSERVED[route] in reply.json()["error"]
        return
    error = error_of(reply, 501)
    assert error["type"] == "NotImplementedError" and UNSERVED[route] in error["message"]
