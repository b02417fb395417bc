// Light Markdown: code, headings, lists, quotes, tables, rules and paragraphs.
import { copyText, el, fragmentOf, iconButton } from "./dom.js";
import { inline } from "./inline.js";

const DEEPEST = 6; // lists and quotes inside each other; below that, all is a paragraph
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})[ \t]+(.*)$/;
const RULE = /^ {0,3}([-*_])(?: *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?: +(.*))?$/;

const indentOf = (line) => line.length - line.trimStart().length;
const isBlank = (line) => line.trim() === "";

/**
 * Show a Markdown text in an element.
 *
 * Called again with a longer text, it leaves the blocks that stayed the same alone, so that
 * a selection or the focus of a button in them survives while a reply streams in.
 */
export function renderMarkdown(element, text) {
  const blocks = blocksOf(text.split(/\r?\n/));
  const keys = blocks.map((block) => JSON.stringify(block));
  const shown = [...element.children];
  let same = 0;
  while (same < shown.length && shown[same].markdown === keys[same]) same += 1;
  for (const old of shown.slice(same)) old.remove();
  for (let k = same; k < blocks.length; k += 1) {
    const node = render(blocks[k]);
    node.markdown = keys[k];
    element.append(node);
  }
}

// Blocks as plain data: { type, … }.
function blocksOf(lines, depth = 0) {
  const blocks = [];
  let level = 2; // of the last heading: the next one is at most one deeper
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const taken = take(lines, at, depth);
    if (taken.type === "heading") {
      level = Math.min(taken.level + 2, level + 1, 6);
      taken.level = level;
    }
    at = taken.end;
    delete taken.end; // where it ended isn't part of what it is
    blocks.push(taken);
  }
  return blocks;
}

function take(lines, at, depth) {
  const line = lines[at];
  const heading = HEADING.exec(line);
  if (FENCE.test(line)) return takeCode(lines, at);
  if (heading) {
    return { type: "heading", level: heading[1].length, text: heading[2], end: at + 1 };
  }
  if (RULE.test(line)) return { type: "rule", end: at + 1 };
  if (depth < DEEPEST && QUOTE.test(line)) return takeQuote(lines, at, depth);
  if (depth < DEEPEST && ITEM.test(line)) return takeList(lines, at, depth);
  if (beginsTable(lines, at)) return takeTable(lines, at);
  return takeParagraph(lines, at, depth);
}

const beginsBlock = (lines, at) =>
  [FENCE, HEADING, RULE, QUOTE, ITEM].some((pattern) => pattern.test(lines[at])) ||
  beginsTable(lines, at);

// Up to its closing fence, or to the end: while it streams in there is none yet.
function takeCode(lines, at) {
  const [, fence, info] = FENCE.exec(lines[at]);
  const indent = indentOf(lines[at]);
  const closes = (line) => {
    const mark = line.trim();
    return mark.length >= fence.length && mark === fence[0].repeat(mark.length);
  };
  let end = at + 1;
  while (end < lines.length && !closes(lines[end])) end += 1;
  const code = lines.slice(at + 1, end).map((line) => line.slice(Math.min(indent, indentOf(line))));
  const [language] = info.trim().split(/\s/);
  return { type: "code", language, code: code.join("\n"), end: end + 1 };
}

function takeQuote(lines, at, depth) {
  const inside = [];
  let end = at;
  for (; end < lines.length; end += 1) {
    const quoted = QUOTE.exec(lines[end]);
    if (!quoted && (isBlank(lines[end]) || beginsBlock(lines, end))) break;
    inside.push(quoted ? quoted[1] : lines[end]);
  }
  return { type: "quote", blocks: blocksOf(inside, depth + 1), end };
}

