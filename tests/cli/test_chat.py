"""`pagoda chat` and `complete` against a server, one shot each."""

import asyncio
import shlex
import socket
import subprocess
import sys
import threading

import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli.connect import add_source_arguments, open_source
from pagoda.config.parser import FlagParser

SECONDS = 20.0


def pagoda(*words, stdin=""):
    command = [sys.executable, "-m", "pagoda", *words]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=SECONDS)


def test_quick_prints_one_reply(fake_server):
    done = pagoda("chat", "--base-url", fake_server.url, "-q", "hello there", "--max-tokens", "1")
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["hello"], "")
    body = fake_server.bodies[0]
    assert body["messages"] == [{"role": "user", "content": "hello there"}]
    assert body["model"] == "fake-model"


def test_piped_text_is_one_message(fake_server):
    line = ["chat", "--base-url", fake_server.url + "/v1", "--system-prompt", "be brief"]
    done = pagoda(*line, stdin="two\nlines")
    assert done.stdout.split() == ["two", "lines"]
    assert fake_server.bodies[0]["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "two\nlines"},
    ]


def test_the_newline_of_echo_is_no_part_of_a_message(fake_server):
    pagoda("chat", "--base-url", fake_server.url, stdin="two words\n")
    assert fake_server.bodies[0]["messages"] == [{"role": "user", "content": "two words"}]


@pytest.mark.parametrize("words", [(), ("-p", ""), ("-q", "  ")])
def test_an_empty_message_is_not_sent(words, fake_server):
    done = pagoda("chat", "--base-url", fake_server.url, *words)
    assert done.returncode != 0 and "nothing to answer" in done.stderr
    assert fake_server.bodies == []


def test_piped_text_stands_before_the_question_about_it(fake_server):
    done = pagoda(
        "chat", "--base-url", fake_server.url, "-q", "What is it?", stdin="a file\nof words\n"
    )
    assert done.returncode == 0
    assert fake_server.bodies[0]["messages"] == [
        {"role": "user", "content": "a file\nof words\n\nWhat is it?"}
    ]


def test_thought_is_no_part_of_a_piped_answer(fake_server):
    done = pagoda("chat", "--base-url", fake_server.url, "-q", "think twice")
    assert done.stdout.split() == ["think", "twice"]
    assert "hmm let me see" in done.stderr


def test_a_refused_request_is_one_line(fake_server):
    done = pagoda("chat", "--base-url", fake_server.url, "-q", "boom")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "pagoda chat: The server answered 400: boom is not allowed\n"


def test_an_error_inside_the_stream_keeps_what_came(fake_server):
    done = pagoda("chat", "--base-url", fake_server.url, "-q", "one midway two")
    assert done.returncode == 1
    assert done.stdout.split() == ["one"]
    assert done.stderr == "pagoda chat: the engine died\n"


@pytest.mark.parametrize("name", ["chat", "complete", "run-batch", "bench", "launch"])
def test_url_is_another_spelling_of_base_url(name):
    """Help shows one of the two."""
    words = ["bench", "serve"] if name == "bench" else [name]
    printed = pagoda(*words, "--help").stdout
    assert "--base-url" in printed and "--url" not in printed
    given = pagoda(*words, "--url", "x", "--no-such-flag")
    assert "unknown flag --no-such-flag" in given.stderr or "required" in given.stderr


def test_no_server_is_one_line():
    done = pagoda("chat", "--url", "127.0.0.1:9", "-q", "hi")
    assert done.returncode == 1
    assert "Nothing answers at http://127.0.0.1:9/v1" in done.stderr


def test_a_model_the_server_does_not_have(fake_server):
    done = pagoda("chat", "--base-url", fake_server.url, "--model-name", "other", "-q", "hi")
    assert "has no model 'other'; it has fake-model." in done.stderr


def test_a_model_of_a_server_is_never_replaced_by_one_of_our_own(monkeypatch):
    async def nobody(*_: object) -> None:
        return None

    monkeypatch.setattr("pagoda.cli.talk.source_http.find_local", nobody)
    parser = FlagParser()
    add_source_arguments(parser)
    with pytest.raises(ConfigError, match="No server on port 8000 has a model 'other'"):
        asyncio.run(open_source(parser.parse_args(["--model-name", "other"])))


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_a_named_server_is_never_replaced_by_a_model_of_our_own(command, fake_server):
    port = str(fake_server.server_address[1])
    for where in (["--port", port], ["--base-url", fake_server.url]):
        done = pagoda(command, "smollm2", *where, "-q", "hi")
        error = f"The server at {fake_server.url}/v1 has no model 'smollm2'; it has fake-model."
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == f"pagoda {command}: {error}\n"
    assert fake_server.bodies == []


