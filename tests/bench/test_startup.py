"""The tables of `bench startup`, and one real start."""

import json
import subprocess
import sys

from pagoda.bench.startup import StartupSample, as_json, markdown

SAMPLES = [StartupSample(1.0, 2.0, 2.5), StartupSample(2.0, 3.0, 5.0), StartupSample(1.5, 2.5, 3.0)]


def test_json_has_medians_and_samples():
    result = json.loads(as_json(SAMPLES))
    assert result["import_torch"] == {"median": 1.5, "samples": [1.0, 2.0, 1.5]}
    assert result["first_token"]["median"] == 3.0
    # The median of the differences of each pair, not the difference of medians.
    assert result["beyond_torch"] == {"median": 1.5, "samples": [1.5, 3.0, 1.5]}


def test_the_table_has_a_row_for_each_figure():
    header, rule, *rows = markdown(SAMPLES).splitlines()
    assert len(header) == len(rule) == len(rows[0])
    cells = [cell.strip() for cell in rows[1].split("|")[1:-1]]
    assert cells == ["command to ready", "2.50", "2.00", "3.00"]
    assert rows[-1].endswith("3 repetitions")


def test_one_start(smollm2_gguf):
    words = ["--reps", "1", "-o", "json", str(smollm2_gguf), "--max-model-len", "64"]
    command = [sys.executable, "-m", "pagoda", "bench", "startup", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert 0 < result["ready"]["median"] < result["first_token"]["median"]


def test_a_server_that_cannot_start_shows_its_log():
    command = [sys.executable, "-m", "pagoda", "bench", "startup", "--reps", "1", "./nothing.gguf"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "There is no file or folder './nothing.gguf'" in done.stderr
