// What the driver of an address lacks, and the button that installs it.

import { byId, copyButton } from "./dom.js";
import { t } from "./words.js";
import { get, postForEvents } from "./link.js";
import { said } from "./sentences.js";

// Addresses that go by another driver's name.
const SCHEMES = { nanokvms: "nanokvm" };

export class Install {
  /** `installed` is called when a driver lacks nothing any more. */
  constructor(field, installed) {
    this.field = field;
    this.installed = installed;
    this.known = { drivers: [], refused: "" };
    this.running = null;
    field.addEventListener("input", () => this.show());
    byId("install").addEventListener("click", () => this.install());
    byId("stop-install").addEventListener("click", () => this.running?.abort());
    for (const id of ["lacks-command", "system-command"]) {
      const copy = copyButton("", () => byId(id).textContent);
      copy.dataset.label = "copy";
      byId(id).after(copy);
    }
  }

  async refresh() {
    this.known = await get("drivers");
    byId("install-log").hidden = byId("install-end").hidden = !this.running;
    this.show();
  }

  get driver() {
    const scheme = this.field.value.trim().split(":")[0];
    return SCHEMES[scheme] ?? scheme;
  }

  show() {
    if (this.running) return;
    const found = this.known.drivers.find(({ driver }) => driver === this.driver);
    byId("lacks").hidden = !found?.command;
    byId("lacks-text").textContent = said(found?.sentence ?? "");
    byId("lacks-command").textContent = found?.command ?? "";
    byId("install").disabled = Boolean(this.known.refused);
    byId("install-refused").textContent = said(this.known.refused);
    byId("lacks-system").hidden = !found?.system;
    byId("system-text").textContent = said(found?.system?.why ?? "");
    byId("system-command").textContent = found?.system?.command ?? "";
  }

  async install() {
    const { driver } = this;
    const log = byId("install-log");
    log.textContent = "";
    log.hidden = false;
    this.runs(new AbortController());
    byId("stop-install").focus();
    this.end(t("installing", { driver }));
    try {
      await postForEvents("install", { driver }, this.running.signal, ({ text = "", error }) => {
        log.append(text);
        log.scrollTop = log.scrollHeight;
        if (error !== undefined) this.end(said(error) || t("installDone", { driver }), error);
      });
    } catch (error) {
      const stopped = error.name === "AbortError";
      this.end(stopped ? t("installStopped") : error.message, "failed");
    }
    this.runs(null);
    // What stands in the log is about what is missing still, or is gone with it.
    this.known = await get("drivers").catch(() => this.known);
    this.show();
    (byId("lacks").hidden ? this.field : byId("install")).focus();
    this.installed();
  }

  runs(running) {
    this.running = running;
    byId("install").hidden = Boolean(running);
    byId("stop-install").hidden = !running;
  }

  end(text, error = "") {
    byId("install-end").hidden = false;
    byId("install-end").className = error ? "wrong" : "hint";
    byId("install-end").textContent = text;
  }
}
