"""`pagoda run-batch` against a server."""

import json

import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli.batch import read_done
from pagoda.cli.main import main


def line(custom_id, prompt, url="/v1/completions", **changes):
    body = {"model": "fake-model", "prompt": prompt}
    if "chat" in url:
        body = {"model": "fake-model", "messages": [{"role": "user", "content": prompt}]}
    entry = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
    return json.dumps(entry | changes)


def failed(record):
    return record["error"] is not None or record["response"]["status_code"] >= 400


@pytest.fixture
def batch(fake_server, tmp_path):
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def run(*lines):
        source.write_text("\n".join(lines) + "\n")
        words = ["run-batch", "-i", str(source), "-o", str(target), "--url", fake_server.url]
        status = main(words)
        records = [json.loads(text) for text in target.read_text().splitlines()]
        assert status == int(any(failed(record) for record in records))
        return records

    run.target = target
    return run


def by_id(records):
    return {record["custom_id"]: record for record in records}


def test_replies_have_openai_s_schema(batch):
    records = by_id(
        batch(line("a", "one two"), line("b", "hi", "/v1/chat/completions"), "", line("c", "boom"))
    )
    assert set(records["a"]) == {"id", "custom_id", "response", "error"}
    assert set(records["a"]["response"]) == {"status_code", "request_id", "body"}
    assert records["a"]["response"]["body"]["choices"][0]["text"] == "one two"
    assert records["b"]["response"]["body"]["choices"][0]["message"]["content"] == "hi"
    assert records["c"]["response"]["status_code"] == 400
    assert records["c"]["response"]["body"]["error"]["message"] == "boom is not allowed"
    assert all(record["error"] is None for record in records.values())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "not JSON"),
        ("[]", "not a JSON object"),
        (line(7, "x"), "custom_id must be a string"),
        (line("bad", "x", method="GET"), "must be POST"),
        (line("bad", "x", url="http://elsewhere/v1"), "write a path"),
        (line("bad", "x", body="text"), "body must be an object"),
        (line("bad", "x", body={"stream": True}), "cannot be streamed"),
        (line("good", "x"), "occurs twice"),
        ('{"custom_id": "bad", "url": "/v1/x", "body": {"\ud800": 1}}', "not JSON"),
    ],
)
def test_a_bad_line_is_an_error_line_and_harms_no_other(batch, text, words):
    encoded = text.encode("utf-8", "replace").decode()
    if "\ud800" in text:
        encoded = encoded.replace('": 1}}', "")
    records = batch(line("good", "fine"), encoded)
    assert len(records) == 2
    bad = next(record for record in records if record["error"])
    assert bad["response"] is None
    assert words in bad["error"]["message"]
    assert "Line 2" in bad["error"]["message"]


def test_a_second_run_asks_what_is_missing_and_what_failed(batch, fake_server, capsys):
    lines = [line("a", "one"), "nonsense", line("b", "two"), line("c", "boom")]
    batch(*lines)
    assert len(fake_server.bodies) == 3
    capsys.readouterr()
    records = batch(*lines[:3], line("c", "mended"), line("d", "three"))
    assert sorted(body["prompt"] for body in fake_server.bodies[3:]) == ["mended", "three"]
    assert len(records) == 5
    assert by_id(records)["c"]["response"]["body"]["choices"][0]["text"] == "mended"
    assert "2 answered, 1 failed, 2 were done before" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"GGUF\x03\0\0\0rest", "is not text"),
        (b"# Notes\n\nSome prose.\n", "has no batch request on any of its first 2 lines"),
        (b"{}\n", "custom_id must be a string"),
    ],
)
def test_a_file_of_something_else_is_refused_before_anything_is_written(
    content, words, tmp_path, capsys
):
    source, target = tmp_path / "in", tmp_path / "out.jsonl"
    source.write_bytes(content)
    arguments = ["-i", str(source), "-o", str(target), "--url", "http://127.0.0.1:9"]
    assert main(["run-batch", *arguments]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert len(error.splitlines()) == 1
    assert not target.exists()


def test_an_output_that_cannot_be_written_is_a_sentence(tmp_path, capsys):
    source, target = tmp_path / "in", tmp_path / "none" / "out.jsonl"
    source.write_text(line("a", "x"))
    arguments = ["-i", str(source), "-o", str(target), "--url", "http://127.0.0.1:9"]
    assert main(["run-batch", *arguments]) == 1
    expected = f"pagoda run-batch: {target} cannot be written: No such file or directory.\n"
    assert capsys.readouterr().err == expected


def test_a_half_written_line_is_written_again(batch, fake_server):
    lines = [line("a", "one"), line("b", "two")]
    batch(*lines)
    whole = batch.target.read_text()
    batch.target.write_text(whole[:-20])
    records = batch(*lines)
    assert set(by_id(records)) == {"a", "b"}
    assert len(records) == 2
    assert len(fake_server.bodies) == 3


def test_a_busy_server_is_asked_again(batch):
    assert batch(line("a", "busy bee"))[0]["response"]["status_code"] == 200


def test_requests_run_together(batch, fake_server):
    batch(*(line(str(i), f"slow {i} x") for i in range(20)))
    assert fake_server.most_running > 1


def test_a_foreign_output_file_is_left_alone(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("precious\n")
    with pytest.raises(ConfigError, match="not a batch output"):
        read_done(file)
    assert file.read_text() == "precious\n"


def test_input_and_output_must_differ(tmp_path, capsys):
    file = tmp_path / "a.jsonl"
    file.write_text(line("a", "x"))
    words = ["run-batch", "-i", str(file), "-o", str(file), "--url", "http://127.0.0.1:9"]
    assert main(words) == 1
    assert "same file" in capsys.readouterr().err


def test_a_lost_server_leaves_what_was_answered(batch, fake_server, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pagoda.cli.batch._FIRST_PAUSE", 0.01)
    batch(line("a", "one"))
    source = tmp_path / "in.jsonl"
    source.write_text(line("a", "one") + "\n" + line("b", "two") + "\n")
    words = ["run-batch", "-i", str(source), "-o", str(batch.target), "--url", "http://127.0.0.1:9"]
    assert main(words) == 1
    assert "goes on from here" in capsys.readouterr().err
    assert len(batch.target.read_text().splitlines()) == 1
