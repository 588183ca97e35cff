// The system prompt: the built-in one until it is changed, and what the agent puts into it.

import { byId } from "./dom.js";
import { t } from "./words.js";

export class Prompt {
  constructor(field) {
    this.field = field;
    this.builtIn = "";
    field.addEventListener("input", () => this.show());
    byId("restore-prompt").addEventListener("click", () => {
      field.value = this.builtIn;
      this.show();
      field.focus();
    });
  }

  learn({ built_in: builtIn, placeholder, format, profile }) {
    this.builtIn = builtIn;
    byId("prompt-hint").textContent = t("systemPromptHint", { placeholder });
    byId("prompt-profile").textContent = t("promptProfile", { placeholder, profile });
    byId("prompt-format").textContent = format;
  }

  /** As the settings keep it: nothing where it is the built-in one. */
  get value() {
    const text = this.field.value.trim();
    return text === this.builtIn ? "" : text;
  }

  show() {
    byId("prompt-state").textContent = t(this.value ? "promptOwn" : "promptBuiltIn");
    byId("restore-prompt").disabled = !this.value && this.field.value.trim() === this.builtIn;
  }
}
