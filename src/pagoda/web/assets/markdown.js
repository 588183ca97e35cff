// Markdown blocks, written while they stream in: a finished block is never touched again, and of
// a block that is still open only that block is made anew (code: only its new lines).

import { CodeBlock } from "./code.js";
import { el } from "./dom.js";
import { appendInline } from "./inline.js";
import { mathNode } from "./math.js";
import { footnote, linkNotes } from "./notes.js";
import { t } from "./words.js";

const MAX_DEPTH = 10;
const MAX_MATH_LINES = 200;

const FENCE = /^(\s{0,3})(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})(?:\s+(.*?))?(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^(\s*)([-*+•]|\d{1,9}[.)])(?:\s+(.*)|$)/;
const DIVIDER = /^\s*\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?\s*)?$|^\s*\|\s*:?-+:?\s*$/;
const NOTE = /^\s*\[!(NOTE|TIP|IMPORTANT|WARNING|CAUTION)\]\s*$/i;
const FOOTNOTE = /^ {0,3}\[\^([\p{L}\p{N}_-]{1,40})\]:(?:\s+(.*)|$)/u;
const DETAILS = /^ {0,3}<details(?:\s[^<>]{0,200})?>/i;
const DETAILS_END = /<\/details>\s*$/i;
const SUMMARY = /^\s*<summary>([^]*?)<\/summary>/i;
// A cell with a figure in it, which is read as one.
const FIGURE = /^(?=.*\d).{1,24}$/;
const MATH_OPEN = /^\s*(\$\$|\\\[)/;
const MATH_CLOSE = { $$: /\$\$\s*$/, "\\[": /\\\]\s*$/ };

const indentOf = (line) => line.match(/^\s*/)[0].replaceAll("\t", "    ").length;

/** The block that starts at `lines[at]`: {type, start, end, ...}; `end` is the line after it. */
function nextBlock(lines, at) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenceBlock(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    return { type: "heading", end: at + 1, level: heading[1].length, text: heading[2] ?? "" };
  }
  if (RULE.test(line)) return { type: "rule", end: at + 1 };
  if (QUOTE.test(line)) return quoteBlock(lines, at);
  const item = ITEM.exec(line);
  if (item) return itemBlock(lines, at, item);
  const note = FOOTNOTE.exec(line);
  if (note) return footnoteBlock(lines, at, note);
  if (DETAILS.test(line)) return detailsBlock(lines, at);
  const math = MATH_OPEN.exec(line) && mathBlock(lines, at);
  if (math) return math;
  if (isTable(lines, at)) return tableBlock(lines, at);
  return paragraphBlock(lines, at);
}

function fenceBlock(lines, at, [, indent, fence, language]) {
  const closing = new RegExp(`^\\s{0,3}${fence[0]}{${fence.length},}\\s*$`);
  let end = at + 1;
  while (end < lines.length && !closing.test(lines[end])) end++;
  const strip = new RegExp(`^\\s{0,${indent.length}}`);
  const code = lines.slice(at + 1, end).map((line) => line.replace(strip, ""));
  return { type: "code", end: end + 1, code, language };
}

function quoteBlock(lines, at) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end++;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  const note = NOTE.exec(inner[0]);
  if (note) return { type: "note", end, kind: note[1].toLowerCase(), lines: inner.slice(1) };
  return { type: "quote", end, lines: inner };
}

/** A note goes on in lines that follow at once, and in indented ones. */
function footnoteBlock(lines, at, [, label, text = ""]) {
  let end = at + 1;
  let blank = false;
  for (; end < lines.length; end++) {
    if (!lines[end].trim()) blank = true;
    else if (indentOf(lines[end]) < 2 && (blank || startsBlock(lines, end))) break;
    else blank = false;
  }
  const inner = lines.slice(at + 1, end).map((line) => line.replace(/^\s{0,4}/, ""));
  return { type: "footnote", end, label, lines: [text, ...inner] };
}

/** Up to the line that closes it, or to the end. */
function detailsBlock(lines, at) {
  let depth = 0;
  let end = at;
  for (; end < lines.length; end++) {
    if (DETAILS.test(lines[end])) depth++;
    if (DETAILS_END.test(lines[end]) && --depth === 0) break;
  }
  const isWhole = end < lines.length;
  const inner = lines.slice(at, end + 1);
  inner[0] = inner[0].replace(DETAILS, "");
  if (isWhole) inner.push(inner.pop().replace(DETAILS_END, ""));
  const text = inner.join("\n");
  const summary = SUMMARY.exec(text);
  const body = summary ? text.slice(summary[0].length) : text;
  return {
    type: "details",
    end: Math.min(end + 1, lines.length),
    isWhole,
    summary: summary?.[1].trim(),
    lines: body.split("\n"),
  };
}

