"""The file of keys, what `pagoda keys` does to it, and the usage that is kept beside it."""

import asyncio
import datetime
import json
import logging
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli.main import main
from pagoda.server.errors import ApiError
from pagoda.server.keys import usage
from pagoda.server.keys.account import Account, Meter, _span
from pagoda.server.keys.file import (
    MAX_KEYS,
    KeyEntry,
    digest_of,
    edited,
    read_keys,
    warn_if_open,
    write_keys,
)
from pagoda.server.keys.keyring import Keyring
from pagoda.server.keys.usage import Ledger, usage_file
from pagoda.server.keys.window import Window

CREATED = datetime.date(2026, 1, 1)


def entry(key: str, **fields: object) -> KeyEntry:
    return KeyEntry(sha256=digest_of(key).hex(), created=CREATED, **fields)


def add(capsys, path: Path, name: str, *flags: str) -> str:
    """The key that the command printed."""
    assert main(["keys", "add", name, "--file", str(path), *flags]) == 0
    return capsys.readouterr().out.strip()


def test_a_key_is_printed_once_and_kept_as_a_digest(tmp_path: Path, capsys) -> None:
    path = tmp_path / "keys.json"
    key = add(
        capsys, path, "alice", "--models", "a", "b", "--requests-per-minute", "60",
        "--tokens-per-minute", "5000", "--tokens-per-day", "9", "--parallel", "4",
    )  # fmt: skip
    other = add(capsys, path, "boss", "--admin")
    assert len(key) > 43 and key != other
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key not in path.read_text() and other not in path.read_text()
    kept = json.loads(path.read_text())
    assert kept["alice"].pop("created") == datetime.datetime.now(datetime.UTC).date().isoformat()
    assert kept["alice"] == {
        "sha256": digest_of(key).hex(), "models": ["a", "b"], "requests_per_minute": 60,
        "tokens_per_minute": 5000, "tokens_per_day": 9, "parallel": 4,
    }  # fmt: skip
    assert read_keys(path)["boss"].admin

    ledger = Ledger(usage_file(path))
    ledger.add("alice", "a", requests=2, prompt=30, completion=12, cached=10)
    asyncio.run(ledger.save())
    assert main(["keys", "list", "--file", str(path)]) == 0
    head, alice, boss = capsys.readouterr().out.splitlines()
    assert head.split()[:5] == ["NAME", "CREATED", "REQUESTS", "TOKENS", "TODAY"]
    assert alice.split()[2:7] == ["2", "42", "42", "a,", "b"] and "parallel 4" in alice
    assert boss.split()[2:] == ["0", "0", "0", "all", "admin"]

    assert main(["keys", "remove", "alice", "--file", str(path)]) == 0
    assert set(read_keys(path)) == {"boss"}


def test_edits_at_once_lose_nothing(tmp_path: Path) -> None:
    path, at_once = tmp_path / "keys.json", threading.Barrier(8)

    def edit(name: str) -> None:
        at_once.wait()
        with edited(path) as entries:
            entries[name] = entry(name)

    threads = [threading.Thread(target=edit, args=(name,)) for name in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(read_keys(path)) == list("abcdefgh")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["add"], "Name the key"),
        (["add", "a b"], "no name of a key"),
        (["add", "boss"], "remove it first"),
        (["add", "chief", "--admin", "--models", "a"], "leave `models` out"),
        (["remove", "nobody"], "it has: boss"),
        (["list", "boss"], "takes no name"),
    ],
)
def test_wrong_commands(words: list[str], told: str, tmp_path: Path, capsys) -> None:
    path = tmp_path / "keys.json"
    add(capsys, path, "boss")
    before = path.read_bytes()
    assert main(["keys", *words, "--file", str(path)]) == 1
    assert told in capsys.readouterr().err and path.read_bytes() == before


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"sha256": "sk-secret"}, "'a' is wrong"),
        ({"sha256": digest_of("").hex()}, "empty"),
        ({"parallel": 0}, "'a' is wrong"),
        ({"paralel": 1}, "paralel"),
        ({"models": []}, "'a' is wrong"),
        ({"models": "all"}, "'a' is wrong"),
        ({"created": "yesterday"}, "'a' is wrong"),
        ({"models": ["m"], "admin": True}, "leave `models` out"),
    ],
)
def test_broken_entries_are_named_and_no_value_is_shown(
    fields: dict, told: str, tmp_path: Path
) -> None:
    path = tmp_path / "keys.json"
    good = {"sha256": digest_of("k").hex(), "created": "2026-01-01"}
    path.write_text(json.dumps({"a": {**good, **fields}}))
    with pytest.raises(ConfigError, match=told) as refused:
        read_keys(path)
    assert "secret" not in str(refused.value) and str(path) in str(refused.value)


