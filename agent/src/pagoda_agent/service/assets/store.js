// What this browser keeps of the page: its colours and its language.

const SETTINGS = "pagoda.settings";

function stored() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS)) ?? {};
  } catch {
    return {};
  }
}

export const settings = { theme: "auto", language: "auto", ...stored() };

export function saveSettings() {
  localStorage.setItem(SETTINGS, JSON.stringify(settings));
}
