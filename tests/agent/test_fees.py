"""The numbers of tokens in what users read about fees, computed by the code that sends and counts
pictures."""

from pathlib import Path

import pagoda.web
import pagoda_agent.service
from pagoda.text.images.qwen_vl import fitting_size
from pagoda_agent.models.dialogue import Picture, Reply
from pagoda_agent.models.profiles import dialect_of, profile_for
from pagoda_agent.task.history import History

ROOT = Path(__file__).parents[2]
PAGES = [Path(module.__file__).parent / "assets" for module in (pagoda.web, pagoda_agent.service)]
SCREEN = (1280, 720)
STEPS = 20
# Qwen3-VL: patches of 16 pixels, 2 x 2 of which make a token, in pictures between these areas.
UNIT, LEAST, MOST = 32, 1 << 16, 1 << 24


def pictures_of_requests() -> list[int]:
    profile = profile_for("Qwen3-VL-8B-Instruct")
    history = History(
        dialect_of(profile), "", "", pictures=profile.pictures, prune_every=profile.prune_every
    )
    sent = []
    for _ in range(STEPS):
        history.add_picture(Picture(b"", "image/jpeg", SCREEN))
        sent.append(sum(len(message.pictures) for message in history.messages()))
        history.add_reply(Reply("x"))
        history.add_outcomes([], ["Done."])
    return sent


def test_pages_and_documents_say_what_pictures_cost() -> None:
    height, width = fitting_size(SCREEN[1], SCREEN[0], UNIT, LEAST, MOST)
    picture = height * width // UNIT**2
    sent = pictures_of_requests()
    assert set(sent[2:]) == {3, 4, 5}, "three to five"
    task = f"{picture * sum(sent):,}"
    for name in ("docs/agent.md", "docs/zh/agent.md"):
        text = (ROOT / name).read_text()
        assert f" {picture} " in text and task in text
    chat, agent = (page / name for page, name in zip(
        PAGES, ("agent_words.js", "translations.js"), strict=True
    ))  # fmt: skip
    assert agent.read_text().count(f" {picture} ") == agent.read_text().count(task) == 2
    assert chat.read_text().count(f" {picture} ") == 2
