// One reply while it comes in.
import { streamChat } from "./api.js";
import { streamGrounded } from "./grounded.js";

const SHORTEST = 0.05; // seconds; below that, a speed says nothing

export class Reply {
  #controller = new AbortController();
  #times = { first: 0, last: 0 };

  /** Fills `message`, from `documents` if there are any; `onChange()` once a frame at most. */
  constructor(request, message, documents, onChange) {
    Object.assign(this, { request, message, documents, onChange });
  }

  stop() {
    this.message.ended = "stopped";
    this.#controller.abort();
  }

  /** Resolves at the end, also when it was stopped. Throws ApiError. */
  async run() {
    const { request, documents } = this;
    const { signal } = this.#controller;
    const pieces = documents.length
      ? streamGrounded(request, documents, signal)
      : streamChat(request, signal);
    try {
      for await (const piece of pieces) {
        if (this.#controller.signal.aborted) return;
        this.#take(piece);
      }
    } catch (error) {
      if (this.#controller.signal.aborted) return;
      this.message.ended = "failed";
      throw error;
    }
  }

  #take(piece) {
    const { message } = this;
    if (piece.grounds) message.grounds = { ...message.grounds, ...piece.grounds };
    else if (piece.usage) this.#count(piece.usage);
    else if (piece.finish) message.ended = piece.finish;
    else {
      this.#times.last = performance.now();
      this.#times.first ||= this.#times.last;
      if (piece.content) message.content += piece.content;
      else message.reasoning_content = (message.reasoning_content ?? "") + piece.reasoning;
    }
    this.#changed();
  }

  // The speed of decoding: tokens after the first, over the time that they took.
  #count({ prompt_tokens: prompt, completion_tokens: tokens, prompt_tokens_details: details }) {
    const seconds = (this.#times.last - this.#times.first) / 1000;
    const perSecond = seconds > SHORTEST && tokens > 1 ? (tokens - 1) / seconds : null;
    this.message.stats = { prompt, tokens, perSecond, cached: details?.cached_tokens ?? 0 };
  }

  #changed() {
    if (this.waiting) return;
    this.waiting = true;
    // Not requestAnimationFrame: a tab in the background draws no frames, but takes its tokens.
    setTimeout(() => {
      this.waiting = false;
      this.onChange();
    }, 16);
  }
}
