"""An answer as text for a terminal, and as plain values for `--json`."""

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from pagoda.base.units import format_bytes
from pagoda.config.option import flag_name
from pagoda.doctor.answer import Answer, Flag
from pagoda.doctor.command import INDENT, differences, flag_words, key_note, quoted
from pagoda.doctor.findings import Finding
from pagoda.doctor.guesses_report import guess_lines, guesses_json
from pagoda.doctor.remedies.search import Remedy
from pagoda.doctor.speeds import Speeds
from pagoda.doctor.step_report import step_json, step_lines
from pagoda.doctor.streaming import streams
from pagoda.doctor.subject import ASSUMED, HEADERS
from pagoda.planner.devices.speed import PROMPT_TOKENS, Range
from pagoda.planner.memory.plan import MemoryPlan

_BASES = {
    "weights": "exact", "KV pool": "exact", "positions": "exact", "activations": "estimate",
    "captured steps": "at most", "process": "estimate", "staging": "exact",
    "in host memory": "exact", "on disk": "exact", "draft model": "exact",
}  # fmt: skip

_FROM_HEADERS = frozenset(("weights", "staging", "in host memory", "on disk"))

# Reasons that are no flag's: how the checkpoint's weights are stored, which steps are captured, and
# which experts are read from disk.
_STORED, _CAPTURED, _ON_DISK = "quantization", "captured_prompts", "experts_on_disk"


def lines(answer: Answer, remedies: Sequence[Remedy], why: bool, width: int) -> list[str]:
    """The whole answer; with `why` each flag's reason."""
    out = [*heading(answer), ""]
    plan = None if answer.resolution is None else answer.resolution.plan
    if plan is not None:
        out += [*_memory(answer, plan), "", *_room(answer, plan), *_speed(answer)]
        out += [*guess_lines(answer.guesses), *finding_words(answer.findings), ""]
        if why and answer.speeds is not None and answer.speeds.step is not None:
            out += [*step_lines(answer.speeds.step), ""]
        out += [*_flags(answer, why), ""]
    out += _verdict(answer, remedies)
    return wrapped(out, width)


def wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Lines of at most `width`, commands apart."""
    whole = [part for line in lines for part in line.split("\n")]
    return [part for line in whole for part in _wrap(line, width)]


def why_lines(answers: Sequence[Answer]) -> list[str]:
    """Why each of several models each has its flags, or why it does not fit."""
    out = []
    for answer in answers:
        said = _flags(answer, True)[1:] if answer.resolution else [f"  {answer.problem}"]
        out += ["", answer.subject.ref, *said]
    return out


def question_json(answer: Answer) -> dict[str, Any]:
    """The model and the hardware."""
    subject, hardware = answer.subject, answer.hardware
    return {
        "model": subject.ref,
        "architecture": subject.spec.architecture,
        "basis": subject.basis,
        "hardware": {
            "name": hardware.facts.name,
            "device": hardware.facts.device,
            "count": hardware.count,
            "here": hardware.here,
            "total_memory": hardware.facts.total_memory,
            "free_memory": hardware.facts.free_memory,
        },
    }


def flags_json(flags: Sequence[Flag]) -> list[dict[str, Any]]:
    return [
        {"flag": flag_name(f.name), "value": f.value, "why": f.why, "asked": f.asked} for f in flags
    ]


def remedies_json(remedies: Sequence[Remedy]) -> list[dict[str, str]]:
    return [{"what": remedy.words, "command": remedy.command} for remedy in remedies]


def as_json(answer: Answer, remedies: Sequence[Remedy]) -> dict[str, Any]:
    """Bytes, tokens, tokens per second; `fits` is the verdict."""
    found: dict[str, Any] = {
        **question_json(answer),
        "fits": answer.fits,
        "problem": answer.problem or None,
        "findings": [asdict(finding) for finding in answer.findings],
        "remedies": remedies_json(remedies),
    }
    if answer.resolution is not None:
        plan = answer.resolution.plan
        found["memory"] = [
            {**row, "exactness": _exactness(answer, row["item"]), "detail": _detail(answer, row)}
            for row in plan.rows()
        ]
        found["memory_total"] = plan.total
        found["engines"] = answer.config.parallel.data_parallel_size
        found["host_memory"] = plan.placement.nbytes - plan.on_disk
        found["disk"] = plan.on_disk
        found["kv_tokens"] = plan.kv_tokens
        found["kv_bytes_per_token"] = plan.kv_bytes_per_token
        found["max_model_len"] = plan.max_model_len
        found["max_concurrency"] = round(plan.concurrency, 2)
        found["flags"] = flags_json(_shown(answer))
        found["command"] = answer.command
    if answer.speeds is not None:
        found["speed"] = _speed_json(answer.speeds)
    if answer.guesses is not None:
        found["guesses"] = guesses_json(answer.guesses)
    if answer.users is not None:
        users = answer.users
        found["users"] = {
            "count": users.users.count,
            "tokens": users.users.tokens,
            "fits": users.fits,
            "kv_bytes_needed": users.needed,
            "most_users": users.most_users,
            "longest_context": users.longest,
        }
    return found


def heading(answer: Answer) -> list[str]:
    facts, basis = answer.hardware.facts, answer.subject.basis
    where = "here" if answer.hardware.here else "not here"
    free = f"{format_bytes(facts.free_memory)} of {format_bytes(facts.total_memory)} free"
    each = " each" if answer.hardware.count > 1 else ""
    what = f"{answer.subject.ref}: {answer.subject.spec.architecture}, sizes from {basis}"
    if basis == ASSUMED:
        what += " (what a file has quantized may differ by some percent)"
    return [what, f"on {answer.hardware.name} ({where}), {free}{each}"]


def _memory(answer: Answer, plan: MemoryPlan) -> list[str]:
    parallel = answer.config.parallel
    each = "device" if parallel.num_ranks > 1 else "engine"
    out = [f"memory per {each}" if parallel.num_devices > 1 else "memory"]
    out += [_memory_row(answer, row) for row in plan.rows()]
    out.append(f"  {'together':<14}{format_bytes(plan.total):>12}")
    if parallel.data_parallel_size > 1:
        total = format_bytes(plan.total * parallel.num_devices)
        out.append(f"  {f'{parallel.data_parallel_size} engines':<14}{total:>12}")
    return out + [_memory_row(answer, row) for row in plan.host_rows()]


def _memory_row(answer: Answer, row: dict[str, Any]) -> str:
    size, kind = format_bytes(row["bytes"]), _exactness(answer, row["item"])
    return f"  {row['item']:<14}{size:>12}  {kind:<9} {_detail(answer, row)}"


def _detail(answer: Answer, row: dict[str, Any]) -> str:
    if row["item"] == "weights" and answer.subject.basis != HEADERS:
        return f"from {answer.subject.basis}"
    return str(row["detail"])


def _exactness(answer: Answer, item: str) -> str:
    if item in _FROM_HEADERS and answer.subject.basis == ASSUMED:
        return "estimate"
    return _BASES[item]


def _room(answer: Answer, plan: MemoryPlan) -> list[str]:
    if not plan.groups:
        return []
    per = " in each engine" if answer.config.parallel.data_parallel_size > 1 else ""
    out = [
        f"room{per}: {plan.kv_tokens:,} tokens of {format_bytes(plan.kv_bytes_per_token)} each; "
        f"{_requests(plan.concurrency)} of {plan.max_model_len:,} tokens at once"
    ]
    if answer.users is not None:
        out.append(_users(answer))
    return out


def _users(answer: Answer) -> str:
    assert answer.users is not None
    users = answer.users
    asked = f"{_counted(users.users.count, 'user')} x {users.users.tokens:,} tokens"
    verdict = "fit" if users.fits else "do not fit"
    line = f"users: {asked} {verdict}: {format_bytes(users.needed)} of KV cache"
    if not users.longest:  # not even their steps fit: how many do is said by the remedies
        return line
    return (
        f"{line}; up to {_counted(users.most_users, 'user')} of that length, or "
        f"{users.longest:,} tokens for each"
    )


def _speed_json(speeds: Speeds) -> dict[str, Any]:
    one, together, empty = speeds.one, speeds.together, speeds.together_empty
    found = {
        "context": speeds.context,
        "decode_tokens_per_second": round(one.decode, 1),
        "decode_range": _tenths(one.decode_range),
        "decode_bound": one.decode_bound,
        "decode_range_of_empty_context": _tenths(speeds.empty.decode_range),
        "prefill_tokens_per_second": round(one.prefill, 1),
        "prefill_range": _tenths(one.prefill_range),
        "prefill_bound": one.prefill_bound,
    }
    if together is not None and empty is not None:
        found["together"] = {
            "requests": speeds.requests,
            "decode_tokens_per_second": round(together.decode, 1),
            "decode_range": _tenths(together.decode_range),
            "decode_range_of_empty_contexts": _tenths(empty.decode_range),
        }
    if speeds.step is not None:
        found["step"] = step_json(speeds.step)
    return found


def _tenths(bounds: Range) -> list[float]:
    return [round(bound, 1) for bound in bounds]


def _speed(answer: Answer) -> list[str]:
    speeds = answer.speeds
    if speeds is None:
        return []
    one = speeds.one
    out = [
        f"speed (estimate): {_span(one.decode_range)} tokens/s for one request behind "
        f"{speeds.context:,} tokens, bound by {one.decode_bound}; "
        f"{_span(speeds.empty.decode_range)} with an empty context; prompts "
        f"of {PROMPT_TOKENS} tokens {_span(one.prefill_range)} tokens/s, bound by "
        f"{one.prefill_bound}"
    ]
    together, empty = speeds.together, speeds.together_empty
    if together is not None and empty is not None:
        out.append(
            f"{speeds.requests:,} requests at once: {_span(together.decode_range)} tokens/s "
            f"together where each is behind {speeds.context:,} tokens; "
            f"{_span(empty.decode_range)} with empty contexts"
        )
    return out


def _span(bounds: Range) -> str:
    return " to ".join(_rounded(bound) for bound in bounds)


def finding_words(findings: Sequence[Finding]) -> list[str]:
    return [
        f"{finding.topic}: {finding.text}" + (f". {finding.fix}" if finding.fix else "")
        for finding in findings
    ]


def would_fit(remedies: Sequence[Remedy]) -> list[str]:
    """With one at least."""
    out = ["What would fit:"]
    for remedy in remedies:
        out += [f"  {remedy.words}:", INDENT + remedy.command]
    return out + key_note(remedies[0].command)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _flags(answer: Answer, why: bool) -> list[str]:
    flags = _shown(answer)
    if not why:
        words = "  ".join(_typed(flag) for flag in flags)
        return [f"flags, chosen unless given (--why for the reasons): {words}"]
    out = ["flags"]
    for reason in answer.reasons():
        if reason.field == _STORED:
            out.append(f"  weights are {reason.value}: {reason.why}")
        elif reason.field == _CAPTURED:
            out.append(f"  prompts are captured up to {reason.value:,} {reason.why}")
        elif reason.field == _ON_DISK:
            out.append(f"  experts of {reason.value} are read from disk: {reason.why}")
    for flag in flags:
        size = f" ({format_bytes(flag.value)})" if flag.name.endswith("_bytes") else ""
        out.append(f"  {_typed(flag)}{size}: {flag.why}")
    return out


def _typed(flag: Flag) -> str:
    """As a shell takes it."""
    return quoted(flag_words(flag.name, flag.value))


def _shown(answer: Answer) -> list[Flag]:
    """Each value with what is true of it: threads are chosen where the model runs, a value may
    stand in for the one that was asked for, and how a checkpoint is stored is no flag."""
    asked = differences(answer.asked)
    reasons = {reason.field: reason.why for reason in answer.reasons()}
    shown = []
    for flag in answer.flags():
        elsewhere = flag.name == "threads" and not answer.hardware.here
        if not flag.asked and (elsewhere or flag.name == _STORED):
            continue
        replaced = flag.asked and flag.value != asked[flag.name] and flag.name in reasons
        shown.append(replace(flag, why=reasons[flag.name]) if replaced else flag)
    return shown


def _verdict(answer: Answer, remedies: Sequence[Remedy]) -> list[str]:
    where = "here" if answer.hardware.here else f"on {answer.hardware.name}"
    if answer.fits:
        once = " once its files are there" if answer.subject.missing else ""
        out = [f"It runs {where}{once}:", INDENT + answer.command]
        also = "It would be all in memory with" if streams(answer) else "It also runs with"
        for remedy in remedies:
            out += [f"{also} {remedy.words}:", INDENT + remedy.command]
        return out + key_note(answer.command)
    out = [f"It does not fit {where}."]
    if answer.problem:
        out.append(answer.problem)
    if answer.users is not None and answer.users.needed and answer.resolution is None:
        out.append(_users(answer))
    if remedies:
        return out + would_fit(remedies)
    return [*out, _nothing_helps(answer)]


def _nothing_helps(answer: Answer) -> str:
    more = "plan for GPUs with --gpu" if answer.hardware.here else "name larger GPUs, or more"
    return (
        "No flags of this model would fit: take a file in fewer bits or a smaller model (pagoda "
        f"doctor --compare A B puts several side by side), or {more}."
    )


def _wrap(line: str, width: int) -> list[str]:
    if len(line) <= width or line.startswith(INDENT):
        return [line]
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.wrap(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False,
        drop_whitespace=True,
    )  # fmt: skip


def _requests(count: float) -> str:
    """What has room, so rounded down; a part of a request matters below ten only."""
    tenths = math.floor(count * 10) / 10
    text = f"{tenths:.1f}".removesuffix(".0") if count < 10 else f"{math.floor(count):,}"
    return f"{text} {'request' if text == '1' else 'requests'}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"
