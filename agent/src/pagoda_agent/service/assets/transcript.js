// What a run did, step by step: made of the events of the stream or of a journal.

import { el } from "./dom.js";
import { t } from "./words.js";
import { describe } from "./describe.js";
import { frameUrl } from "./link.js";
import { said } from "./sentences.js";

const OVER = ["done", "failed", "cancelled"];
// Closer to its end than this, a list follows what is added.
const NEAR = 80;

export class Transcript {
  /** `open` is called with a step when its picture is clicked. */
  constructor(root, open = () => {}) {
    this.root = root;
    this.open = open;
    this.clear();
  }

  clear() {
    this.root.replaceChildren();
    this.run = "";
    /** The newest: {number, file, size, actions, node}. */
    this.step = null;
  }

  take(event) {
    const near = this.root.scrollHeight - this.root.scrollTop - this.root.clientHeight < NEAR;
    this.add(event);
    if (near) this.root.scrollTop = this.root.scrollHeight;
  }

  add(event) {
    switch (event.event) {
      case "start":
        this.clear();
        this.run = event.run;
        this.note("user", t("task"), event.task);
        this.told(event);
        break;
      case "resumed":
        this.stopWaiting();
        this.run = event.run;
        this.note("plain", t("resumed"), event.task);
        this.told(event);
        break;
      case "step":
        this.begin(event);
        break;
      case "reply":
        this.reply(event);
        break;
      case "actions":
        this.actions(event);
        break;
      case "result":
        this.lines?.[event.index]?.append(el("span", { class: "result" }, said(event.text)));
        break;
      case "effect":
        this.effect(event);
        break;
      case "not understood":
        this.note("warn", t("notUnderstood"), event.reason);
        break;
      case "stuck":
        this.note("warn", t("stuck"), "");
        break;
      case "hint":
        this.note("user", t("hint"), said(event.text));
        break;
      case "answer":
        this.note("user", t("answer"), event.text);
        break;
      case "consent":
        this.consent(event);
        break;
      case "state":
        this.state(event);
    }
  }

  note(kind, title, text) {
    const node = el("div", { class: `note ${kind}` }, el("b", {}, title));
    if (text) node.append(el("p", {}, text));
    this.root.append(node);
  }

  /** The system prompt, below the task; runs of before have none. */
  told({ system }) {
    if (!system) return;
    const summary = el("summary", {}, t("systemText"));
    this.root.lastChild.append(el("details", {}, summary, el("pre", {}, system)));
  }

  /** What the run took, below its end. */
  used({ usage, rounds, cost }) {
    const count = (number) => number.toLocaleString();
    const parts = [
      t(rounds === 1 ? "usedRound" : "usedRounds", { rounds }),
      usage.input_tokens + usage.output_tokens
        ? t("usedTokens", {
            read: count(usage.input_tokens),
            cached: count(usage.cached_tokens),
            written: count(usage.output_tokens),
          })
        : t("usedUnknown"),
      cost ? t("cost", { sum: cost.toFixed(4) }) : "",
    ];
    const text = parts.filter(Boolean).join(" · ");
    this.root.lastChild.append(el("p", { class: "used" }, text));
  }

  begin({ step, frame }) {
    this.stopWaiting();
    const node = el("article", { class: "step", "data-step": step });
    const source = frameUrl(this.run, frame.file);
    const newest = { run: this.run, number: step, ...frame, actions: [], node };
    this.step = newest;
    this.lines = [];
    node.append(
      el("header", {}, el("b", {}, t("step", { number: step })), el("span", { class: "effect" })),
      el(
        "button",
        { type: "button", class: "shot", title: t("enlarge"), onclick: () => this.open(newest) },
        el("img", {
          src: source, alt: t("screenAt", { number: step }), loading: "lazy",
          width: frame.size[0], height: frame.size[1],
        }),
      ),
    );
    this.root.append(node);
    this.badge("waits");
  }

  /** Beside the step's number: what it waits for, or what it led to. */
  badge(kind, values) {
    const badge = this.step?.node.querySelector(".effect");
    if (!badge) return;
    badge.textContent = kind && t(`effect_${kind}`, values);
    badge.dataset.kind = kind;
  }

  /** The reply that the newest step waits for will not come. */
  stopWaiting() {
    if (this.step?.node.querySelector(".effect[data-kind=waits]")) this.badge("stopped");
  }

  reply({ text, reasoning, tool_calls: calls }) {
    if (!this.step) return;
    const called = calls.map((call) => `${call.name}: ${call.arguments}`);
    const said = [reasoning, text, ...called].filter(Boolean).join("\n\n");
    const whole = el("details", {}, el("summary", {}, t("reply")), el("pre", {}, said));
    this.step.node.append(whole);
  }

  actions({ thought, actions }) {
    if (!this.step) return;
    const { size, node } = this.step;
    this.step.actions = actions;
    this.badge("");
    this.lines = actions.map((action) => el("li", {}, el("code", {}, describe(action, size))));
    // The reply as it was written stays behind what was understood of it.
    const whole = node.querySelector("details:last-of-type");
    const parts = [el("ol", { class: "actions" }, ...this.lines)];
    if (thought) parts.unshift(el("p", { class: "thought" }, thought));
    if (whole) whole.before(...parts);
    else node.append(...parts);
  }

  consent({ verdict, offer }) {
    const kind = ["allow", "lasting"].includes(verdict) ? "plain" : "warn";
    this.note(kind, t(`verdict_${verdict}`), said(offer ?? ""));
  }

  effect({ kind, share }) {
    const percent = (100 * (share ?? 0)).toFixed(share > 0 && share < 0.01 ? 2 : 1);
    this.badge(kind, { percent });
  }

  state(event) {
    const { state, reason, action } = event;
    if (state === "paused" || OVER.includes(state)) this.stopWaiting();
    if (state === "waiting_user") this.note("ask", t("asks"), said(reason));
    else if (state === "waiting_consent") {
      const what = describe(action, this.step?.size);
      this.note("ask", t("wantsConsent"), `${what}\n${said(reason)}`);
    } else if (state === "done") this.note(state, t("state_done"), reason);
    else if (OVER.includes(state)) this.note(state, t(`state_${state}`), said(reason));
    else if (state === "paused") this.note("plain", t("state_paused"), said(reason));
    // Runs of before do not say it.
    if (OVER.includes(state) && event.spent?.rounds) this.used(event.spent);
  }
}
