"""Media are encoded between the steps of others, and the steps that need them wait."""

from pagoda.core.messages import AddRequest, MediaItem, RequestDelta
from pagoda.core.plan import StepPlan
from pagoda.core.sampling import SamplingParams
from tests.plans import shares

from .fake_runner import expected_output, make_scheduler

MAX_MODEL_LEN = 120


def request(req_id: str, *starts: int, length: int = 60, max_tokens: int = 12) -> AddRequest:
    """With media of 6 tokens at `starts`."""
    return AddRequest(
        req_id=req_id,
        prompt_token_ids=[1 + number % 20 for number in range(length)],
        sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        media=[MediaItem(f"{req_id}-{start}", start, 6, "") for start in starts],
    )


class Engine:
    def __init__(self, **limits: object):
        self.scheduler, self.runner = make_scheduler(
            **{"max_num_batched_tokens": 16, "max_model_len": MAX_MODEL_LEN, **limits}
        )
        self.messages: dict[str, AddRequest] = {}
        self.tokens: dict[str, list[int]] = {}

    def add(self, message: AddRequest) -> None:
        self.messages[message.req_id] = message
        self.tokens[message.req_id] = []
        self.scheduler.add(message)

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule()
        assert plan is not None
        self.take(self.scheduler.commit(plan, self.runner.execute(plan)))
        self.scheduler.check_integrity()
        return plan

    def take(self, deltas: list[RequestDelta]) -> None:
        for delta in deltas:
            self.tokens[delta.req_id] += delta.token_ids

    def finish(self) -> None:
        while self.scheduler.has_work():
            self.step()
        for req_id, message in self.messages.items():
            assert self.tokens[req_id] == expected_output(message, MAX_MODEL_LEN)


def computed(plan: StepPlan) -> dict[str, tuple[int, int]]:
    return {r.req_id: (r.num_computed_tokens, r.num_tokens) for r in shares(plan)}


def test_a_stream_goes_on_while_an_image_is_encoded() -> None:
    engine = Engine()
    engine.add(request("stream", length=4, max_tokens=40))
    engine.step()
    engine.add(request("seeing", 8))
    # They begin alike.
    assert computed(engine.step()) == {"stream": (4, 1), "seeing": (4, 4)}
    for _ in range(2):  # the fake runner takes two steps
        plan = engine.step()
        assert list(computed(plan)) == ["stream"]
        assert plan.encode_for == "seeing"
        assert [item.content_hash for item in plan.encode] == ["seeing-8"]
    plan = engine.step()
    assert computed(plan)["seeing"] == (8, 15) and not plan.encode
    engine.finish()


def test_an_image_at_the_start_takes_no_blocks_while_it_is_encoded() -> None:
    engine = Engine()
    engine.add(request("seeing", 0))
    engine.add(request("text"))
    free = engine.scheduler.kv.num_free_blocks
    plan = engine.step()
    assert list(computed(plan)) == ["text"] and plan.encode_for == "seeing"
    engine.take(engine.scheduler.abort(["text"]))
    assert not shares(engine.step())
    assert engine.scheduler.kv.num_free_blocks == free
    assert computed(engine.step()) == {"seeing": (0, 16)}


def test_several_are_encoded_together_and_read_in_one_chunk() -> None:
    engine = Engine()
    engine.add(request("seeing", 1, 7, 20, 40))
    assert computed(engine.step()) == {"seeing": (0, 1)}
    # Those that a chunk of 16 tokens would reach.
    assert [item.start for item in engine.step().encode] == [1, 7]
    engine.step()
    assert computed(engine.step()) == {"seeing": (1, 16)}
    assert computed(engine.step()) == {"seeing": (17, 3)}
    engine.finish()


def test_an_abort_ends_the_encoding() -> None:
    engine = Engine()
    for req_id in ("a", "b"):
        engine.add(request(req_id, 0))
    assert engine.step().encode_for == "a"
    engine.take(engine.scheduler.abort(["a"]))
    del engine.messages["a"]
    assert engine.step().encode_for == "b"
    engine.finish()


def test_a_preempted_request_asks_again() -> None:
    engine = Engine()
    engine.add(request("seeing", 4))
    for _ in range(4):
        engine.step()
    engine.scheduler.hold("seeing", "test")
    engine.scheduler.reset_prefix_cache()
    engine.scheduler.release("seeing", "test")
    assert computed(engine.step()) == {"seeing": (0, 4)}
    assert engine.step().encode_for == "seeing"
    engine.finish()


def test_what_is_cached_is_not_encoded() -> None:
    engine = Engine()
    engine.add(request("first", 0, max_tokens=1))
    engine.finish()
    again = request("again", 0, max_tokens=1)
    again.media[0].content_hash = "first-0"
    engine.add(again)
    plan = engine.step()
    assert not plan.encode and computed(plan)["again"][0] >= 6
    engine.finish()


def test_prompts_that_are_not_split_wait_for_nothing() -> None:
    """The step that has them encodes what they need."""
    engine = Engine(max_num_batched_tokens=64, enable_chunked_prefill=False)
    engine.add(request("seeing", 8))
    plan = engine.step()
    assert computed(plan) == {"seeing": (0, 60)} and not plan.encode
    engine.finish()