function takeList(lines, at, depth) {
  const [, indent, mark] = ITEM.exec(lines[at]);
  const ordered = /\d/.test(mark);
  const items = [];
  let end = at;
  let blanks = 0;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    const item = ITEM.exec(line);
    const sibling = item && item[1].length <= indent.length + 1 && !RULE.test(line);
    if (isBlank(line)) blanks += 1;
    else if (sibling && /\d/.test(item[2]) === ordered) {
      items.push({ offset: item[1].length + item[2].length + 1, lines: [item[3] ?? ""] });
      blanks = 0;
    } else if (sibling || !belongs(lines, end, indent.length, blanks)) break;
    else {
      const { offset, lines: inside } = items.at(-1);
      inside.push(...Array(blanks).fill(""), line.slice(Math.min(offset, indentOf(line))));
      blanks = 0;
    }
  }
  return {
    type: "list",
    start: ordered ? parseInt(mark, 10) : null,
    items: items.map((item) => blocksOf(item.lines, depth + 1)),
    end: end - blanks,
  };
}

// A line that begins no item is an item's if it is indented, or goes on with its paragraph.
const belongs = (lines, at, indent, blanks) =>
  indentOf(lines[at]) > indent + 1 || (blanks === 0 && !beginsBlock(lines, at));

function cellsOf(line) {
  const row = line.trim().replace(/^\|/, "");
  const cells = row.split(/(?<!\\)\|/).map((cell) => cell.trim().replaceAll("\\|", "|"));
  if (cells.at(-1) === "") cells.pop();
  return cells;
}

function beginsTable(lines, at) {
  if (!lines[at].includes("|") || !lines[at + 1]?.includes("-")) return false;
  const rule = cellsOf(lines[at + 1]);
  const isRule = rule.length > 0 && rule.every((cell) => /^:?-+:?$/.test(cell));
  return isRule && rule.length === cellsOf(lines[at]).length;
}

function takeTable(lines, at) {
  const head = cellsOf(lines[at]);
  const rows = [];
  let end = at + 2;
  for (; end < lines.length && lines[end].includes("|"); end += 1) {
    const cells = cellsOf(lines[end]);
    rows.push(head.map((_, column) => cells[column] ?? ""));
  }
  return { type: "table", head, rows, end };
}

function takeParagraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end])) {
    if (depth < DEEPEST && beginsBlock(lines, end)) break;
    end += 1;
  }
  return { type: "paragraph", text: lines.slice(at, end).join("\n").trim(), end };
}

const RENDER = {
  code: ({ language, code }) => renderCode(language, code),
  heading: ({ level, text }) => el(`h${level}`, { dir: "auto" }, inline(text)),
  rule: () => el("hr"),
  quote: ({ blocks }) => el("blockquote", {}, renderAll(blocks)),
  list: ({ start, items }) => renderList(start, items),
  table: ({ head, rows }) => renderTable(head, rows),
  paragraph: ({ text }) => el("p", { dir: "auto" }, inline(text)),
};

const render = (block) => RENDER[block.type](block);

const renderAll = (blocks) => fragmentOf(blocks.map(render));

function renderCode(language, code) {
  const button = iconButton("copy", "Copy code", () => copyText(code));
  const caption = el("figcaption", {}, el("span", {}, language || "code"), button);
  // Focusable: a keyboard must be able to scroll it.
  const pre = el("pre", { tabindex: 0, role: "group", "aria-label": "Code" }, el("code", {}, code));
  return el("figure", { class: "code" }, caption, pre);
}

function renderList(start, items) {
  const all = fragmentOf(items.map((blocks) => el("li", { dir: "auto" }, renderAll(blocks))));
  return start === null ? el("ul", {}, all) : el("ol", start === 1 ? {} : { start }, all);
}

function renderTable(head, rows) {
  const cells = (tag, texts) =>
    fragmentOf(texts.map((text) => el(tag, { dir: "auto" }, inline(text))));
  const table = el(
    "table",
    {},
    el("thead", {}, el("tr", {}, cells("th", head))),
    el("tbody", {}, fragmentOf(rows.map((row) => el("tr", {}, cells("td", row))))),
  );
  return el("div", { class: "table", tabindex: 0, role: "group", "aria-label": "Table" }, table);
}
