// What each token read: top keys of every query in the layers that the document carries.
class Layer {
  constructor(number, packed) {
    Object.assign(this, packed, { number });
    this.keys = data.attention.wide_keys
      ? new Uint32Array(bytesOf(packed.keys))
      : shorts(packed.keys);
    this.logs = shorts(packed.log_weights);
    this.lse = floats(packed.lse);
    this.sinks = packed.sinks && inSteps(packed.sinks);
    this.norms = {
      q: inSteps(packed.q_norms),
      k: inSteps(packed.k_norms),
      v: inSteps(packed.v_norms),
      output: inSteps(packed.output_norms),
    };
  }

  // The keys of a query by falling weight; head H stands for the mean of all heads.
  top(head, query) {
    const { heads, top, tokens, log_floor: floor } = data.attention;
    const found = [];
    const start = (head * tokens + query) * top;
    for (let i = start; i < start + Math.min(top, query + 1); i += 1) {
      if (this.logs[i] === 0) break; // not seen, or next to nothing
      const log = floor * (1 - this.logs[i] / 65535);
      const score = head < heads ? log + this.lse[head * tokens + query] : null;
      found.push({ key: this.keys[i], weight: Math.exp(log), score });
    }
    return found;
  }
}

class Attention {
  #layers = new Map();

  constructor() {
    const { layers, chosen } = data.attention;
    this.state = { layer: chosen.layer, head: chosen.head, query: chosen.token };
    this.section = addSection("attention", "What a token read");
    this.strip = new Strip("Tokens of the text", data.tokens, {
      made: data.prompt_tokens,
      choose: (query) => this.choose({ query }),
    });
    const numbers = Object.keys(layers).map((number) => [number, number]);
    this.layerField = field("Layer", numbers, (value) => this.choose({ layer: Number(value) }));
    this.headField = field("Head", this.#headNames(), (value) =>
      this.choose({ head: Number(value) })
    );
    this.panel = make("div", {
      class: "panel",
      tabindex: "0",
      role: "region",
      "aria-label": "Keys of the chosen token",
    });
    this.section.append(
      make("p", { class: "muted" }, data.attention.note),
      make("div", { class: "controls" }, this.layerField.box, this.headField.box),
      make(
        "p",
        { class: "small muted" },
        "Choose a token with a click or the arrow keys. Its keys are coloured by weight, the " +
          "largest in full; greyed tokens come after it and are masked." +
          (data.walkthrough ? " Tokens of the reply are underlined." : "")
      ),
      make("div", { class: "beside" }, this.strip.node, this.panel)
    );
    this.#draw();
  }

  #headNames() {
    const { heads } = data.attention;
    const names = Array.from({ length: heads }, (_, head) => [head, String(head)]);
    return [...names, [heads, "mean of all heads"]];
  }

  layer(number) {
    if (!this.#layers.has(number)) {
      this.#layers.set(number, new Layer(number, data.attention.layers[number]));
    }
    return this.#layers.get(number);
  }

  has(layer) {
    return layer in data.attention.layers;
  }

  // Calls `follow` whenever another layer or head is shown.
  watch(follow) {
    this.follow = follow;
  }

  enter() {
    this.section.scrollIntoView({ block: "start" });
    this.strip.focus();
  }

  choose(change) {
    Object.assign(this.state, change);
    this.#draw();
    if (change.query === undefined) this.follow?.();
    const { query } = this.state;
    const best = this.layer(this.state.layer).top(this.state.head, query)[0];
    if (best) {
      say(
        `Token ${query}, ${visible(data.tokens[query])}: most weight, ${percent(best.weight)}, ` +
          `on token ${best.key}, ${visible(data.tokens[best.key])}`
      );
    }
  }

  #draw() {
    const { layer, head, query } = this.state;
    const found = this.layer(layer).top(head, query);
    this.layerField.select.value = layer;
    this.headField.select.value = head;
    this.strip.show(query, found.map(({ key, weight }) => [key, weight]));
    this.panel.replaceChildren(...this.#table(this.layer(layer), head, query, found));
  }

  #table(layer, head, query, found) {
    const { heads, kv_heads: kvHeads, tokens } = data.attention;
    const mean = head === heads;
    const shared = Math.floor(head / (heads / kvHeads));
    const columns = [
      ["key", "number", ({ key }) => String(key)],
      ["token", "token", ({ key }) => this.#link(key)],
      ["weight", "number", ({ weight }) => percent(weight)],
      ["weight as a bar", "bar", ({ weight }) => bar(weight)],
      !mean && layer.plain && ["q·k", "number", ({ score }) => fixed(score / layer.scale, 2)],
      !mean && [layer.plain ? "scaled" : "score", "number", ({ score }) => fixed(score)],
      !mean && ["|k|", "number", ({ key }) => fixed(layer.norms.k[shared * tokens + key], 2)],
      !mean && ["|v|", "number", ({ key }) => fixed(layer.norms.v[shared * tokens + key], 2)],
    ].filter(Boolean);
    const headers = columns.map(([name, kind]) => [name, kind]);
    const rows = found.map((entry) => columns.map(([, , cell]) => cell(entry)));
    const shown = found.reduce((sum, { weight }) => sum + weight, 0);
    const sink = !mean && layer.sinks ? layer.sinks[head * tokens + query] : 0;
    const facts = [
      `Query ${query} “${visible(data.tokens[query])}”, layer ${layer.number}, ` +
        (mean ? "mean of all heads." : `head ${head}.`),
    ];
    if (!mean) {
      const q = layer.norms.q[head * tokens + query];
      const output = layer.norms.output[head * tokens + query];
      facts.push(
        `|q| ${fixed(q, 2)}; scaled by ${layer.scale.toPrecision(4)}` +
          `${layer.rule}; the weighted sum of the values has length ${fixed(output, 2)}.`
      );
    }
    const others = Math.max(0, 1 - shown - sink);
    facts.push(
      `Shown ${percent(Math.min(shown, 1))}; all other keys ${percent(others)}` +
        `${sink ? `; the head's sink ${percent(sink)}` : ""}.`
    );
    return [
      ...facts.map((fact) => make("p", { class: "small" }, fact)),
      makeTable("Keys by falling weight", headers, rows),
    ];
  }

  #link(key) {
    return make(
      "button",
      {
        type: "button",
        class: "link token",
        "aria-label": `Make token ${key}, ${visible(data.tokens[key])}, the query`,
        onclick: () => {
          this.choose({ query: key });
          this.strip.focus();
        },
      },
      visible(data.tokens[key])
    );
  }
}
