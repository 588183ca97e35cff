"""The comparison with peers: turns, tables, and what is kept of a run."""

import json
import os
import subprocess
import sys
import time

import pytest

from bench.peers import processes
from bench.peers.__main__ import _choose
from bench.peers.environments import SetupError, run_logged
from bench.peers.models import TOWER_FILES
from bench.peers.plan import measures_of, paragraphs
from bench.peers.report import rewrite, tables
from bench.peers.results import Entry, Results, Section
from bench.peers.rounds import alternate
from bench.peers.worker import Worker


@pytest.fixture
def sleeper():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    yield process
    processes.end(process)


def state(pid):
    """As /proc says; X where there is no such process any more."""
    return (processes._stat(pid) or "X")[0]


def section(measure="decode", **entries):
    return Section(measure, "q4_1", "2026-01-01", "a CPU", 2, entries, 10**8, 10**8)


def test_turns_alternate_behind_one_that_does_not_count(sleeper):
    log = []

    def measure(name, entrant, turn):
        assert state(entrant.pid) != "T"  # not held still
        log.append((turn, name))
        return {"value": turn}

    outcomes = alternate({"a": sleeper, "b": sleeper}, 2, measure)
    assert log == [(0, "a"), (0, "b"), (1, "a"), (1, "b"), (2, "a"), (2, "b")]
    assert [sample["value"] for sample in outcomes["a"].samples] == [1, 2]
    assert len(outcomes["b"].others) == 2
    os.waitpid(sleeper.pid, os.WUNTRACED)  # returns because it is stopped
    assert state(sleeper.pid) == "T"


def test_who_fails_is_out_and_the_others_go_on(sleeper):
    def measure(name, entrant, turn):
        if name == "a":
            raise SetupError("no such thing")
        return {}

    outcomes = alternate({"a": sleeper, "b": sleeper}, 3, measure)
    assert (outcomes["a"].error, outcomes["a"].samples) == ("no such thing", [])
    assert len(outcomes["b"].samples) == 3


