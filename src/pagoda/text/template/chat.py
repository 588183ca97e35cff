"""A model's chat template: messages to prompt text."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import jinja2

from pagoda.base.errors import CheckpointError, ConfigError, RequestError
from pagoda.base.log import get_logger
from pagoda.text.grammar.calls import CallForm
from pagoda.text.template.content_format import ContentFormat, detect_content_format
from pagoda.text.template.messages import template_messages
from pagoda.text.template.sandbox import compile_template, dates, render
from pagoda.text.template.sources import template_sources
from pagoda.text.template.spelled import (
    shows_calls,
    shows_tools,
    with_description,
    with_spelled_calls,
)
from pagoda.text.tokenizer import Tokenizer
from pagoda.weights.files import ModelFiles

logger = get_logger(__name__)

ContentFormatName = Literal["auto", "string", "openai"]
RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "continue_final_message"})
"""What the conversation itself says; nobody's variables may replace it."""
# What a template's expressions raise on data they were not written for.
_EXPRESSION_ERRORS = (
    TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError,
    NameError,  # `inf`, which is what Python makes of 1e400
)  # fmt: skip
# Rerankers: sentence-transformers' templates take one message per side of a pair, llama.cpp's have
# places for both.
_ROLES = [re.compile(f"""["']{role}["']""") for role in ("query", "document")]
_PLACES = re.compile(r"\{(query|document)\}")
# Mistral's templates refuse other ids than nine letters and digits.
_SHORT_IDS = "length != 9"
_END_MARK = "\ue000end of the final message\ue001 "
"""Set behind a message to be continued; private characters, so no message holds it."""


