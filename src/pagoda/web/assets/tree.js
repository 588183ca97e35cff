// A chat is a tree of messages: editing or retrying adds a version and loses none.
//
// chat: {id, title, named, options, created, updated, leaf, nodes: {id: node}}
// node: {id, parent, role, content, changed, ...}; `leaf` is where the shown path ends, `named` when
// the title was given, `options` how the model is asked (options.js). Two tabs may hold the same chat: what each wrote is put together by ids.

import { newId } from "./dom.js";

export function newChat(options = {}) {
  const now = Date.now();
  return { id: newId(), title: "", options, created: now, updated: now, leaf: null, nodes: {} };
}

/** Add a message under `parent` and show it. */
export function addNode(chat, parent, fields) {
  const node = { id: newId(), parent, content: "", created: Date.now(), ...fields };
  chat.nodes[node.id] = node;
  chat.leaf = node.id;
  return node;
}

/** Messages from the first to `id`, by default to the end of the shown path. */
export function path(chat, id = chat.leaf) {
  const nodes = [];
  for (let node = chat.nodes[id]; node; node = chat.nodes[node.parent]) nodes.push(node);
  return nodes.reverse();
}

const children = (chat, parent) =>
  Object.values(chat.nodes)
    .filter((node) => node.parent === parent)
    .sort((a, b) => (a.created ?? 0) - (b.created ?? 0));

/** The calls of a reply, each with its result in the shown path, if there is one. */
export function answered(chat, node) {
  const nodes = path(chat);
  const results = nodes.slice(nodes.indexOf(node) + 1);
  const end = results.findIndex(({ role }) => role !== "tool");
  const own = nodes.includes(node) ? results.slice(0, end < 0 ? undefined : end) : [];
  return node.tool_calls.map((call, i) => ({ call, result: own[i] }));
}

/** Say that a message is another than it was. */
export function touch(node) {
  node.changed = Math.max(Date.now(), (node.changed ?? 0) + 1);
}

const isNewer = (one, than) => (one?.changed ?? 0) > (than?.changed ?? 0);

/** Take over what `other`, the chat as another tab left it, has more or newer; ids of messages. */
export function merge(chat, other) {
  const taken = [];
  for (const [id, node] of Object.entries(other.nodes)) {
    const own = chat.nodes[id];
    if (own && !isNewer(node, own)) continue;
    for (const field of Object.keys(own ?? {})) if (!(field in node)) delete own[field];
    chat.nodes[id] = Object.assign(own ?? {}, node);
    taken.push(id);
  }
  if (!chat.title || (other.named ?? 0) > (chat.named ?? 0)) {
    chat.title = other.title;
    chat.named = other.named;
  }
  if (isNewer(other.options, chat.options)) chat.options = other.options;
  chat.updated = Math.max(chat.updated, other.updated);
  // What was added to the shown path is shown.
  if (!chat.leaf || path(chat, other.leaf).some(({ id }) => id === chat.leaf)) {
    chat.leaf = other.leaf;
  }
  return taken;
}

/** Whether `other` lacks something of the chat, but for what is just being written. */
export function isBehind(other, chat) {
  const nodes = Object.values(chat.nodes);
  const lost = nodes.some((node) => {
    const there = other.nodes[node.id];
    return !there || (node.state !== "running" && isNewer(node, there));
  });
  return lost || isNewer(chat.options, other.options) || (chat.named ?? 0) > (other.named ?? 0);
}

/** The versions of a message, itself included, oldest first. */
export const versions = (chat, node) => children(chat, node.parent);

/** Show a version, down to its newest reply. */
export function show(chat, node) {
  for (let next = node; next; next = children(chat, next.id).at(-1)) chat.leaf = next.id;
}

const isText = (value) => typeof value === "string";
const isFile = (file) =>
  isText(file?.name) &&
  isText(file.text) &&
  [file.pages, file.read].every((count) => count === undefined || Number.isFinite(count));
const isCall = (call) => isText(call?.function?.name) && isText(call.function.arguments);

// Fields that a message may have, each with what its value must be.
const FIELDS = {
  created: Number.isFinite,
  changed: Number.isFinite,
  reasoning: isText,
  seconds: Number.isFinite,
  model: isText,
  state: isText,
  error: isText,
  name: isText,
  input: isText,
  byTools: (value) => value === true,
  tool_call_id: isText,
  tool_calls: (value) => Array.isArray(value) && value.every(isCall),
  images: (value) => Array.isArray(value) && value.every((image) => isText(image)),
  files: (value) => Array.isArray(value) && value.every(isFile),
  pair: isText,
  stats: (value) => Object.values(value ?? {}).every((number) => Number.isFinite(number)),
};

// Options that a chat or a preset may have, each with what its value must be.
const OPTIONS = {
  changed: Number.isFinite,
  system: isText,
  thinking: isText,
  budget: (value) => Number.isInteger(value) && value > 0,
  sampling: (value) =>
    value?.constructor === Object &&
    Object.values(value).every(
      (one) => Number.isFinite(one) || (Array.isArray(one) && one.every(isText)),
    ),
};

/** Options of a file, reduced to those that this page knows. */
export function checkedOptions(options) {
  const fits = ([name, value]) => Object.hasOwn(OPTIONS, name) && OPTIONS[name](value);
  return Object.fromEntries(Object.entries(options ?? {}).filter(fits));
}

/** A preset of a file. Throws where it is none. */
export function checkedPreset({ name, model, options }) {
  if (!isText(name) || !name) throw new Error("name");
  return { name, model: isText(model) ? model : "", options: checkedOptions(options) };
}

/** A chat of a file, reduced to what this page writes itself. Throws where it is none. */
export function checkedChat(chat) {
  if (!isText(chat?.id) || typeof chat.nodes !== "object" || chat.nodes === null) {
    throw new Error("id, nodes");
  }
  const nodes = Object.create(null);
  for (const [id, node] of Object.entries(chat.nodes)) {
    if (!["user", "assistant", "tool"].includes(node?.role)) throw new Error("role");
    // Messages follow their parents, so that no path turns in a circle.
    const parent = Object.hasOwn(nodes, node.parent) ? node.parent : null;
    nodes[id] = { id, parent, role: node.role, content: String(node.content ?? "") };
    for (const [field, fits] of Object.entries(FIELDS)) {
      if (node[field] !== undefined && fits(node[field])) nodes[id][field] = node[field];
    }
  }
  const now = Date.now();
  return {
    id: chat.id,
    title: String(chat.title ?? ""),
    named: Number(chat.named) || 0,
    options: checkedOptions(chat.options),
    created: Number(chat.created) || now,
    updated: Number(chat.updated) || now,
    leaf: Object.hasOwn(nodes, chat.leaf) ? chat.leaf : (Object.keys(nodes).at(-1) ?? null),
    nodes,
  };
}
