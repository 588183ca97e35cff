"""What docs/speculation.md and the flag's help say of guesses is what the code does."""

import dataclasses
import re
import shlex
from pathlib import Path

import pytest

from pagoda.arch.registry import spec_for
from pagoda.base.errors import ConfigError
from pagoda.cli.main import parse_command
from pagoda.config import flags
from pagoda.config.engine import EngineConfig
from pagoda.config.speculation import METHODS, MODES, SpeculationConfig, checked
from pagoda.planner.speculation import resolve_speculation, with_draft_head
from tests.unit.doctor.models import LLAMA, QWEN3_5

TEXT = (Path(__file__).parents[3] / "docs" / "speculation.md").read_text()
HELP = dataclasses.fields(SpeculationConfig)[0].metadata["doc"]
KEYS = (
    "method", "model", "num_speculative_tokens", "mode", "min_speculative_tokens",
    "prompt_lookup_min", "prompt_lookup_max",
)  # fmt: skip
LINES = [line for line in TEXT.splitlines() if line.startswith("pagoda serve ")]


def rows(*header):
    """The table that begins so: the rest of each row, by the names in its first cell."""
    begin = TEXT.index("| " + " | ".join(header) + " |")
    lines = TEXT[begin:].partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: rest for first, *rest in cells for name in re.findall("`(.+?)`", first)}


def resolved(config=LLAMA, device="cpu", **asked):
    made = EngineConfig(speculation=SpeculationConfig(checked(asked)))
    spec = with_draft_head(spec_for(config, {}, ()), made)
    return resolve_speculation(made, spec, device, [])


def test_every_key_is_told():
    told = rows("key", "meaning", "default")
    assert set(told) >= set(KEYS)
    for name in KEYS:
        assert name == "method" or f"`{name}`" in HELP
        assert checked({name: {"method": "suffix", "mode": "fast"}.get(name, 3)})
    assert all(mode in HELP and mode in " ".join(told["mode"]) for mode in MODES)


def test_every_method_that_guesses_is_told():
    told = rows("method", "guesses", "default")
    for method in METHODS:
        try:
            known = resolved(QWEN3_5, method=method).method == method
        except ConfigError:  # it wants a model of its own
            known = True
        if known:
            assert method in told and f"`{method}`" in HELP
    by_default = {name: row[-1] for name, row in told.items()}
    assert by_default[resolved(device="cpu").method] == "on a CPU"
    assert by_default[resolved(device="cuda").method] == "on a GPU"


def test_the_defaults_are_those():
    told = {name: row[-1] for name, row in rows("key", "meaning", "default").items()}
    copied, ngram = resolved(), resolved(method="ngram")
    assert told["num_speculative_tokens"].startswith(f"{copied.most};")
    assert told["min_speculative_tokens"] == str(copied.least)
    assert told["prompt_lookup_min"] == f"{ngram.shortest}, {ngram.longest}"
    lengths = {mode: resolved(QWEN3_5, mode=mode).most for mode in ("stable", "fast", "auto")}
    meaning = rows("key", "meaning", "default")["mode"][0]
    assert "`stable` is {stable}, `fast` is {fast}, `auto` {auto}".format(**lengths) in meaning


@pytest.mark.parametrize("line", LINES)
def test_its_lines_are_taken(line):
    words = shlex.split(line.partition("   ")[0])[2:]
    config = flags.engine_config(parse_command("serve", words)[1])
    assert config.speculation.speculative_config
