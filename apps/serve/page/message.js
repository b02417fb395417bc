// One message on the page.
import { copyText, el, fitHeight, iconButton } from "./dom.js";
import { renderMarkdown } from "./markdown.js";
import { SourcesView, markedText } from "./sources.js";
import { Why } from "./why.js";

const ENDED = {
  length: "Ended at the limit of tokens.",
  stopped: "Stopped.",
  failed: "Ended early.",
};
const WHO = { user: "You", assistant: "Pippin" };

/** { reasoning, answer } of a model's message: the thinking part comes apart, or in its tags. */
export function partsOf({ content, reasoning_content: apart }) {
  if (apart) return { reasoning: apart, answer: content.trimStart() };
  const opening = /^\s*<think>/.exec(content)?.[0];
  if (!opening) return { reasoning: "", answer: content };
  const close = content.indexOf("</think>");
  const reasoning = content.slice(opening.length, close < 0 ? undefined : close).trim();
  return { reasoning, answer: close < 0 ? "" : content.slice(close + 8).trimStart() };
}

function statisticsOf({ stats, ended }) {
  const parts = ended in ENDED ? [ENDED[ended]] : [];
  if (stats) {
    parts.push(`${stats.tokens} token${stats.tokens === 1 ? "" : "s"}`);
    if (stats.perSecond) parts.push(`${stats.perSecond.toFixed(1)} tok/s`);
    const cached = stats.cached ? `, ${stats.cached} cached` : "";
    parts.push(`prompt ${stats.prompt}${cached}`);
  }
  return parts.join(" · ");
}

/** A user's or the model's message; `actions` has again(), edit(text) and conversation(). */
export class MessageView {
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.body = el("div", { class: "text", dir: message.role === "user" && "auto" });
    const again = message.role === "user" ? "Get a reply" : "Regenerate";
    this.again = iconButton("again", again, () => actions.again());
    this.statistics = el("span", { class: "muted small" });
    this.foot = el("div", { class: "foot" }, this.#copyButton(), this.again, this.statistics);
    const parts = [el("h2", { class: "unseen" }, `${WHO[message.role]} said`)];
    if (message.role === "assistant") {
      this.thinking = this.#thinking();
      this.sources = new SourcesView();
      this.why = new Why(() => actions.conversation());
      this.again.before(this.why.button);
      parts.push(this.thinking.details);
    } else {
      this.editButton = iconButton("pencil", "Edit message", () => this.#startEdit());
      this.again.before(this.editButton);
    }
    const attributes = { class: `message ${message.role}` };
    const below = this.why ? [this.sources.element, this.foot, this.why.element] : [this.foot];
    this.element = el("article", attributes, ...parts, this.body, ...below);
    this.update();
  }

  /** Show what the message says now. */
  update() {
    if (this.message.role === "user") {
      this.body.textContent = this.message.content;
      return;
    }
    const { reasoning, answer } = partsOf(this.message);
    const { grounds } = this.message;
    this.sources.show(grounds);
    renderMarkdown(this.body, grounds?.sources ? markedText(grounds.sources) : answer);
    if (grounds?.sources) this.sources.placeMarks(this.body);
    this.why.button.hidden = Boolean(grounds?.missing) || !answer.trim();
    this.element.classList.toggle("missing", Boolean(grounds?.missing));
    this.thinking.details.hidden = !reasoning;
    this.thinking.text.textContent = reasoning;
    this.thinking.summary.textContent = answer || !this.streaming ? "Thoughts" : "Thinking…";
    this.statistics.textContent = statisticsOf(this.message);
  }

  /** What can be done with it: `last` in the chat, and `busy` while a reply streams in. */
  setState(last, busy) {
    this.streaming = last && busy && this.message.role === "assistant";
    this.element.classList.toggle("streaming", this.streaming);
    this.element.setAttribute("aria-busy", this.streaming);
    this.again.hidden = !last || busy;
    if (this.editButton) this.editButton.hidden = busy;
    this.update();
  }

  #copyButton() {
    const { role } = this.message;
    const label = role === "user" ? "Copy message" : "Copy reply";
    const text = () => (role === "user" ? this.message.content : partsOf(this.message).answer);
    return iconButton("copy", label, () => copyText(text()));
  }

  #thinking() {
    const summary = el("summary");
    const text = el("div", { class: "thought", dir: "auto" });
    return { summary, text, details: el("details", { hidden: true }, summary, text) };
  }

  #startEdit() {
    const area = el("textarea", { "aria-label": "Edit message", dir: "auto" });
    area.value = this.message.content;
    const finish = () => {
      form.replaceWith(this.body, this.foot);
      this.editButton.focus();
    };
    const send = () => {
      if (!area.value.trim()) return;
      finish();
      this.actions.edit(area.value);
    };
    const cancel = el("button", { type: "button", onclick: finish }, "Cancel");
    const save = el("button", { class: "primary" }, "Send");
    const buttons = el("div", { class: "buttons" }, cancel, save);
    const form = el("form", { class: "edit" }, area, buttons);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      send();
    });
    area.addEventListener("input", () => fitHeight(area));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") finish();
      if (!sends(event)) return;
      event.preventDefault();
      send();
    });
    this.foot.remove();
    this.body.replaceWith(form);
    fitHeight(area);
    area.focus();
  }
}

/** Enter sends, unless it starts a new line (Shift) or ends a word of an input method. */
export function sends(event) {
  return event.key === "Enter" && !event.shiftKey && !event.isComposing;
}
