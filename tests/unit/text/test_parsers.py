import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagoda.base.errors import ConfigError
from pagoda.text.parsers.base import Delta
from pagoda.text.parsers.select import parser_for

THINK = parser_for(None, "think")
OPENED = "<|im_start|>assistant\n<think>\n"
FRAGMENTS = st.lists(
    st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "<", ">", "\n", " ", "Hm", "答"])
).map("".join)


def parse(family, prompt: str, pieces: list[str]) -> list[Delta]:
    """Deltas with neighbours of one kind joined."""
    parser = family(prompt)
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    joined: list[Delta] = []
    for delta in deltas:
        assert delta.text
        if joined and joined[-1].kind == delta.kind:
            joined[-1] = Delta(delta.kind, joined[-1].text + delta.text)
        else:
            joined.append(delta)
    return joined


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in zip(places, places[1:], strict=False)]


@pytest.mark.parametrize("name", ["none", "think"])
@given(
    text=FRAGMENTS | st.text(),
    cuts=st.lists(st.integers(0, 1000)),
    prompt=st.sampled_from(["", OPENED]),
)
def test_any_cut_gives_the_same_and_no_text_is_lost(name, text, cuts, prompt):
    family = parser_for(None, name)
    whole = parse(family, prompt, [text])
    assert parse(family, prompt, split(text, cuts)) == whole
    assert parse(family, prompt, list(text)) == whole
    conserved = "".join(delta.text for delta in whole)
    # Only the tags themselves are left out: one of each at most.
    candidates = {text, text.replace("<think>", "", 1), text.replace("</think>", "", 1)}
    candidates |= {text.replace("<think>", "", 1).replace("</think>", "", 1)}
    assert conserved in candidates


@pytest.mark.parametrize(
    ("prompt", "text", "expected"),
    [
        ("", "<think>a</think>b", [("reasoning", "a"), ("text", "b")]),
        ("", "\n<think>a</think>\n\nb", [("reasoning", "\na"), ("text", "\n\nb")]),
        ("", "<think></think>b", [("text", "b")]),
        ("", "Use <think> and </think>.", [("text", "Use <think> and </think>.")]),
        ("", "<think>a</think>b<think>c", [("reasoning", "a"), ("text", "b<think>c")]),
        ("", "<think>never closed </thin", [("reasoning", "never closed </thin")]),
        ("", "<thin", [("text", "<thin")]),
        (OPENED, "a</think>b", [("reasoning", "a"), ("text", "b")]),
        (OPENED, "<think>\na</think>b", [("reasoning", "\na"), ("text", "b")]),
        (OPENED, "a", [("reasoning", "a")]),
        (OPENED + "\n</think>\n\n", "b", [("text", "b")]),
    ],
)
def test_think(prompt, text, expected):
    assert [(delta.kind, delta.text) for delta in parse(THINK, prompt, [text])] == expected


def test_text_is_not_held_back_without_need():
    parser = THINK()
    assert parser.feed("<thi") == []
    assert parser.feed("nk>Let me") == [Delta("reasoning", "Let me")]
    assert parser.feed(" see</t") == [Delta("reasoning", " see")]
    assert parser.feed("hink>Yes") == [Delta("text", "Yes")]
    assert parser.feed("<") == [Delta("text", "<")]


def test_the_template_chooses_and_the_flag_overrides():
    assert parser_for("{{ messages }}").name == "none"
    assert parser_for(None).name == "none"
    assert parser_for("...{{ '<think>\n\n</think>' }}").name == "think"
    assert parser_for("...</think>", "none").name == "none"
    assert parser_for(None, "deepseek_r1").name == "think"
    assert THINK.reasoning_end == "</think>"
    with pytest.raises(
        ConfigError, match="no output parser 'thinks'; the nearest known is 'think'"
    ):
        parser_for(None, "thinks")
