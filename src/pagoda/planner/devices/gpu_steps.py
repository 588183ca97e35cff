"""Steps of a GPU that is not here, as the roofline foretells them."""

from collections.abc import Iterator

from pagoda.core.limits import SchedulerLimits
from pagoda.planner.devices.gpu_speed import SEEN
from pagoda.planner.devices.roofline import GpuPart, decode_step, prompt_seconds
from pagoda.planner.devices.step_table import StepPoint, doubled

_FIRST_CONTEXT = 512
_FEWEST_PROMPT_TOKENS = 16


def gpu_points(part: GpuPart, limits: SchedulerLimits, captured_tokens: int) -> Iterator[StepPoint]:
    """Steps of all sizes that the limits allow, in powers of two. Of those with prompts, ones of up
    to `captured_tokens` are captured; the host is ahead of the device in the others, unless
    launching them takes longer than computing."""
    contexts = [0, *doubled(_FIRST_CONTEXT, limits.max_model_len)]
    for requests in doubled(1, limits.max_num_reqs):
        for context in contexts:
            seconds = decode_step(part, context, requests).seen
            yield StepPoint("decode", requests, context + 1, seconds)
    kernels = sum(part.launches.values())
    for tokens in doubled(_FEWEST_PROMPT_TOKENS, limits.max_num_batched_tokens):
        for context in contexts:
            computing, launching = prompt_seconds(part, tokens, context)
            seconds = max(computing, launching)
            if tokens <= captured_tokens:
                seconds = computing + SEEN.captured * kernels
            yield StepPoint("prompt", tokens, context + (tokens + 1) / 2, SEEN.step + seconds)
