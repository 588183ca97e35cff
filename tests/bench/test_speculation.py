"""Decoding with guesses in turns with none, with an engine and a server that take a known time."""

import stat
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from pagoda.base.errors import PagodaError
from pagoda.bench.edits import works
from pagoda.bench.llama_server import LlamaServer
from pagoda.bench.speculation import (
    SpeculationBenchConfig,
    bench_speculation,
    speculation_table,
)
from pagoda.core.messages import EngineStats

SERVER = """#!{python}
import http.server, json, sys
port = int(sys.argv[sys.argv.index("--port") + 1])
if "--fail" in sys.argv:
    sys.exit(3)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{"status": "ok"}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        speed = 50.0 if "--spec-type" in sys.argv else 25.0
        timings = {{"predicted_per_second": speed}} if asked["n_predict"] == 8 else {{}}
        self.answer({{"timings": timings}})
    def answer(self, value):
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    def log_message(self, *args):
        pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@dataclass
class Guesser:
    used: bool = False


@dataclass
class Engine:
    speculator: Guesser | None = field(default_factory=Guesser)
    runs: list[tuple[int, float, bool]] = field(default_factory=list)
    counted: EngineStats = field(default_factory=EngineStats)

    def run_decode(self, prompts, lengths, temperature):
        guesses = self.speculator is not None
        if self.speculator is not None:
            assert not self.speculator.used, "it knows what came in the last round"
            self.speculator.used = True
            self.counted.spec_draft_tokens += 10
            self.counted.spec_accepted_tokens += 9
        self.runs.append((len(prompts), temperature, guesses))
        return (1.0 if guesses else 2.0), sum(lengths) - len(prompts)

    def stats(self):
        return EngineStats(
            spec_draft_tokens=self.counted.spec_draft_tokens,
            spec_accepted_tokens=self.counted.spec_accepted_tokens,
        )


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "llama-server"
    file.write_text(SERVER.format(python=sys.executable))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_each_round_measures_all_in_turns(program):
    engine = Engine()
    config = SpeculationBenchConfig(output_len=8, rounds=2, requests=("1", "3"))
    with (
        LlamaServer("llama.cpp", program, Path("model.gguf"), []) as plain,
        LlamaServer("theirs", program, Path("model.gguf"), ["--spec-type", "ngram-mod"]) as other,
    ):
        rows = bench_speculation(
            engine, config, lambda text: [1] * 5, [plain, other], lambda done, total: None
        )
    assert [run[2] for run in engine.runs] == [False, True] * (len(rows) * 3)
    assert {run[0] for run in engine.runs} == {1, 3}
    assert not engine.speculator.used
    one, three = rows[0], rows[1]
    assert one.speeds == {
        "plain": [3.5] * 2, "guessing": [7.0] * 2, "llama.cpp": [25.0] * 2, "theirs": [50.0] * 2,
    }  # fmt: skip
    assert three.ratio("guessing", "plain") == 2.0 and set(three.speeds) == {"plain", "guessing"}
    assert (three.drafted, three.accepted) == (10, 9)


def test_the_table_has_a_line_for_each_work():
    engine = Engine()
    config = SpeculationBenchConfig(output_len=8, rounds=1, requests=("1",))
    rows = bench_speculation(engine, config, lambda text: [1] * 5, [], lambda done, total: None)
    lines = speculation_table(rows).splitlines()
    assert len(lines) == 2 + len(works())
    assert lines[2].split(" | ")[1:5] == ["1", "4", "7", "2.00"]
    assert "9 of 10" in lines[2]


def test_a_server_that_does_not_start_is_said(program):
    with pytest.raises(PagodaError, match="llama.cpp ended with status 3"):
        LlamaServer("llama.cpp", program, Path("model.gguf"), ["--fail"])


def test_works_are_the_same_each_time_and_change_what_they_say():
    rename, json, quote, story = works()
    assert works() == [rename, json, quote, story]
    assert "amount += " in rename.prompt and rename.prompt.count("\n") > 310
    assert '"price": 99' not in json.prompt  # it comes later than what is given
    assert quote.prompt.splitlines()[-1] == quote.prompt.splitlines()[1]
    assert story.temperature == 1.0
