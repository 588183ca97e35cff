// The list of chats: open, search, rename, export, delete.

import { ask } from "./ask.js";
import { byId, download, el, iconButton } from "./dom.js";
import { isSend } from "./messages.js";
import {
  deleteChat,
  exportJson,
  exportMarkdown,
  listChats,
  loadChat,
  saveChat,
  searchChats,
} from "./store.js";
import { t } from "./words.js";

const DAY_MS = 86400000;

/** The word for how long ago a time was, by calendar days. */
function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "today";
  if (time >= midnight - DAY_MS) return "yesterday";
  return time >= midnight - 7 * DAY_MS ? "week" : "older";
}

export class Sidebar {
  /** `page` is {current(), isRunning(id), open(id), removed(id), renamed(id, chat)}. */
  constructor(page) {
    this.page = page;
    this.search = byId("search");
    this.search.addEventListener("input", () => this.refresh());
    byId("new-chat").addEventListener("click", () => page.open(""));
  }

  refresh() {
    const query = this.search.value.trim();
    const chats = query ? searchChats(query) : listChats();
    const rows = chats.length ? [] : [el("p", { class: "hint" }, t(query ? "noMatch" : "noChats"))];
    let age = "";
    for (const chat of chats) {
      if (ageOf(chat.updated) !== age) {
        age = ageOf(chat.updated);
        rows.push(el("h2", {}, t(age)));
      }
      rows.push(this.row(chat));
    }
    byId("chats").replaceChildren(...rows);
  }

  row({ id, title }) {
    const open = el(
      "button",
      { type: "button", class: "open", title, onclick: () => this.page.open(id) },
      title,
    );
    const row = el("div", { class: "chat-row", "data-chat": id }, open);
    row.append(
      iconButton("edit", t("rename"), () => this.rename(row, id, title)),
      iconButton("save", t("exportChat"), () => this.export(id)),
      iconButton("trash", t("delete"), () => this.delete(id, title)),
    );
    row.classList.toggle("current", id === this.page.current());
    row.classList.toggle("running", this.page.isRunning(id));
    return row;
  }

  rename(row, id, title) {
    const field = el("input", { type: "text", "aria-label": t("rename"), maxlength: "200" });
    field.value = title;
    const done = (keep) => {
      const chat = loadChat(id);
      const name = field.value.trim();
      if (keep && name && chat) {
        chat.title = name;
        chat.named = Date.now();
        saveChat(chat);
        this.page.renamed(id, chat);
      }
      this.refresh();
    };
    field.addEventListener("keydown", (event) => {
      if (isSend(event)) field.blur();
      if (event.key === "Escape") {
        field.value = "";
        field.blur();
      }
    });
    field.addEventListener("blur", () => done(true));
    row.replaceChildren(field);
    field.select();
  }

  export(id) {
    const chat = loadChat(id);
    const name = chat.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "chat";
    const names = { user: t("user"), assistant: t("model"), tool: t("tools") };
    const formats = {
      Markdown: () => download(`${name}.md`, exportMarkdown(chat, names), "text/markdown"),
      JSON: () => download(`${name}.json`, exportJson([id]), "application/json"),
    };
    ask(t("exportChat"), formats);
  }

  delete(id, title) {
    ask(t("deleteChat", { title }), {
      [t("delete")]: () => {
        deleteChat(id);
        this.page.removed(id);
        this.refresh();
      },
    });
  }
}
