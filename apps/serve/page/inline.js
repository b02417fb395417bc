// Markdown inside a paragraph, as nodes. The text is a model's, so it can be anything: it ends up
// in text nodes only, addresses must be http(s) or mailto, and the work is linear in its length.
import { el, fragmentOf } from "./dom.js";

const DEEPEST = 4;
const ALNUM = /[\p{L}\p{N}]/u;
const ADDRESS = /^(https?:\/\/|mailto:)/i;
const BARE = /https?:\/\/[^\s<>"'`)\]]+/y;
const BRACKETED = /<(https?:\/\/[^\s<>]+)>/y;
const EMPHASIS = { "***": ["em", "strong"], "**": ["strong"], __: ["strong"] };
Object.assign(EMPHASIS, { "*": ["em"], _: ["em"], "~~": ["s"] });

/** A text as nodes: code, emphasis, links unless inside of one, and text nodes for all else. */
export function inline(text, depth = 0, links = true) {
  const nodes = [];
  const absent = new Set(); // delimiters that no later text closes: not looked for again
  const context = { text, depth, links, absent };
  let at = 0;
  let plain = 0;
  while (at < text.length) {
    const found = special(context, at);
    if (!found) {
      at += 1;
      continue;
    }
    if (plain < at) nodes.push(document.createTextNode(text.slice(plain, at)));
    nodes.push(found.node);
    at = plain = found.end;
  }
  if (plain < at) nodes.push(document.createTextNode(text.slice(plain)));
  return fragmentOf(nodes);
}

function special(context, at) {
  const { text, depth, links, absent } = context;
  switch (text[at]) {
    case "\\":
      return escaped(text, at);
    case "`":
      return code(text, at, absent);
    case "*":
    case "_":
    case "~":
      return depth < DEEPEST ? emphasis(context, at) : null;
    case "!":
    case "[":
      return links ? link(text, at, absent) : null;
    case "<":
    case "h":
      return links ? bareLink(text, at) : null;
    default:
      return null;
  }
}

function escaped(text, at) {
  const next = text[at + 1] ?? "";
  if (!/[!-/:-@[-`{-~]/.test(next)) return null;
  return { node: document.createTextNode(next), end: at + 2 };
}

function runLength(text, at) {
  let end = at;
  while (text[end] === text[at]) end += 1;
  return end - at;
}

function code(text, at, absent) {
  const length = runLength(text, at);
  const ticks = text.slice(at, at + length);
  let close = absent.has(ticks) ? -1 : text.indexOf(ticks, at + length);
  while (close >= 0 && runLength(text, close) !== length) {
    close = text.indexOf(ticks, close + runLength(text, close));
  }
  if (close < 0) {
    absent.add(ticks);
    return { node: document.createTextNode(ticks), end: at + length };
  }
  const inside = text.slice(at + length, close).replaceAll("\n", " ");
  const padded = /^ .*[^ ].* $/.test(inside);
  return { node: el("code", {}, padded ? inside.slice(1, -1) : inside), end: close + length };
}

function emphasis({ text, depth, links, absent }, at) {
  const length = runLength(text, at);
  const mark = text[at].repeat(Math.min(length, text[at] === "*" ? 3 : 2));
  const tags = EMPHASIS[mark];
  const next = text[at + mark.length] ?? " ";
  const opens = tags && /\S/.test(next) && !(mark[0] === "_" && ALNUM.test(text[at - 1] ?? ""));
  const close = opens && !absent.has(mark) ? closing(text, mark, at + mark.length) : -1;
  if (close < 0) {
    if (opens) absent.add(mark);
    return { node: document.createTextNode(text.slice(at, at + length)), end: at + length };
  }
  let node = inline(text.slice(at + mark.length, close), depth + 1, links);
  for (const tag of tags.toReversed()) node = el(tag, {}, node);
  return { node, end: close + mark.length };
}

// Where `mark` ends what it began: after a word, and not as a part of a longer mark.
function closing(text, mark, from) {
  let at = text.indexOf(mark, from + 1);
  while (at >= 0) {
    const length = runLength(text, at);
    const fits = mark.length > 1 ? length >= mark.length : length !== 2;
    const inWord = mark[0] === "_" && ALNUM.test(text[at + length] ?? "");
    if (fits && !inWord && /\S/.test(text[at - 1])) return at + length - mark.length;
    at = text.indexOf(mark, at + length);
  }
  return -1;
}

// [label](address). Images are links as well: a page that fetched them would tell others of itself.
function link(text, at, absent) {
  const start = text[at] === "!" ? at + 1 : at;
  if (text[start] !== "[" || absent.has("](")) return null;
  const middle = text.indexOf("](", start);
  const end = middle < 0 ? -1 : text.indexOf(")", middle);
  if (end < 0) {
    absent.add("](");
    return null;
  }
  const label = text.slice(start + 1, middle);
  const [address] = text.slice(middle + 2, end).trim().split(/\s/);
  if (!ADDRESS.test(address)) {
    return { node: document.createTextNode(text.slice(at, end + 1)), end: end + 1 };
  }
  const shown = label.trim() ? inline(label, 1, false) : address;
  return { node: anchor(address, shown), end: end + 1 };
}

function bareLink(text, at) {
  if (ALNUM.test(text[at - 1] ?? "")) return null;
  const pattern = text[at] === "<" ? BRACKETED : BARE;
  pattern.lastIndex = at;
  const found = pattern.exec(text);
  if (!found) return null;
  let address = found[1] ?? found[0];
  let end = pattern.lastIndex;
  while (!found[1] && ".,;:!?*_".includes(address.at(-1))) {
    address = address.slice(0, -1);
    end -= 1;
  }
  return { node: anchor(address, address), end };
}

function anchor(href, shown) {
  if (!URL.canParse(href)) return el("span", {}, shown);
  return el("a", { href, target: "_blank", rel: "noopener noreferrer" }, shown);
}
