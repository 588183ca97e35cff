// The chat that is shown: what is sent, what is written, and what can be done with a message.

import { byId, el, icon, iconButton, toast } from "./dom.js";
import { MessageView, isSend } from "./messages.js";
import { Run } from "./run.js";
import { catchUp, isDeleted, loadChat, saveChat, settings } from "./store.js";
import { addNode, newChat, path, show, versions } from "./tree.js";
import { t } from "./words.js";

const TITLE_LENGTH = 60;
const STICKY_PX = 60;
// Larger pictures would fill the browser's storage, and models scale them down anyway.
const MAX_IMAGE_SIDE = 1024;

export class ChatPane {
  /** `page` is {model(), sees(), changed(), unauthorized()}. */
  constructor(page) {
    this.page = page;
    this.runs = new Map(); // node id -> Run
    this.views = new Map(); // node id -> {key, view}, of messages that are complete
    this.images = [];
    this.sticks = true;
    this.chat = newChat();
    this.scroller = byId("scroller");
    this.messages = byId("messages");
    this.prompt = byId("prompt");
    this.listen();
  }

  listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running()) this.stop();
      else this.send();
    });
    this.prompt.addEventListener("keydown", (event) => {
      if (!isSend(event)) return;
      event.preventDefault();
      if (!this.running()) this.send();
    });
    this.prompt.addEventListener("input", () => this.resize());
    this.prompt.addEventListener("paste", (event) => this.attach(event.clipboardData.files));
    const file = byId("file");
    byId("attach").addEventListener("click", () => file.click());
    file.addEventListener("change", () => this.attach(file.files));
    this.scroller.addEventListener("scroll", () => {
      const left =
        this.scroller.scrollHeight - this.scroller.scrollTop - this.scroller.clientHeight;
      this.sticks = left < STICKY_PX;
      byId("to-bottom").classList.toggle("shown", !this.sticks);
    });
    byId("to-bottom").addEventListener("click", () => this.toBottom());
    new ResizeObserver(() => this.sticks && this.toBottom()).observe(this.messages);
  }

  open(id) {
    if (id !== this.chat.id) {
      this.views.clear();
      this.chat = this.running(id)?.chat ?? loadChat(id) ?? newChat();
      this.toBottom();
    }
    this.refresh();
    // A phone's keyboard would cover what was opened.
    if (matchMedia("(pointer: fine)").matches) this.prompt.focus();
  }

  /** The run in a chat, by default the one shown. */
  running(id = this.chat.id) {
    return Array.from(this.runs.values()).find((run) => run.chat.id === id);
  }

  stop() {
    this.running()?.stop();
  }

  toBottom() {
    this.sticks = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
  }

  failed() {
    return this.chat.nodes[this.chat.leaf]?.state === "error";
  }

  /** Stay here, whatever is added below. */
  unstick() {
    this.sticks = false;
  }

  refresh() {
    const nodes = path(this.chat);
    const elements = nodes.map((node) => this.runs.get(node.id)?.view.element ?? this.built(node));
    if (!nodes.length) elements.push(this.welcome());
    place(this.messages, elements);
    byId("pagoda").classList.toggle("empty", nodes.length === 0);
    this.showButtons();
  }

  /** The element of a complete message; built once, until something about it changes. */
  built(node) {
    const all = versions(this.chat, node);
    const key = viewKey(node, all);
    const known = this.views.get(node.id);
    if (known && (known.key === key || known.view.isEdited())) return known.view.element;
    const view = new MessageView(node, this);
    view.build(all);
    this.views.set(node.id, { key, view });
    return view.element;
  }

  showButtons() {
    const running = Boolean(this.running());
    const button = byId("send");
    button.replaceChildren(icon(running ? "stop" : "send"));
    button.title = t(running ? "stop" : "send");
    button.setAttribute("aria-label", button.title);
    byId("attach").hidden = !this.page.sees();
    this.prompt.placeholder = t("placeholder", { model: this.page.model() || t("model") });
    document.title = this.chat.title ? `${this.chat.title} · Pagoda` : "Pagoda";
    const hint = document.querySelector(".welcome p");
    if (hint) hint.textContent = this.hint();
  }

  hint() {
    return t("helloHint", { model: this.page.model() || t("model") });
  }

  welcome() {
    const ideas = ["idea1", "idea2", "idea3", "idea4"].map((key) => {
      const onclick = () => {
        this.prompt.value = t(key);
        this.send();
      };
      return el("button", { type: "button", onclick }, t(key));
    });
    const title = el("h1", {}, t("hello"));
    return el(
      "div",
      { class: "welcome" },
      title,
      el("p", {}, this.hint()),
      el("div", { class: "ideas" }, ...ideas),
    );
  }

  resize() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
  }

  send() {
    const content = this.prompt.value.trim();
    if (!content && !this.images.length) return;
    catchUp(this.chat);
    this.prompt.value = "";
    this.resize();
    this.sendFrom(this.chat.leaf, content, this.images.splice(0));
    this.showImages();
  }

  sendFrom(parent, content, images) {
    const fields = { role: "user", content, ...(images?.length ? { images } : {}) };
    const node = addNode(this.chat, parent, fields);
    this.chat.title ||= content.replace(/\s+/g, " ").slice(0, TITLE_LENGTH) || t("newChat");
    this.reply(node.id);
  }

  /** Have the model answer the path that ends at `parent`. */
  reply(parent) {
    const fields = { role: "assistant", model: this.page.model() };
    this.write(addNode(this.chat, parent, fields), this.body(parent));
  }

  async write(node, body) {
    if (!body) return;
    const view = new MessageView(node, this);
    const events = { save: (chat) => this.save(chat), unauthorized: this.page.unauthorized };
    const run = new Run(this.chat, node, view, events);
    this.runs.set(node.id, run);
    view.begin();
    view.flush();
    this.save(this.chat);
    this.refresh();
    this.toBottom();
    this.page.changed();
    await run.write(body);
    this.runs.delete(node.id);
    const all = versions(run.chat, node);
    view.complete(all);
    this.views.set(node.id, { key: viewKey(node, all), view });
    if (run.chat.id === this.chat.id) this.refresh();
    this.page.changed();
  }

  /** A request for the path that ends at `leaf`. */
  body(leaf) {
    const { sampling, system } = settings;
    const messages = system.trim() ? [{ role: "system", content: system }] : [];
    for (const node of path(this.chat, leaf)) {
      const message = requestMessage(node);
      const before = messages.at(-1);
      // After a reply that failed; templates want turns to alternate.
      const joins = message?.role === "user" && before?.role === "user";
      if (joins && typeof before.content === "string" && typeof message.content === "string") {
        before.content += `\n\n${message.content}`;
      } else if (message) {
        messages.push(message);
      }
    }
    const body = { model: this.page.model() || undefined, messages, ...sampling };
    const tools = parseTools();
    return tools.length ? { ...body, tools } : body;
  }

  save(chat) {
    if (!saveChat(chat)) toast(t("full"));
  }

  /** Another tab wrote: show it. Ids of chats that it deleted. */
  catchUp() {
    const chats = new Set([this.chat, ...Array.from(this.runs.values(), (run) => run.chat)]);
    const gone = Array.from(chats, ({ id }) => id).filter(isDeleted);
    for (const chat of chats) if (!isDeleted(chat.id)) catchUp(chat);
    this.refresh();
    return gone;
  }

  // What messages can ask for.

  edit(node, content) {
    this.sendFrom(node.parent, content, node.images);
  }

  retry(node) {
    this.running()?.stop();
    this.reply(node.parent);
  }

  continue(node) {
    const body = this.body(node.id);
    this.write(node, { ...body, add_generation_prompt: false, continue_final_message: true });
  }

  show(node) {
    if (this.running()) return;
    show(this.chat, node);
    this.save(this.chat);
    this.refresh();
  }

  sendResults(node, results) {
    let parent = node.id;
    node.tool_calls.forEach((call, i) => {
      const fields = { role: "tool", tool_call_id: call.id, name: call.function.name };
      parent = addNode(this.chat, parent, { ...fields, content: results[i] }).id;
    });
    this.reply(parent);
  }

  async attach(files) {
    if (!this.page.sees()) return;
    for (const file of Array.from(files).filter(({ type }) => type.startsWith("image/"))) {
      try {
        this.images.push(await shrunk(file));
      } catch {
        toast(t("imageWrong", { name: file.name }));
      }
    }
    byId("file").value = "";
    this.showImages();
  }

  showImages() {
    const previews = this.images.map((src, i) => {
      const remove = () => {
        this.images.splice(i, 1);
        this.showImages();
      };
      return el("span", {}, el("img", { src, alt: "" }), iconButton("close", t("remove"), remove));
    });
    byId("attachments").replaceChildren(...previews);
  }
}

