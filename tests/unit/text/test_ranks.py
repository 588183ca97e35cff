"""Vocabularies of byte strings by rank, held against tiktoken's ids."""

import base64
import json
from pathlib import Path

import pytest
import tiktoken
import tokenizers
from tokenizers import pre_tokenizers, trainers

from pagoda.base.errors import CheckpointError, UnsupportedModelError
from pagoda.text.bytelevel import to_bytes
from pagoda.text.gguf.pretokenizers import PRE_TOKENIZERS
from pagoda.text.template.chat import load_chat_template
from pagoda.text.tokenizer import Tokenizer, load_tokenizer
from pagoda.weights.files import open_model

TEXTS = [
    "The pagodas of Kyoto aren't as old as you'd think: 1,234 years, or 56789 days.",
    "塔是佛教建筑，五重塔有五层。  日本の五重塔は木造です。",
    "aaaaaaaaaaaaaaa ababababab AAAaaa XMLHttpRequest  naïve ÀÉÎõü",
    "def f(x):\n\treturn {'a': [1, 2, 3]}\r\n\r\n    # done\n",
    "\N{GRINNING FACE}\N{ZERO WIDTH JOINER}\N{GRINNING FACE} \x00\x7f \N{COMBINING ACUTE ACCENT}e",
    "", " ", "\n\n\n", "   leading and trailing   ",
]  # fmt: skip
KIMI = {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}


@pytest.fixture(scope="module")
def ranked() -> list[bytes]:
    """A small vocabulary by rank: the bytes, then what a corpus joins most often."""
    pipeline = tokenizers.Tokenizer(tokenizers.models.BPE())
    pipeline.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letters = pre_tokenizers.ByteLevel.alphabet()
    pipeline.train_from_iterator(
        TEXTS * 3 + [path.read_text() for path in sorted(Path(__file__).parent.glob("test_*.py"))],
        trainers.BpeTrainer(vocab_size=900, initial_alphabet=letters, show_progress=False),
    )
    by_id = sorted(pipeline.get_vocab().items(), key=lambda item: item[1])
    return [to_bytes(token) for token, _ in by_id]


def write(folder: Path, **files: object) -> None:
    (folder / "config.json").write_text("{}")
    for name, told in files.items():
        (folder / f"{name}.json").write_text(json.dumps(told))


def write_kimi(folder: Path, ranked: list[bytes], **config: object) -> None:
    write(folder, tokenizer_config={**KIMI, **config})
    lines = [base64.b64encode(token) + b" %d" % rank for rank, token in enumerate(ranked)]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")


def load(folder: Path) -> Tokenizer:
    return load_tokenizer(open_model(folder))


def test_kimi(tmp_path: Path, ranked: list[bytes]) -> None:
    count = len(ranked)
    special = {"[BOS]": count, "[EOS]": count + 1, "<|im_end|>": count + 2, "<think>": count + 9}
    decoder = {str(rank): {"content": text, "special": True} for text, rank in special.items()}
    write_kimi(
        tmp_path, ranked, bos_token="[BOS]", eos_token="<|im_end|>", added_tokens_decoder=decoder
    )
    ours = load(tmp_path)
    theirs = tiktoken.Encoding(
        "kimi",
        pat_str=PRE_TOKENIZERS["kimi-k2"].patterns[0],
        mergeable_ranks={token: rank for rank, token in enumerate(ranked)},
        special_tokens=special,
    )
    for text in [*TEXTS, "[BOS]a<|im_end|> <think>"]:
        ids = theirs.encode(text, allowed_special="all")
        assert ours.encode(text) == ids
        assert ours.encode(text, parse_special=False) == theirs.encode(text, disallowed_special=())
        assert ours.decode(ids) == text
    assert ours.vocab_size == count + 256 and ours.vocab_entry(count + 3) == (
        f"<|reserved_token_{count + 3}|>"
    )
    assert (ours.bos_token_id, ours.eos_token_id) == (count, count + 2)


def tekken(ranked: list[bytes], version: str, special: list[str] | None) -> dict[str, object]:
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(ranked)
    ]
    told: dict[str, object] = {
        "config": {
            "pattern": PRE_TOKENIZERS["tekken"].patterns[0], "version": version,
            # The last ones of those that are listed are not the model's.
            "num_vocab_tokens": len(ranked), "default_vocab_size": len(ranked) - 20 + 100,
            "default_num_special_tokens": 100,
        },
        "vocab": vocab,
    }  # fmt: skip
    if special is not None:
        told["special_tokens"] = [
            {"rank": rank, "token_str": text, "is_control": True}
            for rank, text in enumerate(special)
        ]
    return told


SPECIAL = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]


@pytest.mark.parametrize(("version", "special"), [("v3", None), ("v11", SPECIAL)])
def test_tekken(
    version: str, special: list[str] | None, tmp_path: Path, ranked: list[bytes]
) -> None:
    write(tmp_path, tekken=tekken(ranked, version, special))
    ours = load(tmp_path)
    theirs = tiktoken.Encoding(
        "tekken",
        pat_str=PRE_TOKENIZERS["tekken"].patterns[0],
        mergeable_ranks={token: rank for rank, token in enumerate(ranked[:-20])},
        special_tokens={},
    )
    for text in TEXTS:
        ids = [100 + rank for rank in theirs.encode(text)]
        assert ours.encode(text) == [1, *ids]
        assert ours.decode(ids) == text
    assert ours.encode("[INST]") == [1, 3]
    assert ours.vocab_size == len(ranked) - 20 + 100
    assert (ours.bos_token_id, ours.eos_token_id, ours.vocab_entry(99)) == (1, 2, "<SPECIAL_99>")
    template = load_chat_template(open_model(tmp_path), ours)
    assert template is not None
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    system = "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Hi[/INST]"
    assert template.render(said) == (
        "<s>" + (system if version == "v11" else "[INST]Be brief.\n\nHi[/INST]")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"YQ== 0\nYg== 2\n", "does not number its tokens from 0 on"),
        (b"YQ== 0\nYg== 1\n", "lacks single bytes"),
        (b"not base64 0\n", "is no vocabulary"),
        (base64.b64encode(b"a" * 2000) + b" 0\n", "tokens longer than any model's"),
        (b"", "does not number"),
    ],
)
def test_broken_ranks(content: bytes, message: str, tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config=KIMI)
    (tmp_path / "tiktoken.model").write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path)


def test_a_broken_tekken(tmp_path: Path) -> None:
    write(tmp_path, tekken={"config": {}, "vocab": []})
    with pytest.raises(CheckpointError, match=r"is not a tekken.json"):
        load(tmp_path)


def test_words_of_others_are_not_guessed(tmp_path: Path, ranked: list[bytes]) -> None:
    write_kimi(tmp_path, ranked, auto_map={"AutoTokenizer": ["tokenization_qwen.QWenTokenizer"]})
    with pytest.raises(UnsupportedModelError, match="does not say how text is cut into words"):
        load(tmp_path)
