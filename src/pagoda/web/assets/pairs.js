// Two models' replies to one message, side by side until one is kept. In the tree they are versions
// of each other that have the same `pair`.

import { el } from "./dom.js";
import { touch, versions } from "./tree.js";
import { t } from "./words.js";

export class Pairs {
  /** `keep` takes the node that was chosen. */
  constructor(keep) {
    this.keep = keep;
    this.shown = new Map(); // id of a pair -> its element
  }

  /** The replies that are shown beside `node`, itself included; one where it is no pair. */
  of(chat, node) {
    if (!node.pair) return [node];
    return versions(chat, node).filter(({ pair }) => pair === node.pair);
  }

  /** The element with the replies' own ones in it; the same as long as the pair is shown. */
  element(nodes, elements) {
    const { pair } = nodes[0];
    if (!this.shown.has(pair)) this.shown.set(pair, el("div", { class: "pair" }));
    const root = this.shown.get(pair);
    nodes.forEach((node, i) => {
      const side = (root.children[i] ?? root.appendChild(el("section"))).children;
      if (side[1] === elements[i]) return;
      root.children[i].replaceChildren(this.head(node), elements[i]);
    });
    root.querySelectorAll(".keep").forEach((button, i) => {
      button.disabled = nodes[i].state === "running";
      button.textContent = t("keep");
    });
    return root;
  }

  head(node) {
    const label = `${t("keep")}: ${node.model}`;
    const keep = el("button", {
      type: "button",
      class: "keep",
      "aria-label": label,
      onclick: () => this.keep(node),
    });
    return el("div", { class: "pair-head" }, el("strong", {}, node.model ?? ""), keep);
  }

  /** They are versions like any others from now on. */
  dissolve(nodes) {
    for (const node of nodes) {
      delete node.pair;
      touch(node);
    }
  }
}
