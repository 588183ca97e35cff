"""What engines lose beside others, and what a server adds, of engines with a known pace."""

import contextlib
import subprocess
import time
from pathlib import Path

from pagoda.bench import shared_machine
from pagoda.planner.devices.step_table import Beside, StepPoint, StepTable


class Engine:
    """A step takes a second, and for each process that is not stopped one more, a prompt two."""

    def __init__(self, others):
        self.others = others

    def _running(self):
        # A signal takes a moment to stop a process.
        time.sleep(0.02)
        states = [Path(f"/proc/{pid}/stat").read_text().split()[2] for pid in self.others]
        return len(states) - states.count("T")

    def random_prompt(self, length):
        return [1] * length

    def run_decode(self, prompts, output_tokens):
        steps = output_tokens[0] - 1
        return steps * (1.0 + self._running()), steps * len(prompts)

    def run(self, prompts, output_tokens):
        return 1.0 + 2 * self._running()


def test_engines_beside_each_other(monkeypatch):
    @contextlib.contextmanager
    def neighbours(config, count):
        processes = [subprocess.Popen(["sleep", "60"]) for _ in range(count)]
        try:
            for process in processes:
                process.send_signal(19)
            yield [process.pid for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()

    engine = Engine([])

    @contextlib.contextmanager
    def known(config, count):
        with neighbours(config, count) as engine.others:
            yield engine.others

    monkeypatch.setattr(shared_machine, "_neighbours", known)
    found = shared_machine.beside(engine, Path("config"), 3)
    assert found == [Beside(2, 2.0, 3.0), Beside(3, 3.0, 5.0)]


def test_a_server(smollm2_gguf):
    """Steps of 20 ms, where the table has 5 ms for decodes and none for prompts; the first behind a
    pause takes no time."""
    table = StepTable([StepPoint("decode", 1, 1.0, 0.005), StepPoint("prompt", 2, 1.5, 1e-9)])
    words = [str(smollm2_gguf), "--port", "0", "--max-step-ms", "20"]
    served = shared_machine.served(words, ("pagoda.cli.benches.paced_server",), table)
    assert 0.014 < served.step < 0.1 and 0 < served.request < 1.0
    assert 0 < served.token_cpu < 0.1 and 0 < served.request_cpu < 1.0
