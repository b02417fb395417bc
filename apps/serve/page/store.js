// What the browser keeps: one entry a chat, so that two tabs don't overwrite each other's.
//
// A chat is { id, title, updated, messages }, the messages those of the API: role, content, for the
// model's also reasoning_content, and what only this page shows: stats and ended.

const CHAT = "pippin.chat.";
const OPEN = "pippin.open";
const SETTINGS = "pippin.settings";
const FULL = "The browser's storage is full or closed, so this chat is not kept. Export it.";

/** A new chat; nothing is stored until it is saved. */
export function newChat(messages = [], title = "") {
  const random = crypto.getRandomValues(new Uint32Array(2)).join("");
  return { id: `${Date.now()}-${random}`, title, updated: Date.now(), messages };
}

/** A message as the API knows it. */
export const plainMessage = ({ role, content, reasoning_content }) =>
  reasoning_content ? { role, content, reasoning_content } : { role, content };

/** Its name, or the beginning of its first question. */
export function titleOf(chat) {
  const asked = chat.messages.find((message) => message.role === "user")?.content ?? "";
  const line = asked.trim().split("\n")[0];
  return chat.title || (line.length > 60 ? `${line.slice(0, 59)}…` : line) || "New chat";
}

/** All stored chats, the last used first. */
export function loadChats() {
  const chats = [];
  try {
    for (const key of Object.keys(localStorage)) {
      if (key.startsWith(CHAT)) chats.push(read(key, null));
    }
  } catch {
    // No storage: no chats of earlier days.
  }
  return chats.filter(Boolean).sort((a, b) => b.updated - a.updated);
}

/** Throws an Error with words for the user when it cannot be stored. */
export function saveChat(chat) {
  write(CHAT + chat.id, chat);
}

export function deleteChat(chat) {
  try {
    localStorage.removeItem(CHAT + chat.id);
  } catch {
    // Nothing is stored where there is no storage.
  }
}

/** The chat that is open in this tab: a reload opens it again. */
export function rememberOpen(chat) {
  try {
    sessionStorage.setItem(OPEN, chat.id);
  } catch {
    // Without storage a reload begins a new chat.
  }
}

export function wasOpen(chat) {
  try {
    return sessionStorage.getItem(OPEN) === chat.id;
  } catch {
    return false;
  }
}

/** { model, sampling }: what the user chose for all chats. */
export function loadSettings() {
  return { model: null, sampling: {}, ...read(SETTINGS, {}) };
}

export function saveSettings(settings) {
  write(SETTINGS, settings);
}

function read(key, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(key)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function write(key, value) {
  try {
    localStorage.setItem(key, JSON.stringify(value));
  } catch {
    throw new Error(FULL);
  }
}
