// A picture of the screen with what was done on it.

import { el } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";
const ARROW = 0.5;

function shape(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** Strokes of an arrow's head at `to`. */
function head([fromX, fromY], [x, y], size) {
  const angle = Math.atan2(y - fromY, x - fromX);
  const end = (turn) =>
    `${x - size * Math.cos(angle + turn)} ${y - size * Math.sin(angle + turn)}`;
  return `M${end(ARROW)}L${x} ${y}L${end(-ARROW)}`;
}

const line = (points) => "M" + points.map((point) => point.join(" ")).join("L");
const ring = ([x, y], r) => `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0`;
const cross = ([x, y], r) => `M${x - r} ${y}h${2 * r}M${x} ${y - r}v${2 * r}`;

function scrolled(at, { dx, dy }, unit) {
  const [x, y] = at;
  // Positive: what is further up, or further right.
  const to = [x + 5 * unit * Math.sign(dx), y - 5 * unit * Math.sign(dy)];
  return ring(at, unit) + line([at, to]) + head(at, to, 2 * unit);
}

/** The path of an action that has a place on the screen; "" for others. */
function pathOf(action, place, unit) {
  switch (action.action) {
    case "Click":
      return ring(place(action.at), 2.2 * unit) +
        (action.count > 1 ? ring(place(action.at), 3.2 * unit) : "") +
        cross(place(action.at), unit);
    case "Press":
    case "Release":
      return ring(place(action.at), 1.5 * unit) + cross(place(action.at), 2.5 * unit);
    case "Move":
      return cross(place(action.to), 2 * unit);
    case "Scroll":
      return scrolled(place(action.at), action, unit);
    case "Drag": {
      const points = action.path.map(place);
      const [before, last] = points.slice(-2);
      return ring(points[0], unit) + (last ? line(points) + head(before, last, 2 * unit) : "");
    }
    case "Zoom": {
      const [left, top] = place(action.upper_left);
      const [right, bottom] = place(action.lower_right);
      return `M${left} ${top}H${right}V${bottom}H${left}Z`;
    }
  }
  return "";
}

const hasPlace = (action) => !("at" in action) || action.at !== null;

/** An image and, above it, markers that keep to it however it is fitted into its box. */
export class View {
  constructor(alt) {
    this.image = el("img", { alt, draggable: "false" });
    this.marks = shape("svg", { class: "marks", preserveAspectRatio: "xMidYMid meet" });
    this.marks.setAttribute("aria-hidden", "true");
    this.node = el("div", { class: "view" }, this.image, this.marks);
  }

  show(address) {
    this.image.src = address;
    this.mark([]);
  }

  /** Mark actions (as the journal has them) on a screen of `size` (width, height). */
  mark(actions, size = [16, 9]) {
    const [width, height] = size;
    const unit = Math.max(width, height) / 100;
    const place = ([x, y]) => [x * width, y * height];
    this.marks.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const paths = actions.filter(hasPlace).map((action) => pathOf(action, place, unit));
    this.marks.replaceChildren(
      ...paths.filter(Boolean).flatMap((d) => [
        shape("path", { d, class: "halo", "stroke-width": unit * 0.9 }),
        shape("path", { d, class: "ink", "stroke-width": unit * 0.45 }),
      ]),
    );
  }
}