function itemBlock(lines, at, [, , marker, text = ""]) {
  const indent = indentOf(lines[at]);
  let end = at + 1;
  let blank = false;
  for (; end < lines.length; end++) {
    const line = lines[end];
    if (!line.trim()) {
      blank = true;
    } else if (indentOf(line) < indent + 2 && (blank || startsBlock(lines, end))) {
      break;
    } else {
      blank = false;
    }
  }
  const inner = lines.slice(at + 1, end);
  const depth = Math.min(...inner.filter((line) => line.trim()).map(indentOf), indent + 6);
  const strip = new RegExp(`^\\s{0,${depth}}`);
  const ordered = /\d/.test(marker);
  const all = [text, ...inner.map((line) => line.replace(strip, ""))];
  return { type: "item", end, lines: all, ordered, number: ordered ? parseInt(marker, 10) : 0 };
}

function mathBlock(lines, at) {
  const opens = MATH_OPEN.exec(lines[at])[1];
  const first = lines[at].trim().slice(opens.length);
  if (MATH_CLOSE[opens].test(first) && first.trim().length > opens.length) {
    const text = first.replace(MATH_CLOSE[opens], "");
    // Two formulas on a line are a paragraph with formulas.
    return text.includes(opens) ? null : { type: "math", end: at + 1, text };
  }
  if (first.includes(opens === "$$" ? "$$" : "\\]")) return null;
  const last = Math.min(lines.length, at + MAX_MATH_LINES);
  for (let end = at + 1; end < last && lines[end].trim(); end++) {
    if (!MATH_CLOSE[opens].test(lines[end])) continue;
    const ending = lines[end].replace(MATH_CLOSE[opens], "");
    const text = [first, ...lines.slice(at + 1, end), ending].join("\n");
    return { type: "math", end: end + 1, text };
  }
  return null;
}

const isTable = (lines, at) =>
  lines[at].includes("|") && at + 1 < lines.length && DIVIDER.test(lines[at + 1]);

