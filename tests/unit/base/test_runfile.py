import json
import os
import subprocess
import sys

import pytest

from pagoda.base import runfile


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGODA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_a_running_server_is_found_until_it_says_goodbye(cache):
    runfile.register(8000)
    assert runfile.find(8000).pid == os.getpid()
    assert runfile.find(8001) is None
    assert (cache / "run").stat().st_mode & 0o777 == 0o700
    runfile.unregister(8000)
    assert runfile.find(8000) is None


def test_a_dead_process_is_not_found_and_its_note_goes(cache):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    runfile.register(8000, child.pid)
    assert runfile.find(8000).pid == child.pid
    child.communicate()
    assert runfile.find(8000) is None
    assert list((cache / "run").iterdir()) == []


def test_a_pid_that_belongs_to_another_process_by_now(cache):
    runfile.register(8000)
    note = cache / "run" / "8000.json"
    note.write_text(json.dumps({**json.loads(note.read_text()), "started": 1}))
    assert runfile.find(8000) is None


def test_unregister_leaves_another_servers_note():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    runfile.register(8000, child.pid)
    runfile.unregister(8000)
    assert runfile.find(8000).pid == child.pid
    child.communicate()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"port": 8000}', '{"port":"x","pid":1}'])
def test_a_broken_note_is_no_server(cache, content):
    (cache / "run").mkdir(parents=True)
    (cache / "run" / "8000.json").write_text(content)
    assert runfile.find(8000) is None
