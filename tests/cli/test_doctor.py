"""`pagoda doctor`: findings as a table or JSON, its exit status, what it costs."""

import json
import subprocess
import sys

import pytest

from pagoda.cli.main import main
from pagoda.doctor.machine import probe
from tests.unit.doctor.machines import LAPTOP, laptop
from tests.unit.doctor.models import QWEN3_MOE

LIMIT_BYTES = 80 << 20


@pytest.fixture
def runs_on(monkeypatch):
    def put(facts):
        monkeypatch.setattr(probe, "probe", lambda: facts)

    return put


def test_a_table_that_ends_with_the_verdict(runs_on, capsys):
    runs_on(LAPTOP)
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PASS  versions")
    assert lines[-1] == "Models run here; nothing needs fixing."


def test_warnings_do_not_fail(runs_on, capsys):
    runs_on(laptop(memory={"oom_kills": 1}))
    assert main(["doctor"]) == 0
    assert "1 WARN" in capsys.readouterr().out


def test_a_fail_is_the_exit_status(runs_on, capsys):
    runs_on(laptop(memory={"available": 1 << 20}))
    assert main(["doctor"]) == 1
    assert "FAIL  memory" in capsys.readouterr().out


def test_json_has_facts_and_findings(runs_on, capsys):
    runs_on(laptop(memory={"available": 1 << 20}))
    assert main(["doctor", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["machine"]["memory"]["available"] == 1 << 20
    assert answer["machine"]["cpu"]["caches"][2]["nbytes"] == 32 << 20
    failed = [row for row in answer["findings"] if row["status"] == "FAIL"]
    assert [row["topic"] for row in failed] == ["memory"]
    assert failed[0]["fix"]


def answered(*words: str) -> tuple[list[str], int, int]:
    """What `pagoda doctor` prints where torch cannot be imported; the peaks of its own memory and
    of the largest process that it began."""
    program = (
        "import sys, resource\n"
        "sys.modules['torch'] = None\n"  # any import of it raises ImportError
        "from pagoda.cli.main import main\n"
        f"status = main(['doctor', *{list(words)!r}])\n"
        "from pathlib import Path\n"  # getrusage would count what the parent had before exec
        "print(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0])\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
        "assert status in (0, 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *lines, own, others = done.stdout.splitlines()
    return lines, int(own) << 10, int(others) << 10


def test_this_machine_is_answered_without_torch_and_in_little_memory():
    lines, own, _ = answered()
    assert any("kernels" in line for line in lines)
    assert own < LIMIT_BYTES


def test_so_is_a_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_MOE))
    lines, own, others = answered(str(tmp_path / "config.json"))
    assert any("weights" in line for line in lines)
    assert own < LIMIT_BYTES
    assert others < LIMIT_BYTES
