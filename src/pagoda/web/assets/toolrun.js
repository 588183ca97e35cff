// One call of a tool: the question, the call, and what the model is told of it.

import { callTool, DroppedError } from "./api.js";
import { askAnswer, askConsent } from "./consent.js";
import { toolPicture } from "./files.js";
import { allow, connect, isAllowed, reasonOf } from "./mcp.js";
import { touch } from "./tree.js";
import { t } from "./words.js";

// What the model reads; it is no word of the page.
const REFUSED = "The user refused this call.";
const WRONG = "The arguments are not a JSON object; the tool was not called.";

/** Whether a call may still be carried out: it was stopped, or its page was closed. */
export const isOpen = ({ state }) => ["asking", "running", "stopped"].includes(state);

export class ToolRun {
  /** `page` is {save(chat), isShown(chat), unauthorized()}. */
  constructor(chat, node, view, page) {
    this.chat = chat;
    this.node = node;
    this.view = view;
    this.page = page;
    this.abort = new AbortController();
  }

  stop() {
    this.abort.abort();
  }

  /** Fill the node. `found` is {server, tool}; without it the tool is the user's own if `isOwn`.
   * Never throws: the node's state says how it ended, or that it did not (`isOpen`). */
  async write(found, isOwn) {
    try {
      if (found) await this.ask(found);
      else if (isOwn) await this.askUser();
      else this.end("failed", `There is no tool ${this.node.name}.`);
    } catch (error) {
      if (error.name === "AbortError") this.end("stopped", "");
      else this.end("failed", `Error: ${error instanceof DroppedError ? t("dropped") : reasonOf(error)}`);
    }
    this.chat.updated = Date.now();
    this.page.save(this.chat);
  }

  async ask(found) {
    const { chat, node } = this;
    const input = parsed(node.input);
    if (!input) return this.end("failed", WRONG);
    let choice = "allow";
    if (!isAllowed(chat.options, found)) {
      this.set("asking");
      const fields = found.server.builtIn ? fieldsOf(input) : whole(input);
      const title = this.page.isShown(chat) ? "" : chat.title;
      choice = await askConsent(found, { fields, chat: title }, this.abort.signal);
    }
    if (choice === "stop") return undefined;
    if (choice === "deny") return this.end("denied", REFUSED);
    if (choice === "always") allow(chat.options, found);
    this.set("running");
    return this.call(found, input);
  }

  async askUser() {
    this.set("asking");
    const answer = await askAnswer(this.node.name, this.node.input, this.abort.signal);
    if (answer !== "stop") this.end("done", answer.text);
  }

  async call({ server, tool }, input) {
    const body = { server: server.which, tool: tool.name, digest: tool.digest, arguments: input };
    try {
      for await (const told of callTool(body, this.abort.signal)) {
        if (told.kind === "result") await this.take(told);
        else if (told.output !== undefined) this.view.showOutput(told.output);
        else this.view.showStatus(progressOf(told));
      }
    } catch (error) {
      if (error.status === 401 && (await this.page.unauthorized())) {
        return this.call({ server, tool }, input);
      }
      // What the tools are now is asked again: the next question shows it.
      if (error.status === 404 || error.status === 409) await connect(server).catch(() => {});
      throw error;
    }
  }

  async take({ text, images, is_error: isError }) {
    const pictures = await Promise.all(images.map(toolPicture));
    const seen = pictures.filter(Boolean);
    if (seen.length) this.node.images = seen;
    this.end(isError ? "failed" : "done", text);
  }

  end(state, text) {
    this.node.content = text;
    this.set(state);
  }

  set(state) {
    this.node.state = state;
    touch(this.node);
    this.page.save(this.chat);
    this.view.begin();
  }
}

const whole = (input) =>
  Object.keys(input).length ? [["", JSON.stringify(input, null, 2)]] : [];

/** Each value by its name. Commands and texts of files are read with their line breaks. */
const fieldsOf = (value, name = "") =>
  value !== null && typeof value === "object"
    ? Object.entries(value).flatMap(([key, inner]) => fieldsOf(inner, name ? `${name}.${key}` : key))
    : [[name, String(value)]];

function progressOf({ progress, total, message }) {
  const share = total ? `${Math.round((100 * progress) / total)}%` : String(progress);
  return [share, message].filter(Boolean).join(" · ");
}

/** The arguments as an object; null where they are none. A tool without any may get an empty text. */
function parsed(text) {
  try {
    const value = JSON.parse(text.trim() || "{}");
    return value?.constructor === Object ? value : null;
  } catch {
    return null;
  }
}
