// How one message looks, and how a reply looks while it is written.

import { copyButton, el, icon, iconButton } from "./dom.js";
import { fileCard } from "./files.js";
import { MarkdownStream } from "./markdown.js";
import { isFromElsewhere } from "./store.js";
import { callCard, pictures, pretty, toolCard } from "./toolcard.js";
import { t } from "./words.js";

// A message of more characters or lines is folded.
const LONG_TEXT = 2000;
const LONG_LINES = 25;

// Replies of a model to its tools, one after the other, before it is asked whether to go on.
export const MAX_ROUNDS = 20;

// Why a reply is not whole, and whether the model can go on from there.
const NOTICES = { stopped: "stopped", dropped: "dropped", running: "dropped", length: "length" };

export class MessageView {
  /** `actions` are the chat's: edit, retry, continue, show, sendResults, goOn, unstick. */
  constructor(node, actions) {
    this.node = node;
    this.actions = actions;
    this.element = el("article", { class: `message ${node.role}`, "data-id": node.id });
    this.frame = 0;
  }

  /** Build the whole message, which has these versions. */
  build(versions) {
    this.begin();
    this.complete(versions);
    return this.element;
  }

  /** Build what is there from the start; of a reply, what `flush` fills and `complete` ends. */
  begin() {
    const { node, element } = this;
    element.replaceChildren();
    if (node.role === "user") this.buildUser();
    if (node.role === "tool") element.append(...this.toolParts());
    if (node.role === "assistant") this.buildReply();
    return element;
  }

  buildUser() {
    const images = pictures(this.node.images);
    if (images) this.element.append(images);
    const files = (this.node.files ?? []).map(fileCard);
    if (files.length) this.element.append(el("div", { class: "files" }, ...files));
    if (this.node.content) this.element.append(bubble(this.node.content));
  }

  buildReply() {
    const content = el("div", { class: "markdown" });
    const thought = el("div", { class: "markdown" });
    this.thoughtTitle = el("span");
    const summary = el("summary", {}, this.thoughtTitle, icon("down"));
    this.thoughtBox = el("details", { class: "thought", hidden: true }, summary, thought);
    this.calls = el("div", { class: "calls" });
    this.speed = el("span", { class: "facts" });
    const pulse = el("span", { class: "pulse", role: "status", "aria-label": t("thinking") });
    this.progress = el("div", { class: "progress" }, pulse, this.speed);
    this.element.append(this.thoughtBox, content, this.calls, this.progress);
    this.element.setAttribute("aria-busy", "true");
    this.streams = { content: new MarkdownStream(content), reasoning: new MarkdownStream(thought) };
    this.shown = { content: 0, reasoning: 0 };
  }

  /** A call with its result, or the result alone that the user wrote. */
  toolParts() {
    const { node } = this;
    if (node.input === undefined) {
      return [toolCard(t("toolResult", { name: node.name ?? "" }), node.content)];
    }
    // It was going on when its page was closed.
    const isCut = this.versions && ["asking", "running"].includes(node.state);
    const wasOpen = this.element.querySelector("details")?.open ?? false;
    const card = callCard(node, isCut && !isFromElsewhere(node.id) ? "cut" : node.state, wasOpen);
    this.status = card.querySelector(".status");
    const cuts = { asking: "cutAsking", running: "cutRunning" };
    const reason = node.state === "stopped" ? "stoppedCall" : isCut && cuts[node.state];
    if (!reason || isFromElsewhere(node.id)) return [card];
    return [card, this.quietly(t(reason), [this.button("goOn", "play", "askAgain")])];
  }

  /** How far a call is. */
  showStatus(text) {
    this.status.textContent = text;
  }

  /** The last lines of what a command has written so far. */
  showOutput(text) {
    this.output ??= this.element.appendChild(el("pre", { class: "output" }));
    this.output.textContent = text;
  }

  /** Nothing more will come. */
  complete(versions) {
    const { node, element } = this;
    this.versions = versions;
    if (node.role === "tool") {
      this.begin();
      return;
    }
    if (node.role === "assistant") {
      this.flush();
      for (const stream of Object.values(this.streams)) stream.end();
      this.progress.remove();
      this.showThought(false);
      element.setAttribute("aria-busy", "false");
      if (node.tool_calls?.length && node.state === "done" && !node.byTools) {
        element.append(this.resultForm());
      }
      const notice = this.notice();
      if (notice) element.append(notice);
    }
    element.append(this.footer());
  }

  /** Show what has arrived in the next frame, however many tokens that are. */
  schedule() {
    this.frame ||= requestAnimationFrame(() => this.flush());
  }

  flush() {
    cancelAnimationFrame(this.frame);
    this.frame = 0;
    for (const field of ["reasoning", "content"]) {
      const text = this.node[field] ?? "";
      if (text.length === this.shown[field]) continue;
      this.streams[field].append(text.slice(this.shown[field]));
      this.shown[field] = text.length;
    }
    this.showThought(!this.node.content && !this.node.tool_calls?.length);
    this.showCalls();
    const rate = this.node.stats?.rate;
    if (rate) this.speed.textContent = perSecond(rate);
  }

  showThought(thinking) {
    const { reasoning, seconds } = this.node;
    this.thoughtBox.hidden = !reasoning;
    this.thoughtBox.classList.toggle("thinking", thinking);
    const done = t("thought", { seconds: (seconds ?? 0).toFixed(1) });
    this.thoughtTitle.textContent = thinking ? t("thinking") : done;
  }

