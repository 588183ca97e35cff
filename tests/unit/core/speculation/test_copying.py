"""Places where a text's end stood before, and what they guess."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.core.messages import AddRequest
from pagoda.core.speculation.copying import END, Copied
from pagoda.core.speculation.detour import Detour, Return
from pagoda.core.speculation.habits import Change, Habits
from pagoda.core.speculation.ngram import NgramProposer
from pagoda.core.speculation.suffix import RecentReplies, SuffixProposer
from pagoda.core.speculation.text_index import LONGEST, TextIndex
from tests.unit.core.fake_runner import make_scheduler

TEXTS = st.lists(st.integers(0, 3), max_size=60)


def requests(*prompts: list[int], num_blocks: int = 1 << 16, **fields: object) -> list:
    """Requests as a scheduler makes them, which only know their prompts."""
    scheduler, _ = make_scheduler(max_model_len=1 << 20, num_blocks=num_blocks)
    for i, prompt in enumerate(prompts):
        scheduler.add(AddRequest(req_id=f"r{i}", prompt_token_ids=prompt, **fields))
    return list(scheduler._requests.values())


def same_length(text: list[int], end: int) -> int:
    """How many tokens in front of `end` are the text's last ones."""
    count = 0
    while count < min(end, LONGEST) and text[end - count - 1] == text[-count - 1]:
        count += 1
    return count


@given(TEXTS, st.lists(st.integers(1, 9)))
def test_the_longest_match_is_found_however_the_text_grew(text, pieces):
    index = TextIndex(text)
    for size in pieces:
        index.extend(min(len(text) - 1, index.end + size))
    index.extend(len(text) - 1)
    match = index.longest(text)
    lengths = {end: same_length(text, end) for end in range(2, len(text))}
    candidates = [end for end in lengths if lengths[end] >= 2][-8:]
    if not candidates:
        assert match is None
        return
    assert match is not None
    assert match.length == lengths[match.end] == max(lengths[end] for end in candidates)
    assert match.end == max(end for end in candidates if lengths[end] == match.length)


def copied_from(source: list[int], place: int, length: int) -> Copied:
    return Copied(source, place, length, Habits())


def first_guess(proposer, req, most: int) -> list[int]:
    guesses = proposer.guess(req, most)
    return guesses[0].token_ids if guesses else []


def test_a_copy_is_followed_and_ends_where_the_text_differs():
    copied = copied_from([1, 2, 3, 4, 5, END, 9, 9], place=2, length=2)
    assert copied.guess(8).token_ids == [3, 4, 5]
    assert copied.follow([3, 4]) and copied.length == 4
    assert copied.guess(8).token_ids == [5]
    assert not copied.follow([5, 9])


def test_a_text_is_expected_to_come_back_behind_a_changed_token():
    copied = copied_from(list(range(40)), place=10, length=10)
    assert copied.follow([10, 11, 99]) and copied.is_changing
    assert copied.guess(3).token_ids == [13, 14, 15]
    assert copied.follow([13, 14]) and not copied.is_changing
    assert copied.guess(2).token_ids == [15, 16]
    assert not copied.follow([98])  # it kept to it for two tokens only
    assert not copied_from(list(range(30)), place=10, length=7).follow([99])
    assert not copied_from([1, END], place=1, length=9).follow([5])


SOURCE = [*range(10, 20), 1, 2, *range(20, 30), 1, 2, *range(30, 40), 1, 2, *range(40, 50)]


@pytest.mark.parametrize(
    ("replaced", "written"),
    [([1, 2], [7, 8, 9]), ([1, 2], [7]), ([1], [7]), ([1], []), ([], [7, 8]), ([1, 2], [])],
)
def test_a_change_that_was_made_is_expected_again(replaced, written):
    text = changed(SOURCE, replaced, written)
    copied = copied_from(SOURCE, place=8, length=8)
    behind_first = text.index(20) + 5
    for token in text[8:behind_first]:
        assert copied.follow([token])
    assert not copied.is_changing
    guess = copied.guess(len(text) - behind_first)
    assert guess.token_ids == text[behind_first:]
    assert len(guess.evidence) == len(guess.token_ids)
    for token in text[behind_first:]:
        before = copied.guess(1).token_ids
        assert before == [token] and copied.follow([token])


