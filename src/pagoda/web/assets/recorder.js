// What is said into a microphone, as a file of sound.

import { toast } from "./dom.js";
import { t } from "./words.js";

// The models' own window; of Opus in speech's quality a hundred kilobytes.
const MAX_MS = 30_000;

export class Recorder {
  /** `button` begins and ends; `give` takes the file. */
  constructor(button, give) {
    this.button = button;
    this.give = give;
    this.recorder = null;
    this.starting = false;
    button.addEventListener("click", () => (this.recorder ? this.stop() : this.start()));
  }

  /** A button where the model hears; browsers have microphones on HTTPS and on this machine only. */
  show(hears) {
    this.button.hidden = !this.recorder && !(hears && navigator.mediaDevices);
  }

  async start() {
    if (this.starting) return;
    this.starting = true;
    try {
      const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
      this.record(stream);
    } catch (error) {
      toast(t("recordFailed", { why: error.message }));
    } finally {
      this.starting = false;
    }
  }

  record(stream) {
    const parts = [];
    const recorder = new MediaRecorder(stream);
    recorder.addEventListener("dataavailable", ({ data }) => parts.push(data));
    recorder.addEventListener("stop", () => {
      for (const track of stream.getTracks()) track.stop();
      clearTimeout(this.timer);
      this.recorder = null;
      this.mark(false);
      const type = recorder.mimeType.split(";")[0] || "audio/webm";
      const ending = type.split("/")[1];
      this.give(new File(parts, `${t("recording")}.${ending}`, { type }));
    });
    this.recorder = recorder;
    this.timer = setTimeout(() => this.stop(), MAX_MS);
    recorder.start();
    this.mark(true);
  }

  stop() {
    if (this.recorder?.state === "recording") this.recorder.stop();
  }

  mark(on) {
    this.button.setAttribute("aria-pressed", String(on));
    this.button.dataset.label = on ? "recordStop" : "record";
    const label = t(this.button.dataset.label);
    this.button.setAttribute("aria-label", label);
    this.button.title = label;
  }
}
