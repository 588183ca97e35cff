// LaTeX formulas as MathML, which browsers lay out themselves. What is not known is shown as it
// was written.

import {
  ACCENTS,
  FONTS,
  FUNCTIONS,
  INTEGRALS,
  LARGE,
  LETTERS,
  LIMITS,
  OPERATORS,
  SPACES,
  inFont,
} from "./symbols.js";

const MATHML = "http://www.w3.org/1998/Math/MathML";
const MAX_DEPTH = 40;
const MAX_LENGTH = 5000;

const TOKEN = /\\([a-zA-Z]+\*?|.)|\s+|%.*|([\s\S])/gu;
const TEXT_COMMANDS = new Set([
  "text",
  "textrm",
  "textbf",
  "textit",
  "texttt",
  "textsf",
  "mbox",
  "hbox",
]);
const SIZES = /^(big|Big|bigg|Bigg)[lrm]?$/;
const STYLES = new Set([
  "displaystyle",
  "textstyle",
  "scriptstyle",
  "limits",
  "nolimits",
  "nonumber",
  "notag",
  "hline",
  "rm",
  "bf",
  "it",
]);
const FENCES = {
  matrix: ["", ""],
  pmatrix: ["(", ")"],
  bmatrix: ["[", "]"],
  Bmatrix: ["{", "}"],
  vmatrix: ["|", "|"],
  Vmatrix: ["‖", "‖"],
  smallmatrix: ["", ""],
  cases: ["{", ""],
  rcases: ["", "}"],
  array: ["", ""],
  aligned: ["", ""],
  align: ["", ""],
  alignedat: ["", ""],
  split: ["", ""],
  gathered: ["", ""],
  gather: ["", ""],
  equation: ["", ""],
  eqnarray: ["", ""],
};
const ALIGNED = /^(align|split|eqnarray)/;

