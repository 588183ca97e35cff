// Settings and chats in this browser's localStorage: one entry per chat, and an index for the list.

import { checkedChat, path } from "./tree.js";

const INDEX = "pagoda.chats";
const CHAT = "pagoda.chat.";
const SETTINGS = "pagoda.settings";

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

/** [{id, title, updated}], newest first. */
export function listChats() {
  return read(INDEX, []).sort((a, b) => b.updated - a.updated);
}

export const loadChat = (id) => read(CHAT + id, null);

/** False where the browser gives no more room; what was saved before stays. */
export function saveChat(chat) {
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
  localStorage.setItem(INDEX, JSON.stringify(read(INDEX, []).filter((entry) => entry.id !== id)));
}

/** Chats whose title or text has all words of the query. */
export function searchChats(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  return listChats().filter(({ id, title }) => {
    const nodes = words.length ? Object.values(loadChat(id)?.nodes ?? {}) : [];
    const text = [title, ...nodes.map((node) => node.content)].join("\n").toLowerCase();
    return words.every((word) => text.includes(word));
  });
}

/** All chats, or those with the ids, as JSON. */
export function exportJson(ids = listChats().map(({ id }) => id)) {
  const chats = ids.map(loadChat).filter(Boolean);
  return JSON.stringify({ format: "pagoda-chats", version: 1, chats }, null, 1);
}

/** Save the chats of an export; their number. Throws where the text is none, and saves nothing. */
export function importJson(text) {
  const { format, chats } = JSON.parse(text);
  if (format !== "pagoda-chats" || !Array.isArray(chats)) throw new Error("format");
  const checked = chats.map(checkedChat);
  for (const chat of checked) if (!saveChat(chat)) throw new Error("localStorage");
  return checked.length;
}

/** The shown path as Markdown; `names` maps roles to headings. */
export function exportMarkdown(chat, names) {
  const parts = path(chat).map(({ role, content, reasoning, tool_calls: calls }) => {
    const thought = reasoning ? `> ${reasoning.trim().replaceAll("\n", "\n> ")}\n\n` : "";
    const called = (calls ?? [])
      .map(
        (call) => `\n\n\`${call.function.name}\`\n\n\`\`\`json\n${call.function.arguments}\n\`\`\``,
      )
      .join("");
    return `## ${names[role] ?? role}\n\n${thought}${content}${called}\n`;
  });
  return `# ${chat.title}\n\n${parts.join("\n")}`;
}
