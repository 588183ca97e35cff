"""The check of the GPU backend, played on a CPU: what fails in it costs itself alone."""

import json
import time
from dataclasses import replace

import pytest

pytest.importorskip("triton", reason="triton is not installed")
from tools.gpu_check import child
from tools.gpu_check.plan import TESTS, TOTAL, Phase, Stage, models_stages, stages
from tools.gpu_check.report import report
from tools.gpu_check.run import Runner

ENGINES = ("engine gpt-oss-20b",)


def in_turn(report_text: str) -> list[str]:
    """The list at its end."""
    lines = report_text.partition("## What to fix first")[2].strip().splitlines()
    return [line.partition(". ")[2] for line in lines]


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """(records, folder) of all kinds of phases: one hangs, one raises, one is killed."""
    out = tmp_path_factory.mktemp("check")
    chosen = []
    for stage in stages(play=True, at_once=2):
        phases = [one for one in stage.phases if one.work != "engine" or one.name in ENGINES]
        # What hangs does so at once, before any import.
        phases = [replace(one, seconds=10 if one.name == "probe" else 600) for one in phases]
        chosen.append(stage._replace(phases=tuple(phases), seconds=3600))
    faults = {"probe": "hang", "parity 1 of 3": "raise", "parity 2 of 3": "kill"}
    runner = Runner(out, time.time() + 3600, play=True, faults=faults)
    return runner.run(tuple(chosen)), out


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_fails_leaves_what_others_find(played):
    """And what it had found itself."""
    records, _ = played
    faults = {name: record["fault"] for name, record in records.items() if "fault" in record}
    assert faults == {
        "probe": "out of time: ended behind 10 s",
        "parity 1 of 3": "RuntimeError: as a test has it",
        "parity 2 of 3": "its process ended with signal SIGKILL",
    }
    assert all(record["found"] for record in records.values())
    errors = [row["error"] for row in records["parity 3 of 3"]["found"].values()]
    assert len(errors) == 2 and all(0 <= error < 0.02 for error in errors)
    speed = records["speed"]["found"]
    assert speed["ceilings"]["copy"] > 0 and len(speed) == 7
    for name in ("tests test_norm.py", "tests test_activation.py"):
        assert records[name]["found"]["counts"]["passed"] > 3
    for name in ENGINES:
        found = records[name]["found"]
        # Three of decode steps, and four of steps with prompts.
        assert 3 <= found["captured before ready"] <= found["captured"] <= found["sizes"] == 7
        assert {"captured ms", "op by op ms", "prompt ms", "requests tokens/s"} <= found.keys()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_each_phase_is_on_disk_and_in_the_report(played):
    records, out = played
    assert json.loads((out / "gpu_check.json").read_text()) == records
    for name, record in records.items():
        file = name.replace(" ", "-").removesuffix(".py")
        assert json.loads((out / f"{file}.json").read_text()) == record
        assert (out / f"{file}.log").exists()
    assert not list(out.glob("*.part"))
    text, faulty = report(records)
    assert faulty and all(f"| {name} |" in text for name in records)
    first = in_turn(text)
    assert first[0].startswith("not seen to work: probe: out of time")
    assert any("parity 2 of 3: its process ended with signal SIGKILL" in line for line in first)
    assert "experts" not in first[0] and any(line.startswith("slow: ") for line in first)


def test_what_there_is_no_time_for_is_not_begun(tmp_path):
    stage = Stage((Phase("probe", "probe", 60),))
    records = Runner(tmp_path, time.time() - 1).run((stage,))
    assert records["probe"]["fault"] == "not begun, for 0 s were left"
    assert in_turn(report(records)[0]) == ["not seen to work: probe: not begun, for 0 s were left"]


def test_a_stage_leaves_time_for_the_next(tmp_path):
    stage = Stage((Phase("probe", "probe", 60),), seconds=5)
    records = Runner(tmp_path, time.time() + 3600).run((stage,))
    assert records["probe"]["fault"].startswith("not begun, for ")


def test_a_missing_module_names_itself(tmp_path, monkeypatch):
    arguments = ["child", "no_such_work", "--file", str(tmp_path / "x.part"), "--until", "0"]
    monkeypatch.setattr("sys.argv", arguments)
    assert child.main() == 1
    fault = json.loads((tmp_path / "x.part").read_text())["fault"]
    assert "no_such_work" in fault and "carry the wheel that has it" in fault


def test_phases_fit_the_time():
    """If each takes as long as it may, the last one still has what it needs at least."""
    taken = 0.0
    for stage in stages(play=False, at_once=12):
        alone = sum(phase.seconds for phase in stage.phases)
        last = max(phase.seconds for phase in stage.phases) - max(p.least for p in stage.phases)
        taken += min(stage.seconds, alone if stage.at_once == 1 else TOTAL)
    assert taken - last <= TOTAL < 600
    names = [phase.name for stage in stages(play=False, at_once=12) for phase in stage.phases]
    assert len(set(names)) == len(names)
    assert {"tests test_attention.py 1 of 3", "tests test_norm.py", "speed"} <= set(names)


@pytest.mark.slow
def test_the_tests_of_models(tmp_path):
    _, (phases, *_) = models_stages(play=False, at_once=12)
    paths = {path for phase in phases for path in phase.args[2:]}
    assert len(paths) > 30 and all((TESTS / path).is_file() for path in paths)
    records = Runner(tmp_path, time.time() + 600, True, {}).run(models_stages(True, 2)[1:])
    found = records["tests of models"]["found"]
    assert found["counts"]["passed"] > 10 and not found["failed"]


def test_what_to_fix_first():
    """What the machine lacks, then what is wrong, what did not run, memory, and what is slow by the
    time that it costs."""
    engine = {
        "memory": {"activations": [100 << 20, 100 << 20]},
        "steps took bytes": {"many requests": 90 << 20, "replies beside a prompt": 300 << 20},
        "not captured": {"8 x 8": "memory is short"},
    }
    slow = {"us": 100.0, "share": 0.3, "layers": 32, "bound": "bytes"}
    records = {
        "probe": {"seconds": 1, "found": {
            "missing wheels": ["msgspec"], "what launches need": "a C compiler is missing",
            "torch for this GPU": "fits", "fp8": "FAILED: no",
        }},
        "parity 1 of 1": {"seconds": 1, "found": {
            "good": {"error": 0.004}, "bad": {"error": 0.5}, "infinite": {"error": float("inf")},
        }},
        "tests test_x.py": {"seconds": 1, "found": {"failed": {"test_x.py::test_y": "no"}}},
        "speed": {"seconds": 1, "fault": "out of time", "found": {
            "a": slow, "b": slow | {"us": 900.0}, "c": slow | {"share": 0.9},
        }},
        "engine m": {"seconds": 1, "found": engine},
    }  # fmt: skip
    text, faulty = report(records)
    first = [line.split(": ", 2)[:2] for line in in_turn(text)]
    assert faulty and [kind for kind, _ in first] == [
        *["this machine lacks it"] * 3, *["wrong"] * 3, "not seen to work",
        *["memory and graphs"] * 2, *["slow"] * 2,
    ]  # fmt: skip
    assert [what for _, what in first][3:6] == ["infinite", "bad", "tests test_x.py"]
    assert [what for _, what in first][-2:] == ["b", "a"]
    assert "300 MiB, 100 MiB were planned" in text
    assert not report({"speed": {"seconds": 1, "found": {"a": slow}}})[1]
    assert report({})[0].endswith("Nothing was found.")
