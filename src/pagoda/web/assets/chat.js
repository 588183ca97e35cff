// The chat that is shown: what is sent, what is written, and what can be done with a message.

import { Composer } from "./composer.js";
import { byId, el, hideToast, icon, newId, toast } from "./dom.js";
import { emptyDraft, loadOptions, saveOptions } from "./drafts.js";
import { reasonOf, toolsetOf } from "./mcp.js";
import { MAX_ROUNDS, MessageView } from "./messages.js";
import { Meter } from "./meter.js";
import { Pairs } from "./pairs.js";
import { ownTools, requestBody } from "./request.js";
import { Run } from "./run.js";
import { catchUp, isDeleted, loadChat, saveChat } from "./store.js";
import { isOpen, ToolRun } from "./toolrun.js";
import { addNode, answered, newChat, path, show, touch, versions } from "./tree.js";
import { t } from "./words.js";

const TITLE_LENGTH = 60;
const STICKY_PX = 60;
// A chat that has no message yet.
const NEW = "new";

export class ChatPane {
  /** `page` is {model(), models(), sees(), hears(), context(), changed(), unauthorized()}. */
  constructor(page) {
    this.page = page;
    this.runs = new Map(); // node id -> Run
    this.views = new Map(); // node id -> {key, view}, of messages that are complete
    this.sticks = true;
    this.chat = newChat();
    this.second = ""; // a model that answers beside the first
    this.scroller = byId("scroller");
    this.messages = byId("messages");
    this.pairs = new Pairs((node) => this.keep(node));
    this.meter = new Meter(page);
    this.composer = new Composer({
      model: page.model,
      sees: page.sees,
      hears: page.hears,
      isRunning: () => Boolean(this.running()),
      send: () => this.send(),
      stop: () => this.stop(),
      changed: () => this.showMeter(),
      second: () => this.second,
      forgetSecond: () => this.compareWith(""),
    });
    this.composer.open(NEW);
    this.listen();
  }

