// The language of a page, and its words.

const ENGLISH = {};
const CHINESE = {};
let words = ENGLISH;

/** Words of a page, by key, in both languages. */
export function addWords(english, chinese) {
  Object.assign(ENGLISH, english);
  Object.assign(CHINESE, chinese);
}

/** `choice` is "en", "zh", or "auto" for the browser's first language. */
export function setLanguage(choice) {
  const wanted = choice === "auto" ? navigator.language : choice;
  words = wanted.toLowerCase().startsWith("zh") ? CHINESE : ENGLISH;
  document.documentElement.lang = words === CHINESE ? "zh-CN" : "en";
}

export function t(key, values = {}) {
  return words[key].replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** Fill the elements that name their words in `data-word`, `data-label` or `data-hint`. */
export function translate(root = document) {
  for (const node of root.querySelectorAll("[data-word]")) node.textContent = t(node.dataset.word);
  for (const node of root.querySelectorAll("[data-hint]")) node.placeholder = t(node.dataset.hint);
  for (const node of root.querySelectorAll("[data-label]")) {
    const label = t(node.dataset.label);
    node.setAttribute("aria-label", label);
    if (node.tagName === "BUTTON") node.title = label;
  }
}
