// What a chat becomes when the model is asked: the body of a request.

import { toast } from "./dom.js";
import { textWithFiles } from "./files.js";
import { settings } from "./store.js";
import { path } from "./tree.js";
import { t } from "./words.js";

/** A request to `model` for the path of `chat` that ends at `leaf`. */
export function requestBody(chat, leaf, model) {
  const { options } = chat;
  const system = options.system?.trim() ? options.system : settings.system;
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const node of path(chat, leaf)) {
    const message = requestMessage(node);
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
  const tools = parseTools();
  return tools.length ? { ...body, tools } : body;
}

function requestMessage({ role, content, images, files, tool_calls: calls, ...rest }) {
  if (role === "tool") {
    return { role, content, tool_call_id: rest.tool_call_id, name: rest.name };
  }
  if (role === "assistant") {
    if (!content && !calls?.length) return null;
    return { role, content, ...(calls?.length ? { tool_calls: calls } : {}) };
  }
  const text = textWithFiles(content, files);
  if (!images?.length) return { role, content: text };
  const pictures = images.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role, content: [...pictures, { type: "text", text }] };
}

/** "on" and "off" are variables of templates; others are efforts, as gpt-oss has them. */
function thinking({ thinking: choice, budget }) {
  const fields = budget ? { thinking_token_budget: budget } : {};
  if (choice === "on" || choice === "off") {
    return { ...fields, chat_template_kwargs: { enable_thinking: choice === "on" } };
  }
  return choice ? { ...fields, reasoning_effort: choice } : fields;
}

function parseTools() {
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
