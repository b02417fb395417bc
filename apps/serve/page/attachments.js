// The documents of a chat: attached with the button, by dropping or by pasting a file.
import { removeDocument, uploadDocument } from "./api.js";
import { announce, byId, el, iconButton } from "./dom.js";

const KINDS = ".pdf,.txt,.md,.markdown,.html,.htm,application/pdf,text/*";
const pagesOf = ({ pages }) => (pages === 1 ? "1 page" : `${pages} pages`);

export class Attachments {
  #under = []; // { chat, name, controller }: documents that are being read

  /** `actions` has chat(), changed(chat), failed(error, retry) and warned(lines). */
  constructor(actions) {
    this.actions = actions;
    this.list = byId("documents");
    const input = byId("attach-file");
    input.accept = KINDS;
    byId("attach").addEventListener("click", () => input.click());
    input.addEventListener("change", () => {
      this.add([...input.files]);
      input.value = ""; // so that the same file can be chosen again
    });
    byId("message").addEventListener("paste", (event) => this.#take(event, event.clipboardData));
    this.#acceptDrops();
  }

  /** Whether a document of the open chat is still being read. */
  get busy() {
    return this.#under.some(({ chat }) => chat === this.actions.chat());
  }

  show() {
    const chat = this.actions.chat();
    const under = this.#under.filter((one) => one.chat === chat);
    const chips = [
      ...(chat.documents ?? []).map((document) => this.#chip(chat, document)),
      ...under.map((one) => this.#underWay(one)),
    ];
    this.list.hidden = chips.length === 0;
    this.list.replaceChildren(...chips);
  }

  async add(files) {
    for (const file of files) await this.#add(this.actions.chat(), file);
  }

  async #add(chat, file) {
    const one = { chat, name: file.name || "pasted.txt", controller: new AbortController() };
    this.#under.push(one);
    this.show();
    announce(`Reading ${one.name}.`);
    let failure = null;
    try {
      const document = await uploadDocument(one.name, file, one.controller.signal);
      const { warnings, ...kept } = document;
      chat.documents = [...(chat.documents ?? []), kept];
      this.actions.changed(chat);
      announce(`Attached ${kept.name}, ${pagesOf(kept)}.`);
      if (warnings.length) this.actions.warned(warnings);
    } catch (error) {
      if (error.name !== "AbortError") failure = error;
    }
    this.#under.splice(this.#under.indexOf(one), 1);
    this.show();
    if (failure) this.actions.failed(failure, () => this.#add(chat, file));
  }

  #chip(chat, document) {
    const { name, title, gone } = document;
    const said = gone ? "gone, attach it again" : pagesOf(document);
    const remove = () => {
      chat.documents = chat.documents.filter((other) => other !== document);
      removeDocument(document.id).catch(() => {}); // the server drops it by itself in time
      this.actions.changed(chat);
      this.show();
      announce(`Removed ${name}.`);
      byId("attach").focus();
    };
    return el(
      "li",
      { class: gone ? "gone" : "", title },
      el("span", { class: "name", dir: "auto" }, name),
      el("span", { class: "muted small" }, said),
      iconButton("close", `Remove “${name}”`, remove),
    );
  }

  #underWay({ name, controller }) {
    return el(
      "li",
      { class: "reading" },
      el("span", { class: "name", dir: "auto" }, name),
      el("span", { class: "muted small" }, "reading…"),
      iconButton("close", `Stop reading “${name}”`, () => {
        controller.abort();
        byId("attach").focus();
      }),
    );
  }

  // Files among what was pasted or dropped; texts go their usual way.
  #take(event, data) {
    const files = [...(data?.files ?? [])];
    if (files.length === 0) return;
    event.preventDefault();
    this.add(files);
  }

  #acceptDrops() {
    const over = (on) => document.body.classList.toggle("dropping", on);
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      over(true);
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) over(false);
    });
    document.addEventListener("drop", (event) => {
      over(false);
      this.#take(event, event.dataTransfer);
    });
  }
}
