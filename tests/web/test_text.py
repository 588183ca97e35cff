"""The page's Markdown beside markdown-it's, its formulas, and text that is made to hang it."""

from html.parser import HTMLParser
from typing import Any

import pytest
from markdown_it import MarkdownIt

from pagoda.web.site import Site
from tests.server.fakes import FakeClient
from tests.web.conftest import served

TEXTS = {
    "emphasis": "a *b* **c** ***d*** ~~e~~ _f_ __g__ snake_case_word 2 * 3 * 4",
    "nested emphasis": "**a *b* c** *a **b** c* **a `*` b**",
    "code": "`a` ``b ` c`` `<b>` `*x*` **`y`** \\`z\\`",
    "escapes": "\\*a\\* \\# b \\!\\_ 1\\. & &amp; &#65; &#x42; &unknown;",
    "links": "[a](https://b.c/d_e) [**b**](https://c.d 'x') <https://e.f/g?h=i&j=k>",
    "headings": "# A\n## B *c*\n### D ###\ntext\n#### E\n#no",
    "paragraphs": "one in\n2024. two\n\nthree  \nfour\\\nfive\n\n\n\nsix",
    "lists": "- a\n- b\n  - c\n    - d\n  - e\n- f\n\n1. g\n2. h\n   - i\n3. j\n\n* k\n* l",
    "ordered": "3. three\n4. four\n\ntext\n\n1) a\n2) b",
    "items of blocks": "1. a\n\n   more\n\n   ```py\n   x = 1\n\n   y\n   ```\n2. b\n   > q\n",
    "code blocks": "```python\ndef f():\n    pass\n\n# c\n```\ntext\n~~~\n``` not\n~~~\n",
    "code in code": "````md\n```\na\n```\n````\nb",
    "open code": "text\n```js\nlet a = `b",
    "quotes": "> a\n> b\n>\n> - c\n> > d\n\ntext\n> e",
    "rules": "a\n\n---\n\nb\n\n***\n",
    "tables": "| a | b | c |\n|---|:-:|--:|\n| 1 | **2** |\n| `x` | \\| | 3 |\n\ntext\n",
    "bare tables": "a|b\n-|-\n1|2\n\ntext | text\n",
    "tables that others end": "a|b\n-|-\n1|2\n## c | d\ntext\n\na|b\n-|-\n1|2\n> q | r\n",
    "html": "<b>a</b> <script>b</script> <!-- c --> &lt;",
    "chinese": "这是**粗体**，还有`代码`。\n\n1. 一\n2. 二",
}  # fmt: skip

BLOCKS = {"p", "h1", "h2", "h3", "h4", "ul", "ol", "li", "blockquote", "table", "tr", "th", "td"}
KEPT = BLOCKS | {"pre", "code", "em", "strong", "s", "a", "hr", "br"}
SHOW = """async ([text, cuts]) => {
    const { MarkdownStream } = await import("./pages/chat/markdown.js");
    return cuts.map((size) => {
        const root = document.createElement("div");
        const stream = new MarkdownStream(root);
        for (let at = 0; at < text.length; at += size) stream.append(text.slice(at, at + size));
        stream.end();
        return root.innerHTML;
    });
}"""


