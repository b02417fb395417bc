// The list of chats beside the page: open, rename, export, delete.
import { announce, askIn, byId, el, iconButton } from "./dom.js";
import { fileName, saveFile } from "./exchange.js";
import { titleOf } from "./store.js";

export class ChatList {
  /** `actions` has open(chat), renamed(chat) and remove(chat). */
  constructor(actions) {
    this.actions = actions;
    this.element = byId("chats");
  }

  show(chats, current) {
    const items = chats.map((chat) => this.#item(chat, chat.id === current.id));
    this.element.replaceChildren(...items);
  }

  #item(chat, isCurrent) {
    const title = titleOf(chat);
    const open = el(
      "button",
      {
        type: "button",
        class: "title",
        title,
        "aria-current": isCurrent && "true",
        onclick: () => this.actions.open(chat),
      },
      el("span", { dir: "auto" }, title),
    );
    const item = el("li", { class: isCurrent ? "current" : "" });
    item.append(
      open,
      iconButton("pencil", `Rename “${title}”`, () => this.#rename(item, chat)),
      iconButton("download", `Export “${title}”`, () => saveFile(chat, fileName(chat))),
      iconButton("bin", `Delete “${title}”`, () => this.#delete(chat)),
    );
    return item;
  }

  #rename(item, chat) {
    const field = el("input", { "aria-label": "Name of the chat", maxlength: 120 });
    field.value = titleOf(chat);
    let done = false; // leaving the field ends it once more
    const finish = (save) => {
      if (done) return;
      done = true;
      const name = field.value.trim();
      if (save && name) chat.title = name;
      this.actions.renamed(chat);
    };
    field.addEventListener("keydown", (event) => {
      if (!["Enter", "Escape"].includes(event.key) || event.isComposing) return;
      event.stopPropagation();
      event.preventDefault(); // else Enter would also press the button that gets the focus
      finish(event.key === "Enter");
      this.#focus(chat);
    });
    field.addEventListener("blur", () => finish(true));
    item.replaceChildren(field);
    field.select();
  }

  // The list was made anew: its buttons are others now.
  #focus(chat) {
    const buttons = [...this.element.querySelectorAll("button.title")];
    buttons.find((button) => button.title === titleOf(chat))?.focus();
  }

  async #delete(chat) {
    byId("confirm-text").textContent = `Delete “${titleOf(chat)}”? It cannot be brought back.`;
    if ((await askIn(byId("confirm"))) !== "yes") return;
    this.actions.remove(chat);
    announce("Deleted.");
    byId("new-chat").focus();
  }
}
