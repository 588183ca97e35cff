// Puts the page together.

import { setUpAgent } from "./agent.js";
import "./agent_words.js";
import { ask } from "./ask.js";
import { ChatPane } from "./chat.js";
import "./chat_words.js";
import { askKey, setUpSettings } from "./dialogs.js";
import { byId, icon } from "./dom.js";
import { hasTools } from "./mcp.js";
import { setUpModels } from "./models.js";
import { hasOptions, openOptions } from "./options.js";
import { Picker } from "./picker.js";
import { Sidebar } from "./sidebar.js";
import { keepDeleted, saveSettings, settings } from "./store.js";
import { openTools } from "./toolpanel.js";
import "./tool_words.js";
import { setLanguage, t, translate } from "./words.js";

const root = byId("pagoda");
const narrow = matchMedia("(max-width: 800px)");

const picker = new Picker({ changed: () => pane.showButtons(), unauthorized: askKey });
const pane = new ChatPane({
  model: () => picker.name,
  models: () => picker.cards.map(({ id }) => id),
  sees: () => picker.sees,
  hears: () => picker.hears,
  context: () => picker.card?.max_model_len ?? 0,
  unauthorized: askKey,
  changed() {
    showOptions();
    if (pane.chat.leaf) setHash(pane.chat.id);
    sidebar.refresh();
    // A request may have loaded its model, or found it gone.
    if (picker.shown !== "ready" || pane.failed()) picker.refresh();
  },
});
const sidebar = new Sidebar({
  current: () => pane.chat.id,
  isRunning: (id) => Boolean(pane.running(id)),
  open(id) {
    setHash(id);
    openChat();
  },
  removed(id) {
    pane.stop(id);
    if (pane.chat.id === id) this.open("");
  },
  renamed(id, { title, named }) {
    if (pane.chat.id !== id) return;
    Object.assign(pane.chat, { title, named });
    pane.showButtons();
  },
});

function chooseModel(name) {
  settings.model = name;
  saveSettings();
  picker.show();
  pane.showButtons();
}

/** Whether the chat has options and tools of its own is seen beside the model. */
function showOptions() {
  byId("open-options").classList.toggle("set", hasOptions(pane.chat.options));
  const tools = byId("open-tools");
  tools.disabled = Boolean(pane.second);
  tools.classList.toggle("set", hasTools(pane.chat.options) && !pane.second);
  tools.dataset.label = pane.second ? "toolsOff" : "mcp";
  translate(tools.parentNode);
}

function setUpOptions() {
  setUpAgent(() => picker.name);
  const changed = () => {
    pane.saveOptions();
    showOptions();
  };
  byId("open-options").addEventListener("click", () => {
    openOptions(pane.chat, { model: () => picker.name, choose: chooseModel, changed });
  });
  byId("open-tools").addEventListener("click", () => openTools(pane.chat, { changed, askKey }));
  byId("compare").addEventListener("click", () => {
    const others = picker.cards.map(({ id }) => id).filter((id) => id !== picker.name);
    const answers = others.map((id) => [id, () => pane.compareWith(id)]);
    ask(t("compareHint", { model: picker.name }), Object.fromEntries(answers));
  });
}

/** The chat's id is in the address, so that reloading comes back to it. */
function setHash(id) {
  if (location.hash.slice(1) !== id) history.pushState(null, "", id ? `#${id}` : location.pathname);
}

function openChat() {
  pane.open(location.hash.slice(1));
  showOptions();
  sidebar.refresh();
  if (narrow.matches) root.classList.remove("menu");
}

function applySettings() {
  document.documentElement.dataset.theme = settings.theme;
  setLanguage(settings.language);
  translate();
  picker.show();
}

function setUpButtons() {
  for (const node of document.querySelectorAll("[data-icon]"))
    node.prepend(icon(node.dataset.icon));
  const toggleMenu = () => {
    root.classList.toggle("menu");
    root.classList.toggle("wide-closed");
  };
  for (const id of ["toggle-menu", "close-menu", "veil"])
    byId(id).addEventListener("click", toggleMenu);
  byId("toggle-theme").addEventListener("click", () => {
    const auto = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = settings.theme === "auto" ? auto : settings.theme;
    settings.theme = now === "dark" ? "light" : "dark";
    saveSettings();
    document.querySelector("[data-setting=theme]").value = settings.theme;
    applySettings();
  });
}

function listen() {
  addEventListener("popstate", openChat);
  addEventListener("pagehide", () => {
    if (pane.running()) pane.save(pane.chat);
  });
  addEventListener("storage", () => {
    keepDeleted();
    for (const id of pane.catchUp()) sidebar.page.removed(id);
    sidebar.refresh();
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.isComposing && !document.querySelector("dialog[open]")) {
      pane.stop();
    }
    if (event.key.toLowerCase() === "o" && event.ctrlKey && event.shiftKey) {
      event.preventDefault();
      byId("new-chat").click();
    }
  });
}

setUpButtons();
setUpOptions();
setUpSettings(() => {
  applySettings();
  openChat();
});
setUpModels(picker);
applySettings();
pane.showButtons();
listen();
// What this browser holds is shown once the server has not refused its user.
await picker.refresh();
openChat();
root.classList.remove("locked");