function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  // A bar is part of a cell when escaped or in code.
  const parts = row.match(/(?:\\.|`[^`]*`|[^|\\`]|[\\`])+|(?<=\||^)(?=\||$)/g) ?? [""];
  return parts.map((cell) => cell.trim().replaceAll("\\|", "|"));
}

function tableBlock(lines, at) {
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|") && !isOther(lines[end])) end++;
  const sides = cells(lines[at + 1]).map((cell) =>
    cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : "left",
  );
  return {
    type: "table",
    end,
    sides,
    head: cells(lines[at]),
    rows: lines.slice(at + 2, end).map(cells),
  };
}

/** Whether the line alone tells that it begins another block than a paragraph. */
const isOther = (line) =>
  [FENCE, HEADING, RULE, QUOTE, ITEM, FOOTNOTE, DETAILS].some((pattern) => pattern.test(line));

/** Whether the line begins another block than a paragraph. */
function startsBlock(lines, at) {
  const line = lines[at];
  return isOther(line) || (MATH_OPEN.test(line) && mathBlock(lines, at) !== null) || isTable(lines, at);
}

/** As startsBlock, but a number that happens to begin a line is no list. */
function endsParagraph(lines, at) {
  const number = /^\s*(\d+)[.)]/.exec(lines[at]);
  return startsBlock(lines, at) && (!number || Number(number[1]) === 1);
}

function paragraphBlock(lines, at) {
  let end = at + 1;
  while (end < lines.length && lines[end].trim() && !endsParagraph(lines, end)) end++;
  return {
    type: "paragraph",
    end,
    text: lines
      .slice(at, end)
      .map((line) => line.trimStart())
      .join("\n")
      .trimEnd(),
  };
}

/** Appends blocks to `root`; the last one may be taken back while it is open. */
class Writer {
  constructor(root, depth) {
    this.root = root;
    this.depth = depth;
    this.list = null;
  }

  /** Append a block; the topmost node that this added. */
  write(block, open) {
    if (block.type !== "item") this.list = null;
    const node = this.make(block, open);
    if (block.type !== "item") {
      this.root.append(node);
      return node;
    }
    if (this.list?.dataset.ordered === String(block.ordered)) {
      this.list.append(node);
      return node;
    }
    this.list = el(block.ordered ? "ol" : "ul", { "data-ordered": String(block.ordered) }, node);
    if (block.ordered && block.number !== 1) this.list.start = block.number;
    this.root.append(this.list);
    return this.list;
  }

  make(block, open) {
    switch (block.type) {
      case "heading":
        return this.inline(`h${block.level}`, block.text, open);
      case "rule":
        return el("hr");
      case "quote":
        return this.nested("blockquote", block.lines, open);
      case "item":
        return this.item(block, open);
      case "note":
        return this.note(block, open);
      case "footnote":
        return footnote(block.label, this.nested("div", block.lines, open));
      case "details":
        return this.details(block, open);
      case "math":
        return el("p", {}, mathNode(block.text, true));
      case "table":
        return this.table(block, open);
      case "code":
        return new CodeBlock(block.language).update(block.code).element;
      default:
        return this.inline("p", block.text, open);
    }
  }

  inline(name, text, open) {
    const node = el(name, {});
    appendInline(node, text, open);
    return node;
  }

  nested(name, lines, open) {
    const node = el(name);
    if (this.depth >= MAX_DEPTH) node.append(lines.join("\n"));
    else writeLines(node, lines, open, this.depth + 1);
    return node;
  }

  item(block, open) {
    const task = /^\[([ xX])\]\s+/.exec(block.lines[0]);
    if (task) block.lines[0] = block.lines[0].slice(task[0].length);
    const node = this.nested("li", block.lines, open);
    // The text of a simple item needs no paragraph around it.
    const first = node.firstElementChild;
    if (first?.tagName === "P") first.replaceWith(...first.childNodes);
    if (task) {
      node.classList.add("task");
      node.prepend(el("input", { type: "checkbox", disabled: true, checked: task[1] !== " " }));
    }
    return node;
  }

  note({ kind, lines }, open) {
    const node = this.nested("blockquote", lines, open);
    node.className = `note ${kind}`;
    node.prepend(el("p", { class: "note-title" }, t(`note_${kind}`)));
    return node;
  }

  /** Unfolded until it is whole, so that what is being written is seen. */
  details({ summary, lines, isWhole }, open) {
    const head = this.inline("summary", summary || t("details"), false);
    const content = this.nested("div", lines, open);
    return el("details", { class: "fold", open: !isWhole }, head, content);
  }

  table({ sides, head, rows }, open) {
    const row = (name, texts) =>
      el(
        "tr",
        {},
        ...head.map((_, i) => {
          const cell = this.inline(name, texts[i] ?? "", open);
          cell.className = sides[i] ?? "left";
          cell.classList.toggle("figure", FIGURE.test(texts[i] ?? ""));
          return cell;
        }),
      );
    const body = el("tbody", {}, ...rows.map((texts) => row("td", texts)));
    const table = el("table", {}, el("thead", {}, row("th", head)), body);
    return el("div", { class: "table" }, table);
  }
}

function writeLines(root, lines, open, depth) {
  const writer = new Writer(root, depth);
  for (let at = 0; at < lines.length;) {
    if (!lines[at].trim()) {
      at++;
      continue;
    }
    const block = nextBlock(lines, at);
    writer.write(block, open && block.end >= lines.length);
    at = block.end;
  }
}

/** Markdown that arrives in pieces. */
export class MarkdownStream {
  constructor(root) {
    this.writer = new Writer(root, 0);
    this.tail = ""; // text of the blocks that may still change
    this.draft = { nodes: [], code: null, list: null }; // what shows them
    this.hasNotes = false;
  }

  append(text) {
    this.tail += text;
    this.settle(false);
  }

  end() {
    this.settle(true);
    this.tail = "";
  }

  /** Write each block that a whole line follows for good, the others as a draft. */
  settle(ended) {
    const lines = this.tail.split("\n");
    let at = 0;
    while (at < lines.length) {
      if (!lines[at].trim()) {
        // An indent may be all that has arrived of the last line.
        if (at === lines.length - 1 && !ended) break;
        at++;
        continue;
      }
      const block = nextBlock(lines, at);
      if (!ended && block.end >= lines.length - 1) break;
      this.keep(block);
      at = block.end;
    }
    if (this.hasNotes) linkNotes(this.writer.root);
    this.tail = lines.slice(at).join("\n");
    this.sketch(lines, at);
  }

  keep(block) {
    const code = this.takeCode(block);
    this.discard();
    if (!code) this.writer.write(block, false);
    else this.writer.list = null;
    this.hasNotes ||= block.type === "footnote";
    this.draft.list = this.writer.list;
  }

  sketch(lines, at) {
    let code = null;
    const nodes = [];
    const { list } = this.draft;
    for (let first = true; at < lines.length;) {
      if (!lines[at].trim()) {
        at++;
        continue;
      }
      const block = nextBlock(lines, at);
      at = block.end;
      if (first) {
        code = this.takeCode(block);
        this.discard();
        first = false;
      }
      if (block.type === "code" && !nodes.length) {
        code ??= this.appendCode(block);
        this.writer.list = null;
      } else {
        nodes.push(this.writer.write(block, at >= lines.length));
      }
    }
    if (!nodes.length && !code) this.discard();
    this.draft = { nodes, code, list };
  }

  appendCode(block) {
    const code = new CodeBlock(block.language).update(block.code);
    this.writer.root.append(code.element);
    return code;
  }

  /** The draft's code block, brought up to date, where it shows this block. */
  takeCode(block) {
    const { code } = this.draft;
    if (block.type !== "code" || code?.language !== block.language) return null;
    this.draft.code = null;
    return code.update(block.code);
  }

  discard() {
    const { nodes, code, list } = this.draft;
    for (const node of nodes) node.remove();
    code?.element.remove();
    this.writer.list = list;
    this.draft = { nodes: [], code: null, list };
  }
}
