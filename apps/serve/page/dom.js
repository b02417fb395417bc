// Small helpers for elements. Text becomes text nodes, never markup.

export const byId = (id) => document.getElementById(id);

/** An element; attributes that begin with "on" are listeners, true is an empty attribute. */
export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  element.append(...children); // before dir="auto", which costs a search for each child added later
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== undefined) element.setAttribute(name, value);
  }
  return element;
}

/** Many nodes as one: a call takes no more than some ten thousand arguments. */
export function fragmentOf(nodes) {
  const fragment = document.createDocumentFragment();
  for (const node of nodes) fragment.append(node);
  return fragment;
}

/** A button that shows an icon of icons.svg and is called by its label. */
export function iconButton(name, label, onclick) {
  const namespace = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(namespace, "svg");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(namespace, "use");
  use.setAttribute("href", `icons.svg#${name}`);
  svg.append(use);
  const attributes = { type: "button", class: "icon", "aria-label": label, title: label, onclick };
  return el("button", attributes, svg);
}

/** Let screen readers say `text` when they are done with what they say now. */
export function announce(text) {
  byId("announcer").textContent = text;
}

/** As high as its text, up to the maximum that the style sheet sets. */
export function fitHeight(textarea) {
  textarea.style.height = "auto";
  textarea.style.height = `${textarea.scrollHeight + 2}px`;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyBySelection(text); // plain http from another machine has no clipboard API
  }
  announce("Copied.");
}

function copyBySelection(text) {
  const before = document.activeElement;
  const area = el("textarea", { class: "unseen", "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
  before?.focus();
}

/** Resolves to how a dialog was closed: the value of its button, or "" for Escape and Cancel. */
export function askIn(dialog) {
  dialog.showModal();
  const over = new AbortController();
  let resolve;
  const promise = new Promise((given) => {
    resolve = given;
  });
  const listen = (name, act) => dialog.addEventListener(name, act, { signal: over.signal });
  // "close" comes some time after the dialog has closed: who types on must find it all done.
  listen("submit", (event) => {
    event.preventDefault();
    dialog.close();
    over.abort();
    resolve(event.submitter.value);
  });
  listen("close", () => {
    if (dialog.open) return; // the one before has closed
    resolve("");
    over.abort();
  });
  return promise;
}
