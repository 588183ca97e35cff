// Helpers around the DOM. Text always goes in as text: nothing on this page parses HTML.

const SVG = "http://www.w3.org/2000/svg";

// Strokes on a 24 x 24 grid.
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h10",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  check: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  retry: "M4 12a8 8 0 1 0 2.6-5.9M4 4v4.5h4.5",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13M10.5 11v5M13.5 11v5",
  gear: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  search: "M11 4a7 7 0 1 1 0 14a7 7 0 0 1 0-14M16 16l4.5 4.5",
  down: "M6 9l6 6 6-6",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  bottom: "M12 5v14M6 13l6 6 6-6",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9.5h.01",
  save: "M12 4v11M7 10.5l5 5 5-5M5 20h14",
  pointer: "M6 4l4.500 14.500 2.500-6 6-2.500z",
  tool: "M14.5 6.5a4 4 0 0 1 5-2.5l-2.5 3 2 2 3-2.5a4 4 0 0 1-5.5 4.5L8 19.5 4.5 16l8.500-8.500",
  theme: "M12 4a8 8 0 1 0 0 16zM12 4a8 8 0 0 1 0 16",
  close: "M6 6l12 12M18 6L6 18",
  models: "M4 5h16v6H4zM4 13h16v6H4zM7.500 8h.01M7.500 16h.01",
  play: "M8 5.500v13l11-6.500z",
  pause: "M8 5v14M16 5v14",
  sliders: "M7 4v9M7 17v3M17 4v3M17 11v9M5 15h4M15 9h4",
  columns: "M4 5h7v14H4zM13 5h7v14h-7z",
  clip: "M19 11l-7.500 7.500a4.500 4.500 0 0 1-6.400-6.400L13 4.300a3 3 0 0 1 4.300 4.300L9.500 16.400a1.500 1.500 0 0 1-2.100-2.100L14.500 7",
  file: "M7 3h7l4 4v14H7zM14 3v4h4",
  microphone: "M12 4a2.500 2.500 0 0 1 2.500 2.500v5a2.500 2.500 0 0 1-5 0v-5A2.500 2.500 0 0 1 12 4M6.500 11.500a5.500 5.500 0 0 0 11 0M12 17v3.500",
  eye: "M3 12s3.500-6 9-6 9 6 9 6-3.500 6-9 6-9-6-9-6zM12 9.500a2.500 2.500 0 1 0 0 5a2.500 2.500 0 0 0 0-5",
  history: "M12 8v4.500l3 2M4 12a8 8 0 1 0 2.600-5.900M4 4v4.500h4.500",
};

/** An element; `on...` attributes are listeners, true and false make bare attributes. */
export function el(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(key.slice(2), value);
    else if (typeof value === "boolean") node.toggleAttribute(key, value);
    else if (value !== undefined) node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button that shows an icon and tells its label to pointers and screen readers. */
export function iconButton(name, label, onclick, className = "") {
  const attributes = { type: "button", class: `icon-button ${className}`, title: label, onclick };
  return el("button", { ...attributes, "aria-label": label }, icon(name));
}

export const byId = (id) => document.getElementById(id);

/** Copy to the clipboard, also where browsers have no API for it: plain HTTP on a local network. */
export async function copyText(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const area = el("textarea", { class: "offscreen" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("copy");
}

/** A copy button that says by its icon whether copying worked. */
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    let result = "check";
    try {
      await copyText(text());
    } catch {
      result = "close";
    }
    button.replaceChildren(icon(result));
    setTimeout(() => button.replaceChildren(icon("copy")), 1500);
  });
  button.classList.add("copy");
  return button;
}

let toastTimer = 0;

export function toast(text) {
  const node = byId("toast");
  node.textContent = text;
  node.classList.add("shown");
  clearTimeout(toastTimer);
  toastTimer = setTimeout(hideToast, 5000);
}

export const hideToast = () => byId("toast").classList.remove("shown");

export function download(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

/** Random, also where `crypto.randomUUID` is missing: plain HTTP on a local network. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return Array.from(bytes, (byte) => byte.toString(36).padStart(2, "0")).join("");
}
