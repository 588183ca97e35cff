"""What is worked out aside from the server's event loop, since nobody knows how long it takes:
templates, long texts, schemas and media. A closed table of jobs, as plain data."""

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from pagoda.base.errors import RequestError
from pagoda.config.modality import MODALITIES
from pagoda.core.structured import StructuredOutputsParams
from pagoda.engine.constraint import Constraint, ToolUse, chat_constraint, completion_constraint
from pagoda.engine.served.text_side import TextSide
from pagoda.text.media.base import Medium
from pagoda.text.pdf import PdfText, pdf_text

SHORT_TEXT = 4000
"""Characters that are tokenized in about a millisecond, whatever they are."""


class Bounds(msgspec.Struct, frozen=True):
    """What one job may take."""

    seconds: float
    memory: int
    """Bytes beyond what a worker has before its first job."""
    slow: bool = False
    """May take seconds in earnest, so one worker is kept free of such jobs."""

    @property
    def cpu_seconds(self) -> int:
        """What the kernel ends a worker at, should the server's own clock stand still."""
        return math.ceil(2 * self.seconds) + 1


class Job(msgspec.Struct, tag=True):
    """One piece of work; its `what` begins the sentence that tells of a limit it met."""


class RenderChat(Job):
    """A conversation -> the prompt's text, and its token ids where that text is short. Templates
    see that a message holds a medium, never its data."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    add_generation_prompt: bool
    continue_final_message: bool
    variables: dict[str, Any]
    add_special_tokens: bool


class RenderPair(Job):
    """A reranker's query and document -> the prompt's text."""

    query: str
    document: str


class Encode(Job):
    """A text -> token ids."""

    text: str
    add_special_tokens: bool = True
    parse_special: bool = True


class Constrain(Job):
    """What a reply must look like -> its grammar. `prompt` is None for a completion."""

    wanted: StructuredOutputsParams | None
    prompt: str | None = None
    tools: list[dict[str, Any]] = []
    required: bool = False
    several: bool = True
    thought_tokens: int | None = None


class Decode(Job):
    """The medium in the file that comes beside the job, in the model's size."""

    kind: str
    options: dict[str, Any]
    sizes: dict[str, int]
    is_url: bool = False
    """The file is the text of a data URL."""


class ReadPdf(Job):
    """The PDF in the file that comes beside the job -> its text."""


AnyJob = RenderChat | RenderPair | Encode | Constrain | Decode | ReadPdf


class Rendered(msgspec.Struct):
    text: str
    ids: list[int] | None = None
    """None for a long text: `Encode` has bounds of its own."""


_MIB = 1 << 20
BOUNDS: Mapping[type[Job], Bounds] = {
    RenderChat: Bounds(10, 512 * _MIB),
    RenderPair: Bounds(10, 512 * _MIB),
    # 32 MB of text have millions of tokens, at 36 bytes each.
    Encode: Bounds(30, 2048 * _MIB, slow=True),
    Constrain: Bounds(20, 512 * _MIB, slow=True),
    # One page may take longer than the pages together should (`text/pdf.py`).
    ReadPdf: Bounds(20, 1024 * _MIB, slow=True),
}
"""Each kind's; the largest body that the server takes needs a small part of them. Media have those
of their `Modality`."""

_WORDS: Mapping[type[Job], tuple[str, str]] = {
    RenderChat: ("The chat template", "messages"),
    RenderPair: ("The template for pairs", "documents"),
    Encode: ("Tokenizing the text", "prompt"),
    Constrain: ("Compiling the schema, grammar or tools", "structured_outputs"),
    ReadPdf: ("Reading the PDF", "file"),
}


def bounds_of(job: Job, known: Mapping[type[Job], Bounds] = BOUNDS) -> Bounds:
    if isinstance(job, Decode):
        modality = MODALITIES[job.kind]
        return Bounds(modality.seconds, modality.memory, slow=True)
    return known[type(job)]


def _words(job: Job) -> tuple[str, str]:
    if isinstance(job, Decode):
        return f"Decoding the {job.kind}", "messages"
    return _WORDS[type(job)]


def too_slow(job: Job, seconds: float) -> RequestError:
    what, param = _words(job)
    return RequestError(f"{what} did not finish within {seconds:g} s. Send less at once.", param)


def too_large(job: Job, memory: int) -> RequestError:
    what, param = _words(job)
    bound = f"{memory // _MIB} MiB" if memory >= _MIB else f"{memory} bytes"
    return RequestError(f"{what} took more than {bound} of memory. Send less at once.", param)


def crashed(job: Job) -> RequestError:
    what, param = _words(job)
    return RequestError(f"{what} ended the process that worked on it. Send something else.", param)


Result = Rendered | list[int] | Constraint | Medium | PdfText


def perform(side: TextSide, job: AnyJob, file: bytes = b"") -> Any:
    """Do a job here and now. Raises RequestError for what the request got wrong."""
    match job:
        case RenderChat():
            return _render(side, job)
        case RenderPair():
            assert side.chat_template is not None
            return Rendered(side.chat_template.render_pair(job.query, job.document))
        case Encode():
            return side.tokenizer.encode(
                job.text,
                add_special_tokens=job.add_special_tokens,
                parse_special=job.parse_special,
            )
        case Constrain():
            if job.prompt is None:
                return completion_constraint(job.wanted)
            use = ToolUse(job.tools, job.required, job.several)
            return chat_constraint(side, job.prompt, job.wanted, use, job.thought_tokens)
        case Decode():
            media = side.media[job.kind]
            data = media.loader.data(file.decode()) if job.is_url else file
            return media.decode(data, job.options, job.sizes)
        case ReadPdf():
            return pdf_text(file)


def _render(side: TextSide, job: RenderChat) -> Rendered:
    assert side.chat_template is not None
    text = side.chat_template.render(
        job.messages,
        tools=job.tools,
        call_form=side.parser.form.calls,
        add_generation_prompt=job.add_generation_prompt,
        continue_final_message=job.continue_final_message,
        variables=job.variables,
    )
    if job.add_generation_prompt and side.chat_template.forbids_thought(job.variables):
        # A template without a switch, as DeepSeek R1's, opens a thought all the same.
        text += side.parser.form.end_of_thought(text)
    if len(text) > SHORT_TEXT:
        return Rendered(text)
    ids = side.tokenizer.encode(text, add_special_tokens=job.add_special_tokens)
    return Rendered(text, ids)
