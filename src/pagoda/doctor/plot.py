"""Where memory goes, as a picture: a bar per answer, divided by what takes it."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from pagoda.base.errors import ConfigError
from pagoda.base.units import format_bytes
from pagoda.doctor.answer import Answer

_WIDTH, _BAR, _GAP, _MARGIN, _LABEL = 900, 36, 34, 24, 22
# Okabe and Ito's palette, which stays distinct to the colour-blind (jfly.uni-koeln.de/color).
_COLORS = {
    "weights": "#0072b2", "KV pool": "#009e73", "activations": "#e69f00", "process": "#cc79a7",
    "captured steps": "#56b4e9",
    "free": "#e8e8e8", "missing": "#d55e00",
}  # fmt: skip
_Box = tuple[float, float, float, float]


def draw(answers: Sequence[Answer], path: Path) -> None:
    """Write an .svg or .png; ConfigError for another name or an unwritable place."""
    bars = [(_title(answer), _parts(answer)) for answer in answers]
    try:
        if path.suffix == ".svg":
            path.write_text(_svg(bars))
        elif path.suffix == ".png":
            _png(bars, path)
        else:
            raise ConfigError(f"--plot {path}: write a name that ends in .svg or .png.")
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror or error}.") from error


_Bar = tuple[str, list[tuple[str, int]]]


def _title(answer: Answer) -> str:
    return f"{answer.subject.ref} on {answer.hardware.name}" + (
        "" if answer.fits else ": does not fit"
    )


def _parts(answer: Answer) -> list[tuple[str, int]]:
    """Items of one device and their bytes; what is left of its memory is free."""
    total = answer.hardware.facts.total_memory
    if answer.resolution is None:
        return [("missing", total)]
    parts = [(row["item"], row["bytes"]) for row in answer.resolution.plan.rows()]
    return [*parts, ("free", max(0, total - answer.resolution.plan.total))]


def _layout(bars: Sequence[_Bar]) -> list[tuple[str, list[tuple[str, int, _Box]]]]:
    most = max(sum(size for _, size in parts) for _, parts in bars) or 1
    laid = []
    for index, (title, parts) in enumerate(bars):
        left, top = float(_MARGIN), _MARGIN + _LABEL + index * (_BAR + _GAP)
        boxes = []
        for item, size in parts:
            width = (_WIDTH - 2 * _MARGIN) * size / most
            boxes.append((item, size, (left, float(top), left + width, float(top + _BAR))))
            left += width
        laid.append((title, boxes))
    return laid


def _height(bars: Sequence[_Bar]) -> int:
    return _MARGIN + len(bars) * (_BAR + _GAP) + _LABEL * (1 + len(_legend(bars))) + _MARGIN


def _legend(bars: Sequence[_Bar]) -> list[tuple[str, str]]:
    """(item, its sizes over all bars)."""
    items = {item for _, parts in bars for item, size in parts if size}
    return [
        (item, ", ".join(format_bytes(dict(parts).get(item, 0)) for _, parts in bars))
        for item in _COLORS
        if item in items
    ]


def _svg(bars: Sequence[_Bar]) -> str:
    height = _height(bars)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="14">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for title, boxes in _layout(bars):
        out.append(f'<text x="{_MARGIN}" y="{boxes[0][2][1] - 6:.0f}">{escape(title)}</text>')
        for item, size, (left, top, right, bottom) in boxes:
            out.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
                f'height="{bottom - top:.1f}" fill="{_COLORS[item]}">'
                f"<title>{item}: {format_bytes(size)}</title></rect>"
            )
    top = height - _MARGIN - _LABEL * len(_legend(bars))
    for index, (item, sizes) in enumerate(_legend(bars)):
        y = top + index * _LABEL
        out.append(
            f'<rect x="{_MARGIN}" y="{y}" width="14" height="14" fill="{_COLORS[item]}"/>'
            f'<text x="{_MARGIN + 22}" y="{y + 12}">{item}: {sizes}</text>'
        )
    return "\n".join([*out, "</svg>", ""])


def _png(bars: Sequence[_Bar], path: Path) -> None:
    from PIL import Image, ImageDraw, ImageFont

    scale = 2
    height = _height(bars)
    image = Image.new("RGB", (_WIDTH * scale, height * scale), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(14 * scale)
    for title, boxes in _layout(bars):
        pen.text((_MARGIN * scale, (boxes[0][2][1] - 20) * scale), title, "black", font)
        for item, _, box in boxes:
            if box[2] - box[0] >= 1 / scale:
                pen.rectangle([edge * scale for edge in box], fill=_COLORS[item])
    top = height - _MARGIN - _LABEL * len(_legend(bars))
    for index, (item, sizes) in enumerate(_legend(bars)):
        y = (top + index * _LABEL) * scale
        corner = (_MARGIN * scale, y, (_MARGIN + 14) * scale, y + 14 * scale)
        pen.rectangle(corner, fill=_COLORS[item])
        pen.text(((_MARGIN + 22) * scale, y), f"{item}: {sizes}", "black", font)
    image.save(path)
