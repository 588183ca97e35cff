"""`pagoda ps` and `pagoda top`."""

import os
import subprocess
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from pagoda.base import runfile
from pagoda.cli.main import main
from pagoda.cli.watch import servers as watch
from pagoda.cli.watch.servers import ModelLoad, ServerLoad
from pagoda.cli.watch.table import table, table_of_rates

METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="a"} 2.0
vllm:num_requests_running{engine="1",model_name="a"} 3.0
vllm:num_requests_running{engine="0",model_name="b"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="a"} 7.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.5
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0",model_name="a"} 100.0
vllm:generation_tokens_total{engine="1",model_name="a"} 50.0
"""
SERVER = ServerLoad(
    8000, 12, 100.0, 3 << 30, 40.0, 7500.0, {"a": ModelLoad(5, 7, 0.5, 1000, 150), "b": ModelLoad()}
)


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self):
        status, text = self.server.health if self.path == "/health" else self.server.answer
        self.send_response(status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """Registered as one of Pagoda's; this process plays it."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Metrics) as http:
        http.answer, http.health = (200, METRICS), (200, "")
        threading.Thread(target=http.serve_forever, daemon=True).start()
        port = http.server_address[1]
        runfile.register(port)
        yield http
        runfile.unregister(port)
        http.shutdown()


def seen(port):
    return next(load for load in watch.servers() if load.port == port)


def test_loads_are_read_from_metrics_and_linux(server):
    load = seen(server.server_address[1])
    assert load.pid == os.getpid() and load.problem == ""
    assert load.models == {"a": ModelLoad(5, 7, 0.5, 0, 150), "b": ModelLoad()}
    assert load.memory > 10 << 20 and load.cpu_seconds > 0.05 and load.up_seconds >= 0


def test_a_proxy_is_not_asked(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert seen(server.server_address[1]).problem == ""


def test_processes_below_count(server):
    script = "import sys; x = bytearray(64 << 20); print('up', flush=True); sys.stdin.read()"
    before = seen(server.server_address[1]).memory
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        child.stdout.readline()
        assert seen(server.server_address[1]).memory > before + (60 << 20)
        child.stdin.close()


def test_what_answers_otherwise_is_told(server, capsys):
    server.answer = (404, "")
    assert seen(server.server_address[1]).problem == "answers 404"
    assert main(["ps"]) == 0
    assert "(answers 404)" in capsys.readouterr().out


WAITING = (
    '{"status": "starting", "cause": "Node 1 (10.0.0.8) is lost.", "progress": {"phase": '
    '"wait for node 1 at 10.0.0.7 port 29501", "done": 0, "total": 0, "seconds": 2.5}}'
)


@pytest.mark.parametrize(
    ("health", "said"),
    [
        (WAITING, "(starting: wait for node 1 at 10.0.0.7 port 29501)"),
        ('{"status": "dead", "cause": "Memory ran out."}', "(dead: Memory ran out.)"),
        ('{"status": "stalled"}', "(stalled)"),
        ("<h1>another program's</h1>", "(answers 503)"),
    ],
)
def test_what_keeps_a_server_from_serving_is_told(server, capsys, health, said):
    server.health = (503, health)
    for words in (["ps"], ["top", "--once", "--interval", "0.2"]):
        assert main(words) == 0
        lines = capsys.readouterr().out.splitlines()
        own = [line for line in lines if line.startswith(str(server.server_address[1]))]
        assert len(own) == 3 and said in own[-1]


def test_the_trouble_of_a_single_model_stands_beside_its_name():
    one = replace(SERVER, models={"a": ModelLoad(5, 7, 0.5, 3000, 350)}, problem="stalled")
    assert [line.split()[2:4] for line in table([one])[1:]] == [["a", "(stalled)"]]
    later = replace(one, at=102.0)
    assert len(table_of_rates([one], [later])) == 2


def test_a_line_for_each_model():
    assert table([SERVER]) == [
        "PORT  PID  MODEL  RUNNING  WAITING   KV    MEMORY         UP",
        "8000   12  a            5        7  50%  3.00 GiB  2 h 5 min",
        "8000   12  b            0        0   0%  3.00 GiB  2 h 5 min",
    ]


def test_rates_are_of_the_time_between_two_looks():
    later = replace(
        SERVER, at=102.0, cpu_seconds=43.0, models={"a": ModelLoad(5, 7, 0.5, 3000, 350)}
    )
    line = table_of_rates([SERVER], [later])[1]
    assert line.split()[6:9] == ["1,000", "100", "150%"]


def test_an_engine_that_was_started_anew_counts_from_nothing():
    later = replace(SERVER, at=102.0, models={"a": ModelLoad(0, 0, 0, 5, 2)})
    assert table_of_rates([SERVER], [later])[1].split()[6:8] == ["0", "0"]


def test_a_server_that_is_new_has_no_rates_yet():
    head, *lines = table_of_rates([], [SERVER])
    assert "REPLY tok/s" in head and len(lines) == 2


def test_names_of_models_do_not_steer_the_terminal():
    odd = replace(SERVER, models={"a\x1b[2J": ModelLoad()})
    assert "\x1b" not in "\n".join(table([odd]))


def test_nobody_is_there(monkeypatch, capsys):
    monkeypatch.setattr(runfile, "running", list)
    assert main(["ps"]) == 0
    assert capsys.readouterr().out == "No Pagoda server of yours runs; `pagoda serve` starts one.\n"


def test_top_prints_one_table_where_nobody_looks(server, capsys):
    assert main(["top", "--interval", "0.2"]) == 0
    assert str(server.server_address[1]) in capsys.readouterr().out