def changed(source: list[int], replaced: list[int], written: list[int]) -> list[int]:
    """`source` with `written` for each 1, 2 or 1 in it, or in front of these."""
    text, place = [], 0
    while place < len(source):
        if source[place] == 1:
            text += written
            place += len(replaced)
            if not replaced:
                text.append(1)
                place += 1
        else:
            text.append(source[place])
            place += 1
    return text


def test_a_change_that_was_not_made_again_is_not_expected_behind_the_same_token():
    source = [*range(10, 19), 5, 1, *range(20, 29), 5, 1, *range(30, 39), 5, 1, *range(40, 49)]
    copied = copied_from(source, place=8, length=8)
    copied.follow([18, 5, 7, *range(20, 29), 5])
    assert copied.guess(2).token_ids == [7, 30]
    copied.follow([1, *range(30, 39), 5])
    assert copied.guess(2).token_ids == [1, 40]
    habits = Habits()
    for _ in range(3):
        habits.held([6, 1, 9], 1, Change(1, (7,)))
    assert habits.at([5, 1], 1) == (Change(1, (7,)), 2)
    habits.failed([5, 1], 1)
    assert habits.at([5, 1], 1) is None
    assert habits.at([4, 1], 1) == (Change(1, (7,)), 1)
    assert habits.at([6, 1], 1) == (Change(1, (7,)), 5)


def test_habits_are_bounded():
    habits = Habits()
    for token in range(1, 5000):
        habits.held([0, token], 1, Change(1, (7,)))
    assert len(habits._by_token) == len(habits._by_pair) == 1024
    assert habits.at([0, 4999], 1) is not None and habits.at([0, 1], 1) is None


def test_a_detour_without_end_is_given_up():
    copied = copied_from(list(range(100)), place=10, length=10)
    assert copied.follow([200] * 16) and copied.guess(3).token_ids == []
    assert not copied.follow([200])


def test_where_a_text_comes_back_is_where_most_is_the_same():
    detour = Detour([1, 2, 3, 4, 2, 3, 5], 0, [9, 2, 3], end=7)
    assert detour.find_return() == Return(place=3, same=2)
    assert detour.change_before(Return(3, 2)) == Change(1, (9,))
    detour = Detour([1, 2, 3, 4, 2, 3, 5], 0, [4, 2, 3], end=7)
    assert detour.find_return() == Return(place=6, same=3)
    assert detour.change_before(Return(6, 3)) == Change(3, ())
    assert Detour([1, 2, 3], 0, [3], end=1).find_return() is None


@given(TEXTS, st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=20))
def test_whatever_comes_guesses_are_tokens_within_bounds(text, pieces):
    """The text is its own source, as a request's is, and has few tokens, so that all happens."""
    (req,) = requests(text or [0], num_blocks=100)
    proposer = SuffixProposer()
    for piece in pieces:
        for guess in proposer.guess(req, 7):
            assert len(guess.token_ids) == len(guess.evidence) <= 7
            assert all(0 <= token <= 3 for token in guess.token_ids)
            assert all(0 <= kind < len(proposer.chances) for kind in guess.evidence)
        req.token_ids += piece


def test_an_edit_of_a_long_text_is_guessed_nearly_whole():
    chance = random.Random(5)
    source = [chance.randrange(100, 2000) for _ in range(600)]
    for place in range(20, 600, 30):
        source[place : place + 2] = [50, 51]
    goal = []
    for token in source:
        goal += [60, 61, 62] if token == 50 else [] if token == 51 else [token]
    (req,) = requests([*source, 7, *goal[:5]])
    proposer, place, steps = SuffixProposer(), 5, 0
    while place < len(goal):
        guess = first_guess(proposer, req, 16)
        right = 0
        while (
            right < len(guess)
            and guess[right : right + 1] == goal[place + right : place + right + 1]
        ):
            right += 1
        req.token_ids += goal[place : place + right + 1]
        place += right + 1
        steps += 1
    assert steps < len(goal) / 13


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(2, 6), st.integers(1, 20))
def test_a_text_that_repeats_itself_is_guessed_to_go_on(period, times, most):
    text = period * (times + 2)
    place = len(text) - len(period)
    guess = copied_from(text, place, length=2).guess(most)
    assert guess.token_ids == (period * 20)[:most]
    assert len(guess.evidence) == most


