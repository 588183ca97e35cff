// Settings and chats in this browser's localStorage: one entry per chat, and an index for the list.
//
// Other tabs write as well, and what one reads may be a moment old. So nothing is only replaced: a
// chat is saved together with what is stored of it, a tab whose messages were lost to another's
// write saves them again when it hears of that, and what was deleted is remembered.

import { forgetDraft } from "./drafts.js";
import { checkedChat, checkedPreset, isBehind, merge, path } from "./tree.js";

const INDEX = "pagoda.chats";
const CHAT = "pagoda.chat.";
const DELETED = "pagoda.deleted.";
const MOST_DELETED = 200;
const SETTINGS = "pagoda.settings";
const PRESETS = "pagoda.presets";

const DEFAULTS = {
  theme: "auto",
  language: "auto",
  system: "",
  tools: "",
  model: "",
  sampling: {},
};

function read(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export const settings = { ...DEFAULTS, ...read(SETTINGS, {}) };

export function saveSettings() {
  localStorage.setItem(SETTINGS, JSON.stringify(settings));
}

/** [{name, model, options}], by name. */
export const listPresets = () => read(PRESETS, []);

export function savePresets(presets) {
  const sorted = presets.toSorted((a, b) => a.name.localeCompare(b.name));
  localStorage.setItem(PRESETS, JSON.stringify(sorted));
}

const namesWith = (start) => Object.keys(localStorage).filter((name) => name.startsWith(start));

/** [{id, title, updated}], newest first. */
export function listChats() {
  const index = new Map(read(INDEX, []).map((entry) => [entry.id, entry]));
  const chats = namesWith(CHAT).map((name) => index.get(name.slice(CHAT.length)) ?? read(name));
  return chats.filter(Boolean).sort((a, b) => b.updated - a.updated);
}

export function loadChat(id) {
  const chat = read(CHAT + id, null);
  return chat && { options: {}, ...chat };
}
export const isDeleted = (id) => localStorage.getItem(DELETED + id) !== null;

const fromElsewhere = new Set();
/** Whether another tab has written at a message while this page was open. */
export const isFromElsewhere = (id) => fromElsewhere.has(id);

/** Put what is stored of a chat into it, and return that. */
function takeOver(chat) {
  const stored = loadChat(chat.id);
  if (stored) for (const id of merge(chat, stored)) fromElsewhere.add(id);
  return stored;
}

/** Another tab may have written: take that over, and save what it did not know. */
export function catchUp(chat) {
  const stored = takeOver(chat);
  if (stored && isBehind(stored, chat)) saveChat(chat);
}

/** A tab that had not heard of a deletion may have saved the chat after it. */
export function keepDeleted() {
  for (const name of namesWith(DELETED)) {
    const id = name.slice(DELETED.length);
    localStorage.removeItem(CHAT + id);
    forgetDraft(id);
  }
}

/** Save the chat with what is stored of it, which it takes over; a deleted one stays deleted.
 * False where the browser gives no more room; what was saved before stays. */
export function saveChat(chat) {
  if (isDeleted(chat.id)) return true;
  takeOver(chat);
  const index = read(INDEX, []).filter((entry) => entry.id !== chat.id);
  index.push({ id: chat.id, title: chat.title, updated: chat.updated });
  try {
    localStorage.setItem(CHAT + chat.id, JSON.stringify(chat));
    localStorage.setItem(INDEX, JSON.stringify(index));
    return true;
  } catch {
    return false;
  }
}

export function deleteChat(id) {
  localStorage.removeItem(CHAT + id);
  forgetDraft(id);
  const old = namesWith(DELETED).sort((a, b) => localStorage[a] - localStorage[b]);
  for (const name of old.slice(0, 1 - MOST_DELETED)) localStorage.removeItem(name);
  localStorage.setItem(DELETED + id, Date.now());
  localStorage.setItem(INDEX, JSON.stringify(read(INDEX, []).filter((entry) => entry.id !== id)));
}

/** Chats whose title or text has all words of the query. */
export function searchChats(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return listChats().filter(({ id, title }) => {
    const nodes = words.length ? Object.values(loadChat(id)?.nodes ?? {}) : [];
    const names = nodes.flatMap((node) => (node.files ?? []).map(({ name }) => name));
    const text = [title, ...names, ...nodes.map((node) => node.content)].join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** Chats with these ids as JSON; without ids all, and the presets. */
export function exportJson(ids) {
  const all = ids ?? listChats().map(({ id }) => id);
  const chats = all.map(loadChat).filter(Boolean);
  const presets = ids ? undefined : listPresets();
  return JSON.stringify({ format: "pagoda-chats", version: 1, chats, presets }, null, 1);
}

/** Save the chats and presets of an export; the chats' number. Throws where the text is none, and
 * saves nothing. */
export function importJson(text) {
  const { format, chats, presets = [] } = JSON.parse(text);
  if (format !== "pagoda-chats" || !Array.isArray(chats)) throw new Error("format");
  const checked = chats.map(checkedChat);
  const named = new Map(
    [...listPresets(), ...presets.map(checkedPreset)].map((one) => [one.name, one]),
  );
  savePresets(Array.from(named.values()));
  for (const chat of checked) {
    localStorage.removeItem(DELETED + chat.id);
    if (!saveChat(chat)) throw new Error("localStorage");
  }
  return checked.length;
}

/** The shown path as Markdown; `names` maps roles to headings. */
export function exportMarkdown(chat, names) {
  const parts = path(chat).map(({ role, content, reasoning, files, tool_calls: calls, name }) => {
    const attached = (files ?? []).map(({ name }) => `[${name}]\n\n`).join("");
    const thought = reasoning ? `> ${reasoning.trim().replaceAll("\n", "\n> ")}\n\n` : "";
    const called = (calls ?? [])
      .map(
        (call) => `\n\n\`${call.function.name}\`\n\n\`\`\`json\n${call.function.arguments}\n\`\`\``,
      )
      .join("");
    const heading = role === "tool" ? `${names.tool}: ${name ?? ""}` : (names[role] ?? role);
    return `## ${heading}\n\n${thought}${attached}${content}${called}\n`;
  });
  return `# ${chat.title}\n\n${parts.join("\n")}`;
}
