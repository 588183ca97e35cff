"""Prompts for load tests: random, ShareGPT, a file of one's own, repeated prefixes."""

import json
import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pagoda.base.errors import ConfigError
from pagoda.bench.client import Prompt
from pagoda.config.option import Options, option

# Short and common, so that each is about one token of any vocabulary.
_TEXT = (
    "the of and to in is it you that he was for on are with as his they be at one have this from "
    "or had by hot but some what there we can out other were all your when up use word how said "
    "an each she which do their time if will way about many then them would write like so these "
    "her long make thing see him two has look more day could go come did my sound no most number "
    "who over know water than call first people may down side been now find any new work part "
    "take get place made live where after back little only round man year came show every good"
)
_WORDS = tuple(_TEXT.split())
# ShareGPT's very short and very long exchanges are left out, as vLLM does.
_SHORTEST, _LONGEST_PROMPT, _LONGEST = 4, 1024, 2048


@dataclass(frozen=True)
class DatasetConfig(Options):
    """What is asked."""

    dataset_name: str = option(
        "random", "Kind of prompts.",
        choices=("random", "sharegpt", "custom", "prefix_repetition"),
    )  # fmt: skip
    dataset_path: str | None = option(None, "ShareGPT's JSON, or JSONL lines with a `prompt`.")
    num_prompts: int = option(1000, "How many requests.", bounds=(1, 10**9))
    seed: int = option(0, "Seed of everything random.")
    random_input_len: int = option(1024, "Tokens per random prompt.", aliases=("--input-len",))
    random_output_len: int = option(
        128, "Tokens generated per random prompt.", aliases=("--output-len",)
    )
    random_range_ratio: float = option(
        0.0, "Lengths vary by this share, up and down.", bounds=(0.0, 0.99)
    )
    random_prefix_len: int = option(0, "Tokens that all random prompts begin with.")
    sharegpt_output_len: int | None = option(None, "Tokens generated, instead of the recorded.")
    custom_output_len: int = option(256, "Tokens generated per prompt of a custom file.")
    prefix_repetition_prefix_len: int = option(256, "Tokens per shared prefix.")
    prefix_repetition_suffix_len: int = option(256, "Tokens behind it.")
    prefix_repetition_num_prefixes: int = option(10, "How many prefixes.", bounds=(1, 10**6))
    prefix_repetition_output_len: int = option(128, "Tokens generated.")


class TokenCounter(Protocol):
    """A tokenizer, this side or the server's."""

    async def ids(self, text: str) -> list[int] | None: ...

    async def count(self, text: str) -> int: ...


class TokenSource:
    """Makes random prompts of exact length: token ids where the server tells any, else words."""

    def __init__(self, rng: random.Random, pool: list[int] | None):
        self._rng = rng
        self._pool = pool

    def take(self, count: int) -> list[int] | list[str]:
        if self._pool:
            return self._rng.choices(self._pool, k=count)
        return self._rng.choices(_WORDS, k=count)


async def load_dataset(
    config: DatasetConfig, tokenizer: TokenCounter, *, chat: bool
) -> list[Prompt]:
    """The prompts, `chat` as text. Raises ConfigError for a file that cannot be used."""
    rng = random.Random(config.seed)
    pool = None if chat else sorted(set(await tokenizer.ids(_TEXT) or ()))
    tokens = TokenSource(rng, pool)
    if config.dataset_name == "random":
        return random_prompts(config, rng, tokens)
    if config.dataset_name == "prefix_repetition":
        return repeated_prefixes(config, rng, tokens)
    if config.dataset_path is None:
        raise ConfigError(f"--dataset-name {config.dataset_name} needs --dataset-path.")
    path = Path(config.dataset_path)
    if config.dataset_name == "custom":
        return await custom_prompts(config, path, tokenizer.count)
    return await sharegpt_prompts(config, path, rng, tokenizer.count)


def random_prompts(config: DatasetConfig, rng: random.Random, tokens: TokenSource) -> list[Prompt]:
    prefix = tokens.take(config.random_prefix_len)
    prompts = []
    for _ in range(config.num_prompts):
        length = _vary(rng, config.random_input_len, config.random_range_ratio)
        output = _vary(rng, config.random_output_len, config.random_range_ratio)
        prompts.append(_prompt([*prefix, *tokens.take(length)], output))
    return prompts


def repeated_prefixes(
    config: DatasetConfig, rng: random.Random, tokens: TokenSource
) -> list[Prompt]:
    count = config.prefix_repetition_num_prefixes
    prefixes = [tokens.take(config.prefix_repetition_prefix_len) for _ in range(count)]
    prompts = [
        _prompt(
            [*prefixes[i % count], *tokens.take(config.prefix_repetition_suffix_len)],
            config.prefix_repetition_output_len,
        )
        for i in range(config.num_prompts)
    ]
    rng.shuffle(prompts)
    return prompts


async def custom_prompts(
    config: DatasetConfig, path: Path, count: Callable[[str], Awaitable[int]]
) -> list[Prompt]:
    """One JSON object per line, with `prompt` and perhaps `output_tokens`."""
    prompts = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            entry = json.loads(line)
            text, output = entry["prompt"], int(entry.get("output_tokens") or 0)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{path}, line {number}: not an object with a prompt.") from error
        prompts.append(Prompt(text, await count(text), output or config.custom_output_len))
        if len(prompts) == config.num_prompts:
            break
    return _enough(prompts, config, path)


async def sharegpt_prompts(
    config: DatasetConfig,
    path: Path,
    rng: random.Random,
    count: Callable[[str], Awaitable[int]],
) -> list[Prompt]:
    """Each conversation's first question; its recorded answer says how long the reply is."""
    turns = _conversations(path)
    rng.shuffle(turns)
    prompts: list[Prompt] = []
    for question, answer in turns:
        length, output = await count(question), config.sharegpt_output_len or await count(answer)
        fits = _SHORTEST <= length <= _LONGEST_PROMPT and length + output <= _LONGEST
        if fits and output >= _SHORTEST:
            prompts.append(Prompt(question, length, output))
        if len(prompts) == config.num_prompts:
            break
    return _enough(prompts, config, path)


def _conversations(path: Path) -> list[tuple[str, str]]:
    text = "".join(_lines(path))
    try:
        entries = json.loads(text)
        talks = [entry["conversations"] for entry in entries]
        return [(str(talk[0]["value"]), str(talk[1]["value"])) for talk in talks if len(talk) >= 2]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is not a ShareGPT file.") from error


def _enough(prompts: list[Prompt], config: DatasetConfig, path: Path) -> list[Prompt]:
    """As many as asked for: a short file is used again from its beginning."""
    if not prompts:
        raise ConfigError(f"{path} has no usable prompt.")
    return [prompts[i % len(prompts)] for i in range(config.num_prompts)]


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8") as file:
            yield from (line for line in file if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The dataset {path} cannot be read: {error}.") from error


def _prompt(tokens: list[Any], output: int) -> Prompt:
    if tokens and isinstance(tokens[0], str):
        return Prompt(" ".join(tokens), len(tokens), output)
    return Prompt(tokens, len(tokens), output)


def _vary(rng: random.Random, length: int, ratio: float) -> int:
    return max(1, rng.randint(round(length * (1 - ratio)), round(length * (1 + ratio))))
