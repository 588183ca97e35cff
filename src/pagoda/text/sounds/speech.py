"""How Whisper is asked to write down a sound (arXiv 2212.04356, section 2.3), and what it writes:
texts between times."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pagoda.base.errors import CheckpointError, RequestError
from pagoda.text.tokenizer import Tokenizer
from pagoda.weights.files import ModelFiles

_ARCHITECTURE = "WhisperForConditionalGeneration"
STEP_SECONDS = 0.02
"""Seconds from one token of time to the next."""


@dataclass(frozen=True)
class Speech:
    """Ids of the tokens that a prompt is made of; None for those that a model of one language has
    no use for."""

    start: int
    end: int
    """Ends a text; tokens below it are words."""
    without_times: int
    """Every token behind it is a time, and the one in front of it says that nobody speaks."""
    before: int | None = None
    """Begins a text that came before."""
    tasks: Mapping[str, int] = field(default_factory=dict)
    """`transcribe` and `translate`."""
    languages: Mapping[str, int] = field(default_factory=dict)
    """By code (`en`); empty for a model of one language."""
    suppressed: tuple[int, ...] = ()
    """What is never written..."""
    not_first: tuple[int, ...] = ()
    """...and what no text begins with."""
    alignment_heads: tuple[tuple[int, int], ...] = ()
    """Layers of the decoder and their heads that attend to what is said; none: not known."""
    latest_begin: int | None = None
    """How many steps of time a window's text may begin with; None is any."""

    def prompt(
        self, language: int | None, task: str, previous: Sequence[int], *, times: bool
    ) -> list[int]:
        """What stands behind a sound's tokens; `previous` are ids of the text before it."""
        ids = [self.before, *previous] if previous and self.before is not None else []
        ids.append(self.start)
        if language is not None:
            ids += [language, self.tasks[task]]
        return ids if times else [*ids, self.without_times]

    def language(self, code: str | None) -> int | None:
        """RequestError for one that the model does not know; None for a model of one."""
        if code is None or not self.languages:
            return None
        found = self.languages.get(code.lower())
        if found is None:
            raise RequestError(
                f"The language {code[:20]!r} is not one of this model's; send its code of two "
                "letters, such as en or de.",
                "language",
            )
        return found

    @property
    def silence(self) -> int:
        """The token that says that nobody speaks."""
        return self.without_times - 1

    def time(self, token: int) -> float | None:
        """Seconds since the window's begin; None for a token of text."""
        after = token - self.without_times - 1
        return None if after < 0 else after * STEP_SECONDS


@dataclass(frozen=True)
class Segment:
    start: float
    end: float
    """Seconds since the sound's begin."""
    tokens: tuple[int, ...]
    """With the times around them."""
    text: str


def speech_of(tokenizer: Tokenizer, files: ModelFiles) -> Speech | None:
    """None for a model that writes down nothing; CheckpointError where its tokenizer is another
    model's."""
    if _ARCHITECTURE not in ((files.config or {}).get("architectures") or ()):
        return None

    def token(name: str) -> int | None:
        ids = tokenizer.encode(f"<|{name}|>", add_special_tokens=False)
        return ids[0] if len(ids) == 1 else None

    names = ("startoftranscript", "endoftext", "notimestamps")
    start, end, without_times = map(token, names)
    if start is None or end is None or without_times is None:
        raise CheckpointError(
            "The tokenizer has no <|startoftranscript|>, <|endoftext|> or <|notimestamps|>; it "
            "belongs to another model. Fetch the files again."
        )
    generation = files.generation_config
    codes = generation.get("lang_to_id") or {}
    tasks = {name: token(name) for name in ("transcribe", "translate")}
    latest = generation.get("max_initial_timestamp_index")
    return Speech(
        start,
        end,
        without_times,
        token("startofprev"),
        {name: id_ for name, id_ in tasks.items() if id_ is not None},
        {code.strip("<|>"): int(id_) for code, id_ in codes.items()},
        _ids(generation, "suppress_tokens"),
        _ids(generation, "begin_suppress_tokens"),
        tuple(_alignment_heads(files.config or {}, generation)),
        None if latest is None else int(latest),
    )


def _alignment_heads(
    config: Mapping[str, Any], generation: Mapping[str, Any]
) -> Iterator[tuple[int, int]]:
    """CheckpointError for those that the model does not have."""
    layers, heads = config.get("decoder_layers", 0), config.get("decoder_attention_heads", 0)
    for layer, head in generation.get("alignment_heads") or ():
        if not (0 <= layer < layers and 0 <= head < heads):
            raise CheckpointError(
                f"generation_config.json: alignment_heads has head {head} of layer {layer}, and "
                f"the model has {heads} heads in each of {layers} layers. Fetch the files again."
            )
        yield int(layer), int(head)


def _ids(generation: Mapping[str, Any], name: str) -> tuple[int, ...]:
    return tuple(int(id_) for id_ in generation.get(name) or [] if id_ >= 0)


def segments_of(
    tokens: Sequence[int], speech: Speech, tokenizer: Tokenizer, begin: float, end: float
) -> list[Segment]:
    """What the tokens of a window say that lies between `begin` and `end`: a text ends with the
    time behind it, or with the window."""
    found: list[Segment] = []
    start, first = begin, 0

    def close(at: float, last: int) -> None:
        ids = tokens[first:last]
        words = [token for token in ids if speech.time(token) is None]
        text = tokenizer.decode(words, skip_special_tokens=True)
        if text.strip():
            found.append(Segment(start, at, tuple(ids), text))

    for place, token in enumerate(tokens):
        time = speech.time(token)
        if time is None:
            continue
        # Times go on, whatever is written.
        at = max(start, min(begin + time, end))
        close(at, place + 1)
        start, first = at, place
    close(end, len(tokens))
    return found


def written(segments: Sequence[Segment], form: str) -> str:
    """As subtitles, `srt` or `vtt`."""
    mark = "," if form == "srt" else "."
    lines = [] if form == "srt" else ["WEBVTT\n"]
    for number, segment in enumerate(segments, 1):
        span = f"{_clock(segment.start, mark)} --> {_clock(segment.end, mark)}"
        count = f"{number}\n" if form == "srt" else ""
        # An arrow would begin another span.
        lines.append(f"{count}{span}\n{segment.text.strip().replace('-->', '->')}\n")
    return "\n".join(lines) + "\n" if lines else ""


def _clock(seconds: float, mark: str) -> str:
    millis = round(seconds * 1000)
    minutes, millis = divmod(millis, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{millis // 1000:02}{mark}{millis % 1000:03}"
