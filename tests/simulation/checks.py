"""What holds of every run, whatever befell it."""

from typing import TYPE_CHECKING

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from pagoda.core.messages import AddRequest
from pagoda.core.sampling import SamplingParams
from tests.simulation.doors import Outcome
from tests.simulation.model import expected

if TYPE_CHECKING:
    from tests.simulation.world import World


def plain_request(req_id: str, prompt: list[int]) -> AddRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    return AddRequest(req_id=req_id, prompt_token_ids=prompt, sampling=sampling)


def renamed(message: AddRequest, req_id: str) -> AddRequest:
    return msgspec.structs.replace(message, req_id=req_id)


def of_outcomes(world: "World") -> list[str]:
    """Each stream is exact, or an exact prefix and one error."""
    found = []
    for outcome in world.outcomes:
        name = outcome.ask.message.req_id
        found += [f"{name}: {problem}" for problem in _problems(world, outcome)]
    return found


def _problems(world: "World", outcome: Outcome) -> list[str]:
    message = outcome.ask.message
    tokens, reason, vector = expected(message)
    found = list(outcome.broken)
    bad_grammar = message.grammar is not None and message.grammar.endswith("bad")
    failed = bool(outcome.errors)
    for choice, told in zip(outcome.tokens, outcome.reasons, strict=True):
        if choice != tokens[: len(choice)]:
            found.append(f"wrong tokens: {choice} instead of {tokens}")
        if told is None:
            if not (outcome.left or outcome.errors or not outcome.ended):
                found.append("it ended without a reason")
        elif told.startswith(("error", "abort")):
            failed = True
        elif vector is not None and outcome.vector != vector:
            found.append("a wrong vector")
        elif vector is None and (choice != tokens or told != reason):
            found.append(f"{told} after {choice}; the whole is {tokens} {reason}")
        elif bad_grammar:
            found.append("a request with a bad grammar was served")
    if not outcome.left and "error: broken" in outcome.reasons:
        found.append("its picture is gone")
    if outcome.at_fault and not bad_grammar:
        found.append(f"a good request was refused: {outcome.errors} {outcome.reasons}")
    if failed and not world.may_fail(outcome) and not (bad_grammar or outcome.busy):
        found.append(f"an error although nothing happened: {outcome.errors} {outcome.reasons}")
    return found


def of_quiet(world: "World") -> list[str]:
    """Nobody asks for anything: all that requests took is given back."""
    found = [f"{entry.names[0]} has users" for entry in world.fleet.entries if entry.users]
    found += [f"{task.get_name()} goes on for ever" for task in sorted(
        world.operations, key=lambda task: task.get_name()
    )]  # fmt: skip
    for entry in world.fleet.entries:
        if entry.served is None:
            continue
        client, name = entry.served.client, entry.names[0]
        kept = {
            "requests": client.num_running,
            "calls": len(client._calls),
            "pictures": len(client._running.media._files) + len(client._running.media._users),
            "places in the queue": len(client.queue._silent),
        }
        found += [
            f"{name}: the client keeps {count} {what}" for what, count in kept.items() if count
        ]
        child = world.child_of(client)
        if child is None or child.core is None or child.runner is None or not child.alive:
            continue
        found += [f"{name}: {file.name} is left" for file in child.folder.glob("*.npy")]
        scheduler, stats = child.core.scheduler, child.core.stats()
        try:
            scheduler.check_integrity()
        except RuntimeError as error:
            found.append(f"{name}: {error}")
        if scheduler.req_ids:
            found.append(f"{name}: the engine keeps {scheduler.req_ids}")
        if stats.blocks_free != stats.blocks_total:
            found.append(f"{name}: {stats.blocks_total - stats.blocks_free} blocks are held")
        if sorted(child.runner.names) != sorted(scheduler._freed):
            found.append(f"{name}: the runner keeps rows of {sorted(child.runner.rows)}")
        told = client.stats
        if told.num_running or told.num_waiting or told.blocks_free != told.blocks_total:
            found.append(f"{name}: the client was told last of {told}")
    return found


async def of_metrics(world: "World") -> list[str]:
    """What /metrics counts is what clients saw."""
    if not world.scenario.http:
        return []
    status, body = await world.http.get("/metrics")
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    started = len(world.added)
    found = []
    if status != 200:
        found.append(f"/metrics answers {status}")
    if (ended := totals.get("vllm:request_success_total", 0.0)) != started:
        found.append(f"{started} requests began, and /metrics has {ended:.0f} that ended")
    seen = sum(len(choice) for outcome in world.outcomes for choice in outcome.tokens)
    if totals.get("vllm:request_generation_tokens_sum", 0.0) < seen:
        found.append(f"clients saw {seen} tokens, and /metrics has fewer")
    for gauge in ("vllm:num_requests_running", "vllm:num_requests_waiting"):
        if totals.get(gauge):
            found.append(f"{gauge} is {totals[gauge]}, and nobody is there")
    if totals["http_requests_total"] != world.http.num_requests - 1:
        found.append(f"{world.http.num_requests - 1} HTTP requests came, and /metrics has others")
    context = world.app.state.context
    if context.metrics.load or context.generations:
        found.append(f"{context.metrics.load} replies are being written to nobody")
    status, body = await world.http.get("/health")
    if status != 200:
        found.append(f"/health answers {status}: {body!r}")
    return found


def of_the_end(world: "World") -> list[str]:
    """The server has ended: no process, no file, no request."""
    found = [f"{child.name} outlives the server" for child in world.children if child.alive]
    found += [
        f"{child.name} computed {child.num_late} tokens that nobody wants"
        for child in world.children
        if child.num_late
    ]
    left = [path.name for path in world.folder.iterdir() if path.name != "kept"]
    kept = world.folder / "kept"
    left += [path.name for path in kept.glob("*.partial")] if kept.exists() else []
    found += [f"{name} is left on the disk" for name in sorted(left)]
    found += [f"{o.ask.message.req_id} never ended" for o in world.outcomes if not o.ended]
    return found