  listen() {
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
      const wasDeleted = isDeleted(this.chat.id);
      hideToast();
      this.views.clear();
      this.pairs.shown.clear();
      this.chat = this.running(id)?.chat ?? loadChat(id) ?? newChat(loadOptions());
      this.second = "";
      this.composer.open(this.chat.leaf ? id : NEW, wasDeleted);
      this.toBottom();
    }
    this.refresh();
    // A phone's keyboard would cover what was opened.
    if (matchMedia("(pointer: fine)").matches) this.composer.prompt.focus();
  }

  /** The run in a chat, by default the one shown. */
  running(id = this.chat.id) {
    return Array.from(this.runs.values()).find((run) => run.chat.id === id);
  }

  stop(id = this.chat.id) {
    for (const run of this.runs.values()) if (run.chat.id === id) run.stop();
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
    const last = nodes.pop();
    const pair = last ? this.pairs.of(this.chat, last) : [];
    const shown = (node) => this.runs.get(node.id)?.view.element ?? this.built(node);
    const elements = nodes.map(shown);
    if (pair.length > 1) elements.push(this.pairs.element(pair, pair.map(shown)));
    else if (last) elements.push(shown(last));
    this.messages.classList.toggle("wide", pair.length > 1);
    if (!last) elements.push(this.welcome());
    place(this.messages, elements);
    byId("pagoda").classList.toggle("empty", !last);
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
    byId("compare").hidden = this.page.models().length < 2;
    this.composer.showRecorder();
    this.composer.prompt.placeholder = t("placeholder", { model: this.page.model() || t("model") });
    document.title = this.chat.title ? `${this.chat.title} · Pagoda` : "Pagoda";
    const hint = document.querySelector(".welcome p");
    if (hint) hint.textContent = this.hint();
    this.showMeter();
  }

  showMeter() {
    // The composer says so before it is in place.
    if (this.composer) this.meter.update(this.chat, this.composer.draft());
  }

  hint() {
    return t("helloHint", { model: this.page.model() || t("model") });
  }

  welcome() {
    const ideas = ["idea1", "idea2", "idea3", "idea4"].map((key) => {
      const onclick = () => {
        this.composer.fill({ ...emptyDraft(), content: t(key) });
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

  send() {
    const message = this.composer.take();
    if (!message) return;
    catchUp(this.chat);
    this.sendFrom(this.chat.leaf, message);
  }

  /** Send a message ({content, images, files}) under the node with the id `parent`. */
  sendFrom(parent, { content, images, files }) {
    const fields = { role: "user", content };
    if (images?.length) fields.images = images;
    if (files?.length) fields.files = files;
    const node = addNode(this.chat, parent, fields);
    this.chat.title ||= titleOf(fields);
    this.composer.open(this.chat.id);
    saveOptions({});
    if (this.second) this.replyTwice(node.id, [this.page.model(), this.second]);
    else this.reply(node.id);
  }

  /** Have the model answer the path that ends at `parent`, the `rounds`th time on behalf of tools. */
  reply(parent, fields = { model: this.page.model() }, { chat = this.chat, rounds = 0 } = {}) {
    const node = addNode(chat, parent, { role: "assistant", ...fields });
    let tools = null;
    const bodyOf = async (signal) => {
      // Two models at once would each act, and only one reply is kept.
      if (!node.pair) tools = await toolsetOf(chat.options, signal);
      if (tools?.found.size) node.byTools = true;
      return requestBody(chat, parent, node.model, tools?.definitions());
    };
    this.write(chat, node, bodyOf, () => this.useTools(chat, node, tools, rounds));
    if (!rounds) this.toBottom();
  }

  replyTwice(parent, models) {
    const pair = newId();
    for (const model of models) this.reply(parent, { model, pair });
  }

  /** Carry out what a reply calls, one after the other, and have the model go on. */
  async useTools(chat, node, tools, rounds) {
    if (node.state !== "done" || !node.tool_calls?.length || !node.byTools) return;
    if (rounds >= MAX_ROUNDS) {
      node.state = "rounds";
      touch(node);
      this.save(chat);
      this.refresh();
      return;
    }
    const own = new Set(ownTools().map((tool) => tool.function?.name));
    let parent = node.id;
    for (const { call, result } of answered(chat, node)) {
      const { name } = call.function;
      const fields = { role: "tool", tool_call_id: call.id, name, state: "asking" };
      const turn = result ?? addNode(chat, parent, { ...fields, input: call.function.arguments });
      parent = turn.id;
      if (result && !isOpen(result)) continue;
      await this.callTool(chat, turn, (run) => run.write(tools.found.get(name), own.has(name)));
      if (isOpen(turn)) return;
    }
    this.reply(parent, { model: node.model }, { chat, rounds: rounds + 1 });
  }

  async callTool(chat, node, perform) {
    const view = new MessageView(node, this);
    const page = {
      save: (saved) => this.save(saved),
      isShown: ({ id }) => id === this.chat.id,
      unauthorized: this.page.unauthorized,
    };
    const run = new ToolRun(chat, node, view, page);
    this.begin(run);
    await perform(run);
    this.end(run);
  }

  /** Go on with calls that were interrupted, or that were many; `node` is the reply, or a call. */
  async goOn(node) {
    const { chat } = this;
    const reply = path(chat, node.id).findLast(({ role }) => role === "assistant");
    if (!reply?.tool_calls || this.running()) return;
    let tools;
    try {
      tools = await toolsetOf(chat.options);
    } catch (error) {
      toast(reasonOf(error));
      return;
    }
    if (this.running() || chat !== this.chat) return;
    Object.assign(reply, { state: "done", byTools: true });
    touch(reply);
    this.useTools(chat, reply, tools, 0);
  }

  compareWith(model) {
    this.second = model;
    this.composer.show();
    this.page.changed();
  }

  keep(node) {
    this.pairs.dissolve(this.pairs.of(this.chat, node));
    show(this.chat, node);
    this.save(this.chat);
    this.refresh();
  }

  /** Write a reply; `then` runs right behind its end, whatever that is: a chat is never idle between. */
  async write(chat, node, bodyOf, then = () => {}) {
    const view = new MessageView(node, this);
    const events = { save: (saved) => this.save(saved), unauthorized: this.page.unauthorized };
    const run = new Run(chat, node, view, events);
    this.begin(run);
    view.flush();
    await run.write(bodyOf);
    this.end(run);
    then();
  }

  /** Show that something is going on in a chat. */
  begin(run) {
    this.runs.set(run.node.id, run);
    run.view.begin();
    this.save(run.chat);
    if (run.chat.id === this.chat.id) this.refresh();
    this.page.changed();
  }

  end({ chat, node, view }) {
    this.runs.delete(node.id);
    const all = versions(chat, node);
    view.complete(all);
    this.views.set(node.id, { key: viewKey(node, all), view });
    if (chat.id === this.chat.id) this.refresh();
    this.page.changed();
  }

  saveOptions() {
    if (this.chat.leaf) this.save(this.chat);
    else saveOptions(this.chat.options);
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
    this.stop();
    if (!node.parent && this.chat.title === titleOf(node)) {
      Object.assign(this.chat, { title: titleOf({ ...node, content }), named: Date.now() });
    }
    this.sendFrom(node.parent, { ...node, content });
  }

  retry(node) {
    this.stop();
    this.reply(node.parent);
  }

  continue(node) {
    const body = requestBody(this.chat, node.id, this.page.model());
    const further = { add_generation_prompt: false, continue_final_message: true };
    this.write(this.chat, node, async () => ({ ...body, ...further }));
    this.toBottom();
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
}

/** What a chat is called that begins with this message. */
const titleOf = ({ content, files }) =>
  (content || files?.[0]?.name || t("newChat")).replace(/\s+/g, " ").slice(0, TITLE_LENGTH);

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