def test_longer_matches_are_better_evidence():
    (req,) = requests([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    proposer = SuffixProposer()
    (first,) = proposer.guess(req, 4)
    assert first.token_ids == [3, 4, 5, 6]
    assert first.evidence == sorted(first.evidence)
    req.token_ids += [3, 4, 5, 6]
    chances = proposer.chances
    assert chances[proposer.guess(req, 1)[0].evidence[0]] > chances[first.evidence[0]]


def test_ngram_wants_as_many_tokens_in_common_as_it_was_told():
    text = [1, 2, 3, 4, 7, 3, 4]
    for shortest, expected in ((2, [7, 3]), (3, [])):
        (req,) = requests(text)
        assert first_guess(NgramProposer(shortest), req, 2) == expected


def test_replies_of_others_are_guessed_from_within_a_tenant():
    proposer = SuffixProposer()
    first, second = requests([1] * 3, [9, 20, 21])
    proposer.guess(first, 1)
    first.token_ids += [20, 21, 22, 23, 24]
    proposer.forget(first)
    assert first_guess(proposer, second, 9) == [22, 23, 24]
    (salted,) = requests([8, 20, 21], cache_salt="a")
    assert first_guess(proposer, salted, 9) == []


def test_the_own_text_comes_before_others_unless_theirs_is_longer():
    proposer = SuffixProposer()
    first, second, third = requests([1], [5, 6, 7, 0, 5, 6], [5, 6, 7, 4, 5, 6])
    proposer.guess(first, 1)
    first.token_ids += [3, 5, 6, 9, 0, 5, 6, 8]
    proposer.forget(first)
    assert first_guess(proposer, second, 1) == [8]  # behind 0, 5, 6
    assert first_guess(proposer, third, 1) == [7]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 90)), max_size=40))
def test_recent_replies_stay_within_their_bound(replies):
    kept = RecentReplies(200)
    for owner, length in replies:
        kept.add((owner, None), list(range(length)))
        held = [len(index.text) for owned in kept._owners.values() for index in owned]
        assert kept.num_tokens == sum(held) <= 200
    if replies and replies[-1][1]:
        owner, length = replies[-1]
        latest = kept.indexes((owner, None))[0].text
        assert latest[-2] == length - 1


def test_a_predicted_reply_is_guessed_from_its_first_token_on_and_again_behind_a_change():
    (req,) = requests([1, 2, 3], prediction_token_ids=[10, 11, 12, 13, 14, 15, 16])
    proposer = SuffixProposer()
    req.token_ids += [10]
    assert first_guess(proposer, req, 3) == [11, 12, 13]
    req.token_ids += [11, 99]
    assert first_guess(proposer, req, 3) == [13, 14, 15]
    req.token_ids += [98, 14, 15]
    assert first_guess(proposer, req, 5) == [16]
    (other,) = requests([1, 2, 3], prediction_token_ids=[10, 11])
    other.token_ids += [50]
    assert first_guess(SuffixProposer(), other, 3) == [11]  # it may go on beside


def test_a_long_prompt_is_taken_in_by_slices():
    chance = random.Random(0)
    text = [chance.randrange(1 << 16) for _ in range(20_000)]
    (req,) = requests([*text, *text[:40]])
    proposer = SuffixProposer()
    proposer.guess(req, 4)
    assert proposer._texts["r0"].index.end < 5000
    assert first_guess(proposer, req, 4) == text[40:44]  # its place is among the first


@pytest.mark.parametrize("proposer", [NgramProposer(), SuffixProposer()])
def test_what_ended_is_forgotten(proposer):
    reqs = requests(*[[1, 2, 1, 2]] * 50)
    for req in reqs:
        proposer.guess(req, 2)
        proposer.forget(req)
        proposer.forget(req)
    assert not getattr(proposer, "_texts", None) and not getattr(proposer, "_indexes", None)
