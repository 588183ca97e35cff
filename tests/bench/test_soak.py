"""The soak's gates on played figures: each fails where it must, and only there."""

import json
import random
import time
from types import SimpleNamespace
from typing import Any

import pytest

from tools.soak import counters, gates
from tools.soak.answers import Reply, judge
from tools.soak.gates import Asked
from tools.soak.report import as_json, markdown
from tools.soak.run import Plan, Run
from tools.soak.trouble import SERVER, Trouble

MIB = 1 << 20


def played(per_request: float, requests: int = 30_000, scatter: int = 2 * MIB) -> list:
    """A process that grows by 40 MiB while it warms up, and then by so much per request."""
    chance = random.Random(0)
    points = []
    for number in range(300):
        served = number * requests / 300
        warm = 40 * MIB * min(1.0, number / 60)
        points.append((served, 200 * MIB + warm + per_request * served + chance.gauss(0, scatter)))
    return points


@pytest.mark.parametrize(
    ("per_request", "requests", "leaks"),
    [
        (0, 30_000, False),
        (300, 30_000, False),
        (1024, 30_000, True),
        (1024, 2_500, False),  # 2 MiB: the allocator's scatter
        (50_000, 2_500, True),
        (-1024, 30_000, False),
    ],
)
def test_a_leak_is_a_slope(per_request, requests, leaks):
    found = gates.slope("engine", played(per_request, requests))
    assert found.leaks is leaks
    assert abs(found.per_request - per_request) < max(5 * found.error, 1)
    (gate,) = gates.memory([found])
    assert gate.passed is not leaks


def test_the_longest_life_says_whether_a_role_leaks():
    young, old = gates.slope("server", played(9000, 8000)), gates.slope("server", played(0))
    assert young.leaks
    (gate,) = gates.memory([young, old])
    assert gate.passed
    (gate,) = gates.memory(
        [gates.slope("server", played(0, 8000)), gates.slope("server", played(2000))]
    )
    assert not gate.passed


def test_a_leak_in_one_of_many_processes_fails_its_role():
    steep = gates.slope("engine", played(9000, 2100))  # steeper, but over too little to say so
    found = [gates.slope("engine", played(per)) for per in (0, 2000, 0)]
    (engine,) = gates.memory([*found, steep])
    assert not engine.passed
    assert engine.figure.startswith("+1993")
    assert all(gate.passed for gate in gates.memory([gates.slope("server", played(0))]))


@pytest.mark.parametrize(
    "samples", [[], played(0)[:20], [(served / 100, m) for served, m in played(0)]]
)
def test_too_little_says_nothing(samples):
    assert gates.slope("engine", samples) is None


def test_handles_that_stay_open():
    assert gates.grown("open files", "server", [20, 31, 24]).passed
    assert not gates.grown("open files", "server", [20, 20, 25]).passed


def test_an_idle_server_that_works():
    assert gates.idle_cpu("at the end", 0.004).passed
    assert not gates.idle_cpu("at the end", 0.03).passed


def metrics(**changes: float) -> str:
    """Three requests that came whole, with 30 tokens, and one that was aborted, with 4."""
    counts = {"e2e_request_latency_seconds", "request_prompt_tokens", "request_params_n"}
    values = {f"{name}_count": 4 for name in counts} | {
        "request_generation_tokens_count": 4, "request_generation_tokens_sum": 34,
        "stop": 2, "length": 1, "abort": 1, "prompt_tokens": 90, "local_compute": 60,
        "local_cache_hit": 30, "kv_cache_usage_perc": 0, "num_requests_running": 0,
    }  # fmt: skip
    values |= changes
    lines = []
    for name, value in values.items():
        if name in ("stop", "length", "abort"):
            sample = f'request_success_total{{finished_reason="{name}"}}'
        elif name.startswith("local_"):
            sample = f'prompt_tokens_by_source_total{{source="{name}"}}'
        else:
            sample = f"{name}_total" if name == "prompt_tokens" else name
        lines.append(f"vllm:{sample} {value}")
    return "\n".join(lines) + "\n"