def test_a_tree_has_the_children(sleeper):
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while len(processes.tree(parent.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        child = processes.tree(parent.pid)[1]
        assert processes.proportional_bytes(parent.pid) > processes.proportional_bytes(child) > 0
    finally:
        processes.end(parent)
    while state(child) not in "ZX" and time.monotonic() < deadline:  # init may be slow to reap it
        time.sleep(0.01)
    assert state(child) in "ZX"


def test_a_worker_that_cannot_start_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr("bench.peers.worker.CACHE", tmp_path)
    with pytest.raises(SetupError, match="the following arguments are required: --model"):
        Worker(sys.executable, "pagoda_worker.py", [], {})


def test_an_assertion_that_ends_a_worker_is_told_without_its_backtrace(tmp_path, monkeypatch):
    script = (
        "import sys; print('a/ggml.c:7: GGML_ASSERT(n < size) failed', file=sys.stderr); "
        "sys.exit('[Inferior 1 detached]')"
    )
    (tmp_path / "failing.py").write_text(script)
    monkeypatch.setattr("bench.peers.worker.CACHE", tmp_path)
    monkeypatch.setattr("bench.peers.worker.WORKERS", tmp_path)
    with pytest.raises(SetupError, match=r"^GGML_ASSERT\(n < size\) failed$"):
        Worker(sys.executable, "failing.py", [], {})


def test_an_installation_that_fails_says_so_with_its_last_line(tmp_path):
    command = [sys.executable, "-c", "print('first'); print('No space left'); exit(1)"]
    with pytest.raises(SetupError, match="^No space left$"):
        run_logged(command, tmp_path / "log")


def test_tables_hold_medians_ranges_ratios_and_the_limit():
    results = Results()
    entries = {
        "Pagoda": Entry([{"tok_s": 300.0}, {"tok_s": 310.0}, {"tok_s": 500.0}], flags="-t 2"),
        "llama.cpp": Entry([{"tok_s": 155.0}]),
        "vllm": Entry(error="No matching distribution"),
        "read": Entry([{"gb_s": 62.0}]),
    }
    results.add(section(**entries))
    text = tables(results, "a CPU, avx2")
    assert "| q4_1 | Pagoda | 310 | 300-500 | 2.00 | 50 |" in text
    assert "| q4_1 | vllm | not measured: No matching distribution |" in text
    assert "| q4_1 | the limit | 620 | reads 62.0 GB/s [62.0-62.0] |" in text
    assert "| Pagoda |  | -t 2 |" in text


def test_a_ratio_is_to_the_peer_that_did_best():
    results = Results()
    speeds = {"Pagoda": 300.0, "llama.cpp": 100.0, "ik_llama.cpp": 150.0, "vllm": 50.0}
    results.add(section(**{name: Entry([{"tok_s": speed}]) for name, speed in speeds.items()}))
    added = {"Pagoda": 2.0, "llama.cpp": 10.0, "ik_llama.cpp": 4.0}
    entries = {
        name: Entry([{"near_ms": 5.0, "far_ms": 5.0 + ms, "added_ms": ms}])
        for name, ms in added.items()
    }
    results.add(section("depth", **entries))
    text = tables(results, "a CPU, avx2")
    assert "| q4_1 | Pagoda | 300 | 300-300 | 2.00 |" in text
    assert "| q4_1 | ik_llama.cpp | 150 | 150-150 | 1.00 |" in text
    assert "| q4_1 | llama.cpp | 100 | 100-100 | 0.67 |" in text
    assert "| q4_1 | Pagoda | 5.00 | 7.00 | 2.00 | 2.00-2.00 | 0.50 |" in text


def test_vectors_are_compared_too():
    results = Results()
    entries = {
        name: Entry([{"texts_s": speed, "vector": vector}])
        for name, speed, vector in (("Pagoda", 300.0, [0.6, 0.8]), ("other", 200.0, [0.8, 0.6]))
    }
    results.add(section("vectors", **entries))
    text = tables(results, "a CPU, avx2")
    assert "| q4_1 | Pagoda | 300 | 300-300 | 1.50 | 1.00000 |" in text
    assert "| q4_1 | other | 200 | 200-200 | 1.00 | 0.96000 |" in text
    texts = paragraphs(256)
    assert len(set(texts)) == 256 and all(100 <= len(one) <= 900 for one in texts)


def test_pictures_are_compared_by_speed_and_by_their_embeddings():
    results = Results()
    entries = {
        name: Entry([{"pictures_min": speed, "vector": [1.0, 0.0]}])
        for name, speed in (("Pagoda", 2.5), ("mtmd", 1.0))
    }
    results.add(section("pictures", **entries))
    assert "| q4_1 | Pagoda | 2.50 | 2.50-2.50 | 2.50 | 1.00000 |" in tables(results, "a CPU")
    choice = _choose(["pictures", "mtmd"], None)
    assert [one.name for one in choice.contenders] == ["mtmd"]
    assert [file for file in choice.files if "pictures" in measures_of(file)] == list(TOWER_FILES)


def test_ik_takes_part_where_its_sources_are_given(tmp_path):
    with pytest.raises(SystemExit, match="There is no 'ik_llama.cpp'"):
        _choose(["ik_llama.cpp"], None)
    choice = _choose(["decode", "ik_llama.cpp", "ik_llama.cpp -rtr"], tmp_path)
    assert [one.name for one in choice.contenders] == ["ik_llama.cpp", "ik_llama.cpp -rtr"]
    assert (choice.measures, choice.servers) == (("decode",), ())
    with pytest.raises(SetupError, match=r"--ik-source .* holds no include/llama.h"):
        choice.contenders[0].start("q4_1", 2)


def test_a_later_run_takes_the_place_of_an_earlier_one(tmp_path):
    results = Results()
    results.add(section(Pagoda=Entry([{"tok_s": 1.0}]), old=Entry([{"tok_s": 1.0}])))
    results.add(section(Pagoda=Entry([{"tok_s": 2.0}])))
    path = tmp_path / "folder" / "results.json"
    results.save(path)
    assert json.loads(path.read_text())
    (kept,) = Results.load(path).of("decode")
    assert list(kept.entries) == ["Pagoda"]
    assert kept.entries["Pagoda"].median("tok_s") == 2.0


PAGE = """before
<!-- measured: a CPU, avx2 -->
old
<!-- /measured: a CPU, avx2 -->
after
"""


def test_tables_of_the_same_processor_are_replaced(tmp_path):
    path = tmp_path / "cpu.md"
    path.write_text(PAGE)
    rewrite(path, "a CPU, avx2", "new\n")
    assert path.read_text() == PAGE.replace("old\n", "\nnew\n\n")


def test_those_of_another_processor_stay(tmp_path):
    path = tmp_path / "cpu.md"
    path.write_text(PAGE)
    other = "<!-- measured: a CPU, avx512 -->\n\n{}\n\n<!-- /measured: a CPU, avx512 -->\n"
    for text in ("first", "second"):
        rewrite(path, "a CPU, avx512", f"{text}\n")
        assert path.read_text() == PAGE.replace("after", f"\n{other.format(text)}after")
