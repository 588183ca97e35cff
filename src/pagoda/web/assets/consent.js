// The question before a tool is called. One at a time: others wait for their turn.

import { el } from "./dom.js";
import { t } from "./words.js";

let last = Promise.resolve();

/** Wait for one's turn, then show the dialog that `build` makes; what its user chose. */
function inTurn(build, signal) {
  const turn = last.then(() => (signal.aborted ? "stop" : shown(build, signal)));
  last = turn;
  return turn;
}

function shown(build, signal) {
  return new Promise((resolve) => {
    let choice = "stop"; // Escape, as elsewhere
    const dialog = el("dialog", { class: "consent", "aria-labelledby": "consent-title" });
    const choose = (chosen) => {
      choice = chosen;
      dialog.close();
    };
    const stop = () => choose("stop");
    dialog.append(...build(choose).filter(Boolean));
    dialog.addEventListener("close", () => {
      signal.removeEventListener("abort", stop);
      dialog.remove();
      resolve(choice);
    });
    signal.addEventListener("abort", stop);
    document.body.append(dialog);
    dialog.showModal();
  });
}

// Nothing has the focus that a key meant for the message field would press.
const heading = (text) =>
  el("h2", { id: "consent-title", tabindex: "-1", autofocus: true }, text);

const button = (label, onclick, kind = "") =>
  el("button", { type: "button", class: kind, onclick }, label);

/** "allow", "always", "deny" or "stop". `fields` are the arguments as [name, text], `chat` the title of a
 * chat that is not the one shown. */
export function askConsent({ server, tool }, { fields, chat }, signal) {
  const build = (choose) => [
    heading(t("consentTitle")),
    el("p", {}, el("strong", {}, t("consentFrom", { tool: tool.name, server: server.name }))),
    chat && el("p", { class: "hint" }, t("consentChat", { title: chat })),
    tool.description && el("p", { class: "hint about" }, tool.description),
    el("p", {}, t(fields.length ? "consentArguments" : "consentNone")),
    ...fields.flatMap(([name, text]) => [
      name && el("h3", {}, name),
      el("pre", { tabindex: "0" }, text),
    ]),
    el(
      "div",
      { class: "row" },
      button(t("stopHere"), () => choose("stop")),
      button(t("refuse"), () => choose("deny")),
      tool.each_time ? null : button(t("allowAlways"), () => choose("always")),
      button(t("allow"), () => choose("allow"), "primary"),
    ),
  ];
  return inTurn(build, signal);
}

/** What the user says that a tool of theirs answered: {text}, or "stop". */
export function askAnswer(name, input, signal) {
  const build = (choose) => {
    const area = el("textarea", { rows: "4", "aria-label": t("toolResultHint") });
    return [
      heading(t("answerTool", { name })),
      el("pre", { tabindex: "0" }, input),
      area,
      el(
        "div",
        { class: "row" },
        button(t("stopHere"), () => choose("stop")),
        button(t("sendResult"), () => choose({ text: area.value }), "primary"),
      ),
    ];
  };
  return inTurn(build, signal);
}
