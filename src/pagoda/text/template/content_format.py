"""Whether a chat template wants a message's content as one string or as a list of parts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from jinja2 import nodes

from pagoda.base.errors import RequestError
from pagoda.config.modality import MODALITIES, modality_of_part
from pagoda.text.template.sandbox import ENVIRONMENT

_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_TEXT_TESTS = frozenset(("string", "mapping", "iterable", "sequence"))


@dataclass(frozen=True)
class ContentFormat:
    name: str
    """`string`, or `openai` for lists of parts."""
    wraps_strings: bool = False
    """The template knows lists only, so that strings become lists of one part."""
    knows_null: bool = False
    """The template asks whether there is content: some write calls only where there is none."""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    """What stands for a medium among strings, by the kinds that the model takes."""

    @property
    def silence(self) -> Any:
        """The content of a turn that has none."""
        if self.knows_null:
            return None
        return [] if self.wraps_strings else ""


def detect_content_format(source: str) -> ContentFormat:
    """`openai` if the template loops over a message's content, `string` otherwise."""
    tree = ENVIRONMENT.parse(source)
    names = _content_names(tree)
    tests = {test.name for test in tree.find_all(nodes.Test) if _is_content(test.node, names)}
    knows_null = "none" in tests and not _knows_empty(tree, names)
    if not any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For)):
        return ContentFormat("string", knows_null=knows_null)
    return ContentFormat("openai", not tests & _TEXT_TESTS, knows_null)


def _content_names(tree: nodes.Template) -> frozenset[str]:
    """Variables that hold a message's content: assigned from it, or a macro's parameter."""
    names: set[str] = set()
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    before = -1
    while len(names) > before:  # an alias may have aliases; each round finds one more link
        before = len(names)
        for target, value in _bindings(tree, macros):
            if _is_content(value, names):
                names.add(target)
    return frozenset(names)


def _bindings(
    tree: nodes.Template, macros: dict[str, nodes.Macro]
) -> Iterator[tuple[str, nodes.Node]]:
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name):
            yield assignment.target.name, assignment.node
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in macros:
            parameters = [parameter.name for parameter in macros[call.node.name].args]
            yield from zip(parameters, call.args, strict=False)


def _knows_empty(tree: nodes.Template, names: frozenset[str]) -> bool:
    """Whether content is compared with an empty string anywhere."""
    return any(
        _is_content(compare.expr, names)
        and any(isinstance(op.expr, nodes.Const) and op.expr.value == "" for op in compare.ops)
        for compare in tree.find_all(nodes.Compare)
    )


def _is_content(node: nodes.Node | None, names: set[str] | frozenset[str]) -> bool:
    while isinstance(node, nodes.Filter):
        node = node.node
    if isinstance(node, nodes.Name):
        return node.name in names
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return False


def shape_content(content: Any, wanted: ContentFormat) -> Any:
    """A message's content in the form the template wants; RequestError for parts that the model
    cannot read."""
    if isinstance(content, str) and wanted.wraps_strings:
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return content
    if wanted.name == "string":
        return "\n".join(
            wanted.placeholders[kind] if kind else _text_of(part, wanted)
            for part in content
            for kind in [_medium(part, wanted)]
        )
    return [
        {"type": kind} if kind else {"type": "text", "text": _text_of(part, wanted)}
        for part in content
        for kind in [_medium(part, wanted)]
    ]


def _medium(part: Any, wanted: ContentFormat) -> str | None:
    """The kind of a part that is no text; None for text, and for what the model does not take."""
    modality = modality_of_part(part.get("type")) if isinstance(part, dict) else None
    return modality.kind if modality is not None and modality.kind in wanted.placeholders else None


def _text_of(part: Any, wanted: ContentFormat) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    key = _TEXT_PARTS.get(str(kind))
    if key is None:
        taken = _joined(["text", *(f"{kind}s" for kind in wanted.placeholders)])
        if not wanted.placeholders:
            taken += " only"
        sent = _joined(
            ["'text'", *(f"{MODALITIES[kind].parts[0]!r}" for kind in wanted.placeholders)]
        )
        raise RequestError(
            f"A message has a content part of type {kind!r}, but this model reads {taken}; send "
            f"parts of type {sent}.",
            param="messages",
        )
    text = part.get(key)
    if not isinstance(text, str):
        raise RequestError(
            f"A message's content part of type {kind!r} has no string in {key!r}.",
            param="messages",
        )
    return text


def _joined(words: list[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last
