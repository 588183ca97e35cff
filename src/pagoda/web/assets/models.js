// The models' dialog: what can be asked for, what lies on the server's machine, what a hub has.

import { ApiError, library, loadModel, planModel, pullModel, removeModel, unloadModel } from "./api.js";
import { ask } from "./ask.js";
import { byId, el, toast } from "./dom.js";
import { phaseText, rateText, sizeText } from "./models_words.js";
import { t } from "./words.js";

const MOST_FOUND = 8;
// Of the CPU; a speed that was measured beside more may be far off.
const DISTURBED = 0.25;

/** `picker` is the page's Picker. */
export function setUpModels(picker) {
  const dialog = new ModelsDialog(picker);
  for (const id of ["open-models", "model-choose"]) {
    byId(id).addEventListener("click", () => dialog.open());
  }
}

class ModelsDialog {
  constructor(picker) {
    this.picker = picker;
    this.node = byId("models");
    this.library = { models: [], kept: [], known: [], closed: null };
    this.plans = new Map(); // by name; "planning" while one is asked for
    this.fetches = new Map(); // by name: {done, total, abort}
    this.rows = new Map(); // by name
    this.sought = "";
    this.unplanned = []; // names; plans are asked for one after the other
    this.planning = false;
    picker.told = (event) => this.hear(event);
    this.node.addEventListener("click", (event) => event.target === this.node && this.node.close());
    byId("close-models").addEventListener("click", () => this.node.close());
    byId("find-name").addEventListener("input", () => this.seek());
    byId("find-model").addEventListener("submit", (event) => {
      event.preventDefault();
      this.seek();
      const [first] = this.found();
      if (first) this.plan(first, true);
    });
  }

  open() {
    this.plans.clear();
    this.unplanned = [];
    this.node.showModal();
    this.refresh();
  }

  async refresh() {
    try {
      this.library = await library();
    } catch (error) {
      toast(error.message || t("offline"));
    }
    this.show();
    for (const { name } of [...this.library.models, ...this.unserved()]) this.plan(name);
  }

  hear({ model, status }) {
    if (!this.node.open) return;
    const known = this.library.models.find(({ name }) => name === model);
    if (known && known.status === status) this.show();
    else this.refresh();
  }

  /** Those of the cache that cannot be asked for yet. */
  unserved() {
    return this.library.kept.filter(({ served }) => !served);
  }

  seek() {
    this.sought = byId("find-name").value.trim();
    this.show();
  }

  /** What is known by a part of its name, and the name itself. */
  found() {
    if (!this.sought || this.library.closed) return [];
    const part = this.sought.toLowerCase();
    const here = new Set([...this.library.models, ...this.unserved()].map(({ name }) => name));
    const names = this.library.known.filter((name) => name.toLowerCase().includes(part));
    if (this.sought.includes("/") && !names.includes(this.sought)) names.unshift(this.sought);
    return names.filter((name) => !here.has(name)).slice(0, MOST_FOUND);
  }

  /** `first`: before the others that wait. */
  plan(name, first = false) {
    if (this.plans.has(name)) return;
    this.plans.set(name, "planning");
    if (first) this.unplanned.unshift(name);
    else this.unplanned.push(name);
    this.show();
    this.planAll();
  }

  async planAll() {
    if (this.planning) return;
    this.planning = true;
    while (this.unplanned.length && this.node.open) {
      const name = this.unplanned.shift();
      try {
        this.plans.set(name, await planModel(name));
      } catch (error) {
        // A server that plans nothing, or not for this user, says no more of any model.
        const silent = error instanceof ApiError && [403, 501].includes(error.status);
        this.plans.set(name, silent ? null : { verdict: "unknown", problem: error.message });
      }
      this.show();
    }
    this.planning = false;
  }

  show() {
    const { models, closed } = this.library;
    const kept = this.unserved();
    const found = this.found();
    byId("models-closed").hidden = !closed;
    byId("models-closed").textContent = closed ?? "";
    byId("kept").hidden = !kept.length;
    byId("find").hidden = Boolean(closed);
    const none = this.sought && !found.length && !models.some(({ name }) => name === this.sought);
    byId("none-found").hidden = !none;
    this.fill("model-list", models, (model) => this.served(model));
    this.fill("kept-list", kept, (model) => this.kept(model));
    this.fill("found-list", found.map((name) => ({ name })), (model) => this.far(model));
  }

  fill(id, models, view) {
    const nodes = models.map((model) => {
      const row = this.rows.get(id + model.name) ?? new Row();
      this.rows.set(id + model.name, row);
      row.show({ ...view(model), name: model.name });
      return row.node;
    });
    const list = byId(id);
    const same = list.children.length === nodes.length && nodes.every((n, i) => list.children[i] === n);
    if (!same) list.replaceChildren(...nodes);
  }

  served(model) {
    const { name, status, chats, bytes, parameters, quantization, memory } = model;
    const loading = status === "loading";
    const loaded = ["loaded", "sleeping"].includes(status);
    const state = { loaded: "loaded", unloaded: "unloaded" }[status] ?? status;
    const facts = [parameters, quantization, bytes && sizeText(bytes)].filter(Boolean);
    if (memory) facts.push(t("holds", { size: sizeText(memory) }));
    if (model.pinned) facts.push(t("pinned"));
    if (!chats) facts.push(t("vectors"));
    const current = this.picker.name === name;
    const buttons = [];
    if (chats && !loading) buttons.push([current ? "inUse" : "use", () => this.use(name), current]);
    if (!loaded && !loading) buttons.push(["load", () => this.act(loadModel, name)]);
    if (loaded || loading) buttons.push(["unload", () => this.unload(model)]);
    if (model.removable && !loaded && !loading) buttons.push(["delete", () => this.remove(model)]);
    const progress = loading ? this.picker.news.get(name)?.progress : null;
    const error = status === "failed" ? t("loadFailed", { model: name, why: model.error ?? "" }) : "";
    return {
      state: t(state), facts, buttons, error, plan: this.plans.get(name), loaded,
      progress: progress && { ...progress, text: phaseText(progress) },
    };
  }

