// Markdown within a block: emphasis, code, links, math. Makes nodes, never HTML from text.

import { el } from "./dom.js";
import { mathNode } from "./math.js";
import { NOTE_REF, noteRef } from "./notes.js";

// Deeper nesting is shown as it was written: nobody means it, and a stack has an end.
const MAX_DEPTH = 16;

const SAFE_LINK = /^(https?:\/\/|mailto:)/i;
const SAFE_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,/i;

const LINK =
  /(!?)\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,1000})\]\(\s*<?([^\s()<>]*(?:\([^\s()<>]*\)[^\s()<>]*)*)>?(?:\s+(?:"[^"]*"|'[^']*'))?\s*\)/y;
const ANGLE_LINK = /<((?:https?:\/\/|mailto:)[^\s<>]+)>/iy;
const BARE_LINK = /https?:\/\/[^\s<>"'`）】。，、]*[^\s<>"'`）】。，、.,:;!?*_~)\]]/iy;
const BREAK = /<br\s*\/?>|( {2,}|\\)?\n/iy;
const ESCAPE = /\\([!-/:-@[-`{-~])/y;
const ENTITY = /&(?:(amp|lt|gt|quot|apos|nbsp)|#(\d{1,7})|#x([\da-f]{1,6}));/iy;
const CODE = /`+/y;
const MARK = /\*\*\*|\*\*|\*|___|__|_|~~/y;
// Everything up to the next character that could begin something.
const PLAIN = /[^\\`*_~$[!<&\nh]+|h(?!ttps?:)/y;

const TAGS = { "*": ["em"], "**": ["strong"], "***": ["em", "strong"], "~~": ["del"] };

const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0" };

const MATH = [
  // [opens, closes, is a display]
  ["$$", "$$", true],
  ["\\[", "\\]", true],
  ["\\(", "\\)", false],
  ["$", "$", false],
];

/** Append `text` to `parent`. `open`: more text may follow, so what is begun counts as closed. */
export function appendInline(parent, text, open = false, depth = 0) {
  new Inline(text, open, depth).appendTo(parent);
}

class Inline {
  constructor(text, open, depth) {
    this.text = text;
    this.open = open;
    this.depth = depth;
    this.at = 0;
    // Marks without an end ahead: looking again for each of them would take quadratic time.
    this.unclosed = new Set();
  }

  appendTo(parent) {
    let plain = "";
    while (this.at < this.text.length) {
      const node = this.next();
      if (typeof node === "string") {
        plain += node;
      } else {
        parent.append(plain, node);
        plain = "";
      }
    }
    parent.append(plain);
  }

  match(pattern) {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (found) this.at = pattern.lastIndex;
    return found;
  }

  /** The next node or text. */
  next() {
    const plain = this.match(PLAIN);
    if (plain) return plain[0];
    const node =
      this.math() ??
      this.escape() ??
      this.entity() ??
      this.code() ??
      this.note() ??
      this.link() ??
      this.break() ??
      this.mark();
    if (node !== null) return node;
    return this.text[this.at++];
  }

  escape() {
    const found = this.match(ESCAPE);
    return found ? found[1] : null;
  }

  entity() {
    const found = this.match(ENTITY);
    if (!found) return null;
    const [all, name, decimal, hex] = found;
    if (name) return ENTITIES[name.toLowerCase()];
    const code = decimal ? Number(decimal) : parseInt(hex, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : all;
  }

  break() {
    return this.match(BREAK) ? el("br") : null;
  }

  code() {
    const start = this.at;
    const fence = this.match(CODE)?.[0];
    if (!fence) return null;
    let end = this.findCode(fence, this.at);
    if (end < 0 && this.open && this.at < this.text.length) end = this.text.length;
    if (end < 0) {
      this.at = start + fence.length;
      return fence;
    }
    const code = this.text.slice(this.at, end).replace(/\n/g, " ");
    this.at = Math.min(end + fence.length, this.text.length);
    return el("code", {}, /^ .*[^ ].* $/.test(code) ? code.slice(1, -1) : code);
  }

  findCode(fence, from) {
    if (this.unclosed.has(fence)) return -1;
    for (let at = this.text.indexOf(fence, from); at >= 0;) {
      let end = at + fence.length;
      if (this.text[end] !== "`") return at;
      while (this.text[end] === "`") end++;
      at = this.text.indexOf(fence, end);
    }
    this.unclosed.add(fence);
    return -1;
  }

  math() {
    const { text, at } = this;
    for (const [opens, closes, display] of MATH) {
      if (!text.startsWith(opens, at) || this.unclosed.has(opens)) continue;
      const from = at + opens.length;
      // As in Pandoc: prices are no formulas.
      if (opens === "$" && !/[^\s$]/.test(text[from] ?? " ")) continue;
      const end = this.findMath(closes, from);
      if (end < 0) {
        this.unclosed.add(opens);
        continue;
      }
      this.at = end + closes.length;
      return mathNode(text.slice(from, end), display);
    }
    return null;
  }

  findMath(closes, from) {
    for (let at = this.text.indexOf(closes, from); at >= 0;) {
      const escaped = this.text[at - 1] === "\\" && this.text[at - 2] !== "\\";
      const price =
        closes === "$" && (/\s/.test(this.text[at - 1]) || /\d/.test(this.text[at + 1] ?? ""));
      if (at > from && !price && (closes[0] === "\\" || !escaped)) return at;
      at = this.text.indexOf(closes, at + 1);
    }
    return -1;
  }

  note() {
    const found = this.match(NOTE_REF);
    return found ? noteRef(found[1]) : null;
  }

  link() {
    const found = this.match(LINK);
    if (found) return this.linkTo(found[3], found[2], found[1] === "!");
    const url = this.match(ANGLE_LINK)?.[1] ?? this.match(BARE_LINK)?.[0];
    return url ? this.anchor(url, url) : null;
  }

  linkTo(url, label, isImage) {
    if (isImage && SAFE_IMAGE.test(url)) return el("img", { src: url, alt: label });
    // Other pictures stay links: fetching one would tell its host what is read here.
    if (!SAFE_LINK.test(url)) return `[${label}](${url})`;
    return this.anchor(url, label || url);
  }

  anchor(url, label) {
    const node = el("a", { href: url, target: "_blank", rel: "noopener noreferrer nofollow" });
    if (label === url || this.depth >= MAX_DEPTH) node.append(label);
    else appendInline(node, label, false, MAX_DEPTH - 1);
    return node;
  }

  mark() {
    const start = this.at;
    const mark = this.match(MARK)?.[0];
    if (!mark) return null;
    const from = this.at;
    const opens = /\S/.test(this.text[from] ?? " ") && this.depth < MAX_DEPTH;
    // snake_case has no emphasis in it.
    const inWord = mark[0] === "_" && /[\p{L}\p{N}]/u.test(this.text[start - 1] ?? " ");
    let end = opens && !inWord ? this.findMark(mark, from) : -1;
    const untilEnd = end < 0 && opens && !inWord && this.open && mark.length > 1;
    if (untilEnd) end = this.text.length;
    if (end < 0) return mark;
    this.at = Math.min(end + mark.length, this.text.length);
    return this.wrap(mark, this.text.slice(from, end), untilEnd);
  }

  wrap(mark, inner, open) {
    const [outer, ...rest] = TAGS[mark.replaceAll("_", "*")].map((name) => el(name));
    const innermost = rest.reduce((node, child) => (node.append(child), child), outer);
    appendInline(innermost, inner, open, this.depth + 1);
    return outer;
  }

  findMark(mark, from) {
    if (this.unclosed.has(mark)) return -1;
    const { text } = this;
    for (let at = from; at < text.length; at++) {
      if (text[at] === "\\") at++;
      else if (text[at] === "`") at = this.skipCode(at);
      else if (text[at] === mark[0]) {
        let end = at;
        while (text[end] === mark[0]) end++;
        if (this.closes(mark, at, end, from)) return mark.length === 1 ? at : end - mark.length;
        at = end - 1;
      }
    }
    this.unclosed.add(mark);
    return -1;
  }

  /** Whether a run of marks, from `at` to `end`, closes `mark`. */
  closes(mark, at, end, from) {
    const size = end - at;
    const fits = mark.length === 1 ? size === 1 || size === 3 : size >= mark.length;
    const after = this.text[end] ?? " ";
    const inWord = mark[0] === "_" && /[\p{L}\p{N}]/u.test(after);
    return fits && at > from && /\S/.test(this.text[at - 1]) && !inWord;
  }

  /** The last backtick of the code span that begins at `at`, or of the run if none does. */
  skipCode(at) {
    CODE.lastIndex = at;
    const fence = CODE.exec(this.text)[0];
    const end = this.findCode(fence, at + fence.length);
    return (end < 0 ? at : end) + fence.length - 1;
  }
}
