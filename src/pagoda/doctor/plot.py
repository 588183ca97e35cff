"""Where memory goes, as a picture: a bar per answer, divided by what takes it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from pagoda.base.errors import ConfigError
from pagoda.base.printable import escaped
from pagoda.base.units import format_bytes
from pagoda.doctor.answer import Answer
from pagoda.doctor.need import needed, usable

_WIDTH, _BAR, _STRIP, _GAP, _MARGIN, _LABEL = 900, 36, 8, 22, 24, 22
_COLUMNS = 3
_SQUARE = 14
_TITLE_LETTERS = 105
# Okabe and Ito's palette, which stays distinct to the colour-blind (jfly.uni-koeln.de/color).
_COLORS = {
    "weights": "#0072b2", "KV pool": "#009e73", "activations": "#e69f00", "process": "#cc79a7",
    "captured steps": "#56b4e9", "positions": "#f0e442", "staging": "#882255",
    "draft model": "#44aa99",
    "in use already": "#999999", "free": "#e8e8e8", "usable": "#e8e8e8",
    "missing": "#d55e00",
}  # fmt: skip


@dataclass(frozen=True)
class _Bar:
    title: str
    parts: tuple[tuple[str, int], ...]
    """Items of one device and their bytes, side by side."""
    usable: int
    missing: int
    """Bytes of the parts that lie beyond what is usable; 0 where all fit."""

    @property
    def bytes(self) -> int:
        return sum(size for _, size in self.parts)

    @property
    def entries(self) -> list[tuple[str, int]]:
        if not self.missing:
            return list(self.parts)
        return [*self.parts, ("usable", self.usable), ("missing", self.missing)]


@dataclass(frozen=True)
class _Box:
    left: float
    top: float
    width: float
    height: float
    color: str
    says: str = ""
    """When pointed at."""


@dataclass(frozen=True)
class _Text:
    left: float
    top: float
    words: str


def draw(answers: Sequence[Answer], path: Path) -> None:
    """Write an .svg or .png; ConfigError for another name or an unwritable place."""
    shapes = list(_shapes([_bar(answer) for answer in answers]))
    try:
        if path.suffix == ".svg":
            path.write_text(_svg(shapes))
        elif path.suffix == ".png":
            _png(shapes, path)
        else:
            raise ConfigError(f"--plot {path}: write a name that ends in .svg or .png.")
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written: {error.strerror or error}.") from error


def _bar(answer: Answer) -> _Bar:
    facts = answer.hardware.facts
    each = " (each)" if answer.config.parallel.num_ranks > 1 else ""
    title = f"{answer.subject.ref} on {answer.hardware.name}{each}"
    plan = answer.resolution.plan if answer.fits and answer.resolution else needed(answer)
    rows = [] if plan is None else [(row["item"], row["bytes"]) for row in plan.rows()]
    total = 0 if plan is None else plan.total
    if answer.fits:
        others = facts.total_memory - facts.free_memory
        rest = [("in use already", others), ("free", max(0, facts.free_memory - total))]
        rows += [(item, size) for item, size in rest if size]
        return _Bar(title, tuple(rows), facts.free_memory, 0)
    room = usable(answer)
    return _Bar(f"{title}: does not fit", tuple(rows), room, max(0, total - room))


def _shapes(bars: Sequence[_Bar]) -> Iterator[_Box | _Text]:
    scale = (_WIDTH - 2 * _MARGIN) / (max(bar.bytes for bar in bars) or 1)
    top = float(_MARGIN)
    for bar in bars:
        yield _Text(_MARGIN, top, _short(bar.title))
        top += _LABEL
        left = float(_MARGIN)
        for item, size in bar.parts:
            says = f"{item}: {format_bytes(size)}"
            yield _Box(left, top, size * scale, _BAR, _COLORS[item], says)
            left += size * scale
        top += _BAR
        if bar.missing:
            end = _MARGIN + bar.usable * scale
            yield _Box(_MARGIN, top + 2, bar.usable * scale, _STRIP, _COLORS["usable"])
            yield _Box(end, top + 2, bar.missing * scale, _STRIP, _COLORS["missing"])
            top += 2 + _STRIP
        top += 8
        for index, (item, size) in enumerate(bar.entries):
            row, column = divmod(index, _COLUMNS)
            x = _MARGIN + column * (_WIDTH - 2 * _MARGIN) / _COLUMNS
            y = top + row * _LABEL
            yield _Box(x, y, _SQUARE, _SQUARE, _COLORS[item])
            yield _Text(x + _SQUARE + 8, y, f"{item}: {format_bytes(size)}")
        top += -(-len(bar.entries) // _COLUMNS) * _LABEL + _GAP


def _short(title: str) -> str:
    """A path's end says more than its beginning, and the hardware stands behind it."""
    title = escaped(title)
    return title if len(title) <= _TITLE_LETTERS else "..." + title[-_TITLE_LETTERS:]


def _height(shapes: Sequence[_Box | _Text]) -> int:
    return round(max(shape.top for shape in shapes)) + _LABEL + _MARGIN


def _svg(shapes: Sequence[_Box | _Text]) -> str:
    height = _height(shapes)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="14">',
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
    ]
    for shape in shapes:
        if isinstance(shape, _Text):
            words = escape(shape.words)
            out.append(f'<text x="{shape.left:.1f}" y="{shape.top + 12:.1f}">{words}</text>')
            continue
        box = (
            f'<rect x="{shape.left:.1f}" y="{shape.top:.1f}" width="{shape.width:.1f}" '
            f'height="{shape.height:.1f}" fill="{shape.color}"'
        )
        out.append(f"{box}><title>{shape.says}</title></rect>" if shape.says else f"{box}/>")
    return "\n".join([*out, "</svg>", ""])


def _png(shapes: Sequence[_Box | _Text], path: Path) -> None:
    from PIL import Image, ImageDraw, ImageFont

    scale = 2
    image = Image.new("RGB", (_WIDTH * scale, _height(shapes) * scale), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(14 * scale)
    for shape in shapes:
        if isinstance(shape, _Text):
            pen.text((shape.left * scale, (shape.top - 2) * scale), shape.words, "black", font)
        elif shape.width >= 1 / scale:
            right, bottom = shape.left + shape.width, shape.top + shape.height
            corners = (shape.left, shape.top, right - 1 / scale, bottom - 1 / scale)
            pen.rectangle([edge * scale for edge in corners], fill=shape.color)
    image.save(path)
