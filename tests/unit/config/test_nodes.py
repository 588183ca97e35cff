"""Flags of several machines, and what they cannot be together."""

import pytest

from pagoda.base.errors import ConfigError
from pagoda.cli.main import parse_command
from pagoda.config.flags import engine_config
from pagoda.config.nodes import NodesConfig


def config_of(*words: str):
    return engine_config(parse_command("serve", ["model", *words])[1])


def test_vllms_spelling():
    config = config_of(
        "-tp", "4", "-pp", "2", "--nnodes", "2", "--node-rank", "1", "--master-addr", "10.0.0.7",
        "--headless",
    )  # fmt: skip
    assert config.nodes == NodesConfig(2, 1, "10.0.0.7", 29501, headless=True)
    assert config.nodes.share(config.parallel.num_ranks) == 4


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("-tp 2 --nnodes 2 --node-rank 2 --headless", "counts from 0 to 1"),
        ("-tp 2 --nnodes 2 --headless", "--node-rank 0 has the API"),
        ("-tp 2 --nnodes 2 --node-rank 1", "add --headless"),
        ("--headless", "give --nnodes"),
        ("-tp 3 --nnodes 2", "is 3, which cannot be dealt out equally to --nnodes 2"),
        ("--nnodes 2", "is 1, which cannot"),
        ("-tp 2 --nnodes 2 -dp 2", "leave one of them out"),
        ("-tp 2 --nnodes 0", "at least 1"),
    ],
)
def test_what_cannot_be(words, said):
    with pytest.raises(ConfigError, match=said):
        config_of(*words.split())


def test_other_machines_need_a_secret(monkeypatch):
    monkeypatch.delenv("PAGODA_NODES_SECRET", raising=False)
    assert NodesConfig(2, master_addr="localhost").secret() == b""
    far = NodesConfig(2, master_addr="10.0.0.7")
    with pytest.raises(ConfigError, match="Set PAGODA_NODES_SECRET"):
        far.secret()
    monkeypatch.setenv("PAGODA_NODES_SECRET", "short")
    with pytest.raises(ConfigError, match="has 5 characters"):
        far.secret()
    monkeypatch.setenv("PAGODA_NODES_SECRET", "x" * 16)
    assert far.secret() == b"x" * 16
