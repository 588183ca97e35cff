// The runs of before: list, step through, export, go on.

import { byId, el, toast } from "./dom.js";
import { t } from "./words.js";
import { frameUrl, get, post } from "./link.js";
import { Transcript } from "./transcript.js";
import { View } from "./view.js";

const OVER = ["done", "failed", "cancelled"];

/** The events of a run in parts: what came before the first step, and each step. */
function partsOf(events) {
  const parts = [[]];
  for (const event of events) {
    if (event.event === "step") parts.push([]);
    parts.at(-1).push(event);
  }
  return parts;
}

/** "2026-05-04 13:02" of a run's name, which begins with its time. */
const startedAt = (run) => run.replace(/^(\d{4})(\d\d)(\d\d)-(\d\d)(\d\d).*$/, "$1-$2-$3 $4:$5");

const stateWords = (state) => {
  if (state === "cut off") return t("run_cut");
  if (state === "broken") return t("run_broken");
  return OVER.includes(state) ? t(`state_${state}`) : t("run_cut");
};

export class History {
  /** `current()` is the name of the run that goes on. */
  constructor({ current }) {
    this.current = current;
    this.view = new View("");
    byId("viewer-screen").append(this.view.node);
    this.transcript = new Transcript(byId("viewer-text"));
    byId("open-history").addEventListener("click", () => this.open());
    byId("position").addEventListener("input", () => this.show(Number(byId("position").value)));
    byId("previous").addEventListener("click", () => this.show(this.position - 1));
    byId("next").addEventListener("click", () => this.show(this.position + 1));
  }

  async open() {
    try {
      const runs = await get("runs");
      const rows = runs.map((run) => this.row(run));
      byId("runs").replaceChildren(...(rows.length ? rows : [el("li", {}, t("noRuns"))]));
    } catch (error) {
      toast(error.message);
      return;
    }
    byId("history").showModal();
  }

  row({ run, task, state, steps }) {
    const goesOn = run === this.current();
    const about = [startedAt(run), t(steps === 1 ? "oneStep" : "steps", { count: steps })];
    about.push(goesOn ? t(`state_${state === "cut off" ? "running" : state}`) : stateWords(state));
    const button = (word, onclick) => el("button", { type: "button", onclick }, t(word));
    const address = `api/runs/${encodeURIComponent(run)}/export?language=${document.documentElement.lang}`;
    // One that failed, at a limit or for want of its model, may go on as well.
    const mayGoOn = !goesOn && !["broken", "done", "cancelled"].includes(state);
    return el(
      "li",
      { "data-run": run },
      el("b", {}, task || run),
      el("span", { class: "hint" }, about.join(" · ")),
      el(
        "span",
        { class: "row start" },
        button("view", () => this.step(run, task)),
        el("a", { href: address, download: `${run}.html`, class: "button" }, t("export")),
        mayGoOn ? button("continue", () => this.goOn(run)) : null,
      ),
    );
  }

  async goOn(run) {
    try {
      // What the run did before comes with its events.
      await post("continue", { run });
      byId("history").close();
    } catch (error) {
      toast(error.message);
    }
  }

  async step(run, task) {
    try {
      this.parts = partsOf(await get(`runs/${encodeURIComponent(run)}`));
    } catch (error) {
      toast(error.message);
      return;
    }
    this.run = run;
    byId("viewer-title").textContent = task;
    byId("position").max = this.parts.length - 1;
    this.show(Math.min(1, this.parts.length - 1));
    byId("viewer").showModal();
  }

  show(position) {
    this.position = Math.min(Math.max(position, 0), this.parts.length - 1);
    const last = this.parts.length - 1;
    byId("position").value = this.position;
    byId("position-text").textContent = `${this.position} / ${last}`;
    byId("previous").disabled = this.position === 0;
    byId("next").disabled = this.position === last;
    this.transcript.clear();
    this.transcript.run = this.run;
    for (const event of this.parts[this.position]) this.transcript.add(event);
    if (this.run !== this.current()) this.transcript.stopWaiting();
    const step = this.transcript.step;
    this.view.node.hidden = !step;
    if (!step) return;
    this.view.show(frameUrl(this.run, step.file));
    this.view.mark(step.actions, step.size);
  }
}