const viewKey = (node, all) =>
  [
    node.state,
    node.error,
    node.changed,
    all.indexOf(node),
    all.length,
    document.documentElement.lang,
  ].join("|");

/** Make `elements` the children, moving only what is not in its place. */
function place(parent, elements) {
  elements.forEach((element, i) => {
    const there = parent.children[i];
    if (there !== element) parent.insertBefore(element, there ?? null);
  });
  while (parent.children.length > elements.length) parent.lastChild.remove();
}

function requestMessage({ role, content, images, tool_calls: calls, tool_call_id: id, name }) {
  if (role === "tool") return { role, content, tool_call_id: id, name };
  if (role === "assistant") {
    if (!content && !calls?.length) return null;
    return { role, content, ...(calls?.length ? { tool_calls: calls } : {}) };
  }
  if (!images?.length) return { role, content };
  const pictures = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: [...pictures, { type: "text", text: content }] };
}

function parseTools() {
  if (!settings.tools.trim()) return [];
  try {
    const tools = JSON.parse(settings.tools);
    if (Array.isArray(tools)) return tools;
  } catch {
    // told below
  }
  toast(t("toolsWrong"));
  return [];
}

/** A picture as a data URL, at most MAX_IMAGE_SIDE pixels wide and high. */
async function shrunk(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_IMAGE_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = el("canvas");
  canvas.width = Math.round(bitmap.width * scale);
  canvas.height = Math.round(bitmap.height * scale);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(file.type === "image/png" ? "image/png" : "image/jpeg", 0.9);
}
