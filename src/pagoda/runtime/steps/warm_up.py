"""The first steps of a runner: they mean nothing, and pay for all first calls."""

from collections.abc import Sequence

import numpy as np

from pagoda.arch.spec import ModelSpec
from pagoda.core.messages import AddRequest, PoolingParams
from pagoda.core.plan import NewBlocks, NewRow, StepPlan
from pagoda.core.sampling import SamplingParams

_REQ_ID = "warm-up"
_MOST_TOKENS = 16
_GPU_PROMPTS = (32, 64, 512, 2048)
"""Tokens. Kernels for quantized weights and experts are others from each of these sizes on, those
of attention from 512 keys on."""


def first_plans(
    spec: ModelSpec, block_sizes: Sequence[int], max_model_len: int, most_on_gpu: int
) -> tuple[int, list[StepPlan]]:
    """(tokens of the longest, plans) of a prefill and a decode step in block 0 of every attention
    group; of an encoder, of one text. What they left in rows goes with the plans behind them.

    On a GPU, whose steps have `most_on_gpu` tokens at most, also of longer prompts; else 0.
    """
    if spec.encoder is not None:
        length = min(_MOST_TOKENS, max_model_len)
        pooling = PoolingParams("classify" if spec.pooling.labels else "embed")
        request = AddRequest(
            req_id=_REQ_ID, prompt_token_ids=[0] * length, kind="pool", pooling=pooling
        )
        return length, _plans(request, [(0, length)], block_sizes)
    shortest = max(1, min(*block_sizes, _MOST_TOKENS, max_model_len) - 1)
    longest = min(most_on_gpu, max_model_len - 1)
    lengths = [shortest, *(length for length in _GPU_PROMPTS if shortest < length <= longest)]
    plans = []
    for length in lengths:
        sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=0)
        request = AddRequest(req_id=_REQ_ID, prompt_token_ids=[0] * length, sampling=sampling)
        plans += _plans(request, [(0, length), (length, 1)], block_sizes)
    return lengths[-1], plans


def _plans(
    request: AddRequest, parts: Sequence[tuple[int, int]], block_sizes: Sequence[int]
) -> list[StepPlan]:
    """Plans of a request's steps, from (start, tokens) of each."""
    plans = []
    length = len(request.prompt_token_ids)
    for start, num_tokens in parts:
        plan = StepPlan(step_id=-1, req_ids=[_REQ_ID], num_tokens=num_tokens)
        plan.rows, plan.starts, plan.lens = np.array([[0], [start], [num_tokens]])
        if not start:
            plan.new_rows = [NewRow(row=0, req_id=_REQ_ID, request=request)]
            # Room for the token behind it.
            columns = [np.arange(length // size + 1) for size in block_sizes]
            plan.new_blocks = [NewBlocks(0 * each, each, 0 * each) for each in columns]
        plans.append(plan)
    return [*plans, StepPlan(step_id=-1, freed=[0])]
