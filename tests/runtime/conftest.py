"""A model whose logits depend on every token in its KV cache, and a scheduler made of lists."""

import random
from collections.abc import Callable

import pytest
import torch

from pagoda.arch.spec import ModelSpec
from pagoda.core.kvcache.spec import KVGroupSpec
from pagoda.core.messages import AddRequest
from pagoda.core.plan import NewRow, RequestResult, StepPlan, StepResult
from pagoda.core.sampling import SamplingParams
from pagoda.layers.batch import ForwardBatch
from pagoda.runtime.device import make_device
from pagoda.runtime.runner import ModelRunner
from tests.plans import Planned, plan_of

VOCAB = 300
POISON = 299
"""A token whose presence makes a request's hidden states NaN."""
WINDOW = 5
NUM_BLOCKS = 400


class CacheModel:
    """Keeps token ids as keys and positions as values, and reads both back through the tables.

    Layer 0 sees all tokens (group 0), layer 1 the last WINDOW (group 1).
    """

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(7)
        self.embeddings = torch.randn(2, VOCAB, 32, generator=generator, dtype=torch.float64)
        self.head = torch.randn(32, VOCAB, generator=generator, dtype=torch.float64)
        self.steps: list[ForwardBatch] = []

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        self.steps.append(batch)
        hidden_states = torch.zeros(batch.num_tokens, 32, dtype=torch.float64)
        for layer, (k_cache, v_cache) in enumerate(batch.kv_caches):
            group = batch.groups[batch.layer_group[layer]]
            size = k_cache.shape[2]
            blocks, offsets = group.slot_mapping // size, group.slot_mapping % size
            k_cache[blocks, 0, offsets, 0] = batch.token_ids.to(k_cache.dtype)
            v_cache[blocks, 0, offsets, 0] = batch.positions.to(v_cache.dtype)
            window = WINDOW if layer == 1 else 10**6
            for i in range(batch.num_reqs):
                rows = slice(int(batch.query_start[i]), int(batch.query_start[i + 1]))
                blocks = group.block_table[i].long()
                length = int(batch.kv_lens[i])
                token_ids = k_cache[blocks].reshape(-1)[:length].long()
                stored = v_cache[blocks].reshape(-1)[:length].long()
                first = max(0, length - (rows.stop - rows.start) - window + 1)
                assert stored[first:].tolist() == list(range(first, length))
                hidden_states[rows] += self._mix(
                    layer, token_ids, batch.positions[rows], window, first
                )
        return hidden_states

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return (hidden_states @ self.head).float()

    def reserve(self, max_model_len: int) -> None:
        pass

    def logits(self, token_ids: list[int]) -> torch.Tensor:
        """Behind each token, without any cache."""
        ids, positions = torch.tensor(token_ids), torch.arange(len(token_ids))
        hidden_states = self._mix(0, ids, positions, 10**6, 0)
        return self.compute_logits(hidden_states + self._mix(1, ids, positions, WINDOW, 0))

    def _mix(
        self, layer: int, ids: torch.Tensor, positions: torch.Tensor, window: int, first: int
    ) -> torch.Tensor:
        ids = ids[first:]
        distance = positions[:, None] - torch.arange(first, first + len(ids))[None]
        seen = (distance >= 0) & (distance < window)
        weights = torch.where(seen, 0.9 ** distance.double(), 0.0)
        values = self.embeddings[layer][ids.clamp(0, VOCAB - 1)].clone()
        poisoned = (seen & (ids == POISON)).any(dim=1)
        mixed = weights @ values * 0.3
        mixed[poisoned] = torch.nan
        return mixed


def _follows(plan: StepPlan, last: StepPlan) -> bool:
    if any(one.drafts or one.unsampled or one.new_rows for one in (plan, last)):
        return False
    if plan.rows.tolist() != last.rows.tolist() or {*plan.lens, *last.lens} != {1}:
        return False
    return bool((plan.starts == last.starts + 1).all())


