"""Secrets are typed, and found nowhere else in any writing."""

import base64
import html
import json
import textwrap
import urllib.parse

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagoda_agent.base.errors import ActionError, ConfigError
from pagoda_agent.secrets import Secrets

VALUES = [
    "hunter2!",
    'p"a\\ss<w>&rd',
    "pä ss 中wörd",
    "correct horse battery",
    "a+b/c=d%e",
    "C:\\new",
]
WRITINGS = {
    "plain": lambda v: v,
    "json": json.dumps,
    "json without ascii": lambda v: json.dumps(v, ensure_ascii=False),
    "json in json": lambda v: json.dumps(json.dumps(v)),
    "json in json in json": lambda v: json.dumps(json.dumps(json.dumps(v))),
    "repr": repr,
    "url": lambda v: urllib.parse.quote(v, safe=""),
    "url lower": lambda v: urllib.parse.quote(v, safe="").replace("%C3", "%c3"),
    "form": urllib.parse.quote_plus,
    "url of url": lambda v: urllib.parse.quote(urllib.parse.quote(v, safe=""), safe=""),
    "html": html.escape,
    "html numbers": lambda v: "".join(f"&#{ord(c)};" for c in v),
    "base64": lambda v: base64.b64encode(v.encode()).decode(),
    "base64 for urls": lambda v: base64.urlsafe_b64encode(v.encode()).decode(),
    "base64 within": lambda v: base64.b64encode(f"user:{v}:end".encode()).decode(),
    "base64 within, later": lambda v: base64.b64encode(f"users:{v}".encode()).decode(),
    "base64 within, later still": lambda v: base64.b64encode(f"userss:{v}...".encode()).decode(),
    "base64 wrapped": lambda v: textwrap.fill(base64.b64encode(v.encode()).decode(), 5),
    "hex": lambda v: v.encode().hex(),
    "upper hex": lambda v: v.encode().hex().upper(),
    "wrapped": lambda v: "\n".join(v),
    "wrapped in json": lambda v: json.dumps("\r\n".join(v)),
    "spaced": lambda v: "  ".join(v),
}


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("writing", WRITINGS)
def test_found_in_every_writing(value, writing):
    if writing == "wrapped in json" and "\\" in value:
        pytest.skip("backslashes of its own and of line breaks cannot be told apart")
    written = WRITINGS[writing](value)
    text = f"before {written} after"
    cleaned = Secrets({"PIN": value}).redact(text)
    assert "{{secret:PIN}}" in cleaned
    assert cleaned.startswith("before ") and cleaned.endswith(" after")
    # What is left holds no piece of it: at most its quotes and Base64 of what stood around it.
    left = cleaned.replace("{{secret:PIN}}", "")
    assert len(left) <= len(text) - len(written) + 20
    for piece in () if "within" in writing else (written[1:6], written[-6:-1]):
        assert len(set(piece)) < 4 or piece not in left


@settings(max_examples=40)
@given(
    st.text(
        st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=4, max_size=20
    ).filter(lambda text: len("".join(text.split())) >= 4),
    st.sampled_from(sorted(set(WRITINGS) - {"wrapped in json", "spaced", "wrapped"})),
    st.text(max_size=10),
)
def test_no_value_gets_through(value, writing, around):
    cleaned = Secrets({"X": value}).redact(f"{around}\0{WRITINGS[writing](value)}\0{around}")
    assert "{{secret:X}}" in cleaned


def test_other_text_stays():
    secrets = Secrets({"PIN": "hunter2!"})
    for text in (
        "hunter 2",
        "nothing here\n\\n",
        "HUNTER2!",
        base64.b64encode(b"hunter3").decode(),
    ):
        assert secrets.redact(text) == text


def test_the_longer_of_two_wins():
    secrets = Secrets({"SHORT": "abcd", "LONG": "abcdefgh"})
    assert secrets.redact("abcdefgh abcd") == "{{secret:LONG}} {{secret:SHORT}}"


def test_lists_and_objects():
    secrets = Secrets({"PIN": "12345"})
    value = {"a": ["x12345", {"12345": 1}], "b": 12, "c": None, "d": ("12345",)}
    hidden = "{{secret:PIN}}"
    assert secrets.redact_all(value) == {
        "a": [f"x{hidden}", {hidden: 1}],
        "b": 12,
        "c": None,
        "d": (hidden,),
    }


@pytest.mark.parametrize("noise", ["\\", "a", "+", " ", "\n", "\\n", "%0A", "A", "%"])
def test_no_text_makes_it_slow(noise):
    # Finished by the test's own time limit, or not at all where the search runs wild.
    text = noise * (200_000 // len(noise))
    Secrets({"A": "a+ +a\\\\nn%0A", "B": "\\\\\\\\\\\\x", "C": "++++++++x"}).redact(text)


def test_revealed_only_by_its_exact_name():
    secrets = Secrets({"PIN": "12345", "pass-word_2": "abcd{{secret:PIN}}"})
    assert secrets.names == ("PIN", "pass-word_2")
    assert secrets.reveal("no secret") == "no secret"
    assert secrets.reveal("a {{secret:PIN}}{{secret:PIN}}\n") == "a 1234512345\n"
    # A value is typed as it is, whatever it looks like.
    assert secrets.reveal("{{secret:pass-word_2}}") == "abcd{{secret:PIN}}"
    with pytest.raises(ActionError, match="no secret 'pin'; known: PIN, pass-word_2"):
        secrets.reveal("{{secret:pin}}")
    with pytest.raises(ActionError, match="must be written"):
        secrets.reveal("{{secret PIN}}")
    with pytest.raises(ActionError, match="must be written"):
        secrets.reveal("{{secret:PIN")
    assert "12345" not in repr(secrets)


def test_from_a_file_and_the_environment(tmp_path, monkeypatch):
    file = tmp_path / "secrets"
    file.write_text("# mine\n\nPIN=12=345 \nKEY = from the file\n")
    monkeypatch.setenv("PAGODA_SECRET_KEY", "from a variable")
    monkeypatch.setenv("PAGODA_SECRET_OTHER", "other")
    with pytest.raises(ConfigError, match="chmod 600"):
        file.chmod(0o644)
        Secrets.load(file)
    file.chmod(0o600)
    secrets = Secrets.load(file)
    assert sorted(secrets.names) == ["KEY", "OTHER", "PIN"]
    assert secrets.reveal("{{secret:PIN}}|{{secret:KEY}}") == "12=345 | from the file"
    assert Secrets.load().reveal("{{secret:KEY}}") == "from a variable"


def test_what_cannot_be_a_secret(tmp_path):
    with pytest.raises(ConfigError, match="shorter than 4"):
        Secrets({"A": "a b c"})
    with pytest.raises(ConfigError, match="no name for a secret"):
        Secrets({"a b": "12345"})
    with pytest.raises(ConfigError, match="cannot be read"):
        Secrets.load(tmp_path / "none")
    file = tmp_path / "broken"
    file.write_text("A=12345\nhunter2\n")
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="Line 2") as caught:
        Secrets.load(file)
    assert "hunter2" not in str(caught.value)
