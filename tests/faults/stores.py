"""Everything that keeps something, with what it kept before and what it is to keep now."""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from pagoda.base import runfile
from pagoda.base.whole import write_whole
from pagoda.cli.talk.conversation import Conversation
from pagoda.engine.kv_disk import KvDisk
from pagoda.engine.start import measured
from pagoda.weights.hub.remote import _write_json
from pagoda_agent import settings as settings_file
from pagoda_agent.consent.line import Line, Memory
from pagoda_agent.models.dialogue import Picture
from pagoda_agent.runs import journal as journals
from pagoda_agent.screen.frame import Frame
from pagoda_agent.task.claim import claim
from tests.engine.test_kv_disk import check, compute, make


@dataclass(frozen=True)
class Store:
    name: str
    write: Callable[[Path, str], object]
    """Keeps one of the texts `old` and `new`."""
    read: Callable[[Path], str]
    """What a start finds: one of them, or `none`."""


def write_kv(folder: Path, text: str) -> None:
    cache, memory = make()
    prefixes = KvDisk(folder / "kv" / "model", 1 << 20).open(cache, memory)
    prefixes.restore()
    compute(cache, memory, text[0], 5)
    prefixes.close()


def read_kv(folder: Path) -> str:
    cache, memory = make()
    KvDisk(folder / "kv" / "model", 1 << 20).open(cache, memory).restore()
    found = []
    for text in ("old", "new"):
        hashes = [f"{text[0]}{index:031d}".encode() for index in range(5)]
        if check(cache, memory, text[0], hashes):
            found.append(text)
    return found[-1] if found else "none"


def write_settings(folder: Path, text: str) -> None:
    settings_file.save(settings_file.Settings(model=text), folder / "agent" / "settings.json")


def read_settings(folder: Path) -> str:
    return settings_file.load(folder / "agent" / "settings.json").model or "none"


def write_line(folder: Path, text: str) -> None:
    Memory(folder / "agent.line").keep(Line(parts=(text,)))


def read_line(folder: Path) -> str:
    return Memory(folder / "agent.line").line.whole or "none"


def write_measured(folder: Path, text: str) -> None:
    measured._write(folder / "steps" / "a.json", {"old": 1, "new": 2}[text])


def read_measured(folder: Path) -> str:
    return {None: "none", 1: "old", 2: "new"}[measured._read(folder / "steps" / "a.json")]


def write_chat(folder: Path, text: str) -> None:
    chat = Conversation()
    chat.system = text
    chat.save(folder / "chat.json")


def read_chat(folder: Path) -> str:
    chat = Conversation()
    if not (folder / "chat.json").exists():
        return "none"
    chat.load(folder / "chat.json")
    return chat.system or "damaged"


def write_headers(folder: Path, text: str) -> None:
    _write_json(folder / "model" / "revisions.json", {"main": text})


def read_headers(folder: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return json.loads((folder / "model" / "revisions.json").read_text())["main"]
    return "none"


def write_whole_file(folder: Path, text: str) -> None:
    write_whole(folder / "whole", text)


def read_whole_file(folder: Path) -> str:
    with contextlib.suppress(FileNotFoundError):
        return (folder / "whole").read_text()
    return "none"


def write_journal(folder: Path, text: str) -> None:
    journal = journals.Journal(folder / "runs" / "run", str)
    try:
        picture = Picture(b"picture " + text.encode(), "image/png", (4, 4))
        frame = Frame(Image.new("RGB", (4, 4)), 1 if text == "old" else 2)
        kept = journal.save_picture(frame, picture)
        journal.write("acting", text=text, picture=kept)
    finally:
        journal.close()


def read_journal(folder: Path) -> str:
    """The last event, whose picture must be the one that it names."""
    run = folder / "runs" / "run"
    if not (run / journals.JOURNAL).exists():
        return "none"
    journals.Journal(run, str).close()  # a start drops a line that was cut off
    events = list(journals.read(run))
    for event in events:
        picture = (run / journals.FRAMES / event["picture"]["file"]).read_bytes()
        assert picture == b"picture " + event["text"].encode()
    return events[-1]["text"] if events else "none"


STORES = [
    Store("kv-disk", write_kv, read_kv),
    Store("settings", write_settings, read_settings),
    Store("input line", write_line, read_line),
    Store("measured step", write_measured, read_measured),
    Store("saved chat", write_chat, read_chat),
    Store("headers", write_headers, read_headers),
    Store("journal", write_journal, read_journal),
    Store("whole file", write_whole_file, read_whole_file),
]
BY_NAME = {store.name: store for store in STORES}


def serve_and_stop(port: int) -> None:
    runfile.register(port)
    found = runfile.find(port)
    assert found is None or found.pid == os.getpid()
    runfile.unregister(port)


def claim_and_leave(target: str) -> None:
    claim(target).close()