  kept(model) {
    return {
      ...this.far(model),
      facts: [sizeText(model.bytes)],
      buttons: [["add", () => this.fetch(model.name)], ["delete", () => this.remove(model)]],
    };
  }

  far({ name }) {
    const fetching = this.fetches.get(name);
    const buttons = [];
    if (fetching) buttons.push(["cancel", () => fetching.abort.abort()]);
    else {
      if (!this.plans.has(name)) buttons.push(["plan", () => this.plan(name, true)]);
      buttons.push(["fetch", () => this.fetch(name)]);
    }
    const progress = fetching && { ...fetching, text: fetchText(fetching) };
    return { state: fetching ? t("fetching") : "", facts: [], buttons, plan: this.plans.get(name), progress };
  }

  use(name) {
    this.picker.choose(name);
    this.node.close();
  }

  async act(call, name) {
    try {
      return await call(name);
    } catch (error) {
      toast(error.message || t("offline"));
    } finally {
      this.refresh();
      this.picker.refresh();
    }
  }

  unload({ name }) {
    ask(t("unloadSure", { model: name }), { [t("unload")]: () => this.act(unloadModel, name) });
  }

  remove({ name, bytes }) {
    const gone = async () => {
      const done = await this.act(removeModel, name);
      if (done) toast(t("freed", { model: name, size: sizeText(done.freed) }));
    };
    ask(t("removeSure", { model: name, size: sizeText(bytes) }), { [t("delete")]: gone });
  }

  async fetch(name) {
    const abort = new AbortController();
    const files = new Map();
    this.fetches.set(name, { done: 0, total: 0, abort });
    this.show();
    try {
      for await (const { digest, completed, total } of pullModel(name, abort.signal)) {
        if (digest) files.set(digest, [completed, total]);
        const sum = (at) => [...files.values()].reduce((all, file) => all + file[at], 0);
        this.fetches.set(name, { done: sum(0), total: sum(1), abort });
        this.show();
      }
      toast(t("fetched", { model: name }));
    } catch (error) {
      const why = error.message || t("offline");
      toast(abort.signal.aborted ? t("resumes") : t("fetchFailed", { model: name, why }));
    }
    this.fetches.delete(name);
    this.refresh();
    this.picker.refresh();
  }
}

/** A model in one of the lists; what stays the same is left alone, so that the focus is. */
class Row {
  constructor() {
    this.name = el("b");
    this.state = el("span", { class: "state" });
    this.facts = el("p", { class: "hint" });
    this.plan = el("p", { class: "verdict" });
    this.error = el("p", { class: "wrong" });
    this.bar = el("progress", { max: "1" });
    this.done = el("p", { class: "hint done" });
    this.buttons = el("div", { class: "row start" });
    this.offered = "";
    const head = el("div", { class: "model-head" }, this.name, this.state);
    this.node = el("li", {}, head, this.facts, this.plan, this.error, this.bar, this.done, this.buttons);
  }

  show({ name, state, facts, plan, error = "", progress, buttons, loaded = false }) {
    this.name.textContent = this.node.dataset.model = name;
    say(this.state, state);
    say(this.facts, facts.join(" · "));
    say(this.error, error);
    const verdict = plan && plan !== "planning" ? plan.verdict : "";
    this.plan.dataset.verdict = verdict;
    say(this.plan, plan === "planning" ? t("planning") : plan ? planText(plan, loaded) : "");
    this.plan.title = verdict && plan.tokens_per_second
      ? t("between", { slow: rateText(plan.slowest), fast: rateText(plan.fastest) })
      : "";
    this.bar.hidden = !progress;
    if (progress?.total) this.bar.value = progress.done / progress.total;
    else this.bar.removeAttribute("value");
    say(this.done, progress?.text ?? "");
    this.offer(buttons);
  }

  offer(buttons) {
    const offered = buttons.map(([word, , disabled]) => t(word) + Boolean(disabled)).join();
    this.acts = Object.fromEntries(buttons);
    if (offered === this.offered) return;
    this.offered = offered;
    this.buttons.replaceChildren(
      ...buttons.map(([word, , disabled = false]) => {
        const kind = ["use", "add"].includes(word) ? "primary" : "";
        const onclick = () => this.acts[word]();
        return el("button", { type: "button", class: kind, disabled, onclick }, t(word));
      }),
    );
  }
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
  node.hidden = !text;
}

function fetchText({ done, total }) {
  if (!total) return "";
  return `${Math.floor((100 * done) / total)}% · ${sizeText(done)} / ${sizeText(total)}`;
}

/** "Fits, about 40 tok/s here · 8,192 tokens of context". */
function planText(plan, loaded) {
  const { verdict, problem, tokens_per_second: rate, context, writes } = plan;
  if (verdict === "too_large") return t("tooLarge", { problem });
  if (verdict === "unknown") return problem;
  const after = verdict === "fits_after_unloading" && !loaded ? "After" : "";
  const words = [t(`fits${after}${rate ? "" : "Vectors"}`, { rate: rateText(rate) })];
  if (writes && context) words.push(t("contextOf", { count: context.toLocaleString() }));
  if (plan.disturbed > DISTURBED) words.push(t("disturbed"));
  return words.join(" · ");
}
