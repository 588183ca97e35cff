"""From what a step computed to its result."""

from collections.abc import Sequence

from pagoda.core.plan import RequestResult, StepPlan, StepResult
from pagoda.runtime.block_table import Ints
from pagoda.runtime.sampling.sampler import Sampled
from pagoda.runtime.steps.prepared import PreparedStep


def left_out(plan: StepPlan, step: PreparedStep | None) -> list[int]:
    """Places of the plan's requests that the step does not compute."""
    computed = [] if step is None else step.plan.req_ids
    if len(computed) == len(plan.req_ids):
        return []
    known = set(computed)
    return [place for place, req_id in enumerate(plan.req_ids) if req_id not in known]


class Results(dict[str, RequestResult]):
    """Results of the requests that have more to tell than one token, by their ids."""

    def __missing__(self, req_id: str) -> RequestResult:
        result = self[req_id] = RequestResult(req_id=req_id)
        return result

    def take(self, step: PreparedStep, sampled: Sampled, accepted: Ints) -> list[int]:
        """Take up what was sampled, of which each of the sampling requests gained `accepted`
        tokens. Where each has one and there is nothing else to tell: return these instead."""
        places = step.places
        tokens: list[int] = sampled.tokens.tolist()
        if places.one_token_each and not sampled.faults and not sampled.logprobs:
            return tokens
        for i, start, count in zip(
            places.requests.tolist(), places.first.tolist(), accepted.tolist(), strict=True
        ):
            result = self[step.plan.req_ids[i]]
            result.token_ids = tokens[start : start + count]
            if count and start in sampled.logprobs:
                result.logprobs = [sampled.logprobs[row] for row in range(start, start + count)]
        return []

    def of(self, plan: StepPlan, computed: Sequence[str], tokens: list[int]) -> StepResult:
        """The plan's. `tokens`: one of each request in `computed`, or none."""
        if tokens and not self:
            return StepResult(step_id=plan.step_id, tokens=tokens)
        for req_id, token in zip(computed, tokens, strict=False):
            self[req_id].token_ids = [token]
        return StepResult(step_id=plan.step_id, results=[self[req_id] for req_id in plan.req_ids])
