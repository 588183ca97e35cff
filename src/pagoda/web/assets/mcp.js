// The MCP servers that a chat may use, and the tools that its model is told of.
//
// server: {key, name, about, own, state, error, tools, leftOut}; state is "", "connecting", "ready" or "failed".
// options.tools: {key of a server that is on: [names of its tools that are off]}
// options.allowed: [calls that need no question in this chat], by server, tool and the tool's digest.

import { ApiError, mcpServers, mcpTools } from "./api.js";
import { newId, toast } from "./dom.js";
import { t } from "./words.js";

const OWN = "pagoda.mcp";
const MAX_NAME = 64;

// By key; what was learned of a server is kept while the page is open.
const known = new Map();

function stored() {
  try {
    return JSON.parse(localStorage.getItem(OWN)) ?? [];
  } catch {
    return [];
  }
}

/** Why a request failed; fetch tells no more than that it did. */
export const reasonOf = (error) => (error instanceof ApiError ? error.message : t("offline"));

const store = (own) => localStorage.setItem(OWN, JSON.stringify(own));

/** Keep a server in this browser: {name, url, header, value}. */
export function addServer({ name, url, header, value }) {
  // What people have is a token; the header wants its kind before it.
  const bare = header.toLowerCase() === "authorization" && value && !value.includes(" ");
  const headers = value ? { [header]: bare ? `Bearer ${value}` : value } : {};
  const server = { id: newId(), name, url, headers };
  store([...stored(), server]);
  return server.id;
}

export function removeServer(key) {
  store(stored().filter(({ id }) => id !== key));
  known.delete(key);
}

function serverOf(key, fields) {
  if (!known.has(key)) known.set(key, { key, state: "", error: "", tools: [], leftOut: [] });
  return Object.assign(known.get(key), fields);
}

/** {servers, closed}: those of the server's file, then those of this browser. */
export async function listServers() {
  const { servers, closed } = await mcpServers();
  const words = { stdio: t("mcpProgram"), "built-in": t("mcpBuiltIn") };
  const about = ({ transport }) => words[transport] ?? transport.toUpperCase();
  const theirs = servers.map((one) => {
    const { name, transport } = one;
    const builtIn = transport === "built-in";
    return serverOf(`server:${name}`, { name, which: name, about: about(one), builtIn });
  });
  const ours = stored().map((one) =>
    serverOf(one.id, { name: one.name, which: one, about: one.url, own: true }),
  );
  return { servers: [...theirs, ...ours], closed };
}

/** Ask a server for its tools. Throws where that fails, and the server says why. */
export async function connect(server, signal) {
  server.state = "connecting";
  try {
    const { tools, left_out: leftOut } = await mcpTools(server.which, signal);
    Object.assign(server, { state: "ready", error: "", tools, leftOut });
  } catch (error) {
    Object.assign(server, { state: "failed", error: reasonOf(error), tools: [], leftOut: [] });
    throw error;
  }
}

export const isOn = (options, server) => Boolean(options.tools?.[server.key]);
export const isToolOn = (options, server, tool) =>
  isOn(options, server) && !options.tools[server.key].includes(tool.name);
export const hasTools = (options) => Object.keys(options.tools ?? {}).length > 0;

const consentKey = ({ server, tool }) => [server.key, tool.name, tool.digest].join(" ");
export const isAllowed = (options, found) =>
  !found.tool.each_time && (options.allowed ?? []).includes(consentKey(found));
export function allow(options, found) {
  options.allowed = [...(options.allowed ?? []), consentKey(found)];
  options.changed = Date.now();
}

/** The tools of a chat, by the names that its model knows: name -> {server, tool}. */
export class Toolset {
  constructor() {
    this.found = new Map();
  }

  add(server, tool) {
    // Two servers may have tools of one name, and a name has 64 letters, digits, _ and - at most.
    const plain = `${server.name}__${tool.name}`.replace(/[^\w-]/gu, "_");
    let name = plain.slice(0, MAX_NAME);
    for (let i = 2; this.found.has(name); i++) name = `${plain.slice(0, MAX_NAME - 4)}_${i}`;
    this.found.set(name, { server, tool });
  }

  definitions() {
    return Array.from(this.found, ([name, { tool }]) => ({
      type: "function",
      function: { name, description: tool.description, parameters: tool.schema },
    }));
  }
}

/** The tools that are on in a chat. A server that cannot be reached is left out, and a toast says so. */
export async function toolsetOf(options, signal) {
  const toolset = new Toolset();
  if (!hasTools(options)) return toolset;
  const on = (await listServers()).servers.filter((server) => isOn(options, server));
  await Promise.all(on.map((server) => connected(server, signal)));
  for (const server of on) {
    const tools = server.tools.filter((tool) => isToolOn(options, server, tool));
    for (const tool of tools) toolset.add(server, tool);
  }
  return toolset;
}

async function connected(server, signal) {
  if (server.state === "ready") return;
  try {
    await connect(server, signal);
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) throw error;
    toast(t("mcpAway", { name: server.name, reason: reasonOf(error) }));
  }
}