class ChatTemplate:
    """Compiled once; rendering is thread-safe.

    `sources` by name: `default`, and `tool_use` for requests with tools where a model has one.
    Raises jinja2.TemplateSyntaxError.
    """

    def __init__(
        self,
        sources: Mapping[str, str],
        names: Mapping[str, str],
        content_format: ContentFormatName = "auto",
        placeholders: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
    ):
        """`placeholders` stand for media where a template takes strings only, by the kinds that the
        model takes. `variables` hold where a request has none of their names."""
        self._variables = dict(variables or {})
        self.source = "\n".join(sources.values())
        """The sources of all templates: what a model's output may look like, only their sum
        tells."""
        self._names = {"bos_token": "", "eos_token": "", **names}
        self._templates = {name: compile_template(text) for name, text in sources.items()}
        self._formats = {
            name: replace(_format_of(text, content_format), placeholders=placeholders or {})
            for name, text in sources.items()
        }
        self._rerank = sources.get("rerank")
        self.takes_pairs = self._rerank is not None or all(
            role.search(sources.get("default", "")) for role in _ROLES
        )
        """Whether it says how a reranker reads a query and a document."""
        self.shows_tools = any(map(shows_tools, sources.values()))
        """Whether the model is told of tools by its template."""
        self._shows_calls = any(map(shows_calls, sources.values()))
        self._short_ids = any(_SHORT_IDS in text for text in sources.values())

    @property
    def content_format(self) -> str:
        """`string` or `openai`."""
        return self._formats["default"].name

    @cached_property
    def _takes_system(self) -> bool:
        """Whether a system turn reaches the prompt: some templates refuse it, others drop it."""
        probe = "words of the system"
        turns = [{"role": "system", "content": probe}, {"role": "user", "content": "hi"}]
        try:
            return probe in self.render(turns)
        except RequestError:
            return False

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        call_form: CallForm | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation, with BOS if the template writes one.

        Tools that the template has no place for are described in the system turn, with `call_form`
        for their calls; likewise calls and results of earlier turns, or calls alone where it shows
        tools (LFM2's). Without a form that can be written they are handed to the template all the
        same.

        `variables` are the request's own (`chat_template_kwargs`). With `continue_final_message`
        the prompt ends where the last message's content ends, for the model to go on; it excludes
        `add_generation_prompt`. Raises RequestError, with the template's own words if it refused.
        """
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt can't both be true.",
                param="continue_final_message",
            )
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        shared = {
            **dates(),
            **self._names,
            **self._variables,
            **(variables or {}),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        shared.setdefault("documents", None)
        try:
            if call_form is not None and call_form.can_write:
                messages = self._spelled(messages, tools, call_form)
            try:
                return self._render(name, messages, shared, continue_final_message, True)
            except TypeError:
                # Some templates (DeepSeek R1) join tool-call arguments to strings.
                if not any(message.get("tool_calls") for message in messages):
                    raise
                return self._render(name, messages, shared, continue_final_message, False)
        except RequestError:
            raise
        except (jinja2.TemplateError, *_EXPRESSION_ERRORS) as error:
            raise _refusal(error) from error

    def forbids_thought(self, variables: Mapping[str, Any]) -> bool:
        """Whether a request with these variables of its own is to be answered at once."""
        return {**self._variables, **variables}.get("enable_thinking") is False

    def render_pair(self, query: str, document: str) -> str:
        """The prompt of a reranker; raises as `render` does."""
        if self._rerank is not None:
            texts = {"query": query, "document": document}
            return _PLACES.sub(lambda place: texts[place[1]], self._rerank)
        return self.render(
            [{"role": "query", "content": query}, {"role": "document", "content": document}]
        )

    def _spelled(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        form: CallForm,
    ) -> Sequence[Mapping[str, Any]]:
        if not all(isinstance(message, Mapping) for message in messages):
            return messages  # which is an error, and said where messages are shaped
        if not self._shows_calls:
            messages = with_spelled_calls(messages, form, results=not self.shows_tools)
        if tools and not self.shows_tools:
            messages = with_description(messages, tools, form, takes_system=self._takes_system)
        return messages

    def _render(
        self,
        name: str,
        messages: Sequence[Mapping[str, Any]],
        shared: dict[str, Any],
        continue_final_message: bool,
        parse_arguments: bool,
    ) -> str:
        shaped = template_messages(
            messages,
            self._formats[name],
            parse_arguments=parse_arguments,
            short_ids=self._short_ids,
        )
        if not continue_final_message:
            return render(self._templates[name], {**shared, "messages": shaped})
        _mark_end(shaped)
        text = render(self._templates[name], {**shared, "messages": shaped})
        return _until_mark(text)


def load_chat_template(
    files: ModelFiles,
    tokenizer: Tokenizer,
    *,
    override: str | None = None,
    content_format: ContentFormatName = "auto",
    placeholders: Mapping[str, str] | None = None,
    variables: Mapping[str, Any] | None = None,
) -> ChatTemplate | None:
    """The chat template of a model, or the one of `--chat-template`; None if it has none.

    `override` is a file's path, a template's text or the name of a format; `placeholders` and
    `variables` as of `ChatTemplate`. Raises ConfigError for an override or variables that can't be
    used, CheckpointError for a broken template of the model's own.
    """
    for name in sorted(RESERVED & (variables or {}).keys()):
        raise ConfigError(f"--chat-template-kwargs names {name}, which each request sets itself.")
    adds_bos = bool(tokenizer.encode("", add_special_tokens=True))
    sources = template_sources(files, override, adds_bos=adds_bos)
    if not sources:
        return None
    sources.setdefault("default", next(iter(sources.values())))
    try:
        template = ChatTemplate(
            sources,
            tokenizer.special_token_names,
            content_format,
            placeholders,
            variables,
        )
    except (jinja2.TemplateError, RecursionError) as error:
        if override is not None:
            raise ConfigError(f"The chat template can't be compiled: {error}.") from error
        raise CheckpointError(
            f"The chat template of {files.path} can't be compiled: {error}. "
            "Give another one with --chat-template."
        ) from error
    logger.info(
        "Chat template content format: %s%s.",
        template.content_format,
        " (detected)" if content_format == "auto" else "",
    )
    return template


def _format_of(source: str, wanted: ContentFormatName) -> ContentFormat:
    detected = detect_content_format(source)
    if wanted == "auto" or wanted == detected.name:
        return detected
    return ContentFormat(wanted, wanted == "openai", detected.knows_null)


def _mark_end(messages: list[dict[str, Any]]) -> None:
    """Put the mark behind the last message's text, in place."""
    content = messages[-1].get("content") if messages else None
    if isinstance(content, str):
        messages[-1]["content"] = content + _END_MARK
    elif isinstance(content, list) and content and "text" in content[-1]:
        content[-1]["text"] += _END_MARK
    else:
        raise RequestError(
            "continue_final_message needs a final message with content to continue.",
            param="continue_final_message",
        )


def _until_mark(text: str) -> str:
    place = text.rfind(_END_MARK.strip())
    if place == -1:
        raise RequestError(
            "continue_final_message is not possible here: the chat template leaves the final "
            "message out or changes it.",
            param="continue_final_message",
        )
    if text.startswith(_END_MARK, place):
        return text[:place]
    return text[:place].rstrip()  # the template strips messages: so the mark's space is gone


def _refusal(error: BaseException) -> RequestError:
    message = str(error) or type(error).__name__
    if isinstance(error, jinja2.TemplateError):
        return RequestError(f"The chat template refused the messages: {message}", param="messages")
    return RequestError(
        f"The chat template can't render these messages: {message}", param="messages"
    )
