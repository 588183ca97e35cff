// How the model is asked in one chat: its system prompt, thinking and sampling, and presets of these.
//
// options: {changed, system, thinking, budget, sampling}; what is not there counts as in the settings.
// preset: {name, model, options}

import { showModel } from "./api.js";
import { el, iconButton, toast } from "./dom.js";
import { samplerFields } from "./samplers.js";
import { listPresets, savePresets, settings } from "./store.js";
import { t } from "./words.js";

/** Whether anything differs from the settings. */
export const hasOptions = ({ system, thinking, budget, sampling }) =>
  Boolean(system?.trim() || thinking || budget || Object.keys(sampling ?? {}).length);

/** Show the options of a chat. `page` is {model(), choose(model), changed()}; the latter saves. */
export function openOptions(chat, page) {
  const body = el("div");
  const close = iconButton("close", t("close"), () => dialog.close());
  const title = el("div", { class: "title" }, el("h2", {}, t("options")), close);
  const dialog = el(
    "dialog",
    { id: "options", "aria-label": t("options"), onclose: () => dialog.remove() },
    title,
    body,
  );
  // A click on the backdrop is one on the dialog itself.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  new Options(chat, page, body).build();
  document.body.append(dialog);
  dialog.showModal();
}

class Options {
  constructor(chat, page, body) {
    this.chat = chat;
    this.page = page;
    this.body = body;
  }

  build() {
    const { chat, body } = this;
    const { options } = chat;
    options.sampling ??= {};
    const thinking = el("div");
    body.replaceChildren(
      el("p", { class: "hint" }, t("optionsHint")),
      this.system(),
      thinking,
      el("h3", {}, t("sampling")),
      ...samplerFields(options.sampling, () => this.changed(), settings.sampling),
      ...this.presets(),
    );
    this.showThinking(thinking);
  }

  changed() {
    this.chat.options.changed = Date.now();
    this.page.changed();
  }

  system() {
    const { options } = this.chat;
    const area = el("textarea", {
      rows: "4",
      "data-option": "system",
      placeholder: settings.system || t("systemHint"),
      oninput: () => {
        options.system = area.value;
        this.changed();
      },
    });
    area.value = options.system ?? "";
    return el("label", { class: "wide" }, el("span", {}, t("system")), area);
  }

  /** Only of a model that thinks, and as its template can be told. */
  async showThinking(root) {
    let model;
    try {
      model = await showModel(this.page.model());
    } catch {
      return; // one that is not there says so when it is asked
    }
    // What was set for another model can be taken back.
    const { thinking, budget } = this.chat.options;
    if (!model.capabilities.includes("thinking") && !thinking && !budget) return;
    const choices = [""];
    if (model.template.includes("enable_thinking")) choices.push("on", "off");
    if (model.template.includes("reasoning_effort")) choices.push("low", "medium", "high");
    if (thinking && !choices.includes(thinking)) choices.push(thinking);
    const fields = el("div", { class: "fields" }, this.budget());
    if (choices.length > 1) fields.prepend(this.switch(choices));
    root.replaceChildren(el("h3", {}, t("thinkingTitle")), fields);
  }

  switch(choices) {
    const { options } = this.chat;
    const words = {
      "": "byModel",
      on: "on",
      off: "off",
      low: "low",
      medium: "medium",
      high: "high",
    };
    const select = el(
      "select",
      {
        "data-option": "thinking",
        onchange: () => {
          options.thinking = select.value;
          this.changed();
        },
      },
      ...choices.map((value) => el("option", { value }, t(words[value]))),
    );
    select.value = options.thinking ?? "";
    return el("label", {}, el("span", {}, t("thinkingSwitch")), select);
  }

  budget() {
    const { options } = this.chat;
    const input = el("input", {
      type: "number",
      min: 1,
      step: 1,
      "data-option": "budget",
      placeholder: t("unlimited"),
      onchange: () => {
        delete options.budget;
        if (input.value !== "" && input.reportValidity()) options.budget = Number(input.value);
        this.changed();
      },
    });
    input.value = options.budget ?? "";
    return el("label", {}, el("span", {}, t("thinkingBudget")), input);
  }

  presets() {
    const rows = listPresets().map((preset) => {
      const apply = el(
        "button",
        { type: "button", onclick: () => this.apply(preset) },
        preset.name,
      );
      const remove = iconButton("trash", t("deletePreset", preset), () => {
        savePresets(listPresets().filter(({ name }) => name !== preset.name));
        this.build();
      });
      return el("span", { class: "chip", title: preset.model }, apply, remove);
    });
    const field = el("input", {
      type: "text",
      required: true,
      maxlength: "80",
      placeholder: t("presetName"),
      "aria-label": t("presetName"),
    });
    const save = (event) => {
      event.preventDefault();
      this.savePreset(field.value.trim());
    };
    const button = el("button", { type: "submit" }, t("savePreset"));
    return [
      el("h3", {}, t("presets")),
      el("p", { class: "hint" }, t(rows.length ? "presetsHint" : "noPresets")),
      el("div", { class: "row start" }, ...rows),
      el("form", { class: "row inline", onsubmit: save }, field, button),
    ];
  }

  apply({ model, options }) {
    this.chat.options = structuredClone(options);
    if (model) this.page.choose(model);
    this.changed();
    this.build();
  }

  savePreset(name) {
    if (!name) return;
    // What was agreed to counts for its chat alone.
    const { changed, allowed, ...options } = structuredClone(this.chat.options);
    const others = listPresets().filter((preset) => preset.name !== name);
    savePresets([...others, { name, model: this.page.model(), options }]);
    toast(t("presetSaved", { name }));
    this.build();
  }
}
