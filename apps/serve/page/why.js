// What the model read when it chose the tokens of a reply: a panel under it.
import { explainReply } from "./api.js";
import { announce, el } from "./dom.js";
import { Strip, bar, field, makeTable, percent, visible } from "./strip.js";

const ROUNDED =
  "The reply was made by the graph that rounds activations and keys to int8; this is the graph " +
  "in floats. pippin serve --precise makes both one.";
const HOW =
  "Choose a token of the reply (underlined) with a click or the arrow keys. The tokens that the " +
  "model read just before it chose it are coloured by weight, the largest in full.";

let panels = 0;

export class Why {
  #state = null; // { layer, head, token }
  #data = null;
  #controller = null;

  /** `request()` gives the conversation up to the reply, as the API wants it. */
  constructor(request) {
    this.request = request;
    panels += 1;
    const id = `why-${panels}`;
    const named = { class: "why", role: "group", "aria-label": "Why this reply" };
    this.element = el("div", { id, ...named, hidden: true });
    this.button = el(
      "button",
      {
        type: "button",
        class: "quiet why-button",
        "aria-expanded": "false",
        "aria-controls": id,
        title: "What the model read when it wrote this",
        onclick: () => this.#toggle(),
      },
      "Why?",
    );
  }

  #toggle() {
    const open = this.element.hidden;
    this.element.hidden = !open;
    this.button.setAttribute("aria-expanded", open);
    if (open && !this.#data) this.#load({});
    if (!open) this.#controller?.abort();
  }

  async #ask(more) {
    this.#controller?.abort();
    this.#controller = new AbortController();
    return explainReply({ ...this.request(), ...more }, this.#controller.signal);
  }

