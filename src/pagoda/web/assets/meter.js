// How much of the model's context the chat takes.

import { countTokens } from "./api.js";
import { byId } from "./dom.js";
import { textWithFiles } from "./files.js";
import { path } from "./tree.js";
import { t } from "./words.js";

// A shorter message is a small part of any context.
const LEAST_DRAFT = 400;
const WAIT_MS = 400;
const NEARLY_FULL = 0.85;

export class Meter {
  /** `page` is {model(), context()}: the model's name and its tokens, 0 while they are not known. */
  constructor(page) {
    this.page = page;
    this.used = 0;
    this.draft = 0; // tokens of what is not sent yet
    this.text = "";
    this.timer = 0;
  }

  /** Show what the chat's last reply took, and what `draft` will. */
  update(chat, draft) {
    const { stats } = path(chat).findLast((node) => node.stats?.prompt) ?? {};
    this.used = stats ? stats.prompt + stats.tokens : 0;
    this.count(textWithFiles(draft.content, draft.files));
    this.show();
  }

  count(text) {
    if (text === this.text) return;
    this.text = text;
    clearTimeout(this.timer);
    this.draft = 0;
    if (text.length < LEAST_DRAFT) return;
    this.timer = setTimeout(async () => {
      try {
        const tokens = await countTokens(text, this.page.model());
        if (text === this.text) this.draft = tokens;
      } catch {
        // A model that is not loaded counts nothing; its reply's usage will tell.
      }
      this.show();
    }, WAIT_MS);
  }

  show() {
    const node = byId("meter");
    const total = this.page.context();
    const used = this.used + this.draft;
    node.hidden = !total || !used;
    if (node.hidden) return;
    const share = used / total;
    const values = { used: used.toLocaleString(), total: total.toLocaleString() };
    const word = share > 1 ? "contextOver" : share > NEARLY_FULL ? "contextNear" : "context";
    node.classList.toggle("near", share > NEARLY_FULL);
    node.querySelector("span").textContent = t(word, values);
    node.querySelector("meter").value = Math.min(share, 1);
  }
}