function node(name, attributes, ...children) {
  const made = document.createElementNS(MATHML, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const row = (children) => (children.length === 1 ? children[0] : node("mrow", {}, ...children));
const fence = (character) =>
  character ? [node("mo", { stretchy: "true", fence: "true" }, character)] : [];

/** A <math> element; where the formula cannot be read, its source as code. */
export function mathNode(source, display) {
  const code = document.createElement("code");
  code.textContent = source;
  if (source.length > MAX_LENGTH) return code;
  try {
    const content = new Formula(source, display).parse();
    return node("math", { display: display ? "block" : "inline" }, content);
  } catch {
    return code;
  }
}

function tokens(source) {
  const found = [];
  for (const [all, command, character] of source.matchAll(TOKEN)) {
    if (command !== undefined) found.push({ command: command.replace("*", ""), all });
    else if (character !== undefined && !all.startsWith("%")) found.push({ character, all });
    else if (/^\s/.test(all)) found.push({ space: true, all });
  }
  return found;
}

class Formula {
  constructor(source, display) {
    this.tokens = tokens(source);
    this.at = 0;
    this.display = display;
    this.depth = 0;
    this.font = "";
  }

  parse() {
    const content = this.list(() => false);
    return row(content);
  }

  peek() {
    while (this.tokens[this.at]?.space) this.at++;
    return this.tokens[this.at];
  }

  take() {
    const token = this.peek();
    if (!token) throw new Error("the formula ends early");
    this.at++;
    return token;
  }

  is(what) {
    const token = this.peek();
    return (
      token !== undefined &&
      (token.character === what || (token.command && `\\${token.command}` === what))
    );
  }

  /** Atoms with their scripts, until `ends` holds or the formula is over. */
  list(ends) {
    if (++this.depth > MAX_DEPTH) throw new Error("too deep");
    const found = [];
    while (this.peek() && !ends(this.peek())) {
      if (this.is("\\over")) {
        this.at++;
        const below = this.list(ends);
        this.depth--;
        return [node("mfrac", {}, row(found), row(below))];
      }
      const atom = this.atom();
      if (atom) found.push(this.scripts(atom));
    }
    this.depth--;
    return found;
  }

  /** One argument: a group in braces, or a single atom. */
  argument() {
    // \frac12 is a half: without braces an argument is one digit.
    if (/^[0-9]$/.test(this.peek()?.character ?? "")) return node("mn", {}, this.take().character);
    if (!this.is("{")) {
      if (++this.depth > MAX_DEPTH) throw new Error("too deep");
      const atom = this.atom() ?? node("mrow", {});
      this.depth--;
      return atom;
    }
    this.at++;
    return this.until("}");
  }

  until(closing) {
    const content = this.list((token) => token.character === closing);
    this.take();
    return row(content);
  }

  /** The source of an argument, unread. */
  raw() {
    if (!this.is("{")) return this.take().all;
    this.at++;
    let text = "";
    for (let depth = 1; ; this.at++) {
      const token = this.tokens[this.at];
      if (!token) throw new Error("a brace is open");
      if (token.character === "{") depth++;
      if (token.character === "}" && --depth === 0) break;
      text += token.all;
    }
    this.at++;
    return text;
  }

  scripts(base) {
    let below = null;
    let above = null;
    while (true) {
      if (this.is("_") && !below) {
        this.at++;
        below = this.argument();
      } else if (this.is("^") && !above) {
        this.at++;
        above = this.argument();
      } else if (this.is("'")) {
        let primes = "";
        for (; this.is("'"); this.at++) primes += "′";
        above = row([node("mo", {}, primes), ...(above ? [above] : [])]);
      } else if (this.is("\\limits") || this.is("\\nolimits")) {
        this.at++;
      } else {
        break;
      }
    }
    if (!below && !above) return base;
    const stacked = base.pagodaStacks && this.display;
    if (below && above) return node(stacked ? "munderover" : "msubsup", {}, base, below, above);
    if (below) return node(stacked ? "munder" : "msub", {}, base, below);
    return node(stacked ? "mover" : "msup", {}, base, above);
  }

  atom() {
    const token = this.take();
    return token.command === undefined
      ? this.character(token.character)
      : this.command(token.command);
  }

  character(character) {
    if (character === "{") return this.until("}");
    if (/[0-9.]/.test(character)) return this.number(character);
    if (/\p{L}/u.test(character)) return this.identifier(character);
    if (character === "~") return node("mspace", { width: "0.25em" });
    if (character === "&") return null;
    if ("^_".includes(character)) {
      this.at--;
      return node("mrow", {});
    }
    const shown = { "-": "−", "*": "∗" }[character] ?? character;
    return node("mo", "()[]|/".includes(character) ? { stretchy: "false" } : {}, shown);
  }

  number(first) {
    let digits = first;
    while (/^[0-9.]$/.test(this.tokens[this.at]?.character ?? "")) {
      digits += this.tokens[this.at++].character;
    }
    return node("mn", {}, this.styled(digits));
  }

  identifier(character) {
    const upright = this.font === "rm" ? { mathvariant: "normal" } : {};
    return node("mi", upright, this.styled(character));
  }

  styled(text) {
    return Array.from(text, (character) => inFont(character, this.font)).join("");
  }

  command(name) {
    if (Object.hasOwn(LETTERS, name)) return this.letter(name);
    if (Object.hasOwn(OPERATORS, name)) return node("mo", { stretchy: "false" }, OPERATORS[name]);
    if (Object.hasOwn(LARGE, name))
      return this.stacking(node("mo", { largeop: "true" }, LARGE[name]));
    if (Object.hasOwn(INTEGRALS, name)) return node("mo", { largeop: "true" }, INTEGRALS[name]);
    if (Object.hasOwn(SPACES, name)) return node("mspace", { width: `${SPACES[name]}em` });
    if (Object.hasOwn(FONTS, name)) return this.inFont(FONTS[name]);
    if (Object.hasOwn(ACCENTS, name)) return this.accent(ACCENTS[name]);
    if (FUNCTIONS.has(name)) return this.named(name);
    if (LIMITS.has(name)) return this.stacking(this.named(name));
    if (TEXT_COMMANDS.has(name))
      return node("mtext", {}, this.raw().replace(/\\([{}$%&#_ ])/g, "$1"));
    if (SIZES.test(name) || STYLES.has(name)) return null;
    return this.construct(name);
  }

  construct(name) {
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
      case "cfrac":
        return node("mfrac", {}, this.argument(), this.argument());
      case "binom":
      case "dbinom":
      case "tbinom": {
        const parts = node("mfrac", { linethickness: "0" }, this.argument(), this.argument());
        return row([...fence("("), parts, ...fence(")")]);
      }
      case "sqrt":
        return this.root();
      case "left":
        return this.fenced();
      case "begin":
        return this.environment();
      case "operatorname":
      case "mathop":
        return this.stacking(this.named(this.raw().replace(/[\\{}]/g, "")));
      case "overset":
      case "stackrel": {
        const above = this.argument();
        return node("mover", {}, this.argument(), above);
      }
      case "underset": {
        const below = this.argument();
        return node("munder", {}, this.argument(), below);
      }
      case "overbrace":
        return this.stacking(
          node("mover", {}, this.argument(), node("mo", { stretchy: "true" }, "⏞")),
        );
      case "underbrace":
        return this.stacking(
          node("munder", {}, this.argument(), node("mo", { stretchy: "true" }, "⏟")),
        );
      case "underline":
        return node("munder", {}, this.argument(), node("mo", { stretchy: "true" }, "_"));
      case "xrightarrow":
        return node("mover", {}, node("mo", { stretchy: "true" }, "→"), this.argument());
      case "boxed":
        return node("mrow", { class: "boxed" }, this.argument());
      case "cancel":
      case "phantom":
      case "mathord":
      case "mathrel":
      case "mathbin":
        return this.argument();
      case "color":
      case "textcolor":
      case "label":
      case "tag":
      case "hspace":
      case "vspace":
        this.raw();
        return null;
      case "not":
        return node("mo", {}, `${this.argument().textContent}\u0338`);
      case "pmod":
        return row([
          node("mo", {}, "("),
          this.named("mod"),
          node("mspace", { width: "0.3em" }),
          this.argument(),
          node("mo", {}, ")"),
        ]);
      case "bmod":
      case "mod":
        return node("mo", { lspace: "0.3em", rspace: "0.3em" }, "mod");
      case "\\":
        return node("mspace", { linebreak: "newline" });
      case "|":
        return node("mo", { stretchy: "false" }, "‖");
      default:
        // \{ and its like are the character; a name that nobody knows is shown as it is.
        return name.length === 1
          ? node("mo", { stretchy: "false" }, name)
          : node("mtext", {}, `\\${name}`);
    }
  }

  letter(name) {
    const upright = /^\p{Lu}|[^\p{L}]/u.test(LETTERS[name]) ? { mathvariant: "normal" } : {};
    return node("mi", upright, LETTERS[name]);
  }

  named(name) {
    return node("mi", { mathvariant: "normal" }, name.replace(/^lim(sup|inf)$/, "lim $1"));
  }

  stacking(made) {
    made.pagodaStacks = true;
    return made;
  }

  inFont(font) {
    const outer = this.font;
    this.font = font;
    const content = this.argument();
    this.font = outer;
    return content;
  }

  accent(mark) {
    const base = this.argument();
    // Over a letter an accent keeps its size; over more it spans all.
    const stretchy = base.localName === "mi" && mark !== "¯" ? "false" : "true";
    return node("mover", { accent: "true" }, base, node("mo", { stretchy }, mark));
  }

  root() {
    if (!this.is("[")) return node("msqrt", {}, this.argument());
    this.at++;
    const degree = this.until("]");
    return node("mroot", {}, this.argument(), degree);
  }

  delimiter() {
    const { character, command } = this.take();
    if (character !== undefined) return character === "." ? "" : character;
    return OPERATORS[command] ?? (command === "|" ? "‖" : command);
  }

  fenced() {
    const opens = this.delimiter();
    const parts = [];
    const ends = (token) => token.command === "right" || token.command === "middle";
    while (true) {
      parts.push(...this.list(ends));
      if (this.take().command === "right") break;
      parts.push(...fence(this.delimiter()));
    }
    return node("mrow", {}, ...fence(opens), ...parts, ...fence(this.delimiter()));
  }

  /** Skip the space that a row may ask for, as in \\[2pt]. */
  skipRowSpace() {
    const ahead = this.tokens.slice(this.at, this.at + 10);
    const end = ahead.findIndex(({ character }) => character === "]");
    const text = ahead.slice(0, end + 1).map(({ all }) => all).join("");
    if (/^\[-?[\d.]+[a-z]{2}\]$/.test(text)) this.at += end + 1;
  }

  environment() {
    const name = this.raw().replace("*", "");
    if (!Object.hasOwn(FENCES, name)) throw new Error(name);
    if (name === "array" || name === "alignedat") this.raw();
    const ends = (token) =>
      token.command === "end" || token.command === "\\" || token.character === "&";
    const rows = [[]];
    while (true) {
      rows.at(-1).push(node("mtd", {}, ...this.list(ends)));
      const token = this.take();
      if (token.command === "end") break;
      if (token.command === "\\") {
        this.skipRowSpace();
        rows.push([]);
      }
    }
    this.raw();
    if (rows.length > 1 && rows.at(-1).every((cell) => !cell.childNodes.length)) rows.pop();
    const kind = ALIGNED.test(name) ? "aligned" : name.includes("cases") ? "cases" : "matrix";
    const table = node(
      "mtable",
      { class: kind },
      ...rows.map((cells) => node("mtr", {}, ...cells)),
    );
    if (kind === "aligned") table.setAttribute("displaystyle", "true");
    const [opens, closes] = FENCES[name];
    return row([...fence(opens), table, ...fence(closes)]);
  }
}