  // One layer; the choices that the user has made stay.
  async #load(more) {
    this.#say("Reading the conversation again…");
    try {
      this.#data = await this.#ask(more);
    } catch (error) {
      if (error.name !== "AbortError") this.#fail(error, () => this.#load(more));
      return;
    }
    const { layer, head, token } = this.#data;
    this.#state = { layer, head: this.#state?.head ?? head, token: this.#state?.token ?? token };
    this.#build();
  }

  #say(text) {
    if (this.#data) this.status.textContent = text;
    else this.element.replaceChildren(el("p", { class: "muted small", role: "status" }, text));
  }

  #fail(error, retry) {
    const button = el("button", { type: "button", onclick: retry }, "Retry");
    const said = el("p", { class: "failed", role: "alert" }, `${error.message} `, button);
    if (this.#data) this.status.replaceChildren(said);
    else this.element.replaceChildren(said);
  }

  #build() {
    const data = this.#data;
    const focused = document.activeElement;
    const numbers = (count) => Array.from({ length: count }, (_, n) => [n, String(n)]);
    const layers = field("Layer", numbers(data.layers), (n) => this.#load({ layer: Number(n) }));
    const names = [...numbers(data.heads), [data.heads, "mean of all"]];
    const heads = field("Head", names, (n) => this.#choose({ head: Number(n) }));
    const hadLayer = this.layers?.select === focused;
    Object.assign(this, { layers, heads });
    layers.select.value = this.#state.layer;
    heads.select.value = this.#state.head;
    this.strip = new Strip("Tokens of the conversation", data.tokens, {
      made: data.reply,
      choose: (token) => this.#choose({ token: Math.max(token, data.first) }),
    });
    for (const option of [...this.strip.node.children].slice(0, data.first)) {
      option.setAttribute("aria-disabled", "true");
    }
    this.status = el("div", { role: "status", class: "muted small" });
    this.table = el("div");
    this.rivals = el("div");
    this.element.replaceChildren(
      el("p", { class: "caveat", role: "note" }, data.caveat),
      el("div", { class: "controls" }, layers.box, heads.box, this.status),
      el("p", { class: "muted small" }, HOW),
      el("div", { class: "beside" }, el("div", {}, this.strip.node, this.rivals), this.table),
      el("p", { class: "muted small" }, `First shown: ${data.why}.`),
      ...(data.other_graph ? [el("p", { class: "muted small" }, ROUNDED)] : []),
    );
    this.#draw();
    // The text of a chat is read from its end.
    this.strip.node.scrollTop = this.strip.node.scrollHeight;
    if (hadLayer) layers.select.focus();
  }

  #choose(change) {
    Object.assign(this.#state, change);
    this.#draw();
    const [best] = this.#keys();
    if (best) {
      const { token } = this.#state;
      const said = `${visible(this.#data.tokens[token])}: most weight, ${percent(best.weight)}, on`;
      announce(`${said} token ${best.key}, ${visible(this.#data.tokens[best.key])}`);
    }
  }

  // The keys of the chosen token, by falling weight.
  #keys() {
    const { keys, weights, first } = this.#data;
    const { head, token } = this.#state;
    const at = token - first;
    return keys[head][at].map((key, n) => ({ key, weight: weights[head][at][n] }));
  }

  #draw() {
    const { tokens, heads, first, first_token: idle, sinks } = this.#data;
    const { layer, head, token } = this.#state;
    const found = this.#keys();
    this.strip.show(token, found.map(({ key, weight }) => [key, weight]));
    const rows = found.map(({ key, weight }) => [
      String(key),
      this.#link(key),
      percent(weight),
      bar(weight),
    ]);
    const headers = [["key", "number"], ["token", "token"], ["weight", "number"], ["bar", "bar"]];
    const name = head === heads ? "all heads on average" : `head ${head}`;
    let shares = `first token ${percent(idle[head][token - first])}`;
    if (sinks) shares += `; the head’s sink ${percent(sinks[head][token - first])}`;
    const shown = Math.min(1, found.reduce((sum, { weight }) => sum + weight, 0));
    this.table.replaceChildren(
      el(
        "p",
        { class: "small" },
        `“${visible(tokens[token])}” was chosen after “${visible(tokens[token - 1])}”. ` +
          `There layer ${layer}, ${name} read:`,
      ),
      makeTable("Keys by falling weight", headers, rows),
      el("p", { class: "small muted" }, `Shown ${percent(shown)}; ${shares}.`),
    );
    this.#offerRivals();
  }

  // A key that may be far from the reply: the strip shows where it stands.
  #link(key) {
    const text = visible(this.#data.tokens[key]);
    const show = () => {
      const span = this.strip.node.children[key];
      this.strip.node.querySelector(".found")?.classList.remove("found");
      span.classList.add("found");
      const { top, height } = span.getBoundingClientRect();
      const box = this.strip.node.getBoundingClientRect();
      this.strip.node.scrollTop += top - box.top - (box.height - height) / 2;
      announce(`Token ${key} is shown in the text.`);
    };
    const label = `Show token ${key}, ${text}, in the text`;
    const attributes = { type: "button", class: "link token", "aria-label": label };
    return el("button", { ...attributes, onclick: show }, text);
  }

  #offerRivals() {
    const button = el(
      "button",
      { type: "button", class: "small", onclick: () => this.#loadRivals() },
      "What else might have come?",
    );
    this.rivals.replaceChildren(button);
  }

  async #loadRivals() {
    const { token, layer } = this.#state;
    const { rivals } = this;
    const waiting = { class: "small muted", role: "status" };
    rivals.replaceChildren(el("p", waiting, "Reading up to there…"));
    try {
      const { candidates } = await this.#ask({ token: token - this.#data.reply, layer, top: 1 });
      rivals.replaceChildren(...candidatesTable(candidates));
      announce(`${candidates.length} candidates are shown.`);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.#offerRivals();
      rivals.append(el("p", { class: "failed", role: "alert" }, error.message));
    }
  }
}

function candidatesTable(candidates) {
  const most = Math.max(...candidates.map(({ probability }) => probability));
  const rows = candidates.map(({ rank, text, probability }) => [
    String(rank + 1),
    el("span", { class: "token" }, visible(text)),
    percent(probability),
    bar(probability / most),
  ]);
  const headers = [
    ["rank", "number"],
    ["token", "token"],
    ["probability", "number"],
    ["bar", "bar"],
  ];
  const table = makeTable("What might have come, by the model alone", headers, rows, {
    chosen: (index) => candidates[index].chosen,
  });
  const said = "Before temperature and filters. The chosen token is in bold.";
  return [table, el("p", { class: "small muted" }, said)];
}
