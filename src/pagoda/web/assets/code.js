// Code blocks: highlighted line by line, so that lines that stream in leave the others alone.

import { copyButton, el, iconButton } from "./dom.js";
import { languageOf } from "./languages.js";
import { canPreview, openPreview } from "./preview.js";
import { t } from "./words.js";

// Beyond this a line is data, and colours help nobody.
const MAX_LINE = 2000;

export class CodeBlock {
  constructor(language) {
    this.language = language;
    this.grammar = languageOf(language);
    this.lines = [];
    this.states = [null]; // what is open where a line starts: a comment or a string
    this.code = el("code");
    const copy = copyButton(t("copyCode"), () => this.lines.join("\n") + "\n");
    this.show = iconButton("eye", t("preview"), () => openPreview(this.lines));
    const name = el("span", { class: "name" }, language || "text");
    const hint = /^mermaid$/i.test(language) ? el("span", { class: "hint" }, t("diagram")) : null;
    const head = el("div", { class: "code-head" }, name, hint, this.show, copy);
    this.element = el("div", { class: "code" }, head, el("pre", {}, this.code));
  }

  /** Show these lines; those that are shown already stay as they are. */
  update(lines) {
    let same = 0;
    while (same < this.lines.length && this.lines[same] === lines[same]) same++;
    while (this.code.childNodes.length > same) this.code.lastChild.remove();
    this.states.length = same + 1;
    for (const line of lines.slice(same)) {
      const row = el("span", { class: "line" });
      this.states.push(highlight(row, line, this.grammar, this.states.at(-1)));
      row.append("\n");
      this.code.append(row);
    }
    this.lines = lines.slice();
    this.show.hidden = !canPreview(this.language, this.lines.slice(0, 5));
    return this;
  }
}

/** Append a line's tokens to `row`; the state that the next line starts in. */
export function highlight(row, line, grammar, state) {
  if (!grammar || line.length > MAX_LINE) {
    row.append(line);
    return grammar ? state : null;
  }
  let at = 0;
  if (state) {
    const end = line.indexOf(state.closes);
    const until = end < 0 ? line.length : end + state.closes.length;
    row.append(el("span", { class: state.kind }, line.slice(0, until)));
    if (end < 0) return state;
    at = until;
  }
  grammar.pattern.lastIndex = at;
  for (let found; (found = grammar.pattern.exec(line));) {
    const token = found[0];
    row.append(line.slice(at, found.index));
    at = found.index + token.length;
    const kind = Object.keys(found.groups).find((name) => found.groups[name] !== undefined);
    const opened = grammar.spans[token];
    if (opened && (kind === "comment" || kind === "string")) {
      const end = line.indexOf(opened, at);
      const until = end < 0 ? line.length : end + opened.length;
      row.append(el("span", { class: kind }, token + line.slice(at, until)));
      if (end < 0) return { kind, closes: opened };
      at = until;
      grammar.pattern.lastIndex = at;
    } else {
      const word = kind === "word" || kind === "call" ? grammar.wordKind(token) : "";
      const shown = kind === "word" || word === "keyword" ? word : kind;
      row.append(shown ? el("span", { class: shown }, token) : token);
    }
  }
  row.append(line.slice(at));
  return null;
}
