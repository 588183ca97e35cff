"""What a scheduler may do, by the values that were resolved."""

from pagoda.core.limits import SchedulerLimits
from pagoda.planner.resolved import ResolvedConfig


def scheduler_limits(config: ResolvedConfig, *, whole_media: bool = False) -> SchedulerLimits:
    """`whole_media`: all tokens of a picture are computed in one step."""
    scheduler = config.scheduler
    return SchedulerLimits(
        max_num_reqs=scheduler.max_num_seqs,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_model_len=config.model.max_model_len,
        policy=scheduler.scheduling_policy,
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        enable_chunked_prefill=scheduler.enable_chunked_prefill,
        max_step_seconds=scheduler.max_step_seconds,
        max_step_growth=scheduler.max_step_growth,
        whole_media=whole_media,
        num_stages=config.parallel.pipeline_parallel_size,
    )
