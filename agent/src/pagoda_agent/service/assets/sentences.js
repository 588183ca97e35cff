// What the agent says in fixed sentences, which it sends in English, in the page's language.

// No sentence is longer.
const LONGEST = 2000;

let forms = [];

/** `table` has the Chinese sentences by the English ones, with {names} for what they quote. */
export function learn(table) {
  // Quoted sentences lose their full stop, or have one more.
  const pattern = (form) =>
    form
      .replace(/\.$/, "")
      .replace(/[.*+?^$()[\]\\|]/g, "\\$&")
      .replace(/\{(\w+)\}/g, "(?<$1>.*?)");
  forms = Object.entries(table).map(([english, chinese]) => [
    new RegExp(`^${pattern(english)}\\.?$`, "s"),
    chinese,
  ]);
}

/** The sentence, with those that it quotes; as it is where it is none of the agent's own. */
export function said(text) {
  if (document.documentElement.lang !== "zh-CN" || text.length > LONGEST) return text;
  for (const [form, chinese] of forms) {
    const found = form.exec(text);
    if (found) return chinese.replace(/\{(\w+)\}/g, (_, name) => said(found.groups[name]));
  }
  return text;
}
