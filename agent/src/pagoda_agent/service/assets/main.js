// Puts the agent's page together.

import { Alerts } from "./alerts.js";
import { ask } from "./ask.js";
import { byId, el, icon, toast } from "./dom.js";
import { saveSettings, settings } from "./store.js";
import { setLanguage, t, translate } from "./words.js";
import { Composer } from "./composer.js";
import { Consent } from "./consent.js";
import { History } from "./history.js";
import { follow, frameUrl, get, post } from "./link.js";
import { Live } from "./live.js";
import { learn, said } from "./sentences.js";
import { SettingsDialog } from "./settings.js";
import "./translations.js";
import { Transcript } from "./transcript.js";
import { View } from "./view.js";

const RISKS = "pagoda.agent.risks";
const ACTIVE = ["running", "paused", "waiting_user", "waiting_consent"];
// Events come in bursts; what they cost is asked for once behind each. Time goes on without any.
const METER_MS = 150;
const CLOCK_MS = 1000;

const root = byId("pagoda");
const agent = { settings: null, controls: false };
const shown = { state: "connecting", question: "" };
const live = new Live();
const large = new View("");
const consent = new Consent();
const composer = new Composer();
const alerts = new Alerts();
const transcript = new Transcript(byId("transcript"), (step) => {
  large.show(frameUrl(step.run, step.file));
  large.mark(step.actions, step.size);
  byId("large-title").textContent = t("step", { number: step.number });
  byId("large").showModal();
});
new History({
  current: () => (ACTIVE.includes(shown.state) ? transcript.run : ""),
});
const settingsDialog = new SettingsDialog({
  changed: (values) => {
    agent.settings = values;
    refreshMeter();
    refreshNotice();
  },
  restyled: restyle,
  installed: refreshNotice,
});

function restyle() {
  document.documentElement.dataset.theme = settings.theme;
  setLanguage(settings.language);
  translate();
  alerts.showButton();
  showState(shown.state, shown.question);
}

/** `wanted` is what a person is asked. */
function showState(state, question = "", wanted = question) {
  Object.assign(shown, { state, question });
  byId("state").dataset.state = state;
  byId("state").textContent = t(`state_${state}`);
  showPause(state);
  alerts.show(state, said(wanted));
  composer.show(state, question);
  if (state !== "waiting_consent") consent.close();
}

/** One button, which stops at once, and then goes on. */
function showPause(state) {
  const paused = state === "paused";
  const button = byId("pause");
  button.disabled = !ACTIVE.includes(state);
  button.classList.toggle("paused", paused);
  button.title = paused ? t("goOnHint") : t("pauseHint");
  button.setAttribute("aria-label", button.title);
  button.replaceChildren(icon(paused ? "play" : "pause"), el("span", {}, t(paused ? "goOn" : "pause")));
}

function take(event) {
  transcript.take(event);
  live.take(event);
  if (["start", "resumed"].includes(event.event)) showState("running");
  if (event.event === "state") {
    showState(event.state, event.state === "waiting_user" ? event.reason : "", event.reason);
    if (event.state === "waiting_consent") {
      consent.ask(event, transcript.step, agent.settings.consent_seconds);
    }
  }
  clearTimeout(take.timer);
  take.timer = setTimeout(refreshMeter, METER_MS);
}

async function refreshMeter() {
  clearTimeout(take.timer);
  if (shown.state === "running") take.timer = setTimeout(refreshMeter, CLOCK_MS);
  const status = await get("status").catch(() => null);
  if (!status) return;
  const spent = status.spent;
  if (!spent) return byId("meter").replaceChildren();
  const { input_tokens: read, output_tokens: written } = spent.usage;
  const parts = [
    t("rounds", { used: spent.rounds, cap: agent.settings.max_rounds }),
    read + written ? t("tokens", { count: (read + written).toLocaleString() }) : "",
    spent.cost ? t("cost", { sum: spent.cost.toFixed(4) }) : "",
    t("seconds", { count: Math.round(spent.seconds) }),
  ];
  byId("meter").textContent = parts.filter(Boolean).join(" · ");
}

