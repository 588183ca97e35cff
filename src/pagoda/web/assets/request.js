// What a chat becomes when the model is asked: the body of a request.

import { toast } from "./dom.js";
import { soundsOf, textWithFiles } from "./files.js";
import { settings } from "./store.js";
import { path } from "./tree.js";
import { t } from "./words.js";

// What the model reads of a call that did not come to its end.
const INTERRUPTED = {
  asking: "This call was not carried out.",
  running: "This call was interrupted; whether it was carried out is not known.",
  stopped: "The user stopped this call.",
};
const CUT_OFF = ["stopped", "dropped", "running", "length", "error"];

/** A request to `model` for the path of `chat` that ends at `leaf`, with these tools beside those
 * of the settings. */
export function requestBody(chat, leaf, model, definitions = []) {
  const { options } = chat;
  const system = options.system?.trim() ? options.system : settings.system;
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  let open = []; // calls that have no result yet
  for (const node of path(chat, leaf)) {
    const message = requestMessage(node);
    if (node.role === "tool") {
      open.shift();
    } else {
      messages.push(...open.map(notCarriedOut));
      open = message?.tool_calls ?? [];
    }
    const before = messages.at(-1);
    // After a reply that failed; templates want turns to alternate.
    const joins = message?.role === "user" && before?.role === "user";
    if (joins && typeof before.content === "string" && typeof message.content === "string") {
      before.content += `\n\n${message.content}`;
    } else if (message) {
      messages.push(message);
    }
  }
  const sampling = { ...settings.sampling, ...options.sampling };
  const body = { model: model || undefined, messages, ...sampling, ...thinking(options) };
  const tools = [...ownTools(), ...definitions];
  return tools.length ? { ...body, tools } : body;
}

function requestMessage({ role, content, images, files, tool_calls: calls, ...rest }) {
  if (role === "tool") {
    const told = { role, tool_call_id: rest.tool_call_id, name: rest.name };
    const text = INTERRUPTED[rest.state] ?? content;
    return { ...told, content: images?.length ? withMedia(images, [], text) : text };
  }
  if (role === "assistant") {
    // Those of a reply that was cut off are not whole.
    const whole = calls?.length && !CUT_OFF.includes(rest.state);
    if (!content && !whole) return null;
    return { role, content, ...(whole ? { tool_calls: calls } : {}) };
  }
  const text = textWithFiles(content, files);
  const sounds = soundsOf(files);
  const plain = !images?.length && !sounds.length;
  return { role, content: plain ? text : withMedia(images ?? [], sounds, text) };
}

function withMedia(images, sounds, text) {
  const pictures = images.map((url) => ({ type: "image_url", image_url: { url } }));
  const heard = sounds.map((url) => {
    const [, format, data] = url.match(/^data:audio\/([\w.+-]*)[^,]*,(.*)$/s);
    return { type: "input_audio", input_audio: { data, format } };
  });
  return [...pictures, ...heard, ...(text ? [{ type: "text", text }] : [])];
}

const notCarriedOut = ({ id, function: { name } }) => ({
  role: "tool",
  tool_call_id: id,
  name,
  content: INTERRUPTED.asking,
});

/** "on" and "off" are variables of templates; others are efforts, as gpt-oss has them. */
function thinking({ thinking: choice, budget }) {
  const fields = budget ? { thinking_token_budget: budget } : {};
  if (choice === "on" || choice === "off") {
    return { ...fields, chat_template_kwargs: { enable_thinking: choice === "on" } };
  }
  return choice ? { ...fields, reasoning_effort: choice } : fields;
}

/** Tools that the user wrote, and answers for. */
export function ownTools() {
  if (!settings.tools.trim()) return [];
  try {
    const tools = JSON.parse(settings.tools);
    if (Array.isArray(tools)) return tools;
  } catch {
    // told below
  }
  toast(t("toolsWrong"));
  return [];
}
