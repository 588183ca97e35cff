"""The command that the doctor prints keeps what its user typed."""

import shlex
import subprocess
from dataclasses import replace

from pagoda.base.errors import CapacityError
from pagoda.cli.main import parse_command
from pagoda.config.engine import CacheConfig
from pagoda.config.flags import from_namespace
from pagoda.config.server import ServerConfig
from pagoda.doctor import after
from pagoda.doctor.answer import answer
from pagoda.doctor.command import serving_words
from pagoda.doctor.model_report import lines
from pagoda.doctor.remedies.search import remedies
from tests.unit.doctor.machines import LAPTOP
from tests.unit.doctor.models import GIB, LLAMA, asked, box, subject_of

SERVER = "--host 0.0.0.0 --port 9000 --enable-log-requests --allowed-origins https://a.example *"


def server_config(words: str) -> ServerConfig:
    return from_namespace(ServerConfig, parse_command("serve", ["m", *shlex.split(words)])[1])


def expanded(command: str, **variables: str) -> tuple[int, list[str]]:
    """The words that a shell hands over, and its exit status."""
    done = subprocess.run(
        ["sh", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, env=variables
    )
    return done.returncode, done.stdout.splitlines()


def test_flags_of_the_server_are_read_again():
    config = server_config(SERVER)
    assert server_config(serving_words(config)) == config
    assert serving_words(ServerConfig()) == ""
    assert serving_words(ServerConfig(port=1), ["b=other model"]) == "'b=other model' --port 1"


def test_a_key_is_not_repeated_and_never_forgotten():
    words = serving_words(server_config("--host 0.0.0.0 --api-key s3cret"))
    assert "s3cret" not in words
    assert expanded(words, PAGODA_API_KEY="mine") == (
        0, ["--host", "0.0.0.0", "--api-key", "mine"],
    )  # fmt: skip
    assert expanded(words)[0] != 0  # an open server without a key is not what was asked for


def test_every_command_has_them(tmp_path, monkeypatch):
    subject = subject_of(tmp_path, LLAMA)
    config = asked(subject, max_model_len=32768)
    small = replace(config, cache=CacheConfig(kv_cache_memory_bytes=GIB // 4))
    serving = serving_words(server_config(SERVER + " --api-key s3cret"))
    for question in (config, small):
        made = replace(answer(subject, box(), question), serving=serving)
        found = remedies(made)
        commands = [made.command] if made.fits else [remedy.command for remedy in found]
        assert commands and all(serving in command for command in commands)
        text = "\n".join(lines(made, found, False, 100))
        assert "put it into PAGODA_API_KEY first" in text and "s3cret" not in text
    monkeypatch.setattr(after, "probe", lambda: LAPTOP)
    monkeypatch.setattr(after, "this_machine", lambda *_: box())
    *said, note = after.after_failure(small, CapacityError("too large"), serving)
    assert all(serving in line for line in said) and "PAGODA_API_KEY" in note
