"""Prefixes of the default model: reported, and kept on disk across a restart."""

import re
import signal

import pytest

LONG = "The pagoda has nine floors. " * 40


def ask(served, text: str, **extra):
    model = served.openai().models.list().data[0].id
    reply = served.openai().completions.create(
        model=model, prompt=text, max_tokens=4, temperature=0,
        extra_body={"return_prefix_report": True, **extra},
    )  # fmt: skip
    details = reply.usage.prompt_tokens_details
    return reply.choices[0].text, details.cached_tokens, details.model_extra["prefix_report"]


def test_a_report_says_where_a_prompt_parts_from_the_cache(server):
    _, cached, report = ask(server, LONG, cache_salt="one")
    assert (cached, report["reason"], report["at_token"]) == (0, "new", 0)
    assert LONG.startswith(report["text"]) and report["text"]
    _, cached, report = ask(server, LONG, cache_salt="one")
    assert cached > 0 and report["reason"] in ("all", "new")
    changed = LONG[:300] + "But this one has three. " + LONG[300:]
    _, cached, report = ask(server, changed, cache_salt="one")
    assert report["reason"] == "new" and 0 < report["at_token"] == cached
    assert report["text"] in changed and report["text"] not in LONG
    # Another salt learns nothing of what this one asked.
    _, cached, report = ask(server, LONG, cache_salt="two")
    assert (cached, report["reason"], report["at_token"]) == (0, "new", 0)


@pytest.mark.parametrize("kv_dtype", ["int8", pytest.param("auto", marks=pytest.mark.exhaustive)])
def test_prefixes_survive_a_restart(serve, smollm2_gguf, tmp_path, kv_dtype):
    flags = (
        smollm2_gguf, "--kv-disk", tmp_path / "kept", "--kv-cache-memory-bytes", "64M",
        "--max-model-len", "1024", "--kv-cache-dtype", kv_dtype,
    )  # fmt: skip
    first = serve(*flags)
    first.wait_ready(60)
    text, cached, _ = ask(first, LONG)
    assert cached == 0
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(60) == 0
    (file,) = (tmp_path / "kept").glob("*.kv")
    second = serve(*flags)
    second.wait_ready(60)
    again, cached, report = ask(second, LONG)
    assert again == text
    assert cached >= 16 * 10, report
    assert report["cached"] == {"pool": 0, "host": 0, "disk": cached}
    line = (
        r"KV on disk: \S+ holds \S+ \S+ of at most 4.00 GiB, \d+ blocks of this model; \d+ of them"
    )
    assert re.search(line, "\n".join(second.log))
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(60) == 0
    assert file.exists()
