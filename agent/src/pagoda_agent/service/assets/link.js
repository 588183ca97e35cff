// The agent's API, and its stream of events.

import { said } from "./sentences.js";

const RETRY_MS = 400;
const LONGEST_RETRY_MS = 4000;
// A page that is loaded anew may come before its old stream is missed.
const TRIES = 3;
const TRIES_OF_CONTROLLER = 40;

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function ask(path, options) {
  const reply = await fetch(`api/${path}`, options);
  if (!reply.ok) throw await failure(reply);
  return reply.json().catch(() => ({}));
}

async function failure(reply) {
  const body = await reply.json().catch(() => ({}));
  const english = body.error ?? `${reply.status} ${reply.statusText}`;
  return Object.assign(new Error(said(english)), { english });
}

export const get = (path) => ask(path);

export const post = (path, body = {}) =>
  ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });

export const frameUrl = (run, file) =>
  `api/runs/${encodeURIComponent(run)}/frames/${encodeURIComponent(file)}`;

/** Post, and hand each event of the answer to `take`. */
export async function postForEvents(path, body, signal, take) {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: JSON.stringify(body), signal };
  const reply = await fetch(`api/${path}`, options);
  if (!reply.ok) throw await failure(reply);
  await readEvents(reply.body, take);
}

async function readEvents(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const messages = (rest + value).split("\n\n");
    rest = messages.pop();
    for (const message of messages) {
      const data = message.split("\n").find((line) => line.startsWith("data: "));
      if (data) take(JSON.parse(data.slice(6)));
    }
  }
}

/** Hand every event to `take`, over lost connections too: `opened` and `lost` tell of those.
 * Ends with why the agent does not want this page: "used" or "second". */
export async function follow({ take, opened, lost }) {
  let since = 0;
  let failures = 0;
  let controls = false;
  for (;;) {
    let status = 0;
    try {
      // Not an EventSource: that keeps to itself with which status it was refused.
      const reply = await fetch(`api/events?since=${since}`);
      status = reply.status;
      if (reply.ok) {
        controls = true;
        failures = 0;
        await opened();
        await readEvents(reply.body, (event) => {
          since = event.number + 1;
          take(event);
        });
      }
    } catch (error) {
      // What the network's end looks like; everything else is this page's own mistake.
      if (!["TypeError", "AbortError"].includes(error.name)) throw error;
    }
    failures += 1;
    if (status === 403) return "used";
    if (status === 409 && failures >= (controls ? TRIES_OF_CONTROLLER : TRIES)) return "second";
    if (controls || status === 0) lost();
    await pause(Math.min(RETRY_MS * failures, LONGEST_RETRY_MS));
  }
}
