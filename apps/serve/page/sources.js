// What a reply rests on: marks in its text, and the quotations that they open.
import { pagePicture } from "./api.js";
import { el } from "./dom.js";

// Characters for private use stand for a mark while Markdown is made; a model's own are replaced.
const [BEGIN, END] = ["\ue000", "\ue001"];
const OWN = /[\ue000\ue001]/g;
const MARK = /\ue000(\d+)\ue001/g;

/** The reply's text with a place for each mark. */
export function markedText({ parts }) {
  const written = ({ text, source }) =>
    text.replace(OWN, "\ufffd") + (source === null ? "" : ` ${BEGIN}${source}${END}`);
  return parts.map(written).join("");
}

export class SourcesView {
  constructor() {
    // A group: each reply has one, and landmarks of the same name would be of no use.
    const named = { class: "sources", role: "group", "aria-label": "Sources" };
    this.element = el("div", { ...named, hidden: true });
    this.shown = undefined;
    this.quotations = [];
  }

  /** Show the grounds of a message, once they have changed. */
  show(grounds) {
    this.element.hidden = !grounds;
    if (grounds === this.shown) return;
    this.shown = grounds;
    this.quotations = (grounds.sources?.sources ?? []).map(quotation);
    this.element.replaceChildren(...facts(grounds), ...this.quotations, ...lacking(grounds));
    this.element.hidden = this.element.children.length === 0;
  }

  /** Turn the places that `markedText` left in an element into buttons. */
  placeMarks(root) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    const found = [];
    while (walker.nextNode()) {
      if (walker.currentNode.data.includes(BEGIN)) found.push(walker.currentNode);
    }
    for (const node of found) {
      const pieces = node.data.split(MARK); // text, number, text, …
      node.replaceWith(
        ...pieces.map((piece, at) => (at % 2 ? this.#mark(Number(piece)) : piece)),
      );
    }
  }

  #mark(number) {
    const { mark, place } = this.shown.sources.sources[number];
    const open = () => {
      const details = this.quotations[number];
      details.open = true;
      details.querySelector("summary").focus();
      details.scrollIntoView({ block: "nearest" });
    };
    const attributes = { type: "button", class: "mark", title: `Show the source: ${place}` };
    return el("button", { ...attributes, onclick: open }, mark);
  }
}

const line = (text, name = "muted small") => el("p", { class: name, dir: "auto" }, text);

function facts({ searched, note, unchecked }) {
  const said = searched ? [`Searched ${searched}.`] : [];
  return [...said, note, unchecked].filter(Boolean).map((text) => line(text));
}

function quotation(source) {
  const details = el(
    "details",
    { class: "source" },
    el("summary", {}, `${source.mark} `, el("span", { class: "place" }, besideMark(source))),
    el("blockquote", { dir: "auto" }, source.quote),
    line(source.rule),
  );
  if (!source.picture) return details;
  details.addEventListener("toggle", () => showPicture(details, source), { once: true });
  return details;
}

// The place without what the mark says already: "[p. 47] (PDF page 59), 3.2 Shell Syntax".
function besideMark({ mark, place }) {
  const said = mark.slice(1, -1).split(",")[0];
  return place.startsWith(said) ? place.slice(said.length).replace(/^, /, "") : place;
}

async function showPicture(details, { document: id, page, boxes, place }) {
  const waiting = line("Loading the page…");
  details.append(waiting);
  try {
    const image = el("img", { src: await pagePicture(id, page), alt: `Picture of ${place}` });
    waiting.replaceWith(el("div", { class: "sheet" }, image, ...boxes.map(highlight)));
  } catch (error) {
    const gone = error.code === "document_not_found";
    waiting.textContent = gone
      ? "The server no longer has the document: it was restarted, or needed the room."
      : `The page cannot be shown: ${error.message}`;
  }
}

function highlight({ left, top, right, bottom }) {
  const box = el("div", { class: "highlight" });
  const percent = (value) => `${100 * value}%`;
  Object.assign(box.style, {
    left: percent(left),
    top: percent(top),
    width: percent(right - left),
    height: percent(bottom - top),
  });
  return box;
}

function lacking({ sources }) {
  if (!sources || (sources.sentences && !sources.without_source)) return [];
  const { sentences, without_source: without, nearest } = sources;
  const count = `${without} of ${sentences} sentence${sentences === 1 ? "" : "s"}`;
  const said = line(`${count} without a source on these pages.`);
  if (!nearest.length) return [said];
  const quotes = nearest.map(({ place, text }) =>
    el("li", { dir: "auto" }, `“${text}” `, el("span", { class: "place" }, place)),
  );
  const summary = el("summary", {}, "What is nearest to the question");
  return [said, el("details", { class: "source" }, summary, el("ul", {}, ...quotes))];
}
