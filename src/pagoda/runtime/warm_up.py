"""The first steps of a runner: they mean nothing, and pay for all first calls."""

from collections.abc import Sequence

from pagoda.arch.spec import ModelSpec
from pagoda.core.messages import AddRequest, PoolingParams
from pagoda.core.plan import NewRow, PlannedRequest, StepPlan
from pagoda.core.sampling import SamplingParams

_REQ_ID = "warm-up"
_MOST_TOKENS = 16


def first_plans(
    spec: ModelSpec, block_sizes: Sequence[int], max_model_len: int
) -> tuple[int, list[StepPlan]]:
    """(tokens of the longest, plans) of a prefill and a decode step in block 0 of every attention
    group; of an encoder, of one text. What they left in rows goes with the plan behind them."""
    plans = []
    if spec.encoder is not None:
        length = min(_MOST_TOKENS, max_model_len)
        pooling = PoolingParams("classify" if spec.pooling.labels else "embed")
        request = AddRequest(
            req_id=_REQ_ID, prompt_token_ids=[0] * length, kind="pool", pooling=pooling
        )
        parts = [(0, length)]
    else:
        length = max(1, min(*block_sizes, _MOST_TOKENS, max_model_len) - 1)
        sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=0)
        request = AddRequest(req_id=_REQ_ID, prompt_token_ids=[0] * length, sampling=sampling)
        parts = [(0, length), (length, 1)]
    for start, num_tokens in parts:
        blocks = [[] if start else [0] for _ in block_sizes]
        planned = PlannedRequest(
            req_id=_REQ_ID, num_computed_tokens=start, num_tokens=num_tokens, new_block_ids=blocks
        )
        rows = [] if start else [NewRow(request=request, req_id=_REQ_ID)]
        plans.append(StepPlan(step_id=-1, rows=rows, requests=[planned]))
    return length, [*plans, StepPlan(step_id=-1, freed=[_REQ_ID])]
