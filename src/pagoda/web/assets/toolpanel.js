// The dialog of a chat's tools: servers with their state, switches, and servers of the user's own.

import { ask } from "./ask.js";
import { el, icon, iconButton } from "./dom.js";
import {
  addServer,
  connect,
  isOn,
  isToolOn,
  listServers,
  reasonOf,
  removeServer,
} from "./mcp.js";
import { t } from "./words.js";

/** Show the tools of a chat. `page` is {changed(), askKey()}; the former saves. */
export function openTools(chat, page) {
  const body = el("div");
  const close = iconButton("close", t("close"), () => dialog.close());
  const title = el("div", { class: "title" }, el("h2", {}, t("mcp")), close);
  const panel = new Panel(chat, page, body);
  const closed = () => {
    panel.abort.abort();
    dialog.remove();
  };
  const attributes = { id: "tools", "aria-label": t("mcp"), onclose: closed };
  const dialog = el("dialog", attributes, title, body);
  // A click on the backdrop is one on the dialog itself.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  panel.load();
}

class Panel {
  constructor(chat, page, body) {
    this.chat = chat;
    this.page = page;
    this.body = body;
    this.abort = new AbortController();
    this.rows = new Map(); // key of a server -> its element
  }

  async load() {
    let found;
    try {
      found = await listServers();
    } catch (error) {
      if (error.status === 401 && (await this.page.askKey())) return this.load();
      this.body.replaceChildren(el("p", { class: "wrong" }, reasonOf(error)));
      return;
    }
    const { servers, closed } = found;
    this.names = servers.map(({ name }) => name);
    this.rows.clear();
    const list = el("ul", {}, ...servers.map((server) => this.row(server)));
    const parts = closed
      ? [el("p", { class: "hint" }, closed)]
      : [el("p", { class: "hint" }, t(servers.length ? "mcpHint" : "mcpNone")), list, this.form()];
    this.body.replaceChildren(...parts);
    for (const server of servers) if (isOn(this.chat.options, server)) this.reach(server);
  }

  /** Connect to a server that is switched on, unless that is done. */
  async reach(server) {
    if (server.state === "ready" || server.state === "connecting") return;
    const connecting = connect(server, this.abort.signal);
    this.show(server);
    try {
      await connecting;
    } catch (error) {
      if (error.name === "AbortError") server.state = "";
      // The row says why; a key may be all that is missing.
      else if (error.status === 401 && (await this.page.askKey())) return this.reach(server);
    }
    this.show(server);
  }

  changed(server) {
    this.chat.options.changed = Date.now();
    this.page.changed();
    this.show(server);
  }

  show(server) {
    this.rows.get(server.key)?.replaceChildren(...this.parts(server));
  }

  row(server) {
    const row = el("li", { "data-server": server.name }, ...this.parts(server));
    this.rows.set(server.key, row);
    return row;
  }

  parts(server) {
    const { options } = this.chat;
    const on = isOn(options, server);
    const toggle = () => {
      options.tools = { ...options.tools };
      if (on) delete options.tools[server.key];
      else options.tools[server.key] = [];
      this.changed(server);
      if (!on) this.reach(server);
    };
    const parts = [this.head(server, on, toggle)];
    if (!on) return parts;
    if (server.error) {
      const again = el(
        "button",
        { type: "button", onclick: () => this.reach(server) },
        icon("retry"),
        t("tryConnecting"),
      );
      const why = el("p", { class: "wrong", role: "alert" }, server.error);
      if (server.state === "failed") parts.push(why, el("div", { class: "row start" }, again));
    }
    if (server.state === "ready") parts.push(this.tools(server));
    if (server.leftOut.length && server.state === "ready") {
      const names = server.leftOut.map(({ name, reason }) => `${name} (${reason})`).join("; ");
      parts.push(el("p", { class: "hint" }, t("mcpLeftOut", { names })));
    }
    return parts;
  }

