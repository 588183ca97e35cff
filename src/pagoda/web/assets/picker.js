// The model picker and how far its model is.

import { ApiError, health, models } from "./api.js";
import { byId, el } from "./dom.js";
import { saveSettings, settings } from "./store.js";
import { t } from "./words.js";

// In these states the server is asked again; in others, not before somebody looks or sends.
const MOVING = ["loading", "unreachable"];
const POLL_MS = 2000;

export class Picker {
  /** `page` is {changed(), unauthorized()}. */
  constructor(page) {
    this.page = page;
    this.cards = [];
    this.state = "loading"; // the server's
    this.cause = "";
    this.shown = "loading"; // the chosen model's
    this.select = byId("model");
    this.timer = 0;
    this.select.addEventListener("change", () => {
      settings.model = this.select.value;
      saveSettings();
      this.show();
      page.changed();
    });
    document.addEventListener("visibilitychange", () => document.hidden || this.refresh());
  }

  /** The chosen model's name; empty while none is known. */
  get name() {
    return this.card?.id ?? "";
  }

  get card() {
    return this.cards.find(({ id }) => id === settings.model) ?? this.cards[0];
  }

  /** Whether the model takes pictures, as its entry in /v1/models says. */
  get sees() {
    return Boolean(this.card?.architecture?.input_modalities?.includes("image"));
  }

  async refresh() {
    clearTimeout(this.timer);
    try {
      const [answer, cards] = await Promise.allSettled([health(), models()]);
      if (answer.reason) throw answer.reason;
      this.state = answer.value === "ready" ? "ready" : stateOf(answer.value.status);
      this.cause = answer.value.cause ?? "";
      if (cards.reason) throw cards.reason;
      this.cards = cards.value;
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        await this.page.unauthorized();
        return this.refresh();
      } else if (!(error instanceof ApiError)) {
        this.state = "unreachable";
      }
    }
    this.show();
    if (MOVING.includes(this.shown)) this.timer = setTimeout(() => this.refresh(), POLL_MS);
    this.page.changed();
  }

  show() {
    const options = this.cards.map(({ id }) => el("option", { value: id }, id));
    if (!options.length) options.push(el("option", { value: "" }, t("noModel")));
    this.select.replaceChildren(...options);
    this.select.value = this.name;
    this.select.classList.toggle("single", options.length < 2);
    const own = this.state === "unreachable" ? null : this.card?.status;
    this.shown = own ? stateOf(own.value) : this.state;
    const node = byId("model-state");
    node.dataset.state = this.shown;
    node.textContent = t(this.shown);
    node.title = own?.error ?? this.cause;
  }
}

/** One of the states that have words; unknown ones count as loading, and are asked again. */
function stateOf(status) {
  const known = { loaded: "ready", dead: "failed", stopped: "failed" };
  const state = known[status] ?? status;
  const said = ["ready", "unloaded", "sleeping", "failed", "unreachable"];
  return said.includes(state) ? state : "loading";
}