def test_nothing_on_the_named_port_is_one_line():
    done = pagoda("chat", "smollm2", "--port", "9", "-q", "hi")
    message = "Nothing answers at http://127.0.0.1:9/v1; is the server running?"
    assert (done.returncode, done.stderr) == (1, f"pagoda chat: {message}\n")


@pytest.mark.parametrize("answer", [b"HTTP/1.1 404 Not Found\r\n\r\n<html>", b"220 mail ready\r\n"])
def test_another_kind_of_server_is_one_line(answer):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"127.0.0.1:{listener.getsockname()[1]}"

        def reply():
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=reply)
        thread.start()
        done = pagoda("chat", "--url", url, "-q", "hi")
        thread.join()
    message = f"http://{url}/v1 answers, but not as an OpenAI-compatible server."
    assert (done.returncode, done.stderr) == (1, f"pagoda chat: {message}\n")


def test_the_key_comes_from_flag_or_environment(fake_server, monkeypatch):
    fake_server.api_key = "sk"
    none = pagoda("chat", "--base-url", fake_server.url, "-q", "hi").stderr
    assert "wants a key (401); give it with --api-key or PAGODA_API_KEY" in none
    wrong = pagoda("chat", "--base-url", fake_server.url, "--api-key", "ks", "-q", "hi").stderr
    assert f"{fake_server.url} refuses the key (401)" in wrong
    assert pagoda("chat", "--base-url", fake_server.url, "--api-key", "sk", "-q", "hi").stdout
    monkeypatch.setenv("PAGODA_API_KEY", "sk")
    assert pagoda("chat", "--base-url", fake_server.url, "-q", "hi").stdout


@pytest.mark.parametrize("model", [[], ["fake-model"], ["org/fake"]])
def test_a_server_of_this_machine_is_found_by_its_port(fake_server, model):
    port = str(fake_server.server_address[1])
    assert pagoda("chat", *model, "--port", port, "-q", "hi").stdout.split() == ["hi"]


def test_a_local_server_that_wants_a_key_says_so(fake_server):
    fake_server.api_key = "sk"
    done = pagoda("chat", "--port", str(fake_server.server_address[1]), "-q", "hi")
    assert done.returncode == 1
    assert "--api-key" in done.stderr


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_text_in_the_model_s_place_is_answered_with_a_hint(command):
    done = pagoda(command, "hello there")
    message = "'hello there' is no model; to send it as text, put -q before it."
    assert (done.returncode, done.stderr) == (1, f"pagoda {command}: {message}\n")


def test_complete_goes_on_with_the_text(fake_server):
    done = pagoda("complete", "--base-url", fake_server.url, "-q", "one two", "--temperature", "0")
    assert done.stdout == "one two \n"
    body = fake_server.bodies[0]
    assert (body["prompt"], body["temperature"], body["max_tokens"]) == ("one two", 0.0, 128)


def test_complete_takes_llama_clis_words(fake_server):
    line = "-p 'one two' -n 7 --temp 0 --repeat-penalty 1.5 --jinja -no-cnv"
    done = pagoda("complete", "--base-url", fake_server.url, *shlex.split(line))
    assert done.stdout == "one two \n"
    body = fake_server.bodies[0]
    assert (body["prompt"], body["temperature"], body["max_tokens"]) == ("one two", 0.0, 7)
    assert body["repetition_penalty"] == 1.5
    answered = [line.split()[0] for line in done.stderr.splitlines()]
    assert answered == ["--jinja", "--no-conversation"]


def test_a_prompt_without_a_terminal_is_one_message(fake_server):
    done = pagoda("chat", "--base-url", fake_server.url, "-p", "hello there", "-n", "-1")
    assert done.stdout.split() == ["hello", "there"]
    assert "max_tokens" not in fake_server.bodies[0]


def test_complete_keeps_thought_apart(fake_server):
    done = pagoda("complete", "--base-url", fake_server.url, "-q", "<think> hm </think> yes")
    assert done.stdout.strip() == "yes"
    assert done.stderr.strip() == "hm"


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "ftp://host", "http://[::1", "http://"])
@pytest.mark.parametrize(
    "command", [["chat", "-q", "hi"], ["run-batch", "-i", "{file}", "-o", "{file}.out"],
                ["bench", "serve", "--num-prompts", "1"]],
)  # fmt: skip
def test_what_is_no_address_is_said_so(url, command, tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text('{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}}\n')
    done = pagoda(*(word.format(file=file) for word in command), "--base-url", url)
    assert done.returncode == 1
    assert "is no address; write it as http://HOST:PORT." in done.stderr
