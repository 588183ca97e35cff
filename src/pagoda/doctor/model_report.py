"""An answer as text for a terminal, and as plain values for `--json`."""

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from pagoda.base.columns import columns, left, right, wrap
from pagoda.base.units import format_bytes
from pagoda.base.words import say, tell, told
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

_EXACT, _ESTIMATE, _AT_MOST = say("exact"), say("estimate"), say("at most")
_BASES = {
    "weights": _EXACT, "KV pool": _EXACT, "positions": _EXACT, "activations": _ESTIMATE,
    "captured steps": _AT_MOST, "process": _ESTIMATE, "staging": _EXACT,
    "in host memory": _EXACT, "on disk": _EXACT, "draft model": _EXACT,
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
    """Lines of at most `width` columns in the language spoken, commands apart."""
    whole = [part for line in lines for part in told(line).split("\n")]
    return [part for line in whole for part in _wrap(line, width)]


def why_lines(answers: Sequence[Answer]) -> list[str]:
    """Why each of several models each has its flags, or why it does not fit."""
    out = []
    for answer in answers:
        said = _flags(answer, True)[1:] if answer.resolution else [_indented(answer.problem)]
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
    what = say(
        "{model}: {architecture}, sizes from {basis}",
        model=answer.subject.ref,
        architecture=answer.subject.spec.architecture,
        basis=basis,
    )
    if basis == ASSUMED:
        what = say("{what} (what a file has quantized may differ by some percent)", what=what)
    on = say(
        "on {device} ({where}), {free} of {total} free each"
        if answer.hardware.count > 1
        else "on {device} ({where}), {free} of {total} free",
        device=answer.hardware.name,
        where=say("here" if answer.hardware.here else "not here"),
        free=format_bytes(facts.free_memory),
        total=format_bytes(facts.total_memory),
    )
    return [what, on]


def _memory(answer: Answer, plan: MemoryPlan) -> list[str]:
    parallel = answer.config.parallel
    out = [tell("memory")]
    if parallel.num_devices > 1:
        out = [tell("memory per device" if parallel.num_ranks > 1 else "memory per engine")]
    out += [_memory_row(answer, row) for row in plan.rows()]
    out.append(memory_row(tell("together"), format_bytes(plan.total)))
    if parallel.data_parallel_size > 1:
        total = format_bytes(plan.total * parallel.num_devices)
        engines = tell("{count} engines", count=parallel.data_parallel_size)
        out.append(memory_row(engines, total))
    return out + [_memory_row(answer, row) for row in plan.host_rows()]


def _memory_row(answer: Answer, row: dict[str, Any]) -> str:
    kind = _exactness(answer, row["item"])
    detail = _detail(answer, row)
    return memory_row(row["item"], format_bytes(row["bytes"]), kind, detail)


def memory_row(item: str, size: str, kind: str = "", detail: str = "", width: int = 12) -> str:
    """A row of a table of memory, with `width` columns for the size."""
    first = f"  {left(told(item), 14)}{right(size, width)}"
    return f"{first}  {left(told(kind), 9)} {told(detail)}" if detail else first


def _detail(answer: Answer, row: dict[str, Any]) -> str:
    if row["item"] == "weights" and answer.subject.basis != HEADERS:
        return say("from {basis}", basis=answer.subject.basis)
    detail: str = row["detail"]
    return detail


def _exactness(answer: Answer, item: str) -> str:
    if item in _FROM_HEADERS and answer.subject.basis == ASSUMED:
        return _ESTIMATE
    return _BASES[item]


def _room(answer: Answer, plan: MemoryPlan) -> list[str]:
    if not plan.groups:
        return []
    out: list[str] = [
        say(
            "room in each engine: {tokens:,} tokens of {size} each; {requests} of {length:,} "
            "tokens at once"
            if answer.config.parallel.data_parallel_size > 1
            else "room: {tokens:,} tokens of {size} each; {requests} of {length:,} tokens at once",
            tokens=plan.kv_tokens,
            size=format_bytes(plan.kv_bytes_per_token),
            requests=_requests(plan.concurrency),
            length=plan.max_model_len,
        )
    ]
    if answer.users is not None:
        out.append(_users(answer))
    return out


def _users(answer: Answer) -> str:
    assert answer.users is not None
    users = answer.users
    line = say(
        "users: {users} x {tokens:,} tokens fit: {size} of KV cache"
        if users.fits
        else "users: {users} x {tokens:,} tokens do not fit: {size} of KV cache",
        users=_users_counted(users.users.count),
        tokens=users.users.tokens,
        size=format_bytes(users.needed),
    )
    if not users.longest:  # not even their steps fit: how many do is said by the remedies
        return line
    return say(
        "{line}; up to {users} of that length, or {tokens:,} tokens for each"
        if users.most_users
        else "{line}; not one of that length fits; {tokens:,} tokens for each would",
        line=line,
        users=_users_counted(users.most_users),
        tokens=users.longest,
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
    out: list[str] = [
        say(
            "speed (estimate): {decode} tokens/s for one request behind {context:,} tokens, bound "
            "by {bound}; {empty} with an empty context; prompts of {prompt} tokens {prefill} "
            "tokens/s, bound by {prefill_bound}",
            decode=_span(one.decode_range),
            context=speeds.context,
            bound=one.decode_bound,
            empty=_span(speeds.empty.decode_range),
            prompt=PROMPT_TOKENS,
            prefill=_span(one.prefill_range),
            prefill_bound=one.prefill_bound,
        )
    ]
    together, empty = speeds.together, speeds.together_empty
    if together is not None and empty is not None:
        out.append(
            say(
                "{count:,} requests at once: {decode} tokens/s together where each is behind "
                "{context:,} tokens; {empty} with empty contexts",
                count=speeds.requests,
                decode=_span(together.decode_range),
                context=speeds.context,
                empty=_span(empty.decode_range),
            )
        )
    return out


def _span(bounds: Range) -> str:
    low, high = bounds
    return say("{low} to {high}", low=_rounded(low), high=_rounded(high))


def finding_words(findings: Sequence[Finding]) -> list[str]:
    return [
        say(
            "{topic}: {text}. {fix}" if finding.fix else "{topic}: {text}",
            topic=finding.topic, text=finding.text, fix=finding.fix,
        )
        for finding in findings
    ]  # fmt: skip


def would_fit(remedies: Sequence[Remedy]) -> list[str]:
    """With one at least."""
    out: list[str] = [say("What would fit:")]
    for remedy in remedies:
        out += [say("  {what}:", what=remedy.words), INDENT + remedy.command]
    return out + key_note(remedies[0].command)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _flags(answer: Answer, why: bool) -> list[str]:
    flags = _shown(answer)
    if not why:
        words = "  ".join(_typed(flag) for flag in flags)
        return [flags_line(words)]
    out: list[str] = [say("flags")]
    for reason in answer.reasons():
        known = {"value": reason.value, "why": reason.why}
        if reason.field == _STORED:
            out.append(say("  weights are {value}: {why}", **known))
        elif reason.field == _CAPTURED:
            out.append(say("  prompts are captured up to {value:,} {why}", **known))
        elif reason.field == _ON_DISK:
            out.append(say("  experts of {value} are read from disk: {why}", **known))
    for flag in flags:
        typed = _typed(flag)
        if flag.name.endswith("_bytes"):
            typed = say("{flag} ({size})", flag=typed, size=format_bytes(flag.value))
        out.append(flag_line(typed, flag.why))
    return out


def flags_line(words: str) -> str:
    return say("flags, chosen unless given (--why for the reasons): {flags}", flags=words)


def flag_line(typed: str, why: str) -> str:
    return say("  {flag}: {why}", flag=typed, why=why)


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
    where = place(answer)
    out: list[str]
    if answer.fits:
        runs = say(
            "It runs {where} once its files are there:"
            if answer.subject.missing
            else "It runs {where}:",
            where=where,
        )
        out = [runs, INDENT + answer.command]
        for remedy in remedies:
            also = say(
                "It would be all in memory with {what}:"
                if streams(answer)
                else "It also runs with {what}:",
                what=remedy.words,
            )
            out += [also, INDENT + remedy.command]
        return out + key_note(answer.command)
    out = [say("It does not fit {where}.", where=where)]
    if answer.problem:
        out.append(answer.problem)
    if answer.users is not None and answer.users.needed and answer.resolution is None:
        out.append(_users(answer))
    if remedies:
        return out + would_fit(remedies)
    return [*out, _nothing_helps(answer)]


def place(answer: Answer) -> str:
    """Where it runs."""
    if answer.hardware.here:
        return say("here")
    return say("on {device}", device=answer.hardware.name)


def _nothing_helps(answer: Answer) -> str:
    return say(
        "No flags of this model would fit: take a file in fewer bits or a smaller model (pagoda "
        "doctor --compare A B puts several side by side), or {more}.",
        more=say(
            "plan for GPUs with --gpu" if answer.hardware.here else "name larger GPUs, or more"
        ),
    )


def _indented(text: str) -> str:
    return say("  {text}", text=text)


def _wrap(line: str, width: int) -> list[str]:
    if columns(line) <= width or line.startswith(INDENT):
        return [line]
    return wrap(line, width, later=" " * (len(line) - len(line.lstrip()) + 2))


def _requests(count: float) -> str:
    """What has room, so rounded down; a part of a request matters below ten only."""
    tenths = math.floor(count * 10) / 10
    text = f"{tenths:.1f}".removesuffix(".0") if count < 10 else f"{math.floor(count):,}"
    return say("{count} request" if text == "1" else "{count} requests", count=text)


def _users_counted(count: int) -> str:
    return say("{count:,} user" if count == 1 else "{count:,} users", count=count)
