// The model picker and how far its model is.

import { ApiError, health, loadModel, modelEvents, models } from "./api.js";
import { byId, el, toast } from "./dom.js";
import { phaseText } from "./models_words.js";
import { saveSettings, settings } from "./store.js";
import { t } from "./words.js";

// In these states the server is asked again; in others, not before somebody looks or sends.
const MOVING = ["loading", "unreachable"];
const POLL_MS = 2000;
const TICK_MS = 1000;

export class Picker {
  /** `page` is {changed(), unauthorized()}. */
  constructor(page) {
    this.page = page;
    this.cards = [];
    this.news = new Map(); // the last event of each model, by each of its names
    this.told = () => {}; // of each event
    this.state = "loading"; // the server's
    this.cause = "";
    this.starting = null; // progress of the server's start
    this.shown = "loading"; // the chosen model's
    this.select = byId("model");
    this.timer = this.ticker = 0;
    this.listening = null;
    this.select.addEventListener("change", () => this.choose(this.select.value));
    byId("model-retry").addEventListener("click", () => this.retry());
    // Of the few connections that a browser makes to a server none is held by a page in the dark.
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.listening?.abort();
      else this.refresh();
    });
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

  /** Whether it takes sounds. */
  get hears() {
    return Boolean(this.card?.architecture?.input_modalities?.includes("audio"));
  }

  choose(name) {
    settings.model = name;
    saveSettings();
    this.show();
    this.page.changed();
  }

  async refresh() {
    clearTimeout(this.timer);
    try {
      const [answer, cards] = await Promise.allSettled([health(), models()]);
      if (answer.reason) throw answer.reason;
      this.state = answer.value === "ready" ? "ready" : stateOf(answer.value.status);
      this.cause = answer.value.cause ?? "";
      this.starting = timed(answer.value.progress);
      if (cards.reason) throw cards.reason;
      this.cards = cards.value.filter(chats);
      // An engine that starts again is no news: what was asked just now goes before what was heard.
      for (const { id, status } of cards.value) {
        if (status && this.news.get(id)?.status !== status.value) this.news.delete(id);
      }
      this.listen();
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

  /** Hear of every change of the models until the page is hidden or the server is gone. */
  async listen() {
    if (this.listening || document.hidden) return;
    const listening = (this.listening = new AbortController());
    try {
      for await (const event of modelEvents(listening.signal)) this.hear(event);
    } catch {
      // The next look at the server says what is wrong.
    }
    this.listening = null;
    this.news.clear();
    if (!listening.signal.aborted) this.timer = setTimeout(() => this.refresh(), POLL_MS);
  }

  hear(event) {
    const before = this.news.get(event.model)?.status;
    for (const name of event.names ?? [event.model]) {
      this.news.set(name, { ...event, progress: timed(event.progress, event.seconds) });
    }
    this.told(event);
    const known = this.cards.some(({ id }) => id === event.model);
    if (before && before !== event.status) this.refresh();
    else if (before === undefined && !known && event.status !== "removed") this.refresh();
    else this.show();
  }

  async retry() {
    try {
      await loadModel(this.name);
    } catch (error) {
      toast(error.message);
    }
    this.refresh();
  }

  show() {
    const options = this.cards.map(({ id }) => el("option", { value: id }, id));
    if (!options.length) options.push(el("option", { value: "" }, t("noModel")));
    this.select.replaceChildren(...options);
    this.select.value = this.name;
    this.select.classList.toggle("single", options.length < 2);
    byId("open-agent").hidden = !this.sees;
    const news = this.news.get(this.name);
    const own = this.state === "unreachable" ? null : (news?.status ?? this.card?.status?.value);
    this.shown = own ? stateOf(own) : this.state;
    const why = news?.error ?? this.card?.status?.error ?? this.cause;
    const node = byId("model-state");
    node.dataset.state = this.shown;
    node.title = why;
    this.progress = this.shown === "loading" ? (news?.progress ?? this.starting) : null;
    this.tick();
    byId("model-trouble").hidden = this.shown !== "failed" || !why;
    byId("model-trouble-text").textContent = t("loadFailed", { model: this.name, why });
  }

  /** The seconds go on although nothing new is heard. */
  tick() {
    clearTimeout(this.ticker);
    const bar = byId("model-progress");
    bar.hidden = this.shown !== "loading";
    byId("model-state").textContent = this.progress ? phaseText(this.progress) : t(this.shown);
    if (bar.hidden) return;
    if (this.progress?.total) bar.value = this.progress.done / this.progress.total;
    else bar.removeAttribute("value");
    this.ticker = setTimeout(() => this.tick(), TICK_MS);
  }
}

/** Progress with the moment at which its load began, by this browser's clock. */
function timed(progress, seconds) {
  const spent = seconds ?? progress?.seconds;
  if (spent === undefined) return null;
  return { phase: "", done: 0, total: 0, ...progress, began: Date.now() - 1000 * spent };
}

/** Whether a model writes text, as far as is known. */
const chats = ({ architecture }) =>
  architecture?.output_modalities?.includes("text") ?? true;

/** One of the states that have words; unknown ones count as loading, and are asked again. */
function stateOf(status) {
  const known = { loaded: "ready", dead: "failed", stopped: "failed" };
  const state = known[status] ?? status;
  const said = ["ready", "unloaded", "sleeping", "failed", "unreachable"];
  return said.includes(state) ? state : "loading";
}
