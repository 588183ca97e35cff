// Dialogs: the API key, the settings.

import { key } from "./api.js";
import { ask } from "./ask.js";
import { byId, download, toast } from "./dom.js";
import { samplerFields } from "./samplers.js";
import { deleteChat, exportJson, importJson, listChats, saveSettings, settings } from "./store.js";
import { t } from "./words.js";

let asking = null;

/** Ask for the API key, once however many requests want it. True when one was given. */
export function askKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    const field = byId("key-field");
    byId("key-wrong").hidden = !key.get();
    field.value = "";
    const submit = (event) => {
      event.preventDefault();
      key.set(field.value.trim(), byId("key-keep").checked);
      dialog.close("given");
    };
    const closed = () => {
      byId("key-form").removeEventListener("submit", submit);
      asking = null;
      resolve(dialog.returnValue === "given");
    };
    dialog.returnValue = "";
    byId("key-form").addEventListener("submit", submit);
    dialog.addEventListener("close", closed, { once: true });
    dialog.showModal();
  });
  return asking;
}

/** The settings; `changed` runs after each change. */
export function setUpSettings(changed) {
  const dialog = byId("settings");
  for (const field of dialog.querySelectorAll("[data-setting]")) {
    const name = field.dataset.setting;
    field.value = settings[name];
    field.addEventListener("change", () => {
      settings[name] = field.value;
      saveSettings();
      changed();
      if (name === "language") showSamplers();
    });
  }
  byId("open-settings").addEventListener("click", () => {
    byId("forget-key").hidden = !key.get();
    showSamplers();
    dialog.showModal();
  });
  byId("forget-key").addEventListener("click", () => {
    key.forget();
    location.reload();
  });
  // A click on the backdrop is one on the dialog itself.
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  byId("close-settings").addEventListener("click", () => dialog.close());
  setUpData(changed);
}

function showSamplers() {
  byId("samplers").replaceChildren(...samplerFields(settings.sampling, saveSettings));
}

function setUpData(changed) {
  const file = byId("import-file");
  byId("export-all").addEventListener("click", () =>
    download("pagoda-chats.json", exportJson(), "application/json"),
  );
  byId("import").addEventListener("click", () => file.click());
  file.addEventListener("change", async () => {
    const told = [];
    for (const { name, text } of await readAll(file.files)) {
      try {
        const count = importJson(text);
        told.push(t(count === 1 ? "importedOne" : "imported", { count }));
      } catch (error) {
        told.push(t("importWrong", { name, reason: error.message }));
      }
    }
    file.value = "";
    changed(); // which may open another chat, and a toast goes with its chat
    told.forEach(toast);
  });
  byId("delete-all").addEventListener("click", () => {
    const all = () => {
      for (const { id } of listChats()) deleteChat(id);
      location.hash = "";
      changed();
    };
    ask(t("deleteAllSure"), { [t("deleteAll")]: all });
  });
}

const readAll = (files) =>
  Promise.all(Array.from(files, async (file) => ({ name: file.name, text: await file.text() })));
