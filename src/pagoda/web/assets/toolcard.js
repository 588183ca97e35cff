// How a call of a tool looks, and its result.

import { el, icon } from "./dom.js";
import { t } from "./words.js";

const SAFE_IMAGE = /^data:image\/(png|jpeg|gif|webp);base64,/;

/** Pictures of a message, or null where there are none; `images` may come from a file. */
export function pictures(images) {
  const safe = (images ?? []).filter((url) => SAFE_IMAGE.test(url));
  return safe.length
    ? el("div", { class: "pictures" }, ...safe.map((src) => el("img", { src, alt: "" })))
    : null;
}

export function toolCard(title, text) {
  const summary = el("summary", {}, icon("tool"), el("span", {}, title), icon("down"));
  return el("details", { class: "tool", open: true }, summary, el("pre", {}, text));
}

const STATES = ["asking", "running", "done", "failed", "denied", "stopped", "cut"];

/** A call with its arguments and its result. `isOpen`: whether it is unfolded. */
export function callCard(node, told, isOpen) {
  const state = STATES.includes(told) ? told : "done"; // a chat of a file may say anything
  const status = el("span", { class: "status", role: "status" }, t(`tool_${state}`));
  const name = el("span", { class: "name" }, (node.name ?? "").replace("__", " · "));
  const summary = el("summary", {}, icon("tool"), name, status, icon("down"));
  const part = (title, text) => (text ? [el("h3", {}, title), el("pre", {}, text)] : []);
  const body = [
    ...part(t("toolArguments"), pretty(node.input)),
    ...part(t("toolAnswer"), node.content),
    pictures(node.images),
  ];
  const attributes = { class: "tool call", "data-state": state, open: isOpen };
  return el("details", attributes, summary, ...body);
}

export function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // still streaming, or not JSON
  }
}
