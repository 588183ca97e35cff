// Actions, as the journal has them, in words.

import { t } from "./words.js";

/** "(320, 180)" on a screen of `size` (width, height); "" without a position. */
function pixels(at, size) {
  if (!at) return "";
  if (!size) return `(${at.map((share) => `${(100 * share).toFixed(1)}%`).join(", ")})`;
  return `(${at.map((share, axis) => Math.min(Math.floor(share * size[axis] + 1e-6), size[axis] - 1)).join(", ")})`;
}

const clicked = ({ button, count }) =>
  [button === "left" ? "" : button, count > 1 ? `×${count}` : ""].filter(Boolean).join(" ");

function details(action, size) {
  const place = (at) => pixels(at, size);
  switch (action.action) {
    case "Click":
      return [place(action.at), clicked(action), action.modifiers.join("+")];
    case "Press":
    case "Release":
      return [place(action.at), clicked({ ...action, count: 1 })];
    case "Move":
      return [place(action.to)];
    case "Drag":
      return [action.path.map(place).join(" → ")];
    case "Scroll":
      return [
        place(action.at),
        action.dy ? `${action.dy > 0 ? "↑" : "↓"}${Math.abs(action.dy)}` : "",
        action.dx ? `${action.dx > 0 ? "→" : "←"}${Math.abs(action.dx)}` : "",
      ];
    case "Zoom":
      return [`${place(action.upper_left)} – ${place(action.lower_right)}`];
    case "Type":
      return [JSON.stringify(action.text)];
    case "Key":
      return [action.codes.join("+"), action.repeat > 1 ? `×${action.repeat}` : ""];
    case "Wait":
      return [`${action.seconds} s`];
    case "Power":
      return [action.what];
    case "Ask":
      return [action.question];
    case "Done":
      return [action.answer];
  }
  return [];
}

export const describe = (action, size) =>
  [t(`act${action.action}`), ...details(action, size)].filter(Boolean).join(" ");
