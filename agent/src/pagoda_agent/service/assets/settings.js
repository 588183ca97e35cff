// The agent's settings, and this browser's theme and language.

import { ask } from "./ask.js";
import { byId, el, toast } from "./dom.js";
import { saveSettings, settings as own } from "./store.js";
import { t } from "./words.js";
import { categoryWords } from "./consent.js";
import { Install } from "./install.js";
import { get, post } from "./link.js";
import { Prompt } from "./prompt.js";

const DECISIONS = {
  "": "byLevel",
  allow: "allowAlways",
  confirm: "confirmFirst",
  deny: "denyAlways",
};
// Errors that name a field by other words than the API.
const NAMED = [
  [/cap on seconds/, "max_minutes"],
  [/cap on (the )?cost/, "max_cost"],
  [/cap on rounds/, "max_rounds"],
  [/cap on tokens/, "max_tokens"],
  [/base URL/, "base_url"],
  [/API key/, "api_key"],
  [/model profile/, "profile"],
];

export class SettingsDialog {
  /** `changed` is called with new settings of the agent, `restyled` after a new theme or language,
   * `installed` after a driver's packages were installed. */
  constructor({ changed, restyled, installed }) {
    this.changed = changed;
    this.dialog = byId("settings");
    this.fields = [...this.dialog.querySelectorAll("[data-field]")];
    this.install = new Install(this.field("driver"), installed);
    this.prompt = new Prompt(this.field("system_prompt"));
    for (const field of this.dialog.querySelectorAll("[data-setting]")) {
      field.value = own[field.dataset.setting];
      field.addEventListener("change", () => {
        own[field.dataset.setting] = field.value;
        saveSettings();
        restyled();
      });
    }
    byId("open-settings").addEventListener("click", () => this.open());
    byId("settings-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.save();
    });
  }

  field(name) {
    return this.fields.find(({ dataset }) => dataset.field === name);
  }

  async open() {
    try {
      this.prompt.learn(await get("prompt"));
      this.fill(await get("settings"));
      await this.install.refresh();
      this.offer((await get("status")).buttons);
    } catch (error) {
      toast(error.message);
      return;
    }
    this.dialog.showModal();
  }

  fill(values) {
    this.before = values;
    this.showError({});
    for (const field of this.fields) field.value = this.text(field);
    this.prompt.show();
    const key = this.dialog.querySelector("[data-field=api_key]");
    key.placeholder = values.api_key ? t("keySet", { end: values.api_key }) : t("keyNone");
    byId("forget-key").checked = false;
    byId("policy").replaceChildren(...Object.entries(values.policy).map(this.choice));
  }

  /** The computer's own buttons, as far as the driver reaches them. */
  offer(buttons) {
    const button = (what) => {
      const word = t(`button_${what}`);
      const onclick = () => ask(t("buttonSure", { button: word }), { [word]: () => press(what) });
      return el("button", { type: "button", "data-button": what, onclick }, word);
    };
    byId("buttons").replaceChildren(...buttons.map(button));
  }

  /** What a field shows; never the key. */
  text({ dataset: { field, kind } }) {
    const value = this.before[field];
    if (field === "api_key") return "";
    if (field === "system_prompt") return value || this.prompt.builtIn;
    return kind === "lines" ? value.join("\n") : String(value ?? "");
  }

  choice([category, decision]) {
    const options = Object.entries(DECISIONS).map(([value, word]) =>
      el("option", { value, selected: value === decision }, t(word)),
    );
    const select = el("select", { "data-category": category }, ...options);
    return el("label", {}, el("span", {}, categoryWords(category)), select);
  }

  changes() {
    const changes = {};
    for (const field of this.fields) {
      if (field.value !== this.text(field)) changes[field.dataset.field] = valueOf(field);
    }
    if ("system_prompt" in changes) changes.system_prompt = this.prompt.value;
    if (byId("forget-key").checked) changes.api_key = "";
    const choices = [...this.dialog.querySelectorAll("[data-category]")];
    const own = choices.filter((node) => node.value);
    const policy = Object.fromEntries(own.map((node) => [node.dataset.category, node.value]));
    if (choices.some((node) => this.before.policy[node.dataset.category] !== node.value)) {
      changes.policy = policy;
    }
    return changes;
  }

  async save() {
    const changes = this.changes();
    try {
      this.changed(await post("settings", changes));
      this.dialog.close();
      toast(t("saved"));
    } catch (error) {
      this.showError(error, "driver" in changes ? "driver" : "");
    }
  }

  /** At the field that the error names, at the `likely` one, or below all. */
  showError({ message: text = "", english = text }, likely = "") {
    for (const node of this.dialog.querySelectorAll(".field-wrong")) node.remove();
    const named = NAMED.find(([words]) => words.test(english))?.[1];
    const wrong = named ?? english.match(/[a-z]+(_[a-z]+)+/)?.[0];
    const field = this.field(wrong) ?? this.field(likely);
    const general = byId("settings-wrong");
    general.hidden = !text || Boolean(field);
    general.textContent = text;
    if (!field) return;
    field.closest("details")?.setAttribute("open", "");
    field.after(el("span", { class: "wrong field-wrong", role: "alert" }, text));
    field.focus();
  }
}

async function press(what) {
  try {
    await post("button", { what });
    toast(t("pressed", { button: t(`button_${what}`) }));
  } catch (error) {
    toast(error.message);
  }
}

function valueOf({ value, dataset: { kind } }) {
  const text = value.trim();
  if (kind === "lines") return text.split(/\s+/).filter(Boolean);
  if (kind !== "number") return value;
  // What is no number goes as it is: the agent says so.
  return text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
}
