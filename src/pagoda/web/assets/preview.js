// HTML and SVG of a reply, shown in a frame that has neither the page's origin nor a network: a page
// of its own, whose policy says so again.

import { el, iconButton } from "./dom.js";
import { t } from "./words.js";

const isSvg = (lines) =>
  /^\s*(<\?xml[^>]*>\s*)?(<!--[^>]*-->\s*)?<svg[\s>]/i.test(lines.join("\n"));

/** Whether code can be shown: HTML, and SVG by whatever name. */
export const canPreview = (language, lines) =>
  /^(x?html?|svg)$/i.test(language) || (/^xml$/i.test(language) && isSvg(lines));

export function openPreview(lines) {
  const frame = el("iframe", {
    sandbox: "allow-scripts",
    src: "pages/chat/preview.html",
    title: t("preview"),
    // What is in there has no origin that a message could be meant for.
    onload: () => frame.contentWindow.postMessage(lines.join("\n"), "*"),
  });
  const close = iconButton("close", t("close"), () => dialog.close());
  const dialog = el(
    "dialog",
    { class: "preview", "aria-label": t("preview"), onclose: () => dialog.remove() },
    el("div", { class: "title" }, el("h2", {}, t("preview")), close),
    el("p", { class: "hint" }, t("previewHint")),
    frame,
  );
  document.body.append(dialog);
  dialog.showModal();
}
