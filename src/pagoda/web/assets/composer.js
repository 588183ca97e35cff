// Where a message is written: its text, what is attached, and the draft of both.

import { emptyDraft, isEmpty, loadDraft, saveAttached, saveText } from "./drafts.js";
import { byId, el, icon, iconButton, toast } from "./dom.js";
import { fileChip, readAttachment } from "./files.js";
import { isSend } from "./messages.js";
import { Recorder } from "./recorder.js";
import { t } from "./words.js";

export class Composer {
  /** `page` is {model(), sees(), hears(), isRunning(), send(), stop(), changed(), second(),
   * forgetSecond()}. */
  constructor(page) {
    this.page = page;
    this.chat = "";
    this.prompt = byId("prompt");
    this.images = [];
    this.files = [];
    this.attaching = null;
    this.recorder = new Recorder(byId("record"), (file) => this.attach([file]));
    this.listen();
  }

  listen() {
    const { page, prompt } = this;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (page.isRunning()) page.stop();
      else this.send();
    });
    prompt.addEventListener("keydown", (event) => {
      if (!isSend(event)) return;
      event.preventDefault();
      if (!page.isRunning()) this.send();
    });
    prompt.addEventListener("input", () => this.typed());
    prompt.addEventListener("paste", (event) => {
      const { files } = event.clipboardData;
      // Office programs put a picture of the text beside the text.
      if (files.length && !event.clipboardData.types.includes("text/plain")) {
        event.preventDefault();
        this.attach(files);
      }
    });
    const picker = byId("file");
    byId("attach").addEventListener("click", () => picker.click());
    picker.addEventListener("change", async () => {
      await this.attach(picker.files);
      picker.value = "";
    });
    this.listenToDrops();
  }

  listenToDrops() {
    const area = byId("pagoda");
    const brings = (event) => event.dataTransfer?.types.includes("Files");
    area.addEventListener("dragover", (event) => {
      if (!brings(event)) return;
      event.preventDefault();
      area.classList.add("dropping");
    });
    area.addEventListener("dragleave", (event) => {
      if (!area.contains(event.relatedTarget)) area.classList.remove("dropping");
    });
    area.addEventListener("drop", (event) => {
      area.classList.remove("dropping");
      if (!brings(event)) return;
      event.preventDefault();
      this.attach(event.dataTransfer.files);
    });
  }

  /** Show the draft of a chat. `carry`: what is there now goes along, as its chat is no more. */
  open(chat, carry = false) {
    if (chat === this.chat) return;
    const draft = loadDraft(chat);
    this.chat = chat;
    this.fill(carry && isEmpty(draft) ? this.draft() : draft);
  }

  draft() {
    return { content: this.prompt.value, images: this.images, files: this.files };
  }

  fill({ content, images, files }) {
    this.prompt.value = content;
    this.images = images;
    this.files = files;
    this.changed();
  }

  /** What is to be sent, or null; afterwards the composer is empty. */
  take() {
    const draft = this.draft();
    if (isEmpty(draft)) return null;
    this.fill(emptyDraft());
    return { ...draft, content: draft.content.trim() };
  }

  typed() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
    saveText(this.chat, this.prompt.value);
    this.page.changed();
  }

  /** The model may be another one. */
  showRecorder() {
    this.recorder.show(this.page.hears());
  }

  changed() {
    saveAttached(this.chat, this);
    this.show();
    this.typed();
  }

  /** Send once all that is being attached was read. */
  async send() {
    const { chat } = this;
    await this.attaching;
    if (chat === this.chat && !this.page.isRunning()) this.page.send();
  }

  attach(files) {
    const { chat, attaching } = this;
    const all = Array.from(files); // the input's own list is about to be emptied
    this.attaching = (async () => {
      await attaching;
      byId("composer").setAttribute("aria-busy", "true");
      for (const file of all) await this.attachOne(chat, file);
      byId("composer").removeAttribute("aria-busy");
      this.prompt.focus();
    })();
    return this.attaching;
  }

  async attachOne(chat, file) {
    try {
      const { page } = this;
      const options = { sees: page.sees(), hears: page.hears(), model: page.model() };
      this.add(chat, await readAttachment(file, options));
    } catch (error) {
      toast(error.message);
    }
  }

  /** Another chat may be shown by now. */
  add(chat, { image, file }) {
    const draft = chat === this.chat ? this.draft() : loadDraft(chat);
    if (image) draft.images.push(image);
    else draft.files.push(file);
    if (chat === this.chat) this.changed();
    else saveAttached(chat, draft);
  }

  /** What is attached, each with a button that takes it away. */
  show() {
    const removed = (list, i) => () => {
      list.splice(i, 1);
      this.changed();
      this.prompt.focus();
    };
    const pictures = this.images.map((src, i) => {
      const button = iconButton("close", t("remove"), removed(this.images, i));
      return el("span", { class: "picture" }, el("img", { src, alt: "" }), button);
    });
    const chips = this.files.map((file, i) => fileChip(file, removed(this.files, i)));
    byId("attachments").replaceChildren(...this.comparison(), ...pictures, ...chips);
  }

  comparison() {
    const model = this.page.second();
    if (!model) return [];
    const forget = iconButton("close", t("remove"), () => this.page.forgetSecond());
    const text = el("span", { class: "name" }, t("comparedWith", { model }));
    return [el("span", { class: "chip" }, icon("columns"), text, forget)];
  }
}