class Outline(HTMLParser):
    """Tags and texts, without what the two have reason to write differently."""

    def __init__(self, html: str):
        super().__init__()
        self.parts: list[str] = []
        self.skipping = 0
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if self.skipping or "code-head" in (values.get("class") or ""):
            self.skipping += tag not in ("path", "br", "hr", "img")
        elif (tag := "s" if tag == "del" else tag) in KEPT:
            self.parts.append(f"<{tag} {values['href']}>" if "href" in values else f"<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        if self.skipping:
            self.skipping -= tag != "path"
        elif (tag := "s" if tag == "del" else tag) in KEPT - {"br", "hr"}:
            self.parts.append(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if not self.skipping and data.strip():
            text = " ".join(data.split())
            if self.parts and not self.parts[-1].startswith("<"):
                self.parts[-1] += text
            else:
                self.parts.append(text)

    def text(self) -> str:
        # Whether the text of an item is a paragraph too is a matter of style sheets.
        joined = " ".join(self.parts).replace(" ", "")
        return (
            joined.replace("<li><p>", "<li>")
            .replace("</p></li>", "</li>")
            .replace("</p>", "")
            .replace("<p>", "")
        )


@pytest.fixture(scope="module")
def page(browser: Any):
    with served(FakeClient(), wrap=Site) as server:
        context = browser.new_context()
        page = context.new_page()
        page.goto(server.url)
        yield page
        context.close()


@pytest.mark.parametrize("name", TEXTS)
def test_as_markdown_it_reads_it(page: Any, name: str) -> None:
    reference = MarkdownIt("commonmark", {"breaks": True, "html": False})
    reference.enable(["table", "strikethrough"])
    text = TEXTS[name]
    shown, *others = page.evaluate(SHOW, [text, [len(text), 1, 2, 3, 7]])
    assert Outline(shown).text() == Outline(reference.render(text)).text()
    # However the text was cut while it streamed, it looks the same.
    assert others == [shown] * len(others)


EXTENSIONS = {
    "note": (
        "> [!WARNING]\n> Mind *the* gap.\n\n> [!other]\n> quote",
        '<blockquote class="note warning"><p class="note-title">Warning</p><p>Mind <em>the</em> '
        "gap.</p></blockquote><blockquote><p>[!other]<br>quote</p></blockquote>",
    ),
    "footnotes": (
        "A[^1] and [^none], `[^1]`.\n\n[^1]: Why\n    so.\n\ntext",
        '<p>A<sup class="note-ref"><button type="button" aria-label="Footnote 1">1</button></sup> '
        'and <span class="note-ref" data-note="none">[^none]</span>, <code>[^1]</code>.</p>'
        '<div class="footnote" data-note="1" tabindex="-1"><sup>1</sup><div><p>Why<br>so.</p>'
        "</div></div><p>text</p>",
    ),
    "details": (
        "<details>\n<summary>More **x**</summary>\n\n- a\n\n<details><summary>In</summary>b"
        "</details>\n</details>\nafter",
        '<details class="fold"><summary>More <strong>x</strong></summary><div>'
        '<ul data-ordered="false"><li>a</li></ul>'
        '<details class="fold"><summary>In</summary><div><p>b</p></div></details></div></details>'
        "<p>after</p>",
    ),
    "open details": (
        "<details>\ntext",
        '<details class="fold" open=""><summary>Details</summary><div><p>text</p></div></details>',
    ),
    "figures": (
        "|a|b|\n|:-:|-:|\n|x|1,234.5 ms|",
        '<div class="table"><table><thead><tr><th class="center">a</th><th class="right">b</th>'
        '</tr></thead><tbody><tr><td class="center">x</td>'
        '<td class="right figure">1,234.5 ms</td></tr>'
        "</tbody></table></div>",
    ),
}


@pytest.mark.parametrize("name", EXTENSIONS)
def test_beyond_commonmark(page: Any, name: str) -> None:
    text, expected = EXTENSIONS[name]
    shown, *others = page.evaluate(SHOW, [text, [len(text), 1, 2, 3, 7]])
    assert shown == expected
    assert others == [shown] * len(others)


def test_a_footnote_is_reached_from_where_it_is_named(page: Any) -> None:
    page.evaluate(
        """async (text) => {
            const { MarkdownStream } = await import("./pages/chat/markdown.js");
            const root = document.body.appendChild(document.createElement("div"));
            const stream = new MarkdownStream(root);
            stream.append(text);
            stream.end();
            root.querySelector(".note-ref button").click();
        }""",
        "Said.[^x]\n\n[^x]: The source.",
    )
    assert page.evaluate("document.activeElement.textContent") == "xThe source."


def test_a_diagram_is_shown_as_its_source(page: Any) -> None:
    [html] = page.evaluate(SHOW, ["```mermaid\ngraph TD; A-->B\n```", [99]])
    assert "the diagram’s source" in html and "graph TD; A--&gt;B" in html


@pytest.mark.parametrize(
    "source, expected",
    [
        ("x^2_i", "<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"),
        ("\\frac{a}{b+1}", "<mfrac><mi>a</mi><mrow><mi>b</mi><mo>+</mo><mn>1</mn></mrow></mfrac>"),
        ("\\sqrt[3]{x}", "<mroot><mi>x</mi><mn>3</mn></mroot>"),
        ("\\alpha \\le \\mathbb{R}", "<mi>α</mi><mo>≤</mo><mi>ℝ</mi>"),
        ("\\sum_{i}^n", "<munderover><mo>∑</mo><mi>i</mi><mi>n</mi></munderover>"),
        ("\\int_0^1", "<msubsup><mo>∫</mo><mn>0</mn><mn>1</mn></msubsup>"),
        ("\\left( x \\right]", "<mrow><mo>(</mo><mi>x</mi><mo>]</mo></mrow>"),
        ("f''", "<msup><mi>f</mi><mo>′′</mo></msup>"),
        ("\\frac12", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
        ("\\text{if } x", "<mtext>if </mtext><mi>x</mi>"),
        ("3.14", "<mn>3.14</mn>"),
        ("\\unknown{x}", "<mtext>\\unknown</mtext><mi>x</mi>"),
        (
            "\\begin{cases} 1 & a \\\\ 2 & b \\end{cases}",
            "<mo>{</mo><mtable><mtr><mtd><mn>1</mn></mtd><mtd><mi>a</mi></mtd></mtr>"
            "<mtr><mtd><mn>2</mn></mtd><mtd><mi>b</mi></mtd></mtr></mtable>",
        ),
        ("\\frac{a}{", None),
        ("{" * 1000, None),
        ("x" * 6000, None),
    ],
)
def test_formulas(page: Any, source: str, expected: str | None) -> None:
    """None: the source is shown instead."""
    html = page.evaluate(
        """async (source) => {
            const { mathNode } = await import("./pages/chat/math.js");
            return mathNode(source, true).outerHTML.replace(/ \\w+="[^"]*"/g, "");
        }""",
        source,
    )
    if expected is None:
        assert html == f"<code>{source}</code>"
    else:
        assert expected in html.replace("<mrow>", "").replace("</mrow>", "") or expected in html


@pytest.mark.parametrize(
    "text",
    [
        "*a ",
        "**a *b ",
        "`",
        "``a`",
        "[a",
        "![a](",
        "$a ",
        "\\(",
        "> ",
        "- ",
        "|a",
        "$$\nx\n",
        "#",
        "~~~\n",
        "<",
        "_a_",
        "> [!NOTE]\n",
        "[^a]",
        "[^a]: b\n",
        "<details>\n",
        "<details><summary>",
    ],
)
def test_hostile_text_does_not_hang_the_page(page: Any, text: str) -> None:
    whole = (text * 20000)[:40000]
    page.set_default_timeout(20000)
    [html] = page.evaluate(SHOW, [whole, [len(whole)]])
    assert html
