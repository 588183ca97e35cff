"""Pictures whose tokens see each other are computed in one step."""

import pytest

from pagoda.base.errors import RequestError
from pagoda.core.messages import MediaItem
from tests.plans import shares

from .fake_runner import add_request, make_scheduler, planned_tokens, run_all, run_step


def pictures(*spans: tuple[int, int]) -> list[MediaItem]:
    return [MediaItem(f"p{start}", start, length, "") for start, length in spans]


def add(scheduler, name: str, ids: list[int], media: list[MediaItem] = (), **options) -> None:
    """A request whose pictures are encoded already."""
    add_request(scheduler, name, ids, media=list(media), **options)
    scheduler._requests[name].encoded.update(item.content_hash for item in media)


def steps(prompt: int, media: list[MediaItem], **limits: object) -> list[int]:
    """Tokens of the prompt in each step."""
    scheduler, runner = make_scheduler(**{"max_num_batched_tokens": 16, **limits})
    add(scheduler, "r", list(range(prompt)), media=media, max_tokens=1)
    found = []
    while scheduler.has_work():
        plan, _ = run_step(scheduler, runner)
        found.append(planned_tokens(plan)["r"])
    return found


@pytest.mark.parametrize(
    ("media", "expected"),
    [
        ([], [16, 16, 8]),
        (pictures((10, 8)), [10, 16, 14]),
        (pictures((10, 6)), [16, 16, 8]),
        (pictures((0, 16)), [16, 16, 8]),
        (pictures((1, 16)), [1, 16, 16, 7]),
        (pictures((10, 10), (20, 10), (32, 8)), [10, 10, 12, 8]),
    ],
)
def test_a_step_ends_in_front_of_a_picture_or_behind_it(media, expected):
    assert steps(40, media, whole_media=True) == expected
    assert steps(40, media) == [16, 16, 8]


def test_a_picture_takes_more_than_a_prompt_may():
    """A threshold, like a pace, is for what can be split."""
    given = {"whole_media": True, "long_prefill_token_threshold": 4}
    assert steps(20, pictures((6, 10)), **given) == [4, 2, 10, 4]


def test_a_picture_waits_for_a_step_with_room():
    scheduler, runner = make_scheduler(max_num_batched_tokens=16, whole_media=True)
    add(scheduler, "stream", [1, 2], max_tokens=3)
    add(scheduler, "r", list(range(20)), media=pictures((0, 16)), max_tokens=1)
    found = []
    while scheduler.has_work():
        plan, _ = run_step(scheduler, runner)
        found.append(planned_tokens(plan))
    assert found[:3] == [{"stream": 2}, {"stream": 1}, {"stream": 1}]
    assert found[3:] == [{"r": 16}, {"r": 4}]


def test_a_cached_prefix_may_end_in_a_picture():
    scheduler, runner = make_scheduler(max_num_batched_tokens=16, whole_media=True)
    media = pictures((6, 12))
    add(scheduler, "first", list(range(20)), media=media)
    run_all(scheduler, runner)
    # Blocks of 4: four are full and the same.
    add(scheduler, "again", [*range(17), *[9] * 23], media=media)
    plan, _ = run_step(scheduler, runner)
    assert shares(plan)[0].num_computed_tokens == 16
    run_all(scheduler, runner)


def test_a_picture_that_fits_no_step_is_refused():
    scheduler, _ = make_scheduler(max_num_batched_tokens=16, whole_media=True)
    with pytest.raises(RequestError, match="17 tokens, and a step no more than 16"):
        add(scheduler, "r", list(range(20)), media=pictures((0, 17)))
