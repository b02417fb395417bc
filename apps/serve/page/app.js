// The page: which chat is open, and what happens on each action.
import { hasKey, listModels, setKey } from "./api.js";
import { Attachments } from "./attachments.js";
import { ChatList } from "./chats.js";
import { announce, askIn, byId, el, fitHeight } from "./dom.js";
import { parseFile, saveFile } from "./exchange.js";
import { Log, followEnd, toEnd } from "./log.js";
import { closeMenu, setUpMenu } from "./menu.js";
import { partsOf, sends } from "./message.js";
import { Reply } from "./reply.js";
import { buildSettings, editSettings } from "./settings.js";
import * as store from "./store.js";

const state = { chats: store.loadChats(), chat: store.newChat(), settings: store.loadSettings() };
state.reply = null; // while one comes in
state.models = [];

const log = new Log({ again, edit, conversation });
const attachments = new Attachments({
  chat: () => state.chat,
  changed: (chat) => (chat.messages.length ? keep(chat) : undefined),
  failed: (error, retry) => explain(error, retry),
  warned: (lines) => showError(new Error(lines.join(" "))),
});
const list = new ChatList({ open, remove, renamed });
const composer = byId("message");

function refresh() {
  const busy = state.reply !== null;
  log.show(state.chat.messages, busy);
  list.show(state.chats, state.chat);
  attachments.show();
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  byId("export-all").disabled = state.chats.length === 0;
  const isNew = !state.chats.includes(state.chat);
  document.title = isNew ? "Pippin" : `${store.titleOf(state.chat)} · Pippin`;
}

// Errors

function showError(error, retry = null) {
  const clear = () => byId("error").replaceChildren();
  const button = (label, act) => el("button", { type: "button", onclick: act }, label);
  const buttons = [button("Dismiss", () => (clear(), composer.focus()))];
  if (retry) buttons.unshift(button("Retry", () => (clear(), composer.focus(), retry())));
  followEnd(() => byId("error").replaceChildren(el("p", {}, error.message), ...buttons));
}

// A refused key is asked for at once; everything else is said, with a button to try again.
async function explain(error, retry) {
  if (error.code === "document_not_found") return showError(forgotten(error), retry);
  if (error.status === 401 && (await askKey())) return retry();
  return showError(error, retry);
}

// Documents that the server no longer has are said to be gone, where they are listed.
function forgotten({ message }) {
  const named = (document) => message.includes(document.id);
  for (const document of state.chat.documents ?? []) document.gone ||= named(document);
  attachments.show();
  return new Error(
    "The server no longer has a document of this chat: it was restarted, or needed the room. " +
      "Remove it and attach it again.",
  );
}

async function askKey() {
  byId("key-why").textContent = hasKey()
    ? "The server did not accept this key."
    : "This server asks for an API key.";
  byId("key").value = "";
  if ((await askIn(byId("key-dialog"))) !== "save") return false;
  setKey(byId("key").value.trim());
  return true;
}

// Models

async function loadModels() {
  try {
    state.models = await listModels();
  } catch (error) {
    return explain(error, loadModels);
  }
  const select = byId("model");
  select.replaceChildren(...state.models.map((id) => el("option", { value: id }, id)));
  select.disabled = false;
  if (state.models.includes(state.settings.model)) select.value = state.settings.model;
  return undefined;
}

// Chats

function keep(chat) {
  chat.updated = Date.now();
  state.chats = [chat, ...state.chats.filter((other) => other !== chat)];
  store.rememberOpen(chat);
  try {
    store.saveChat(chat);
  } catch (error) {
    showError(error);
  }
}

// On a touch screen the focus would bring up the keyboard, over what there is to read.
function focusComposer() {
  if (matchMedia("(hover: hover)").matches) composer.focus();
}

function keepSettings(changed) {
  Object.assign(state.settings, changed);
  try {
    store.saveSettings(state.settings);
  } catch (error) {
    showError(error);
  }
}

function open(chat) {
  state.reply?.stop();
  state.chat = chat;
  store.rememberOpen(chat);
  byId("error").replaceChildren();
  closeMenu();
  refresh();
  toEnd();
  focusComposer();
}

function remove(chat) {
  if (chat === state.chat) {
    state.reply?.stop();
    state.chat = store.newChat();
  }
  state.chats = state.chats.filter((other) => other !== chat);
  store.deleteChat(chat);
  refresh();
}

function renamed(chat) {
  try {
    store.saveChat(chat);
  } catch (error) {
    showError(error);
  }
  refresh();
}

async function importFile(file) {
  let chats;
  try {
    chats = parseFile(await file.text());
  } catch (error) {
    return showError(error);
  }
  for (const chat of chats.reverse()) keep(chat);
  open(state.chats[0]);
  return announce(`Imported ${chats.length === 1 ? "one chat" : `${chats.length} chats`}.`);
}