  head(server, on, toggle) {
    const box = el("input", { type: "checkbox", role: "switch", onchange: toggle });
    box.checked = on;
    const label = el("label", { class: "check" }, box, el("strong", {}, server.name));
    const state = el("span", { class: "state", role: "status" }, this.stateOf(server, on));
    const remove = iconButton("trash", t("mcpRemove", server), () => this.remove(server));
    const head = el("div", { class: "server-head" }, label, state);
    if (server.own) head.append(remove);
    return el("div", {}, head, el("p", { class: "hint" }, server.about));
  }

  stateOf(server, on) {
    if (!on) return t("mcpOff");
    if (server.state === "connecting") return t("mcpConnecting");
    if (server.state !== "ready") return server.error ? t("tool_failed") : "";
    const active = server.tools.filter((tool) => isToolOn(this.chat.options, server, tool));
    return t("mcpCount", { on: active.length, count: server.tools.length });
  }

  tools(server) {
    const { options } = this.chat;
    const rows = server.tools.map((tool) => {
      const toggle = () => {
        const off = options.tools[server.key];
        options.tools[server.key] = box.checked
          ? off.filter((name) => name !== tool.name)
          : [...off, tool.name];
        this.changed(server);
      };
      const box = el("input", { type: "checkbox", onchange: toggle });
      box.checked = isToolOn(options, server, tool);
      const name = el("span", {}, el("strong", {}, tool.title), " ", tool.description);
      return el("label", { class: "check" }, box, name);
    });
    const open = this.rows.get(server.key)?.querySelector("details")?.open ?? false;
    return el("details", { class: "more", open }, el("summary", {}, t("mcpAll")), ...rows);
  }

  remove(server) {
    const yes = () => {
      removeServer(server.key);
      const { options } = this.chat;
      if (options.tools) delete options.tools[server.key];
      options.changed = Date.now();
      this.page.changed();
      this.load();
    };
    ask(t("mcpRemoveSure", server), { [t("delete")]: yes });
  }

  form() {
    const field = (word, attributes) => {
      const input = el("input", { spellcheck: "false", autocapitalize: "off", ...attributes });
      return { input, label: el("label", {}, el("span", {}, t(word)), input) };
    };
    const url = field("mcpUrl", {
      type: "url",
      required: true,
      maxlength: "2048",
      pattern: "https?://.*",
      placeholder: "https://example.com/mcp",
    });
    const name = field("mcpName", { type: "text", maxlength: "64" });
    const header = field("mcpHeader", { type: "text", pattern: "[A-Za-z0-9_\\-]+" });
    header.input.value = "Authorization";
    const value = field("mcpHeaderValue", {
      type: "password",
      autocomplete: "off",
      placeholder: t("mcpHeaderHint"),
    });
    url.label.classList.add("whole");
    const fields = [url, name, header, value];
    const submit = (event) => {
      event.preventDefault();
      const typed = fields.map(({ input }) => input.value.trim());
      const called = typed[1] || new URL(typed[0]).hostname;
      name.input.setCustomValidity(this.names.includes(called) ? t("mcpNameTaken") : "");
      if (!name.input.reportValidity()) return;
      this.add({ url: typed[0], name: called, header: typed[2], value: typed[3] });
    };
    name.input.addEventListener("input", () => name.input.setCustomValidity(""));
    return el(
      "form",
      { onsubmit: submit },
      el("h3", {}, t("mcpAdd")),
      el("p", { class: "hint" }, t("mcpAddHint")),
      el("div", { class: "fields" }, ...fields.map(({ label }) => label)),
      el("div", { class: "row" }, el("button", { type: "submit", class: "primary" }, t("mcpAdd"))),
    );
  }

  /** A server that somebody adds is one that they want to use. */
  add(server) {
    const key = addServer(server);
    const { options } = this.chat;
    options.tools = { ...options.tools, [key]: [] };
    options.changed = Date.now();
    this.page.changed();
    this.load();
  }
}