ASKED = Asked(sent=5, completed=3, unsure=2, tokens=30, unsure_tokens=20)


def test_metrics_that_add_up():
    assert gates.metrics_faults(counters.read(metrics()), ASKED) == []


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"abort": 0}, "requests ended 3"),
        ({"request_params_n_count": 5}, "request_params_n_count is 5"),
        ({"request_generation_tokens_sum": 29}, "generated tokens: 29"),
        ({"request_generation_tokens_sum": 51}, "generated tokens: 51"),
        ({"stop": 1, "abort": 2}, "by themselves: 2"),
        ({"stop": 4, "abort": 2}, "requests that ended: 7"),
        ({"local_cache_hit": 29}, "by source 89"),
    ],
)
def test_metrics_that_do_not(changes, fault):
    faults = gates.metrics_faults(counters.read(metrics(**changes)), ASKED)
    assert any(fault in words for words in faults), faults


def test_blocks_that_nobody_gave_back():
    assert counters.busy(counters.read(metrics())) == ""
    assert "usage_perc is 0.25" in counters.busy(counters.read(metrics(kv_cache_usage_perc=0.25)))


def chat(text: str | None = None, end: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": end}]}


ERROR = {"error": {"message": "The engine ended.", "code": 503}}
KNOWN = {"0/text": "seven floors", "0/end": "stop"}


def streamed(*events: dict, status: int = 200, retry_after: bool = False) -> Reply:
    reply = Reply(status=status, retry_after=retry_after)
    for event in events:
        reply.fold(event)
    return reply


@pytest.mark.parametrize(
    ("reply", "verdict", "troubled"),
    [
        (streamed(chat("seven"), chat(" floors", "stop")), "complete", "complete"),
        (streamed(chat("seven"), chat(" doors", "stop")), "wrong", "wrong"),
        (streamed(chat("seven floors")), "wrong", "wrong"),  # no end, and no error
        (streamed(chat("seven floors", "length")), "wrong", "wrong"),
        (streamed(chat("seven"), ERROR), "wrong", "cut"),
        (streamed(ERROR), "wrong", "cut"),
        (streamed(chat("eleven"), ERROR), "wrong", "wrong"),
        (streamed(chat("seven floors", "length"), ERROR), "wrong", "wrong"),
        (streamed(chat("seven floors and"), ERROR), "wrong", "wrong"),
        (streamed(chat("seven"), ERROR, ERROR), "wrong", "wrong"),
        (streamed(chat("seven"), ERROR, chat(" floors")), "wrong", "wrong"),
        (streamed(ERROR, status=503, retry_after=True), "wrong", "refused"),
        (streamed(ERROR, status=529, retry_after=True), "wrong", "refused"),
        (streamed(ERROR, status=503), "wrong", "wrong"),
        (streamed(ERROR, status=500), "wrong", "wrong"),
    ],
)
def test_a_reply_is_exact_or_a_beginning_and_one_error(reply, verdict, troubled):
    assert judge(reply, KNOWN, troubled=False, down=False).kind == verdict
    found = judge(reply, KNOWN, troubled=True, down=False)
    assert found.kind == troubled
    assert bool(found.fault) == (troubled == "wrong")


def test_only_a_server_that_is_away_may_break_connections():
    reply = streamed(chat("seven"))
    reply.broken, reply.errors = True, ["ReadError"]
    assert judge(reply, KNOWN, troubled=True, down=False).kind == "wrong"
    assert judge(reply, KNOWN, troubled=True, down=True).kind == "cut"
    never = Reply(broken=True, errors=["ConnectError"])
    assert judge(never, KNOWN, troubled=True, down=True).kind == "refused"


def test_every_route_says_the_same_whole_and_streamed():
    """In the words of each API's documentation."""
    call = {"function": {"name": "ring", "arguments": '{"old":true}'}}
    begun = {"index": 0, "function": {"name": "ring", "arguments": '{"old"'}}
    pairs = [
        (
            {"choices": [{"index": 0, "message": {"tool_calls": [call]}, "finish_reason": "stop"}]},
            [{"choices": [{"index": 0, "delta": {"tool_calls": [begun]}}]},
             {"choices": [{"index": 0, "delta": {"tool_calls": [
                 {"index": 0, "function": {"arguments": ":true}"}}]}, "finish_reason": "stop"}]}],
        ),
        (
            {"object": "response", "status": "completed", "output": [
                {"type": "message", "content": [{"type": "output_text", "text": "a bell"}]}]},
            [{"type": "response.created", "response": {"object": "response", "output": []}},
             {"type": "response.output_text.delta", "delta": "a "},
             {"type": "response.output_text.delta", "delta": "bell"},
             {"type": "response.completed", "response": {"status": "completed"}}],
        ),
        (
            {"type": "message", "content": [{"type": "text", "text": "a bell"}],
             "stop_reason": "end_turn"},
            [{"type": "message_start", "message": {"content": []}},
             {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a bell"}},
             {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}],
        ),
        (
            {"content": "a bell", "stop": True, "stop_type": "limit", "prompt": "Once"},
            [{"content": "a ", "stop": False},
             {"content": "bell", "stop": False},
             {"content": "", "stop": True, "stop_type": "limit"}],
        ),
    ]  # fmt: skip
    for whole, stream in pairs:
        assert streamed(whole).channels == streamed(*stream).channels, json.dumps(whole)
        assert len(streamed(whole).channels) > 1


@pytest.mark.parametrize(
    "event",
    [
        ERROR,
        {"type": "error", "error": {"type": "api_error", "message": "The engine ended."}},
        {"type": "error", "message": "The engine ended."},
        {"type": "response.failed", "response": {"error": {"message": "The engine ended."}}},
    ],
)
def test_errors_of_every_route(event):
    assert streamed(event).errors == ["The engine ended."]


def test_trouble_excuses_its_model_and_its_time():
    trouble, begun = Trouble(), time.monotonic()
    with trouble.of("minilm"):
        assert trouble.since("minilm", begun)
        assert not trouble.since("smollm2", begun)
        assert not trouble.since(SERVER, begun)
    assert trouble.since("minilm", begun)
    assert not trouble.since("minilm", time.monotonic() + 1)
    with trouble.of(SERVER):
        assert trouble.since("smollm2", begun)


def test_a_run_is_judged_by_all_that_was_seen():
    plan = Plan(60, 2, 0, (), 1, 0.4, 60, 1, 5, 5, 5)
    run = Run(SimpleNamespace(starts=1), plan)
    run.record.memory["server", 7] = played(0)
    run.record.quiet["open files", "server"] = [20, 20]
    assert all(gate.passed for gate in run.gates())
    run.record.memory["server", 8] = played(2000)
    run.record.quiet["open files", "server"].append(90)
    run.load.faults.add("hangs", "chat: nothing for 5 s")
    failed = {gate.name.partition(",")[0] for gate in run.gates() if not gate.passed}
    assert failed == {"memory of server", "open files of server", "hangs"}
    page = markdown(run.figures(), run.gates(), run.load.faults)
    assert "| open files of server | 20 -> 90 | +4 | FAILED |" in page
    assert "- 1 x chat: nothing for 5 s" in page
    saved = json.loads(json.dumps(as_json({}, run.gates(), run.load.faults, run.record)))
    assert saved["faults"] == {"hangs": {"chat: nothing for 5 s": 1}}
    assert len(saved["memory, bytes by requests served"]) == 2


@pytest.mark.parametrize(("seconds", "passed"), [(300, True), (3600, False)])
def test_a_long_run_must_say_how_memory_grows(seconds, passed):
    run = Run(SimpleNamespace(starts=1), Plan(seconds, 2, 0, (), 1, 0.4, 60, 1, 5, 5, 5))
    run.record.memory["server", 7] = played(0)
    run.record.memory["smollm2", 8] = played(0)[:20]
    assert all(gate.passed for gate in run.gates()) is passed
