"""The journal on disk, and events in memory."""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import stat

import pytest
from PIL import Image

from pagoda_agent.models.dialogue import Picture
from pagoda_agent.runs import journal as journals
from pagoda_agent.runs.journal import Journal, JournalError, new_folder, read
from pagoda_agent.screen.frame import Frame
from pagoda_agent.task.events import Events


@pytest.fixture
def journal():
    """Opens journals, and closes them at the end."""
    with contextlib.ExitStack() as opened:

        def make(folder, redact=str):
            journal = Journal(folder, redact)
            opened.callback(journal.close)
            return journal

        yield make


def test_what_is_written_is_read(journal, tmp_path):
    first = journal(tmp_path / "run")
    first.write("start", task="设置 DNS\n\u2028")
    first.write("step", number=1, share=0.5)
    first.close()
    events = list(read(tmp_path / "run"))
    assert [event["event"] for event in events] == ["start", "step"]
    assert events[0]["task"] == "设置 DNS\n\u2028" and events[1]["share"] == 0.5
    assert events[0]["time"] <= events[1]["time"]


def test_only_the_owner_may_look(journal, tmp_path):
    journal(tmp_path / "run").write("start")
    assert stat.S_IMODE(os.stat(tmp_path / "run").st_mode) == 0o700
    assert stat.S_IMODE(os.stat(tmp_path / "run" / journals.JOURNAL).st_mode) == 0o600


def test_pictures_are_kept_as_they_were_sent(journal, tmp_path):
    frame = Frame(Image.effect_noise((64, 48), 50).convert("RGB"), 7)
    picture = Picture(frame.encoded("PNG"), "image/png", (64, 48))
    kept = journal(tmp_path).save_picture(frame, picture)
    assert kept["size"] == [64, 48] and kept["file"] == "000007.png"
    assert (tmp_path / "frames" / kept["file"]).read_bytes() == picture.data
    assert kept["sha256"] == hashlib.sha256(picture.data).hexdigest()


def test_a_line_that_a_crash_cut_off(journal, tmp_path):
    first = journal(tmp_path)
    first.write("start", task="x")
    path = tmp_path / journals.JOURNAL
    path.write_bytes(path.read_bytes() + b'{"event": "st')
    assert [event["event"] for event in read(tmp_path)] == ["start"]
    journal(tmp_path).write("resumed")
    assert [event["event"] for event in read(tmp_path)] == ["start", "resumed"]


@pytest.mark.parametrize("line", [b"garbage", b"[1]", b"{}"])
def test_a_broken_journal_is_named(journal, tmp_path, line):
    journal(tmp_path).write("start")
    with open(tmp_path / journals.JOURNAL, "ab") as file:
        file.write(line + b"\n")
    with pytest.raises(JournalError, match="Line 2 of"):
        list(read(tmp_path))


def test_no_journal(tmp_path):
    with pytest.raises(JournalError, match="No such file"):
        list(read(tmp_path))


def test_a_full_disk_is_said(journal, tmp_path, monkeypatch):
    full = journal(tmp_path)

    def fsync(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(journals.os, "fsync", fsync)
    with pytest.raises(JournalError, match=r"No space left.*--runs-dir"):
        full.write("acting")
    assert list(read(tmp_path)) == [], "what was refused did not happen"


def test_a_line_that_fits_in_part_spoils_nothing(journal, tmp_path):
    full = journal(tmp_path)
    full.write("start")
    file = full._file

    class Full:
        fileno = file.fileno

        def write(self, data):
            return file.write(data[:7])

    full._file = Full()
    with pytest.raises(JournalError, match="No space left"):
        full.write("step", step=1)
    full._file = file
    full.write("step", step=2)
    assert [event.get("step") for event in read(tmp_path)] == [None, 2]


def test_secrets_are_taken_out_of_every_line(journal, tmp_path):
    hidden = journal(tmp_path, lambda line: line.replace("hunter2", "[secret]"))
    hidden.write("step", reply="I type hunter2", nested={"text": "hunter2"})
    assert "hunter2" not in (tmp_path / journals.JOURNAL).read_text()
    assert json.loads((tmp_path / journals.JOURNAL).read_text())["nested"]["text"] == "[secret]"


def test_folders_sort_by_time(tmp_path):
    assert new_folder(tmp_path).parent == tmp_path
    assert new_folder(tmp_path) != new_folder(tmp_path)


async def test_a_listener_gets_the_past_and_then_each_event():
    events = Events()
    events.emit("a")
    seen = []

    async def listen():
        async for event in events.follow():
            seen.append((event["number"], event["event"]))
            if event["event"] == "end":
                return

    listener = asyncio.create_task(listen())
    await asyncio.sleep(0)
    events.emit("b")
    events.emit("c")
    await asyncio.sleep(0)
    events.emit("end")
    await asyncio.wait_for(listener, 10)
    assert seen == [(0, "a"), (1, "b"), (2, "c"), (3, "end")]


def test_a_new_task_forgets_the_past_and_keeps_counting():
    events = Events()

    async def scenario():
        for _ in range(3000):
            events.emit("x")
        kept = events.since(0)
        assert kept[-1]["number"] == 2999 and len(kept) == 2000
        events.clear()
        events.emit("y", task="new")
        assert events.since(0) == [{"event": "y", "number": 3000, "task": "new"}]
        assert events.since(3000) and not events.since(3001)

    asyncio.run(scenario())
