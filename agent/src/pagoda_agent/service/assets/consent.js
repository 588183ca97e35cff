// The dialog that asks before an action is carried out.

import { byId, toast } from "./dom.js";
import { t } from "./words.js";
import { describe } from "./describe.js";
import { frameUrl, post } from "./link.js";
import { said } from "./sentences.js";
import { View } from "./view.js";

export const categoryWords = (category) =>
  t(`category_${category.replace(/-(\w)/g, (_, letter) => letter.toUpperCase())}`);

export class Consent {
  constructor() {
    this.dialog = byId("consent");
    this.view = new View("");
    byId("consent-screen").append(this.view.node);
    byId("allow").addEventListener("click", () => this.answer(true));
    byId("allow-lasting").addEventListener("click", () => this.answer(true, true));
    byId("refuse").addEventListener("click", () => this.answer(false));
    // Escape pauses, which refuses; the dialog goes when the task's state does.
    this.dialog.addEventListener("cancel", (event) => event.preventDefault());
  }

  /** `event` is the task's change of state, `step` the transcript's newest. */
  ask(event, step, seconds) {
    this.id = event.id;
    const size = step?.size;
    if (step) this.view.show(frameUrl(step.run, step.file));
    this.view.mark([event.action], size);
    byId("consent-screen").hidden = !step;
    byId("consent-action").textContent = describe(event.action, size);
    byId("consent-reason").textContent = said(event.reason);
    byId("consent-offer").textContent = said(event.offer ?? "");
    byId("allow-lasting").hidden = !event.offer;
    byId("consent-category").textContent = event.category ? categoryWords(event.category) : "";
    const end = Date.now() + 1000 * seconds;
    const tick = () => {
      const left = Math.max(0, Math.round((end - Date.now()) / 1000));
      byId("countdown").textContent = t("countdown", { seconds: left });
    };
    clearInterval(this.timer);
    this.timer = setInterval(tick, 500);
    tick();
    if (!this.dialog.open) this.dialog.showModal();
    byId("refuse").focus();
  }

  close() {
    clearInterval(this.timer);
    this.dialog.close();
  }

  async answer(allow, lasting = false) {
    try {
      await post("consent", { id: this.id, allow, lasting });
    } catch (error) {
      toast(error.message);
    }
  }
}