def test_broken_files(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    with pytest.raises(ConfigError, match="pagoda keys add NAME"):
        read_keys(path)
    with pytest.raises(ConfigError, match="no file"):
        read_keys(tmp_path)
    same = {"sha256": digest_of("k").hex(), "created": "2026-01-01"}
    many = {str(n): {**same, "sha256": digest_of(str(n)).hex()} for n in range(MAX_KEYS + 1)}
    for text, told in (
        ("sk-secret\nsk-other\n", "no JSON object"),
        ("[]", "no JSON object"),
        (json.dumps({"a": same, "b": same}), "'a' and 'b' have the same key"),
        (json.dumps({"a\nb": same}), "no name of a key"),
        (json.dumps(many), "at most 1000"),
        (" " * ((1 << 20) + 1), "larger"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=told) as refused:
            read_keys(path)
        assert "secret" not in str(refused.value)


def test_a_file_that_others_read(tmp_path: Path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger("pagoda"), "propagate", True)
    path = tmp_path / "keys.json"
    write_keys(path, {"a": entry("k")})
    warn_if_open(path)
    assert not caplog.text
    path.chmod(0o640)
    warn_if_open(path)
    assert "chmod 600" in caplog.text


def test_a_window_never_lets_more_than_the_limit_into_a_minute() -> None:
    window = Window()
    for now in (0.9, 1.1, 30.0):
        window.add(2, now)
    assert window.used(30.0) == 6
    assert window.wait(30.0, 6) == 0
    assert window.wait(30.0, 4) == pytest.approx(31.0)
    assert window.wait(30.0, 3) == pytest.approx(32.0)
    assert window.wait(30.0, 0) == pytest.approx(61.0)
    assert window.used(60.95) == 6  # 0.9 s to 60.9 s is a minute
    assert window.used(61.0) == 4
    assert window.used(62.0) == 2
    assert window.used(91.0) == 0


def test_the_file_is_looked_at_once_a_second(tmp_path: Path) -> None:
    path, now = tmp_path / "keys.json", 0.0
    write_keys(path, {"a": entry("k")})
    ring = Keyring(path, lambda: now)
    write_keys(path, {"b": entry("l")})
    now = 0.9
    ring.refresh()
    assert ring.names() == ["a"]
    now = 1.0
    ring.refresh()
    assert ring.names() == ["b"]


def test_limits_open_again(tmp_path: Path) -> None:
    now = 100.5
    ledger = Ledger(tmp_path / "usage.json")
    limits = entry("k", requests_per_minute=2, tokens_per_minute=10)
    account = Account("a", limits, ledger, lambda: now)
    meter = Meter(account, "m")
    account.admit("m")
    meter.check()
    meter.count(prompt=8)
    now += 20
    account.admit("m")  # let in beside it while tokens were left
    meter.count(completion=2)
    with pytest.raises(ApiError, match="10 tokens per minute"):
        meter.check()
    with pytest.raises(ApiError, match="2 requests per minute") as refused:
        account.admit("m")
    assert refused.value.headers == {"Retry-After": "41"}  # 100 s, 60 s later, and the second
    now = 160.9
    with pytest.raises(ApiError):
        account.admit("m")
    now = 161.0
    account.admit("m")
    assert [_span(seconds) for seconds in (7, 360, 3723)] == ["7s", "6m0s", "1h2m3s"]


def test_days_are_counted_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 20_000 * 86400.0 + 86_000
    monkeypatch.setattr(usage.time, "time", lambda: now)
    path = tmp_path / "usage.json"
    ledger = Ledger(path)
    account = Account("a", entry("k", tokens_per_day=5), ledger)
    account.spend("m", prompt=3, completion=2)
    with pytest.raises(ApiError, match="5 tokens per day") as refused:
        account.admit("m")
    assert refused.value.headers == {"Retry-After": "400"}
    assert account.headers()["x-ratelimit-reset-tokens"] == "6m40s"
    asyncio.run(ledger.save())
    restarted = Account("a", account.entry, Ledger(path))
    with pytest.raises(ApiError, match="5 tokens per day"):
        restarted.admit("m")
    now += 400
    restarted.admit("m")
    row = restarted.ledger.row("a")
    assert row.today == {"m": usage.Counts(1)} and row.total == {"m": usage.Counts(1, 3, 2)}
    assert (row.day - row.since).days == 1


def test_a_broken_usage_file_is_not_lost_unseen(tmp_path: Path) -> None:
    path = tmp_path / "usage.json"
    path.write_text("[{")
    with pytest.raises(ConfigError, match="Move the file away"):
        Ledger(path)


def test_usage_that_cannot_be_written_is_kept_for_later(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    ledger = Ledger(folder / "usage.json")
    ledger.add("a", "m", prompt=1)
    asyncio.run(ledger.save())
    folder.mkdir()
    asyncio.run(ledger.save())
    assert Ledger(folder / "usage.json").row("a").total["m"].prompt_tokens == 1


def test_usage_outlives_the_server_and_no_key_is_logged(
    launch: Callable, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "keys.json"
    key = add(capsys, path, "alice")
    flags = (f"--api-key-file={path}", "--log-level=debug", "--enable-log-requests")
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
    headers = {"authorization": f"Bearer {key}"}
    ledger = Ledger(usage_file(path))
    ledger.add("alice", "fake", requests=1, completion=1)  # by a server before
    asyncio.run(ledger.save())
    served = launch(*flags)
    served.wait_ready()
    url = f"{served.url}/v1/chat/completions"
    assert httpx.post(url, json=body, headers=headers).status_code == 200
    assert httpx.post(url, json=body).status_code == 401
    served.process.send_signal(signal.SIGTERM)
    assert served.exit_code() == 0
    counts = Ledger(usage_file(path)).row("alice").total["fake"]
    assert (counts.requests, counts.completion_tokens) == (2, 4)
    assert stat.S_IMODE(usage_file(path).stat().st_mode) == 0o600
    assert key not in served.log and digest_of(key).hex() not in served.log
    path.write_text("sk-plain\n")
    served = launch(*flags)
    assert served.exit_code() == 1
    assert "--api-key takes plain keys" in served.log and "sk-plain" not in served.log
