"""A runner without a model that knows what every KV entry must hold.

A KV entry is a digest of all tokens up to its position (and of salt, adapter and media), which
is what real keys and values depend on. Each step checks that every position its queries attend
to holds the digest of the request's own tokens: a stale block, a wrong prefix hit or a block
reused too early shows at once. Sampled tokens follow from the digest, so outputs are known
beforehand, whatever is preempted, shared or rolled back.
"""

from dataclasses import dataclass, field
from hashlib import blake2b
from math import gcd

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.kvcache.spec import (
    GroupSpec,
    KVGroupSpec,
    StateGroupSpec,
    attention_groups,
    state_groups,
)
from pagoda.core.messages import AddRequest, RequestDelta, TokenLogprobs
from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.core.sampling import SamplingParams
from pagoda.core.scheduler import Scheduler, SchedulerLimits
from pagoda.core.speculation.speculator import Speculator
from tests.plans import Planned, shares

VOCAB = 24
EOS = 0


class Digests:
    """What the KV at each position of a request depends on; what is known already is kept."""

    def __init__(self, message: AddRequest):
        self._message = message
        self._tokens: list[int] = []
        self._known: list[bytes] = []

    def of(self, tokens: list[int]) -> list[bytes]:
        """One for each token, and for those that were known behind them."""
        count = min(len(tokens), len(self._tokens))
        if self._tokens[:count] != tokens[:count]:
            self._tokens, self._known, count = [], [], 0
        for position in range(len(self._tokens), len(tokens)):
            self._known.append(self._next(position, tokens[position]))
        self._tokens += tokens[len(self._tokens) :]
        return self._known

    def last(self, tokens: list[int]) -> bytes:
        return self.of(tokens)[len(tokens) - 1]

    def next_token(self, tokens: list[int]) -> int:
        return self.last(tokens)[0] % VOCAB

    def _next(self, position: int, token: int) -> bytes:
        message = self._message
        before = (
            self._known[-1] if self._known else repr((message.cache_salt, message.adapter)).encode()
        )
        media = [
            (item.content_hash, position - item.start)
            for item in message.media
            if item.start <= position < item.start + item.length
        ]
        return blake2b(before + repr((token, media)).encode(), digest_size=8).digest()


def expected_output(message: AddRequest, max_model_len: int) -> list[int]:
    """All tokens the request generates if nobody interferes."""
    sampling = message.sampling
    if message.kind == "pool":
        return []
    room = max_model_len - len(message.prompt_token_ids)
    limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    output: list[int] = []
    digests = Digests(message)
    while len(output) < limit:
        output.append(digests.next_token(message.prompt_token_ids + output))
        if len(output) < sampling.min_tokens:
            continue
        if output[-1] in sampling.stop_token_ids:
            break
        if output[-1] in message.eos_token_ids and not sampling.ignore_eos:
            break
    return output


@dataclass
class Row:
    message: AddRequest
    tokens: list[int]
    tables: list[list[int]]
    scored: int = 0
    """Prompt tokens whose logprobs were reported."""
    muted: bool = False
    """A sampling yielded no token; plans already made then stand on it and are left out."""

    def __post_init__(self) -> None:
        self.digests = Digests(self.message)