// Another tab has changed a chat, or deleted it. The one that is open here changes with it, unless
// a reply comes in.
function onStorage({ key }) {
  if (!key?.startsWith("pippin.chat.")) return;
  const stored = store.loadChats();
  const mine = key.endsWith(state.chat.id) && !state.reply ? null : state.chat;
  state.chats = stored.map((chat) => (chat.id === mine?.id ? mine : chat));
  if (!mine) state.chat = stored.find((chat) => chat.id === state.chat.id) ?? store.newChat();
  refresh();
}

// Messages

function send(text) {
  state.chat.messages.push({ role: "user", content: text });
  return answer();
}

function again() {
  if (state.reply) return undefined;
  const { messages } = state.chat;
  if (messages.at(-1)?.role === "assistant") messages.pop();
  return answer();
}

function edit(message, text) {
  const { messages } = state.chat;
  messages.splice(messages.indexOf(message));
  return send(text);
}

/** The chat up to a reply as it was sent, with the passages that the reply rests on. */
function conversation(message) {
  const { messages } = state.chat;
  const before = messages.slice(0, messages.indexOf(message)).map(store.plainMessage);
  if (message.grounds?.sent) before.at(-1).content = message.grounds.sent;
  return { model: byId("model").value, messages: [...before, store.plainMessage(message)] };
}

async function answer() {
  const { chat } = state;
  byId("error").replaceChildren();
  const messages = chat.messages.map(store.plainMessage); // templates cut earlier thoughts
  const request = { model: byId("model").value, messages, ...state.settings.sampling };
  keep(chat);
  const message = { role: "assistant", content: "" };
  chat.messages.push(message);
  const documents = chat.documents ?? [];
  const reply = new Reply(request, message, documents, () => log.update(message));
  state.reply = reply;
  refresh();
  toEnd();
  focusComposer();
  let failure = null;
  try {
    await reply.run();
  } catch (error) {
    failure = error;
  }
  finish(chat, reply, failure);
}

function finish(chat, reply, failure) {
  if (state.reply === reply) state.reply = null;
  const { message } = reply;
  const said = message.content || message.reasoning_content;
  if (!said) chat.messages = chat.messages.filter((other) => other !== message);
  if (state.chats.includes(chat)) keep(chat); // it may have been deleted meanwhile
  log.update(message);
  refresh();
  if (failure) explain(failure, again);
  else if (message.ended === "stopped") announce("Stopped.");
  else if (said) announce(`Pippin said: ${partsOf(message).answer}`);
  else showError(new Error("The model ended its reply without a word."), again);
}

// What the user does

function setUpComposer() {
  composer.addEventListener("input", () => followEnd(() => fitHeight(composer)));
  composer.addEventListener("keydown", (event) => {
    if (!sends(event)) return;
    event.preventDefault();
    byId("composer").requestSubmit();
  });
  byId("composer").addEventListener("submit", async (event) => {
    event.preventDefault();
    const text = composer.value;
    if (!text.trim() || state.reply) return;
    if (attachments.busy) {
      showError(new Error("A document is still being read. Send when it is attached."));
      return;
    }
    // Without the names of the models nothing can be asked: the text stays where it is.
    if (state.models.length === 0) await loadModels();
    if (state.models.length === 0) return;
    composer.value = "";
    fitHeight(composer);
    send(text);
  });
  byId("stop").addEventListener("click", () => {
    state.reply?.stop();
    composer.focus();
  });
  document.addEventListener("keydown", (event) => {
    const elsewhere = document.querySelector("dialog[open], body.menu-open");
    if (event.key === "Escape" && !elsewhere) state.reply?.stop();
  });
}

async function changeSettings() {
  const { chat } = state;
  const [first] = chat.messages;
  const before = first?.role === "system" ? first.content : "";
  const changed = await editSettings({ system: before, sampling: state.settings.sampling });
  if (!changed) return;
  keepSettings({ sampling: changed.sampling });
  if (changed.system === before) return;
  if (before) chat.messages.shift();
  if (changed.system) chat.messages.unshift({ role: "system", content: changed.system });
  if (state.chats.includes(chat)) keep(chat);
}

function setUpButtons() {
  byId("new-chat").addEventListener("click", () => open(store.newChat()));
  byId("open-settings").addEventListener("click", changeSettings);
  byId("model").addEventListener("change", ({ target }) => keepSettings({ model: target.value }));
  byId("export-all").addEventListener("click", () => saveFile(state.chats, "pippin-chats"));
  byId("import").addEventListener("click", () => byId("import-file").click());
  byId("import-file").addEventListener("change", ({ target }) => {
    if (target.files[0]) importFile(target.files[0]);
    target.value = ""; // so that the same file can be chosen again
  });
  for (const button of document.querySelectorAll("dialog .cancel")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
}

addEventListener("storage", onStorage);
// What has come so far survives a reload in the middle of a reply.
addEventListener("pagehide", () => {
  if (!state.reply) return;
  state.reply.stop();
  finish(state.chat, state.reply, null);
});

setUpMenu();
buildSettings();
setUpComposer();
setUpButtons();
state.chat = state.chats.find(store.wasOpen) ?? state.chat;
refresh();
toEnd();
focusComposer();
loadModels();