  showCalls() {
    const cards = (this.node.tool_calls ?? []).map((call) =>
      toolCard(t("toolCall", { name: call.function.name }), pretty(call.function.arguments)),
    );
    if (cards.length || this.calls.childNodes.length) this.calls.replaceChildren(...cards);
  }

  resultForm() {
    const areas = this.node.tool_calls.map((call) =>
      el("textarea", { rows: "2", placeholder: `${call.function.name}: ${t("toolResultHint")}` }),
    );
    const send = (event) => {
      event.preventDefault();
      this.actions.sendResults(
        this.node,
        areas.map((area) => area.value),
      );
    };
    const button = el("button", { type: "submit", class: "primary" }, t("sendResult"));
    return el("form", { class: "results", onsubmit: send }, ...areas, button);
  }

  /** What kept the reply from being whole. Only the last message of a chat shows its buttons. */
  notice() {
    const { state, error, content } = this.node;
    if (state === "running" && isFromElsewhere(this.node.id)) return null;
    if (state === "rounds") {
      const buttons = [this.button("goOn", "play")];
      return this.quietly(t("rounds", { count: MAX_ROUNDS }), buttons);
    }
    const text = error ?? (NOTICES[state] && t(NOTICES[state]));
    if (!text) return null;
    const buttons = [this.button("retry", "retry")];
    if (content) buttons.push(this.button("continue", "play"));
    const kind = error || state === "dropped" ? "error" : "quiet";
    return el("div", { class: `notice ${kind}`, role: "alert" }, el("span", {}, text), ...buttons);
  }

  quietly(text, buttons) {
    return el("div", { class: "notice quiet", role: "alert" }, el("span", {}, text), ...buttons);
  }

  button(action, iconName, word = action) {
    const onclick = () => this.actions[action](this.node);
    return el("button", { type: "button", class: "plain", onclick }, icon(iconName), t(word));
  }

  footer() {
    const { node, actions, versions } = this;
    const buttons = [copyButton(t("copy"), () => node.content)];
    if (node.role === "user") buttons.push(iconButton("edit", t("edit"), () => this.edit()));
    else buttons.push(iconButton("retry", t("retry"), () => actions.retry(node)));
    return el("footer", {}, this.pager(versions), ...buttons, this.facts());
  }

  pager(versions) {
    if (versions.length < 2) return null;
    const at = versions.findIndex((version) => version.id === this.node.id);
    const turn = (name, label, to) => {
      const button = iconButton(name, label, () => this.actions.show(versions[to]));
      button.disabled = !versions[to];
      return button;
    };
    return el(
      "span",
      { class: "pager" },
      turn("left", t("previous"), at - 1),
      `${at + 1}/${versions.length}`,
      turn("right", t("next"), at + 1),
    );
  }

  facts() {
    const { stats, model } = this.node;
    if (!stats) return null;
    const parts = [];
    if (stats.rate) parts.push(perSecond(stats.rate));
    parts.push(t("firstToken", { seconds: stats.first.toFixed(2) }));
    const { tokens } = stats;
    if (tokens) parts.push(t(tokens === 1 ? "token" : "tokens", { count: tokens }));
    const details = [model];
    if (stats.prompt) details.push(t("cached", { count: stats.cached, total: stats.prompt }));
    if (stats.guessed) {
      details.push(t("guessed", { count: stats.accepted, total: stats.guessed }));
    }
    return el(
      "span",
      { class: "facts", title: details.filter(Boolean).join("\n") },
      parts.join(" · "),
    );
  }

  /** Whether there is text in it that only its user has. */
  isEdited() {
    const areas = Array.from(this.element.querySelectorAll("textarea"));
    return areas.some((area) => area.closest(".editor") || area.value);
  }

  edit() {
    const area = el("textarea", { rows: "3", "aria-label": t("edit") });
    area.value = this.node.content;
    const stop = () => this.build(this.versions);
    const send = () => {
      if (!area.value.trim()) return;
      stop();
      this.actions.edit(this.node, area.value.trim());
    };
    area.addEventListener("keydown", (event) => {
      if (isSend(event)) {
        event.preventDefault();
        send();
      }
      if (event.key === "Escape") stop();
    });
    const cancel = el("button", { type: "button", onclick: stop }, t("cancel"));
    const button = el("button", { type: "button", class: "primary", onclick: send }, t("send"));
    const buttons = el("div", { class: "row" }, cancel, button);
    this.actions.unstick();
    this.element.replaceChildren(el("div", { class: "editor" }, area, buttons));
    area.style.height = `${Math.min(area.scrollHeight + 4, 400)}px`;
    area.focus();
  }
}

/** Enter sends, but neither with Shift nor when it only accepts what an input method suggests. */
export function isSend(event) {
  // 229: Safari ends the composition before it tells of the key.
  const composing = event.isComposing || event.keyCode === 229;
  return event.key === "Enter" && !event.shiftKey && !composing;
}

/** What somebody wrote; a long text is folded. */
function bubble(text) {
  const node = el("div", { class: "bubble" }, text);
  if (text.length < LONG_TEXT && text.split("\n").length < LONG_LINES) return node;
  const label = () => t(node.classList.contains("folded") ? "showAll" : "showLess");
  const toggle = () => {
    const folded = node.classList.toggle("folded");
    button.textContent = label();
    button.setAttribute("aria-expanded", String(!folded));
  };
  const button = el("button", { type: "button", class: "plain", onclick: toggle });
  toggle();
  return el("div", { class: "long" }, node, button);
}

const perSecond = (rate) => t("perSecond", { rate: rate.toFixed(rate < 10 ? 1 : 0) });
