// The messages of the current chat.
import { byId } from "./dom.js";
import { MessageView } from "./message.js";

const NEAR = 80; // px from the end: someone who reads there follows a growing reply

export class Log {
  #views = new Map(); // message -> view

  /** `actions` has again(), edit(message, text) and conversation(message). */
  constructor(actions) {
    this.actions = actions;
    this.element = byId("log");
  }

  /** Show these messages; views of those that stay are kept, and with them focus and selection. */
  show(messages, busy) {
    const shown = messages.filter((message) => message.role !== "system");
    for (const [message, view] of this.#views) {
      if (shown.includes(message)) continue;
      view.element.remove();
      this.#views.delete(message);
    }
    for (const message of shown) {
      if (!this.#views.has(message)) this.#add(message);
      this.#views.get(message).setState(message === shown.at(-1), busy);
    }
    byId("empty").hidden = shown.length > 0;
  }

  /** Show a message that has changed, and stay at the end if the reader is there. */
  update(message) {
    followEnd(() => this.#views.get(message)?.update());
  }

  #add(message) {
    const view = new MessageView(message, {
      again: () => this.actions.again(),
      edit: (text) => this.actions.edit(message, text),
      conversation: () => this.actions.conversation(message),
    });
    this.#views.set(message, view);
    this.element.append(view.element);
  }
}

/** Change the page, and stay at its end if the reader is there. */
export function followEnd(change) {
  const { scrollHeight, clientHeight, scrollTop } = document.documentElement;
  const follow = scrollHeight - clientHeight - scrollTop < NEAR;
  change();
  if (follow) toEnd();
}

export function toEnd() {
  document.documentElement.scrollTop = document.documentElement.scrollHeight;
}
