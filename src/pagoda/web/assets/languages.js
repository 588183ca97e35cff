// What the highlighter knows of languages: words, comments, strings. Coarse, and quick.

const set = (words) => new Set(words.trim().split(/\s+/));

const C_WORDS = `
  if else for while do switch case default break continue return goto sizeof typedef struct
  union enum static const volatile extern inline void int char short long float double signed
  unsigned bool auto register true false nullptr NULL
`;
const CPP_WORDS = `
  ${C_WORDS} class public private protected virtual override final namespace using template
  typename new delete this try catch throw noexcept constexpr consteval decltype friend operator
  explicit mutable static_cast dynamic_cast reinterpret_cast co_await co_yield co_return concept
  requires
`;
const JS_WORDS = `
  async await break case catch class const continue debugger default delete do else export
  extends false finally for from function get if import in instanceof let new null of return set
  static super switch this throw true try typeof undefined var void while with yield
`;
const TS_WORDS = `
  ${JS_WORDS} abstract any as boolean declare enum implements interface keyof namespace never
  number private protected public readonly string type unknown
`;
const PY_WORDS = `
  False None True and as assert async await break case class continue def del elif else except
  finally for from global if import in is lambda match nonlocal not or pass raise return self
  try while with yield
`;
const JAVA_WORDS = `
  abstract assert boolean break byte case catch char class const continue default do double else
  enum extends final finally float for if implements import instanceof int interface long native
  new null package private protected public record return sealed short static super switch
  synchronized this throw throws true false try var void volatile while yield
`;
const KOTLIN_WORDS = `
  ${JAVA_WORDS} fun val when is in object companion data override open internal lateinit suspend
  as by init
`;
const GO_WORDS = `
  break case chan const continue default defer else fallthrough for func go goto if import
  interface map nil package range return select struct switch type var true false int int64
  string bool byte rune error float64
`;
const RUST_WORDS = `
  as async await break const continue crate dyn else enum extern false fn for if impl in let
  loop match mod move mut pub ref return self Self static struct super trait true type unsafe
  use where while u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 usize isize bool str char
`;
const SHELL_WORDS = `
  if then else elif fi for while until do done case esac function in return exit export local
  readonly set unset source alias echo cd sudo
`;
const SQL_WORDS = `
  select from where and or not null is in like between join left right inner outer full on group
  by order having limit offset insert into values update set delete create table view index drop
  alter add column primary key foreign references unique default as distinct union all case when
  then else end exists with desc asc int integer text varchar boolean timestamp begin commit
  rollback
`;
const RUBY_WORDS = `
  alias and begin break case class def do else elsif end ensure false for if in module next nil
  not or redo rescue retry return self super then true undef unless until when while yield
  require puts attr_accessor
`;
const PHP_WORDS = `
  abstract and array as break case catch class clone const continue declare default do echo else
  elseif extends final finally fn for foreach function global if implements include instanceof
  interface match namespace new null or private protected public require return static switch
  throw trait try use var while yield true false
`;
const SWIFT_WORDS = `
  as associatedtype async await break case catch class continue default defer do else enum
  extension fallthrough false fileprivate for func guard if import in init inout internal is let
  nil open operator override private protocol public repeat return self static struct subscript
  super switch throw throws true try typealias var where while
`;
const LUA_WORDS = `
  and break do else elseif end false for function goto if in local nil not or repeat return then
  true until while
`;
const R_WORDS = `
  if else repeat while function for in next break TRUE FALSE NULL Inf NaN NA library
`;
const CSHARP_WORDS = `
  ${JAVA_WORDS} async await base bool checked decimal delegate dynamic event explicit foreach
  get in internal is lock nameof namespace object out override params readonly ref set sizeof
  string struct using virtual where partial
`;
const DATA_WORDS = "true false null yes no on off";

const STRING = String.raw`"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?`;
const DOUBLE_STRING = String.raw`"(?:[^"\\]|\\.)*"?`;
const NUMBER = String.raw`\b(?:0[xX][\da-fA-F_]+|0[bB][01_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)[a-zA-Z]?\b`;
const WORD = String.raw`[\p{L}_$][\p{L}\p{N}_$]*`;

