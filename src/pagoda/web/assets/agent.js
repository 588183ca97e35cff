// The way to the agent, for a model that sees: what it does, what to know, the command that starts it.
// A page cannot start it: it moves a mouse, so the person who answers for that types the command.

import { key } from "./api.js";
import { byId, copyButton } from "./dom.js";

const KEY_LINE = "read -rs PAGODA_API_KEY && export PAGODA_API_KEY";

/** `model` gives the chosen model's name. */
export function setUpAgent(model) {
  const [dialog, field, command] = ["agent", "agent-driver", "agent-command"].map(byId);
  const show = () => {
    const start = commandFor(field.value.trim() || "x11:", model());
    command.textContent = key.get() ? `${KEY_LINE}\n${start}` : start;
  };
  field.addEventListener("input", show);
  byId("open-agent").addEventListener("click", () => {
    show();
    byId("agent-key").hidden = !key.get();
    dialog.showModal();
  });
  byId("close-agent").addEventListener("click", () => dialog.close());
  // A click on the backdrop is one on the dialog itself.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  const copy = copyButton("", () => command.textContent);
  copy.dataset.label = "copy";
  command.after(copy);
}

function commandFor(driver, model) {
  const server = new URL("v1", document.baseURI).href;
  const flags = { driver, "base-url": server, model };
  const words = Object.entries(flags).map(([name, value]) => `--${name} ${quoted(value)}`);
  return `pagoda agent serve ${words.join(" ")}`;
}

/** As a shell takes it for one word. */
const quoted = (text) =>
  /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
