"""Step plans request by request, for tests and for runners that tests play."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pagoda.core.plan import NewBlocks, NewRow, StepPlan
from pagoda.core.scheduler import Scheduler


@dataclass
class Planned:
    """One request's share of a step."""

    req_id: str
    num_computed_tokens: int
    num_tokens: int
    new_block_ids: list[list[int]] = field(default_factory=list)
    """Per attention group; empty where the plan has none for anybody."""
    states: tuple[int, ...] = (0, 0)
    """The block read, then those written."""
    draft_token_ids: list[int] = field(default_factory=list)
    samples: bool = True
    row: int = 0
    column: int = 0
    """Of the first new block."""


def shares(plan: StepPlan) -> list[Planned]:
    blocks: dict[int, list[list[int]]] = {}
    first: dict[tuple[int, int], int] = {}
    for group, new in enumerate(plan.new_blocks):
        entries = zip(new.rows.tolist(), new.columns.tolist(), new.blocks.tolist(), strict=True)
        for row, column, block in entries:
            mine = blocks.setdefault(row, [[] for _ in plan.new_blocks])
            mine[group].append(block)
            assert column == first.setdefault((row, group), column) + len(mine[group]) - 1
    columns = zip(
        plan.req_ids, plan.rows.tolist(), plan.starts.tolist(), plan.lens.tolist(), strict=True
    )
    return [
        Planned(
            req_id=req_id,
            num_computed_tokens=start,
            num_tokens=length,
            new_block_ids=blocks.get(row, []),
            states=tuple(plan.states[place]) if plan.states else (0, 0),
            draft_token_ids=plan.drafts.get(row, []),
            samples=row not in plan.unsampled,
            row=row,
            column=first.get((row, 0), 0),
        )
        for place, (req_id, row, start, length) in enumerate(columns)
    ]


def plan_of(
    step_id: int,
    planned: Iterable[Planned],
    new_rows: Sequence[NewRow] = (),
    freed: Sequence[int] = (),
    columns: Mapping[tuple[int, int], int] | None = None,
) -> StepPlan:
    """`columns`: by row and group, where new blocks begin; else `Planned.column`."""
    planned = list(planned)
    num_groups = max((len(one.new_block_ids) for one in planned), default=0)
    grown = []
    for group in range(num_groups):
        entries = [
            (one.row, (columns or {}).get((one.row, group), one.column) + index, block)
            for one in planned
            for index, block in enumerate(one.new_block_ids[group] if one.new_block_ids else [])
        ]
        grown.append(NewBlocks(*np.array(entries, np.int64).reshape(-1, 3).T))
    column = lambda values: np.array(list(values), np.int64)  # noqa: E731
    return StepPlan(
        step_id=step_id,
        new_rows=list(new_rows),
        freed=list(freed),
        new_blocks=grown,
        req_ids=[one.req_id for one in planned],
        rows=column(one.row for one in planned),
        starts=column(one.num_computed_tokens for one in planned),
        lens=column(one.num_tokens for one in planned),
        num_tokens=sum(one.num_tokens for one in planned),
        drafts={one.row: one.draft_token_ids for one in planned if one.draft_token_ids},
        unsampled={one.row for one in planned if not one.samples},
    )


def propose(scheduler: Scheduler, req_id: str, draft_token_ids: list[int]) -> None:
    """Have the next plan of a request verify these, if it runs and generates."""
    req = scheduler._requests.get(req_id)
    if req is not None and req.is_running and req.generates:
        req.draft_token_ids = list(draft_token_ids)
        req.handle_alone()
