// One reply being written: it goes on when another chat is shown.

import { ApiError, DroppedError, streamChat } from "./api.js";
import { touch } from "./tree.js";
import { t } from "./words.js";

const SAVE_MS = 2000;

export class Run {
  /** `events` are the page's: save(), unauthorized() (a promise; true means try again). */
  constructor(chat, node, view, events) {
    this.chat = chat;
    this.node = node;
    this.view = view;
    this.events = events;
    this.abort = new AbortController();
  }

  stop() {
    this.abort.abort();
  }

  /** Write the reply into the node. `bodyOf` makes the request, given what stops it. Never throws:
   * the node says what went wrong. */
  async write(bodyOf) {
    const { node } = this;
    node.state = "running";
    delete node.error;
    touch(node);
    const saving = setInterval(() => this.events.save(this.chat), SAVE_MS);
    try {
      await this.read(await bodyOf(this.abort.signal));
    } catch (error) {
      await this.explain(error, bodyOf);
    } finally {
      clearInterval(saving);
    }
    touch(node);
    this.chat.updated = Date.now();
    this.events.save(this.chat);
  }

  async read(body) {
    const { node } = this;
    const clock = { sent: performance.now(), first: 0, last: 0, pieces: 0, timings: null, usage: null };
    let finish = null;
    for await (const chunk of streamChat(body, this.abort.signal)) {
      const choice = chunk.choices[0];
      clock.usage = chunk.usage ?? clock.usage;
      if (choice && this.add(choice.delta)) {
        clock.last = performance.now();
        clock.first ||= clock.last;
        clock.pieces++;
        node.stats = this.measure(clock);
        this.view.schedule();
      }
      if (choice?.finish_reason) finish = choice.finish_reason;
      clock.timings = chunk.timings ?? clock.timings;
      if (chunk.usage) node.stats = this.measure(clock);
    }
    node.state = finish === "length" ? "length" : "done";
  }

  /** Whether the delta brought anything. */
  add(delta) {
    const { node } = this;
    touch(node);
    const reasoning = delta.reasoning ?? delta.reasoning_content;
    if (reasoning) {
      this.thinking ??= performance.now();
      node.reasoning = (node.reasoning ?? "") + reasoning;
      node.seconds = (performance.now() - this.thinking) / 1000;
    }
    if (delta.content) node.content += delta.content;
    for (const { index, id, function: part } of delta.tool_calls ?? []) {
      node.tool_calls ??= [];
      const call = (node.tool_calls[index] ??= {
        id,
        type: "function",
        function: { name: "", arguments: "" },
      });
      call.function.name += part.name ?? "";
      call.function.arguments += part.arguments ?? "";
    }
    return Boolean(reasoning || delta.content || delta.tool_calls?.length);
  }

  measure({ sent, first, last, pieces, timings, usage }) {
    const tokens = usage?.completion_tokens ?? pieces;
    const seconds = (last - first) / 1000;
    return {
      first: Math.max(first - sent, 0) / 1000,
      // The first token is the prompt's time, not the decoder's.
      rate: seconds > 0 ? (tokens - 1) / seconds : 0,
      tokens,
      prompt: usage?.prompt_tokens ?? 0,
      cached: usage?.prompt_tokens_details?.cached_tokens ?? 0,
      guessed: timings?.draft_n ?? 0,
      accepted: timings?.draft_n_accepted ?? 0,
    };
  }

  async explain(error, bodyOf) {
    const { node } = this;
    if (error.name === "AbortError") {
      node.state = "stopped";
    } else if (error instanceof DroppedError) {
      node.state = "dropped";
    } else if (
      error instanceof ApiError &&
      error.status === 401 &&
      (await this.events.unauthorized())
    ) {
      await this.write(bodyOf);
    } else {
      node.state = "error";
      // fetch tells no more than that it failed.
      node.error = error instanceof ApiError ? error.message : t("offline");
    }
  }
}