/** A grammar: one pattern for all tokens, and what the spans that cross lines end with. */
function grammar({
  words = "",
  comment,
  spans = {},
  string = STRING,
  extra = "",
  anyCase = false,
}) {
  const keywords = set(words);
  const escape = (text) => text.replace(/[.*+?^${}()|[\]\\/]/g, "\\$&");
  const opens = (kind) =>
    Object.keys(spans)
      .filter((open) => (/[/*<!(-]/.test(open) ? "comment" : "string") === kind)
      .map(escape);
  const comments = [...opens("comment"), ...(comment ? [`${comment}.*`] : [])];
  const parts = [
    comments.length ? `(?<comment>${comments.join("|")})` : "",
    `(?<string>${[...opens("string"), string].join("|")})`,
    extra,
    `(?<number>${NUMBER})`,
    String.raw`(?<call>${WORD}(?=\s?\())`,
    `(?<word>${WORD})`,
  ];
  const wordKind = (token) => {
    if (keywords.has(anyCase ? token.toLowerCase() : token)) return "keyword";
    return /^\p{Lu}[\p{L}\p{N}]*\p{Ll}/u.test(token) ? "type" : "";
  };
  const pattern = new RegExp(parts.filter(Boolean).join("|"), "gu");
  return { pattern, spans, wordKind };
}

const C_COMMENTS = { comment: "//", spans: { "/*": "*/" } };
const TEMPLATES = { comment: "//", spans: { "/*": "*/", "`": "`" } };
const KEY = String.raw`(?<attribute>[\w.-]+(?=\s*[:=]))`;

const GRAMMARS = {
  python: () =>
    grammar({
      words: PY_WORDS,
      comment: "#",
      spans: { '"""': '"""', "'''": "'''" },
      extra: String.raw`(?<attribute>@[\w.]+)`,
    }),
  javascript: () => grammar({ words: JS_WORDS, ...TEMPLATES }),
  typescript: () => grammar({ words: TS_WORDS, ...TEMPLATES }),
  c: () => grammar({ words: C_WORDS, ...C_COMMENTS, extra: String.raw`(?<attribute>^\s*#\s*\w+)` }),
  cpp: () =>
    grammar({ words: CPP_WORDS, ...C_COMMENTS, extra: String.raw`(?<attribute>^\s*#\s*\w+)` }),
  csharp: () => grammar({ words: CSHARP_WORDS, ...C_COMMENTS }),
  java: () => grammar({ words: JAVA_WORDS, ...C_COMMENTS, extra: String.raw`(?<attribute>@\w+)` }),
  kotlin: () =>
    grammar({ words: KOTLIN_WORDS, ...C_COMMENTS, extra: String.raw`(?<attribute>@\w+)` }),
  swift: () => grammar({ words: SWIFT_WORDS, ...C_COMMENTS }),
  go: () => grammar({ words: GO_WORDS, ...TEMPLATES }),
  rust: () =>
    grammar({
      words: RUST_WORDS,
      ...C_COMMENTS,
      string: DOUBLE_STRING,
      extra: String.raw`(?<attribute>#!?\[[^\]]*\])`,
    }),
  php: () => grammar({ words: PHP_WORDS, ...C_COMMENTS, comment: "(?://|#)" }),
  ruby: () => grammar({ words: RUBY_WORDS, comment: "#" }),
  lua: () => grammar({ words: LUA_WORDS, comment: "--" }),
  r: () => grammar({ words: R_WORDS, comment: "#" }),
  bash: () =>
    grammar({
      words: SHELL_WORDS,
      comment: String.raw`(?<=^|\s)#`,
      extra: String.raw`(?<attribute>\$\{?\w+\}?|(?<=\s)--?[\w-]+)`,
    }),
  sql: () => grammar({ words: SQL_WORDS, comment: "--", spans: { "/*": "*/" }, anyCase: true }),
  json: () => grammar({ words: DATA_WORDS, string: DOUBLE_STRING, extra: "", comment: "//" }),
  yaml: () => grammar({ words: DATA_WORDS, comment: String.raw`(?<=^|\s)#`, extra: KEY }),
  toml: () =>
    grammar({
      words: DATA_WORDS,
      comment: "[#;]",
      extra: String.raw`(?<attribute>^\s*\[[^\]]*\]|[\w.-]+(?=\s*=))`,
    }),
  css: () =>
    grammar({
      spans: { "/*": "*/" },
      extra: String.raw`(?<attribute>[\w-]+(?=\s*:)|[.#][\w-]+|@\w+)`,
    }),
  html: () =>
    grammar({
      spans: { "<!--": "-->" },
      string: DOUBLE_STRING,
      extra: String.raw`(?<keyword></?[\w:-]+|/?>)|(?<attribute>[\w:-]+(?==))`,
    }),
  diff: () => ({
    pattern: /^(?:(?<inserted>\+.*)|(?<deleted>-.*)|(?<attribute>@@.*))$/gu,
    spans: {},
    wordKind: () => "",
  }),
};

const ALIASES = {
  py: "python",
  python3: "python",
  js: "javascript",
  jsx: "javascript",
  mjs: "javascript",
  ts: "typescript",
  tsx: "typescript",
  h: "c",
  cc: "cpp",
  "c++": "cpp",
  hpp: "cpp",
  cuda: "cpp",
  cs: "csharp",
  "c#": "csharp",
  kt: "kotlin",
  golang: "go",
  rs: "rust",
  rb: "ruby",
  sh: "bash",
  shell: "bash",
  zsh: "bash",
  console: "bash",
  fish: "bash",
  dockerfile: "bash",
  make: "bash",
  makefile: "bash",
  jsonc: "json",
  json5: "json",
  yml: "yaml",
  ini: "toml",
  conf: "toml",
  scss: "css",
  less: "css",
  xml: "html",
  svg: "html",
  vue: "html",
  patch: "diff",
  scala: "kotlin",
  dart: "java",
  mysql: "sql",
  postgresql: "sql",
  sqlite: "sql",
};

const built = new Map();

/** The grammar of a fence's language, or null for a language that is not known. */
export function languageOf(name) {
  const lower = name.toLowerCase();
  const language = Object.hasOwn(ALIASES, lower) ? ALIASES[lower] : lower;
  if (!Object.hasOwn(GRAMMARS, language)) return null;
  if (!built.has(language)) built.set(language, GRAMMARS[language]());
  return built.get(language);
}
