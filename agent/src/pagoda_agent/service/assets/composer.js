// The one text field: a task, a hint or an answer, by what the agent waits for.

import { byId, toast } from "./dom.js";
import { t } from "./words.js";
import { post } from "./link.js";
import { said } from "./sentences.js";

const KINDS = {
  paused: { wanted: "wantHint", button: "sendHint", path: "resume", field: "hint" },
  waiting_user: { wanted: "wantAnswer", button: "sendAnswer", path: "answer", field: "text" },
  running: { wanted: "wantNothing", button: "submit" },
  waiting_consent: { wanted: "wantsConsent", button: "submit" },
  connecting: { wanted: "state_connecting", button: "submit" },
};
const TASK = { wanted: "wantTask", button: "submit", path: "start", field: "task" };

export class Composer {
  constructor() {
    this.kind = TASK;
    this.field = byId("prompt");
    this.field.addEventListener("input", () => this.showButton());
    this.field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("composer").requestSubmit();
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
  }

  /** `question` is what the model asks. */
  show(state, question = "") {
    const kind = KINDS[state] ?? TASK;
    if (kind !== this.kind && kind.path && state !== "connecting") this.field.value = "";
    this.kind = kind;
    byId("wanted").textContent = [t(kind.wanted), said(question)].filter(Boolean).join(" ");
    byId("wanted").dataset.state = state;
    byId("send").textContent = t(kind.button);
    this.field.setAttribute("aria-label", t(kind.wanted));
    this.field.disabled = !kind.path;
    this.showButton();
  }

  /** A task to begin with, as long as nothing was typed. */
  suggest(task) {
    if (!task || this.kind !== TASK || this.field.value) return;
    this.field.value = task;
    this.showButton();
  }

  showButton() {
    byId("send").disabled = !this.kind.path || !this.field.value.trim();
  }

  async send() {
    if (this.kind.path && this.field.value.trim()) await this.post();
  }

  /** From a pause, with a hint where one is written. */
  async goOn() {
    if (this.kind === KINDS.paused) await this.post();
  }

  async post() {
    const { path, field } = this.kind;
    const text = this.field.value;
    byId("send").disabled = true;
    try {
      await post(path, { [field]: text });
      this.field.value = "";
    } catch (error) {
      toast(error.message);
    }
    this.showButton();
  }
}
