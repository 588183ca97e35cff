// The live screen, and on it what was done last.

import { byId, el } from "./dom.js";
import { t } from "./words.js";
import { describe } from "./describe.js";
import { View } from "./view.js";

const RETRY_MS = 1000;

export class Live {
  constructor() {
    this.view = new View("");
    byId("screen").append(this.view.node);
    this.caption = byId("caption");
    this.step = null;
    this.view.image.addEventListener("error", () => setTimeout(() => this.start(), RETRY_MS));
  }

  /** Ask for the moving picture (anew). */
  start() {
    // A picture that never ends would keep the page loading for ever.
    if (document.readyState !== "complete") {
      addEventListener("load", () => this.start(), { once: true });
      return;
    }
    this.view.image.alt = t("screen");
    this.view.image.src = `api/screen?${Date.now()}`;
  }

  clear() {
    this.step = null;
    this.view.mark([]);
    this.caption.replaceChildren();
  }

  take(event) {
    if (event.event === "start") this.clear();
    else if (event.event === "step") this.step = { number: event.step, size: event.frame.size };
    else if (event.event === "actions" && this.step) this.step.actions = event.actions;
    else if (event.event === "acting") this.acting(event.index);
  }

  acting(index) {
    const action = this.step?.actions?.[index];
    if (!action) return;
    this.view.mark([action], this.step.size);
    this.caption.replaceChildren(
      el("b", {}, t("step", { number: this.step.number })), " ", describe(action, this.step.size),
    );
  }
}
