// Chats as files: { title, messages }, or a list of them; the messages are those of the API.
import { newChat, plainMessage, titleOf } from "./store.js";
import { el } from "./dom.js";

const ROLES = ["system", "user", "assistant"];

const plain = (chat) => ({ title: titleOf(chat), messages: chat.messages.map(plainMessage) });

/** Let the browser save one chat, or a list of them. */
export function saveFile(chats, name) {
  const json = JSON.stringify(Array.isArray(chats) ? chats.map(plain) : plain(chats), null, 2);
  const url = URL.createObjectURL(new Blob([`${json}\n`], { type: "application/json" }));
  el("a", { href: url, download: `${name}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000); // some browsers read it after the click
}

/** A name that every file system takes. */
export function fileName(chat) {
  return titleOf(chat).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "") || "chat";
}

/**
 * New chats from the text of a file: one, several, or a bare list of messages.
 *
 * Throws an Error with words for the user.
 */
export function parseFile(text) {
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON; choose one that was exported here.");
  }
  if (Array.isArray(found) && found[0]?.role) found = { messages: found };
  const chats = Array.isArray(found) ? found : [found];
  if (chats.length === 0) throw new Error("This file holds no chats.");
  return chats.map(checked);
}

function checked(chat) {
  if (!Array.isArray(chat?.messages)) {
    throw new Error("This file has no “messages”; choose a chat that was exported here.");
  }
  chat.messages.forEach((message, index) => {
    const at = `Message ${index + 1} of the file`;
    if (!ROLES.includes(message?.role)) {
      throw new Error(`${at} has the role “${message?.role}”, not one of: ${ROLES.join(", ")}.`);
    }
    if (typeof message.content !== "string") throw new Error(`${at} has no text as its content.`);
    if (message.role === "system" && index > 0) {
      throw new Error(`${at} has the role “system”, which only the first may have.`);
    }
    if (!["string", "undefined"].includes(typeof message.reasoning_content)) {
      throw new Error(`${at} has a reasoning_content that is no text.`);
    }
  });
  const title = typeof chat.title === "string" ? chat.title : "";
  return newChat(chat.messages.map(plainMessage), title);
}
