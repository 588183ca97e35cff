"""Steps in a row in which the same requests get one token each."""

from collections import defaultdict
from collections.abc import Sequence

from pagoda.core.kvcache.manager import KVCacheManager
from pagoda.core.plan import StepPlan
from pagoda.core.request import Request

# Tokens that requests do not hold yet are kept for so many steps at least.
_KEPT_STEPS = 256


class StreamRun:
    """Requests that are moved on all at once, as long as nothing else happens to any of them.

    Each step touches only the requests that need a block or whose token is more than a token: of
    256 some 20, and the others cost what counting a step costs. What the others themselves say of
    their counters and tokens is behind meanwhile, until `sync`.
    """

    def __init__(self, requests: list[Request], plan: StepPlan):
        """The run goes on from `plan`, the last one, which gave each request a token."""
        self.requests = requests
        self._req_ids, self._lens = plan.req_ids, plan.lens
        self._starts = [req.num_computed_tokens for req in requests]
        self._planned = 0
        """Steps of the run that are planned."""
        self._rows: list[list[int]] = []
        """The tokens that were taken in last, `_first_row` such rows before them forgotten."""
        self._first_row = 0
        self._next_row = [0] * len(requests)
        """Of each request, the first row whose token it does not hold."""
        self._need_blocks: defaultdict[int, list[int]] = defaultdict(list)
        """By step, who needs a block to be planned for it, or is not to be planned any more."""
        self._need_care: defaultdict[int, list[int]] = defaultdict(list)
        """By step, whose token may change more than its number of tokens."""
        self._stop_ids = frozenset().union(*(req.stop_ids for req in requests))
        for place, (req, start) in enumerate(zip(requests, self._starts, strict=True)):
            self._need_blocks[req.steady_until - start].append(place)
            self._mind(place, 0)

    def plan_next(self, plan: StepPlan, kv: KVCacheManager) -> bool:
        """Make `plan` the next one; False, with nothing changed, where a request is to leave or
        blocks are short: then the run is over."""
        step = self._planned
        if step in self._need_blocks and not self._extend(step, plan, kv):
            return False
        plan.req_ids, plan.lens = self._req_ids, self._lens
        plan.starts, plan.ahead, plan.again = self._starts, step, True
        self._planned += 1
        return True

    def take(self, step: int, tokens: list[int]) -> list[int]:
        """Take in the tokens of a step but for those that need care: the places of these in rising
        order, which are up to date, and whose tokens are for the caller to take in."""
        careful = self._need_care.pop(step, [])
        if self._stop_ids and not self._stop_ids.isdisjoint(tokens):
            known = set(careful)
            careful += [
                place
                for place, (req, token) in enumerate(zip(self.requests, tokens, strict=True))
                if token in req.stop_ids and place not in known
            ]
        careful.sort()
        for place in careful:
            self._sync_one(place)
            self._next_row[place] += 1
        self._rows.append(tokens)
        if len(self._rows) > 2 * _KEPT_STEPS:
            self._forget_rows()
        return careful

    def mind_again(self, careful: Sequence[int], step: int) -> None:
        """The caller has taken in the tokens of a step that needed care."""
        for place in careful:
            self._mind(place, step + 1)

    def sync(self) -> None:
        """Have all requests say themselves how far they are."""
        for place in range(len(self.requests)):
            self._sync_one(place)

    def _extend(self, step: int, plan: StepPlan, kv: KVCacheManager) -> bool:
        places = sorted(self._need_blocks[step])
        full = [self.requests[place] for place in places]
        if any(req.steady_until >= req.compute_limit for req in full):
            return False
        grown = kv.extend([req.tables for req in full])
        if grown is None:
            return False
        for place, req, blocks in zip(places, full, grown, strict=True):
            plan.new_blocks[req.req_id] = blocks
            req.steady_until = min(req.tables.capacity, req.compute_limit)
            self._need_blocks[req.steady_until - self._starts[place]].append(place)
        del self._need_blocks[step]
        return True

    def _mind(self, place: int, step: int) -> None:
        """Note when a request, from a step on, next needs care. It then has this many tokens."""
        quiet = self.requests[place].quiet_until - self._starts[place] - 1
        self._need_care[max(step, quiet)].append(place)

    def _sync_one(self, place: int) -> None:
        req = self.requests[place]
        req.num_computed_tokens = self._starts[place] + self._planned
        req.num_expected_tokens = req.num_computed_tokens + 1
        first = self._next_row[place] - self._first_row
        req.token_ids += [row[place] for row in self._rows[first:]]
        self._next_row[place] = self._first_row + len(self._rows)

    def _forget_rows(self) -> None:
        for place, first in enumerate(self._next_row):
            if first < self._first_row + _KEPT_STEPS:
                self._sync_one(place)
        del self._rows[:_KEPT_STEPS]
        self._first_row += _KEPT_STEPS