class Driver:
    """Plans steps as the scheduler does, and never looks at a token's value while planning."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self.requests: dict[str, AddRequest] = {}
        self.computed: dict[str, int] = {}
        self.known: dict[str, int] = {}
        self.tokens: dict[str, list[int]] = {}
        self.results: dict[str, list[RequestResult]] = {}
        self.blocks: dict[str, list[list[int]]] = {}
        self.new_rows: list[NewRow] = []
        self.freed: list[int] = []
        self.rows: dict[str, int] = {}
        self.free_rows = list(range(100))
        self.step_id = 0
        self.last: StepPlan | None = None
        # Block 0 is the null block; scattered ones show whether tables are read. Groups share one
        # memory: as their blocks are equally large, each block belongs to one of them.
        count = len(runner.groups)
        self.pools = [
            random.Random(g).sample(range(count + g, runner.num_slabs, count), NUM_BLOCKS - 1)
            for g in range(count)
        ]

    def add(self, *requests: AddRequest) -> None:
        for request in requests:
            req_id = request.req_id
            self.requests[req_id] = request
            self.computed[req_id] = 0
            self.known[req_id] = len(request.prompt_token_ids)
            self.tokens[req_id] = []
            self.results[req_id] = []
            self.blocks[req_id] = [[] for _ in self.pools]
            self.rows[req_id] = row = self.free_rows.pop(0)
            self.new_rows.append(NewRow(row=row, request=request, req_id=req_id))

    def plan(self, shares: dict[str, int], drafts: dict[str, list[int]] | None = None) -> StepPlan:
        """Up to so many tokens per request, drafts on top."""
        planned: list[Planned] = []
        columns: dict[tuple[int, int], int] = {}
        for req_id, share in shares.items():
            start, extra = self.computed[req_id], (drafts or {}).get(req_id, [])
            count = min(share, self.known[req_id] - start)
            samples = start + count == self.known[req_id]
            extra = extra if samples else []
            row = self.rows[req_id]
            columns |= {(row, group): len(mine) for group, mine in enumerate(self.blocks[req_id])}
            new_blocks = self._grow(req_id, start + count + len(extra))
            planned.append(
                Planned(
                    req_id=req_id,
                    num_computed_tokens=start,
                    num_tokens=count + len(extra),
                    new_block_ids=new_blocks,
                    draft_token_ids=extra,
                    samples=samples,
                    row=row,
                )
            )
            self.computed[req_id] = start + count
            self.known[req_id] += samples
        plan = plan_of(self.step_id, planned, self.new_rows, self.freed, columns)
        plan.follows = self.last is not None and _follows(plan, self.last)
        self.last = plan
        self.step_id, self.new_rows, self.freed = self.step_id + 1, [], []
        return plan

    def execute(self, plan: StepPlan) -> dict[str, RequestResult]:
        return self.take_up(plan, self.runner.execute(plan))

    def take_up(self, plan: StepPlan, result: StepResult) -> dict[str, RequestResult]:
        assert result.step_id == plan.step_id
        if result.tokens:
            assert not result.results
            result.results = [
                RequestResult(req_id=req_id, token_ids=[token])
                for req_id, token in zip(plan.req_ids, result.tokens, strict=True)
            ]
        assert [r.req_id for r in result.results] == plan.req_ids
        for entry in result.results:
            self.tokens.setdefault(entry.req_id, []).extend(entry.token_ids)
            self.results.setdefault(entry.req_id, []).append(entry)
            # Accepted drafts are more tokens than the plan counted on.
            extra = max(0, len(entry.token_ids) - 1)
            self.known[entry.req_id] += extra
            self.computed[entry.req_id] += extra
        return {entry.req_id: entry for entry in result.results}

    def step(
        self, shares: dict[str, int], drafts: dict[str, list[int]] | None = None
    ) -> dict[str, RequestResult]:
        return self.execute(self.plan(shares, drafts))

    def finish(self, req_ids: list[str], num_tokens: int, chunk: int = 64) -> None:
        """Steps with all of these requests until each has generated so many tokens."""
        while left := [r for r in req_ids if len(self.tokens[r]) < num_tokens]:
            self.step(dict.fromkeys(left, chunk))

    def preempt(self, req_id: str) -> None:
        """Blocks go back (to be overwritten by others), the row stays."""
        self._release(req_id)
        self.computed[req_id] = 0
        self.new_rows.append(NewRow(row=self.rows[req_id], request=None, req_id=req_id))

    def free(self, req_id: str) -> None:
        self._release(req_id)
        self.freed.append(self.rows[req_id])
        self.free_rows.insert(0, self.rows.pop(req_id))

    def _release(self, req_id: str) -> None:
        for pool, blocks in zip(self.pools, self.blocks[req_id], strict=True):
            pool.extend(blocks)
        self.blocks[req_id] = [[] for _ in self.pools]

    def _grow(self, req_id: str, num_tokens: int) -> list[list[int]]:
        grown = []
        groups = zip(self.runner.groups, self.pools, self.blocks[req_id], strict=True)
        for group, pool, blocks in groups:
            missing = -(-num_tokens // group.block_size) - len(blocks)
            new = [pool.pop() for _ in range(max(0, missing))]
            blocks.extend(new)
            grown.append(new)
        return grown


@pytest.fixture(scope="session")
def model() -> CacheModel:
    return CacheModel()


@pytest.fixture
def make_runner(model: CacheModel) -> Callable[..., ModelRunner]:
    def make(kind: type[ModelRunner] = ModelRunner, **changes: object) -> ModelRunner:
        spec = ModelSpec("Cache", VOCAB, 32, (), 1e-5, True, 512, "float32", ())
        groups = [
            KVGroupSpec("full", (0,), 1, 1, 16, kv_dtype="float32"),
            KVGroupSpec("sliding", (1,), 1, 1, 4, WINDOW, "float32"),
        ]
        settings: dict[str, object] = {
            "model": model,
            "num_slabs": 2 * NUM_BLOCKS + 1,
            "device": make_device("cpu"),
            "max_num_reqs": 4,
            "max_num_batched_tokens": 512,
            "max_model_len": 256,
            "seed": 0,
        }
        return kind(spec=spec, **(settings | {"groups": groups} | changes))

    return make


@pytest.fixture
def driver(make_runner: Callable[..., ModelRunner]) -> Driver:
    return Driver(make_runner())


@pytest.fixture
def make_driver(make_runner: Callable[..., ModelRunner]) -> Callable[..., Driver]:
    return lambda **changes: Driver(make_runner(**changes))


@pytest.fixture(scope="session")
def make_request() -> Callable[..., AddRequest]:
    """A request with a prompt of its own (drawn from its id) and sampling keywords."""

    def make(req_id: str, length: int = 20, **sampling: object) -> AddRequest:
        prompt = random.Random(req_id).choices(range(VOCAB - 1), k=length)
        fields = {
            name: sampling.pop(name)
            for name in ("prompt_token_ids", "kind", "eos_token_ids", "bad_word_ids")
            if name in sampling
        }
        return AddRequest(
            req_id=req_id,
            **({"prompt_token_ids": prompt} | fields),
            sampling=SamplingParams(**({"max_tokens": None} | sampling)),
        )

    return make