/** What is to be known of this agent, or what its computer's driver lacks. */
function showNotice({ notice = "", lacks = "" }) {
  const node = byId("notice");
  node.hidden = !notice && !lacks;
  node.replaceChildren(said(lacks || notice));
  if (!lacks) return;
  const open = () => settingsDialog.open();
  node.append(" ", el("button", { type: "button", onclick: open }, t("openInstall")));
}

async function refreshNotice() {
  const status = await get("status").catch(() => null);
  if (status) showNotice(status);
}

const isGoing = () => ACTIVE.includes(shown.state) && shown.state !== "paused";

async function pause() {
  try {
    await post("pause");
  } catch (error) {
    toast(error.message);
  }
}

async function reset() {
  try {
    await post("reset");
    transcript.clear();
    live.clear();
    showState("idle");
    await refreshMeter();
  } catch (error) {
    toast(error.message);
  }
}

function setUpButtons() {
  for (const node of document.querySelectorAll("[data-icon]"))
    node.prepend(icon(node.dataset.icon));
  for (const dialog of document.querySelectorAll("dialog")) {
    dialog.querySelector(".close")?.addEventListener("click", () => dialog.close());
  }
  byId("large-screen").append(large.node);
  byId("pause").addEventListener("click", () =>
    shown.state === "paused" ? composer.goOn() : pause(),
  );
  byId("consent-pause").addEventListener("click", pause);
  byId("reset").addEventListener("click", () => {
    if (ACTIVE.includes(shown.state)) ask(t("resetSure"), { [t("reset")]: reset });
    else reset();
  });
  byId("toggle-theme").addEventListener("click", () => {
    const auto = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = settings.theme === "auto" ? auto : settings.theme;
    settings.theme = now === "dark" ? "light" : "dark";
    saveSettings();
    document.querySelector("[data-setting=theme]").value = settings.theme;
    restyle();
  });
  // The emergency stop works whatever has the focus or lies above.
  addEventListener(
    "keydown",
    (event) => {
      if (event.key === "Escape" && !event.isComposing && isGoing()) pause();
    },
    true,
  );
}

function askAboutRisks() {
  const dialog = byId("risks");
  if (localStorage.getItem(RISKS)) return;
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  // Browsers close a dialog at the second Escape, whatever is prevented.
  dialog.addEventListener("close", () => localStorage.getItem(RISKS) || dialog.showModal());
  byId("accept-risks").addEventListener("click", () => {
    localStorage.setItem(RISKS, "understood");
    dialog.close();
  });
  dialog.showModal();
}

async function opened() {
  if (!agent.settings) {
    learn(await get("sentences"));
    agent.settings = await get("settings");
  }
  if (!agent.controls) {
    agent.controls = true;
    root.classList.remove("locked");
    askAboutRisks();
  }
  live.start();
  const status = await get("status").catch(() => null);
  if (status) {
    showState(status.state, status.question);
    composer.suggest(status.suggestion);
    showNotice(status);
  }
  await refreshMeter();
}

/** One sentence, and nothing else. */
function lock(word) {
  agent.controls = false;
  live.view.image.removeAttribute("src");
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.remove();
  root.classList.add("locked");
  byId("sentence").textContent = t(word);
}

function sayGoodbye() {
  addEventListener("beforeunload", (event) => {
    if (agent.controls && ACTIVE.includes(shown.state)) event.preventDefault();
  });
  addEventListener("pagehide", () => {
    if (agent.controls) navigator.sendBeacon("api/close");
  });
  // From the browser's cache it would come back without its stream.
  addEventListener("pageshow", (event) => event.persisted && location.reload());
}

async function enter() {
  const token = location.hash.slice(1);
  if (!token) return;
  history.replaceState(null, "", location.pathname + location.search);
  // A used token is no matter for a page that has the cookie; the stream tells.
  await post("session", { token }).catch(() => null);
}

setUpButtons();
restyle();
sayGoodbye();
await enter();
lock(
  await follow({
    take,
    opened,
    lost() {
      byId("sentence").textContent = t("offline");
      if (shown.state !== "connecting") toast(t("offline"));
      showState("connecting");
    },
  }),
);
