// Elements and numbers. Text is only ever set as text.
function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "path", "line", "text", "g", "circle", "rect"].includes(tag);
  const node = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", tag)
    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

// What a token looks like: white space that would be lost is written out.
function visible(text) {
  if (text === "") return "∅";
  return text.replace(/ /g, "·").replace(/\n/g, "⏎").replace(/\t/g, "⇥").replace(/\r/g, "␍");
}

const fixed = (value, digits = 3) => (value === null ? "–" : value.toFixed(digits));
const count = (value) => value.toLocaleString("en");

function percent(value) {
  if (value === 0) return "0 %";
  if (value < 0.0001) return "< 0.01 %";
  return `${(100 * value).toFixed(value < 0.01 ? 2 : 1)} %`;
}

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

const floats = (base64) => new Float32Array(bytesOf(base64));
const inSteps = ({ most, steps }) => Float32Array.from(shorts(steps), (n) => (n / 65535) * most);
const shorts = (base64) => new Uint16Array(bytesOf(base64));

// headers: [name, "number" | "token" | "bar" | ""]; a cell is text or an element.
function makeTable(caption, headers, rows, options = {}) {
  const head = make(
    "tr",
    {},
    ...headers.map(([name, kind]) =>
      make(
        "th",
        { scope: "col", class: kind === "number" ? "number" : null },
        kind === "bar" ? make("span", { class: "unseen" }, name) : name
      )
    )
  );
  const body = rows.map((row, index) =>
    make(
      "tr",
      { class: options.chosen?.(index) ? "chosen" : null },
      ...row.map((cell, column) => make("td", { class: headers[column][1] || null }, cell))
    )
  );
  const table = make(
    "table",
    {},
    caption ? make("caption", {}, caption) : null,
    make("thead", {}, head),
    make("tbody", {}, ...body)
  );
  return scrolling(table, caption || "Table");
}

// A box that scrolls sideways where its content is too wide, and is then reached by Tab.
const overflow = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const wide = target.scrollWidth > target.clientWidth;
    const attributes = { tabindex: "0", role: "region", "aria-label": target.dataset.name };
    for (const [name, value] of Object.entries(attributes)) {
      if (wide) target.setAttribute(name, value);
      else target.removeAttribute(name);
    }
  }
});

function scrolling(content, name) {
  const box = make("div", { class: "table", "data-name": name }, content);
  overflow.observe(box);
  return box;
}

let fields = 0;

// A choice with its label; options: [value, text].
function field(name, options, choose) {
  fields += 1;
  const id = `field-${fields}`;
  const select = make("select", { id, onchange: (event) => choose(event.target.value) });
  select.append(...options.map(([value, text]) => make("option", { value }, text)));
  const box = make("div", { class: "field" }, make("label", { for: id }, name), select);
  return { box, select };
}

function bar(share) {
  const inner = make("div");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return inner;
}

const contents = [];

function addSection(id, title) {
  const section = make("section", { id, "aria-labelledby": `${id}-title` });
  section.append(make("h2", { id: `${id}-title` }, title));
  document.getElementById("main").append(section);
  contents.push([id, title]);
  return section;
}

function say(text) {
  document.getElementById("status").textContent = text;
}

// Arrow keys among the children of one widget, of which one at a time is reached by Tab.
function moveFocus(from, to) {
  if (from) from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}
