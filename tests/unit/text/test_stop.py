import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.text.stop import StopMatcher

SHORT = st.text(alphabet="ab", max_size=12)
STOPS = st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=4)


def run(stops: list[str], pieces: list[str], include: bool = False) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops, include)
    shown = []
    for piece in pieces:
        result = matcher.feed(piece)
        shown.append(result.text)
        if result.matched is not None:
            return shown, result.matched
    return [*shown, matcher.flush()], None


def cut_off(stops: list[str], text: str, include: bool) -> tuple[str, str | None]:
    """By definition: the first character that completes a stop string ends the text."""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            stop = max(complete, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in zip(places, places[1:], strict=False)]


@given(text=SHORT, stops=STOPS, cuts=st.lists(st.integers(0, 100)), include=st.booleans())
def test_any_cut_gives_the_defined_text(text, stops, cuts, include):
    shown, matched = run(stops, split(text, cuts), include)
    assert ("".join(shown), matched) == cut_off(stops, text, include)


@given(text=SHORT, stops=STOPS)
def test_nothing_is_held_back_without_need(text, stops):
    """After each character, what is hidden could still become a stop string."""
    matcher, shown = StopMatcher(stops), ""
    for end, character in enumerate(text, 1):
        result = matcher.feed(character)
        if result.matched:
            return
        shown += result.text
        hidden = text[len(shown) : end]
        assert hidden == "" or any(stop.startswith(hidden) for stop in stops)


@pytest.mark.parametrize(
    ("stops", "pieces", "include", "shown", "matched"),
    [
        (["\n\n"], ["one\n", "two\n", "\nthree"], False, ["one", "\ntwo", ""], "\n\n"),
        (["\n\n"], ["one\n", "two\n", "\nthree"], True, ["one\n", "two\n", "\n"], "\n\n"),
        (["</a>"], ["x</", "b></a", ">y"], False, ["x", "</b>", ""], "</a>"),
        (["abcd", "bc"], ["xabcd"], False, ["xa"], "bc"),
        (["b", "ab"], ["ab"], False, [""], "ab"),
        (["stop"], ["a st", "o"], False, ["a ", "", "sto"], None),
        ([], ["abc"], False, ["abc", ""], None),
    ],
)
def test_examples(stops, pieces, include, shown, matched):
    assert run(stops, pieces, include) == (shown, matched)


def test_text_after_a_match_is_swallowed():
    matcher = StopMatcher(["x"])
    assert matcher.feed("axb").text == "a"
    assert (matcher.feed("c").text, matcher.flush(), matcher.matched) == ("", "", "x")
