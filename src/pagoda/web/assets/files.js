// Files that a message brings: text and PDF as text, pictures and sounds as data URLs.

import { ApiError, extractText } from "./api.js";
import { el, icon, iconButton } from "./dom.js";
import { t } from "./words.js";

// Larger pictures would fill the browser's storage, and models scale them down anyway.
const MAX_IMAGE_SIDE = 1024;
// Chats lie in the browser's storage, which has about five million characters for all of them.
const MAX_TEXT = 1_000_000;
const MAX_PDF_BYTES = 32_000_000;
const MAX_SOUND_BYTES = 1_000_000;

/** A file that cannot be taken; its message says why. */
class FileError extends Error {}

const isPdf = ({ name, type }) => type === "application/pdf" || /\.pdf$/i.test(name);
const isSound = ({ type }) => type.startsWith("audio/");
const isPicture = ({ type }) => type.startsWith("image/") && type !== "image/svg+xml";

/** What a file becomes: {image}, {file: {name, text, ...}} or {file: {name, sound}}. Throws an Error
 * that says why not. */
export async function readAttachment(file, { sees, hears, model }) {
  const { name } = file;
  if (isSound(file)) {
    if (!hears) throw new FileError(t("noHearing", { name, model }));
    if (file.size > MAX_SOUND_BYTES) throw new FileError(t("soundLarge", { name }));
    return { file: { name, sound: await dataUrl(file) } };
  }
  if (isPicture(file)) {
    if (!sees) throw new FileError(t("noSight", { name, model }));
    try {
      return { image: await shrunk(file) };
    } catch {
      throw new FileError(t("imageWrong", { name }));
    }
  }
  const read = isPdf(file) ? await readPdf(file) : { text: await readText(file) };
  if (!read.text.trim()) throw new FileError(t(isPdf(file) ? "pdfEmpty" : "fileEmpty", { name }));
  if (read.text.length > MAX_TEXT) throw new FileError(t("fileLarge", { name }));
  return { file: { name, ...read } };
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(reader.error));
    reader.readAsDataURL(file);
  });
}

async function readPdf(file) {
  if (file.size > MAX_PDF_BYTES) throw new FileError(t("fileLarge", { name: file.name }));
  const { text, pages, pages_read: read } = await extracted(file);
  return read < pages ? { text, pages, read } : { text, pages };
}

async function extracted(file) {
  try {
    return await extractText(file);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status === 401) throw error;
    throw new FileError(t("fileRefused", { name: file.name, reason: error.message }));
  }
}

/** Text of an older coding, by the page's language; null for what is no text. */
function oldText(bytes) {
  const coding = document.documentElement.lang.startsWith("zh") ? "gb18030" : "windows-1252";
  const text = new TextDecoder(coding).decode(bytes);
  return /[\0-\x08\x0e-\x1f\x7f\ufffd]/.test(text) ? null : text;
}

async function readText(file) {
  // A character has at most four bytes.
  if (file.size > 4 * MAX_TEXT) throw new FileError(t("fileLarge", { name: file.name }));
  const bytes = new Uint8Array(await file.arrayBuffer());
  const marks = { "255,254": "utf-16le", "254,255": "utf-16be" };
  const coding = marks[bytes.slice(0, 2).join()] ?? "utf-8";
  let text;
  try {
    text = new TextDecoder(coding, { fatal: true }).decode(bytes);
  } catch {
    text = oldText(bytes);
  }
  if (text === null || text.includes("\0")) throw new FileError(t("fileWrong", { name: file.name }));
  return text.replaceAll("\r\n", "\n");
}

/** A picture of a tool ({type, data}) as a data URL; "" where it is none. */
export async function toolPicture({ type, data }) {
  try {
    const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
    return await shrunk(new Blob([bytes], { type }));
  } catch {
    return "";
  }
}

/** A picture as a data URL, at most MAX_IMAGE_SIDE pixels wide and high. */
async function shrunk(file) {
  const bitmap = await createImageBitmap(file);
  const scale = Math.min(1, MAX_IMAGE_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = el("canvas");
  canvas.width = Math.round(bitmap.width * scale);
  canvas.height = Math.round(bitmap.height * scale);
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL(file.type === "image/png" ? "image/png" : "image/jpeg", 0.9);
}

/** The text that a model gets of files and what was asked about them. */
export function textWithFiles(content, files) {
  const texts = (files ?? []).filter(({ text }) => text !== undefined);
  const parts = texts.map(
    ({ name, text }) => `<file name="${name.replace(/["<>\n]/g, "_")}">\n${text}\n</file>`,
  );
  return [...parts, content].filter(Boolean).join("\n\n");
}

/** The sounds among files, as data URLs. */
export const soundsOf = (files) => (files ?? []).flatMap(({ sound }) => sound ?? []);

function factsOf({ text, sound, pages, read }) {
  if (sound) return t("sound");
  if (read) return t("filePagesRead", { read, pages });
  if (pages) return t(pages === 1 ? "filePage" : "filePages", { pages });
  const lines = text.replace(/\n$/, "").split("\n").length;
  return t(lines === 1 ? "fileLine" : "fileLines", { lines });
}

const label = (file) => [
  icon("file"),
  el("span", { class: "name", title: file.name }, file.name),
  el("span", { class: "facts" }, factsOf(file)),
];

/** A file that is going to be sent. */
export const fileChip = (file, remove) =>
  el("span", { class: "chip" }, ...label(file), iconButton("close", t("remove"), remove));

/** A file that was sent; unfolded, it shows its text. A sound can be played. */
export function fileCard(file) {
  if (file.sound) {
    const player = el("audio", { controls: true, src: file.sound });
    return el("span", { class: "chip" }, ...label(file), player);
  }
  const card = el("details", { class: "chip" }, el("summary", {}, ...label(file)));
  // A long text is laid out only where somebody looks at it.
  card.addEventListener("toggle", () => {
    if (card.open && !card.querySelector("pre")) {
      card.append(el("pre", { tabindex: "0" }, file.text));
    }
  });
  return card;
}
