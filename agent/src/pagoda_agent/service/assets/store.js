// What this browser keeps of the page: its colours, its language and whether it sounds.

const SETTINGS = "pagoda.settings";

function stored() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

export const settings = { theme: "auto", language: "auto", sound: true, ...stored() };

export function saveSettings() {
  localStorage.setItem(SETTINGS, JSON.stringify(settings));
}
