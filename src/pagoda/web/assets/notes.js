// Footnotes: what refers to one becomes a button once the note is there. In an answer about regular
// expressions, `[^abc]` is none.

import { el } from "./dom.js";
import { t } from "./words.js";

export const NOTE_REF = /\[\^([\p{L}\p{N}_-]{1,40})\](?![(:])/uy;

/** Where a text refers to a note, as it was written. */
export const noteRef = (label) =>
  el("span", { class: "note-ref", "data-note": label }, `[^${label}]`);

/** A note's own place; `content` is what it says. */
export const footnote = (label, content) =>
  el(
    "div",
    { class: "footnote", "data-note": label, tabindex: "-1" },
    el("sup", {}, label),
    content,
  );

/** Link all that refers to the notes below `root`. */
export function linkNotes(root) {
  const notes = new Set(
    Array.from(root.querySelectorAll(".footnote"), (note) => note.dataset.note),
  );
  for (const ref of root.querySelectorAll("span.note-ref")) {
    const label = ref.dataset.note;
    if (!notes.has(label)) continue;
    const onclick = () => {
      const all = Array.from(root.querySelectorAll(".footnote"));
      const note = all.find(({ dataset }) => dataset.note === label);
      note?.scrollIntoView({ block: "center" });
      note?.focus({ preventScroll: true });
    };
    const name = t("footnote", { label });
    const button = el("button", { type: "button", "aria-label": name, onclick }, label);
    ref.replaceWith(el("sup", { class: "note-ref" }, button));
  }
}
