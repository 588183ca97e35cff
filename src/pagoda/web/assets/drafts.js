// What was typed, attached or chosen and not sent yet, by chat. In this tab's sessionStorage: it survives a
// reload, and two tabs that write to one chat each keep their own.

const TEXT = "pagoda.draft.";
const ATTACHED = "pagoda.attached.";
// Of a chat that has no message yet; others keep their own.
const OPTIONS = "pagoda.options";

// Attachments may be larger than the storage, and are kept here while the page is open.
const attached = new Map();

export const emptyDraft = () => ({ content: "", images: [], files: [] });

export const isEmpty = ({ content, images, files }) =>
  !content.trim() && !images.length && !files.length;

/** {content, images, files}; empty where there is none. */
export function loadDraft(chat) {
  const draft = { ...emptyDraft(), content: sessionStorage.getItem(TEXT + chat) ?? "" };
  try {
    return {
      ...draft,
      ...(attached.get(chat) ?? JSON.parse(sessionStorage.getItem(ATTACHED + chat))),
    };
  } catch {
    return draft;
  }
}

export const saveText = (chat, text) => store(TEXT + chat, text);

export function saveAttached(chat, { images, files }) {
  const some = images.length + files.length > 0;
  attached.set(chat, { images, files });
  store(ATTACHED + chat, some ? JSON.stringify({ images, files }) : "");
}

function store(name, value) {
  // What was there is not what is meant any more, should there be no room.
  sessionStorage.removeItem(name);
  try {
    if (value) sessionStorage.setItem(name, value);
  } catch {
    // It is lost with the page.
  }
}

export const saveOptions = (options) => store(OPTIONS, JSON.stringify(options));

export function loadOptions() {
  try {
    return JSON.parse(sessionStorage.getItem(OPTIONS)) ?? {};
  } catch {
    return {};
  }
}

export function forgetDraft(chat) {
  saveText(chat, "");
  saveAttached(chat, emptyDraft());
}
