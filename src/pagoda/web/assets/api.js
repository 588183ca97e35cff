// The server's API, spoken like any client speaks it. Paths are relative, for servers with a
// root path.

const KEY = "pagoda.key";

export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The stream ended before the reply did. */
export class DroppedError extends Error {}

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "",
  set(value, keep) {
    key.forget();
    (keep ? localStorage : sessionStorage).setItem(KEY, value);
  },
  forget() {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
  },
};

async function call(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  const reply = await fetch(path, { ...options, headers });
  if (reply.ok) return reply;
  const text = await reply.text();
  let message = text.slice(0, 500) || `HTTP ${reply.status}`;
  try {
    const { error } = JSON.parse(text);
    message = error.message ?? error; // Ollama's routes have a text there
  } catch {
    // Not the API's own error, as a proxy's: its text says more than nothing.
  }
  throw new ApiError(message, reply.status);
}

/** "ready", or {status, cause} of what is in the way. */
export async function health() {
  const reply = await fetch("health");
  if (reply.ok) return "ready";
  try {
    return await reply.json();
  } catch {
    return { status: "unreachable", cause: `HTTP ${reply.status}` };
  }
}

export async function models() {
  return (await (await call("v1/models")).json()).data;
}

/** The reply to a JSON body. */
async function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** What a model is and can do: {capabilities, template, ...}. */
export async function showModel(model) {
  return (await post("api/show", { model })).json();
}

/** How many tokens a text has. */
export async function countTokens(text, model) {
  const body = { prompt: text, model: model || undefined, add_special_tokens: false };
  return (await (await post("tokenize", body)).json()).count;
}

/** The text of a PDF: {text, pages, pages_read}. */
export async function extractText(file) {
  const headers = { "Content-Type": "application/pdf" };
  return (await call("extract-text", { method: "POST", headers, body: file })).json();
}

export const library = async () => (await call("models/library")).json();
export const loadModel = (model) => post("models/load", { model });
export const unloadModel = (model) => post("models/unload", { model });
export const planModel = async (model) => (await post("models/plan", { model })).json();
export const removeModel = async (model) => (await post("models/remove", { model })).json();

/** The state of every model, and then each change of it. */
export async function* modelEvents(signal) {
  const reply = await call("models/sse", { signal });
  for await (const data of events(reply.body)) yield JSON.parse(data);
}

/** Have the server fetch a model: its lines of progress. Who stops reading cancels it. */
export async function* pullModel(model, signal) {
  const reply = await post("api/pull", { model }, signal);
  for await (const line of lines(reply.body)) {
    const told = JSON.parse(line);
    if (told.error) throw new ApiError(told.error);
    yield told;
  }
}

/** MCP servers of this server: {servers: [{name, transport}], closed}. */
export const mcpServers = async () => (await call("mcp/servers")).json();

/** What a server (a name, or {id, name, url, headers}) offers: {title, tools, left_out}. */
export const mcpTools = async (server, signal) =>
  (await post("mcp/tools", { server }, signal)).json();

/** Call a tool: events of its progress, then its result. Who aborts cancels the call. */
export async function* callTool(body, signal) {
  const reply = await post("mcp/call", body, signal);
  for await (const data of events(reply.body)) {
    const told = JSON.parse(data);
    if (told.error) throw new ApiError(told.error.message, told.error.code);
    yield told;
    if (told.kind === "result") return;
  }
  throw new DroppedError();
}

/** Chunks of a streamed chat completion. Throws ApiError, DroppedError or, aborted, AbortError. */
export async function* streamChat(body, signal) {
  // One that is stopped has told how many tokens it has.
  const options = { include_usage: true, continuous_usage_stats: true };
  const streamed = { ...body, stream: true, stream_options: options };
  const reply = await post("v1/chat/completions", streamed, signal);
  for await (const data of events(reply.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, chunk.error.code);
    yield chunk;
  }
  throw new DroppedError();
}

/** The data of each server-sent event: the API writes it on one line. */
async function* events(stream) {
  // Other lines are comments that keep it alive.
  for await (const line of lines(stream)) if (line.startsWith("data:")) yield line.slice(5).trim();
}

/** Every line that is not empty. */
async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  while (true) {
    let piece;
    try {
      piece = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new DroppedError();
    }
    if (piece.done) return;
    buffer += piece.value;
    const whole = buffer.split(/\r?\n/);
    buffer = whole.pop();
    for (const line of whole) if (line) yield line;
  }
}
