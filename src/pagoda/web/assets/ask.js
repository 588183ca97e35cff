// A question with its answers.

import { el } from "./dom.js";
import { t } from "./words.js";

/** Ask; each answer is a button that runs its function. */
export function ask(question, answers) {
  const dialog = el(
    "dialog",
    { class: "ask", onclose: () => dialog.remove() },
    el("p", {}, question),
  );
  const button = (label, act, kind = "") => {
    const onclick = () => {
      dialog.close();
      act();
    };
    return el("button", { type: "button", class: kind, onclick }, label);
  };
  const buttons = Object.entries(answers).map(([label, act]) => button(label, act, "primary"));
  dialog.append(
    el(
      "div",
      { class: "row" },
      button(t("cancel"), () => {}),
      ...buttons,
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
}