@dataclass
class FakeRunner:
    groups: list[GroupSpec]
    rows: dict[str, Row] = field(default_factory=dict)
    kv: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    """(group, block, offset) -> digest; of a state, offset 0, that of the last token it saw."""
    memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Which (group, block) lies at each piece of the memory that groups share."""
    host: dict[tuple[int, int, int], bytes] = field(default_factory=dict)
    """As `kv`, of slots in the host's memory."""
    host_memory: dict[int, tuple[int, int]] = field(default_factory=dict)
    begun: set[str] = field(default_factory=set)
    """Media that are half encoded."""
    mute: set[str] = field(default_factory=set)
    """Requests whose next sampling yields no token."""
    broken: set[str] = field(default_factory=set)
    """Requests whose next result is an error."""
    names: dict[int, str] = field(default_factory=dict)
    """Of the rows."""
    terse: bool = True
    """Results that hold one token each and nothing else come as bare tokens."""

    last: StepPlan | None = None

    def execute(self, plan: StepPlan) -> StepResult:
        if plan.follows:
            self._check_follows(plan)
        self.last = plan
        self._take_rows(plan)
        self._copy(plan)
        all_planned = shares(plan)
        good = [planned for planned in all_planned if self._prepare(planned)]
        for planned in good:
            self._read_state(planned)
        written: set[tuple[int, int, int]] = set()
        for planned in good:  # A layer stores the whole batch before it attends.
            self._write(planned, written)
        for planned in good:
            self._write_state(planned, good)
        results = {planned.req_id: self._attend_and_sample(planned) for planned in good}
        empty = [RequestResult(req_id=planned.req_id) for planned in all_planned]
        result = StepResult(
            step_id=plan.step_id,
            results=[results.get(entry.req_id, entry) for entry in empty],
            encoded=self._encode(plan),
        )
        plain = [
            RequestResult(req_id=entry.req_id, token_ids=entry.token_ids[:1])
            for entry in result.results
            if entry.token_ids
        ]
        drafts = any(planned.draft_token_ids for planned in all_planned)
        if self.terse and result.results == plain and not drafts:
            result.tokens = [entry.token_ids[0] for entry in plain]
            result.results = []
        return result

    def _check_follows(self, plan: StepPlan) -> None:
        """That of a plan whose predecessor failed is not known."""
        last = self.last
        if last is None or last.step_id + 1 != plan.step_id:
            return
        assert (plan.req_ids, plan.rows.tolist()) == (last.req_ids, last.rows.tolist())
        assert {*plan.lens.tolist(), *last.lens.tolist()} == {1}
        assert (plan.starts == last.starts + 1).all()
        for one in (plan, last):
            assert not (one.drafts or one.unsampled or one.new_rows)

    def _take_rows(self, plan: StepPlan) -> None:
        for row in plan.freed:
            del self.rows[self.names.pop(row)]
        for new in plan.new_rows:
            assert self.names.setdefault(new.row, new.req_id) == new.req_id, "a row has two owners"
            tables: list[list[int]] = [[] for _ in attention_groups(self.groups)]
            if new.request is None:
                self.rows[new.req_id].tables = tables
            else:
                assert new.req_id not in self.rows, "two rows of one name"
                tokens = list(new.request.prompt_token_ids)
                self.rows[new.req_id] = Row(new.request, tokens, tables)

    def _encode(self, plan: StepPlan) -> list[str]:
        """Each item takes two steps."""
        hashes = [item.content_hash for item in plan.encode]
        done = [content for content in hashes if content in self.begun]
        self.begun = {content for content in hashes if content not in done}
        return done

    def _prepare(self, planned: Planned) -> bool:
        """False for a plan that stands on a token that was never sampled (`mute`)."""
        assert self.names[planned.row] == planned.req_id
        row = self.rows[planned.req_id]
        for table, blocks in zip(row.tables, planned.new_block_ids, strict=False):
            assert len(table) == planned.column
            table.extend(blocks)
        assert planned.num_tokens >= 1
        known = planned.num_computed_tokens + planned.num_tokens - len(planned.draft_token_ids)
        if known > len(row.tokens):
            assert row.muted, "a plan beyond the request's tokens"
            return False
        row.muted = False
        if planned.samples:
            del row.tokens[known:]
        return True

    def _inputs(self, planned: Planned) -> tuple[Row, int, int, list[bytes]]:
        row = self.rows[planned.req_id]
        start = planned.num_computed_tokens
        end = start + planned.num_tokens
        known = end - len(planned.draft_token_ids)
        tokens = row.tokens[:known] + planned.draft_token_ids
        return row, start, end, row.digests.of(tokens)

    def _entry(self, row: Row, group: int, position: int) -> tuple[int, int, int]:
        size = self.groups[group].block_size
        return group, row.tables[group][position // size], position % size

    def _write(self, planned: Planned, written: set[tuple[int, int, int]]) -> None:
        row, start, end, content = self._inputs(planned)
        for group in range(len(attention_groups(self.groups))):
            for position in range(start, end):
                entry = self._entry(row, group, position)
                assert entry not in written, "two tokens of a step share an entry"
                written.add(entry)
                self._store(entry, content[position])

    def _copy(self, plan: StepPlan) -> None:
        for copy in plan.copies:
            block, slot = (copy.group, copy.block), (copy.group, copy.slot)
            for offset in range(self.groups[copy.group].block_size):
                if copy.to_host:
                    self._store((*slot, offset), self.kv.get((*block, offset)), in_host=True)
                else:
                    self._store((*block, offset), self.host.get((*slot, offset)))

    def _store(
        self, entry: tuple[int, int, int], content: bytes | None, *, in_host: bool = False
    ) -> None:
        """What lay in the same memory is lost."""
        kv, memory = (self.host, self.host_memory) if in_host else (self.kv, self.memory)
        group, block, _ = entry
        assert block != 0, "the null block is written"
        unit = gcd(*(spec.block_bytes for spec in self.groups))
        size = self.groups[group].block_bytes // unit
        for place in range(block * size, (block + 1) * size):
            lost = memory.get(place, (group, block))
            if lost != (group, block):
                for offset in range(self.groups[lost[0]].block_size):
                    kv.pop((*lost, offset), None)
            memory[place] = (group, block)
        if content is None:
            kv.pop(entry, None)
        else:
            kv[entry] = content

    def _read_state(self, planned: Planned) -> None:
        if not state_groups(self.groups) or not planned.num_computed_tokens:
            return
        _, start, _, content = self._inputs(planned)
        found = self.kv.get((len(self.groups) - 1, planned.states[0], 0))
        assert found == content[start - 1], f"{planned.req_id} goes on at {start} from wrong state"

    def _write_state(self, planned: Planned, good: list[Planned]) -> None:
        if not state_groups(self.groups):
            return
        _, _, end, content = self._inputs(planned)
        written = planned.states[1:]
        assert len(written) == 1 + len(planned.draft_token_ids)
        for other in good:
            assert other is planned or not set(written) & set(other.states), "a state has two users"
        for back, block in enumerate(reversed(written)):
            self._store((len(self.groups) - 1, block, 0), content[end - 1 - back])

    def _attend_and_sample(self, planned: Planned) -> RequestResult:
        row, start, end, content = self._inputs(planned)
        for group, spec in enumerate(attention_groups(self.groups)):
            first = 0 if spec.window is None else max(0, start - spec.window + 1)
            for position in range(first, end):
                found = self.kv.get(self._entry(row, group, position))
                assert found == content[position], (
                    f"{planned.req_id} group {group} position {position} of {start}..{end} "
                    "attends to wrong KV"
                )
        result = RequestResult(req_id=planned.req_id)
        if planned.req_id in self.broken:
            self.broken.discard(planned.req_id)
            row.muted = True
            result.error = "broken"
            return result
        self._score_prompt(row, start, end, result)
        if planned.samples:
            self._sample(row, planned, result)
        return result

    def _score_prompt(self, row: Row, start: int, end: int, result: RequestResult) -> None:
        if row.message.sampling.prompt_logprobs is None:
            return
        first = row.scored if start == 0 else max(row.scored, start + 1)
        stop = min(end + 1, len(row.message.prompt_token_ids))
        if stop > first:
            entries = [TokenLogprobs(row.tokens[i], -float(i), 1, [], []) for i in range(stop)]
            result.prompt_logprobs = [entry if entry.logprob else None for entry in entries[first:]]
            row.scored = stop

    def _sample(self, row: Row, planned: Planned, result: RequestResult) -> None:
        if row.message.kind == "pool":
            result.embedding = row.digests.last(row.tokens)
            return
        if planned.req_id in self.mute:
            self.mute.discard(planned.req_id)
            row.muted = True
            return
        for draft in [*planned.draft_token_ids, None]:
            token = row.digests.next_token(row.tokens)
            row.tokens.append(token)
            result.token_ids.append(token)
            if token != draft:
                break
        if row.message.sampling.logprobs is not None:
            result.logprobs = [TokenLogprobs(t, -1.0, 1, [], []) for t in result.token_ids]


def make_groups(
    *windows: int | None,
    block_size: int = 4,
    num_layers: tuple[int, ...] = (),
    num_states: int = 0,
) -> list[GroupSpec]:
    """A KV group for each window, of one layer or of as many as `num_layers` says; None is full
    attention. With `num_states` recurrent layers, whose states are as large as a layer's block."""
    attention = [
        KVGroupSpec(
            "full" if window is None else "sliding",
            (group,) * (num_layers[group] if num_layers else 1),
            1, 8, block_size, window,
        )
        for group, window in enumerate(windows)
    ]  # fmt: skip
    states = StateGroupSpec((0,) * num_states, ((1, 16), (1, 4, 4)), block_size)
    return [*attention, *([states] if num_states else [])]


def make_scheduler(
    *,
    num_blocks: int = 64,
    windows: tuple[int | None, ...] = (None,),
    block_size: int = 4,
    prefix_caching: bool = True,
    num_layers: tuple[int, ...] = (),
    num_states: int = 0,
    speculator: Speculator | None = None,
    num_host_blocks: int = 0,
    **limits: object,
) -> tuple[Scheduler, FakeRunner]:
    """A scheduler with `num_blocks` blocks (or slabs) to hold, and as many in the host's memory as
    `num_host_blocks` says, and a runner for its plans."""
    groups = make_groups(
        *windows, block_size=block_size, num_layers=num_layers, num_states=num_states
    )
    values = {"max_num_reqs": 8, "max_num_batched_tokens": 64, "max_model_len": 128, **limits}
    host = num_host_blocks + 1 if num_host_blocks else 0
    kv = KVCacheManager(groups, num_blocks + 1, prefix_caching, host)
    return Scheduler(SchedulerLimits(**values), kv, speculator), FakeRunner(groups)


def add_request(scheduler: Scheduler, req_id: str, prompt: list[int], **fields: object) -> None:
    """Queue a request; fields of SamplingParams may stand beside those of AddRequest."""
    own = {name: fields.pop(name) for name in list(fields) if name in AddRequest.__struct_fields__}
    sampling = SamplingParams(**{"max_tokens": 4, "ignore_eos": True, **fields})
    scheduler.add(AddRequest(req_id=req_id, prompt_token_ids=prompt, sampling=sampling, **own))


def run_step(scheduler: Scheduler, runner: FakeRunner) -> tuple[StepPlan, list[RequestDelta]]:
    """Schedule, execute and commit one step; there must be something to do."""
    plan = scheduler.schedule()
    assert plan is not None
    deltas = list(scheduler.commit(plan, runner.execute(plan)))
    scheduler.check_integrity()
    return plan, deltas


def run_all(scheduler: Scheduler, runner: FakeRunner) -> dict[str, list[RequestDelta]]:
    """Step until nothing is left: the deltas of each request."""
    deltas: dict[str, list[RequestDelta]] = {}
    while scheduler.has_work():
        for delta in run_step(scheduler, runner)[1]:
            deltas.setdefault(delta.req_id, []).append(delta)
    assert scheduler.stats().blocks_free == scheduler.stats().blocks_total
    return deltas


def tokens_of(deltas: list[RequestDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def planned_tokens(plan: StepPlan | None) -> dict[str, int]:
    """Tokens that each request computes in a plan."""
    return {entry.req_id: entry.num_tokens for entry in shares(plan)} if plan else {}
