// What calls a person who looks elsewhere: the title, a sound, a notification.

import { byId } from "./dom.js";
import { saveSettings, settings } from "./store.js";
import { t } from "./words.js";

// In these states nothing goes on before a person answers.
const CALLS = ["waiting_consent", "waiting_user"];
// Two notes, in hertz, and how long each is, in seconds.
const NOTES = [659, 880];
const NOTE_SECONDS = 0.16;
const VOLUME = 0.15;

export class Alerts {
  constructor() {
    this.state = "";
    this.audio = null;
    this.notice = null;
    byId("sound").checked = settings.sound;
    byId("sound").addEventListener("change", () => {
      settings.sound = byId("sound").checked;
      saveSettings();
      if (settings.sound) this.play();
    });
    byId("notify").addEventListener("click", async () => {
      await Notification.requestPermission();
      this.showButton();
    });
    this.showButton();
  }

  /** `text` says what is asked. */
  show(state, text = "") {
    const words = t(`state_${state}`);
    document.title = (CALLS.includes(state) ? "\u25cf " : "") + `${words} \u00b7 Pagoda agent`;
    const calls = CALLS.includes(state) && state !== this.state;
    if (state !== this.state) this.notice?.close();
    this.state = state;
    if (calls) this.call(words, text);
  }

  call(words, text) {
    if (settings.sound) this.play();
    const granted = window.Notification?.permission === "granted";
    if (!granted || (document.hasFocus() && !document.hidden)) return;
    this.notice = new Notification(`Pagoda agent: ${words}`, { body: text, tag: "pagoda-agent" });
    this.notice.addEventListener("click", () => {
      window.focus();
      this.notice.close();
    });
  }

  play() {
    // Browsers let a page sound once somebody clicked in it; before that, nothing is heard.
    this.audio ??= new AudioContext();
    this.audio.resume();
    NOTES.forEach((frequency, place) => {
      const start = this.audio.currentTime + place * NOTE_SECONDS;
      const tone = new OscillatorNode(this.audio, { frequency });
      const volume = new GainNode(this.audio, { gain: VOLUME });
      volume.gain.setTargetAtTime(0, start + NOTE_SECONDS / 2, NOTE_SECONDS / 4);
      tone.connect(volume).connect(this.audio.destination);
      tone.start(start);
      tone.stop(start + 2 * NOTE_SECONDS);
    });
  }

  /** Asked for by a click alone, and only where browsers offer it: not over plain HTTP from afar. */
  showButton() {
    const permission = window.Notification?.permission ?? "none";
    const asks = permission === "default";
    byId("notify").hidden = !asks;
    byId("notify-state").hidden = asks;
    if (!asks) byId("notify-state").textContent = t(`notify_${permission}`);
  }
}
