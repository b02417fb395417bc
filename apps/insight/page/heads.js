// Layers by heads, coloured by a score of what each head does.
class Heads {
  constructor(attention) {
    this.attention = attention;
    const { kinds } = data.heads;
    this.section = addSection("heads", "Heads by what they do");
    const rules = Object.keys(kinds).map((kind) => [kind, kind]);
    this.rule = field("Rule", rules, (kind) => this.#draw(kind));
    const shown = [
      ["score", "score"],
      ["control", "control, tokens shuffled"],
      ["above", "score minus control"],
    ];
    this.shown = field("Shown", shown, () => this.#draw(this.rule.select.value));
    this.about = make("p", { class: "muted" });
    this.map = make("div");
    this.best = make("div");
    this.section.append(
      make("p", {}, data.heads.note),
      make("div", { class: "controls" }, this.rule.box, this.shown.box),
      this.about,
      make("div", { class: "columns" }, this.map, this.best)
    );
    this.#draw(Object.keys(kinds)[0]);
  }

  #value(kind, layer, head) {
    const { score, control } = data.heads.kinds[kind];
    const [found, base] = [score[layer][head], control[layer][head]];
    return { score: found, control: base, above: Math.max(0, found - base) }[this.shown.select.value];
  }

  #draw(kind) {
    const { score, control, uniform, queries, description } = data.heads.kinds[kind];
    this.about.textContent =
      `${description} Mean over ${count(queries)} tokens; a head that attends to all keys alike ` +
      `would have ${fixed(uniform)}.`;
    const heads = score[0].length;
    const head = make("tr", {}, make("th", { scope: "col" }, "layer"));
    for (let n = 0; n < heads; n += 1) head.append(make("th", { scope: "col" }, String(n)));
    const rows = score.map((line, layer) =>
      make(
        "tr",
        {},
        make("th", { scope: "row" }, String(layer)),
        ...line.map((_, n) => this.#cell(kind, layer, n))
      )
    );
    const table = make(
      "table",
      {
        class: "map",
        role: "grid",
        "aria-label": `${kind} by layer and head`,
        onkeydown: (event) => this.#pressed(event),
      },
      make("thead", {}, head),
      make("tbody", {}, ...rows)
    );
    table.querySelector("td").tabIndex = 0;
    this.map.replaceChildren(scrolling(table, `${kind} by layer and head`));
    const list = score
      .flatMap((line, layer) => line.map((value, n) => [layer, n, value, control[layer][n]]))
      .sort((a, b) => b[2] - a[2])
      .slice(0, 8);
    this.best.replaceChildren(
      makeTable(
        "The highest scores",
        [
          ["layer", "number"],
          ["head", "number"],
          ["score", "number"],
          ["control", "number"],
          ["score as a bar", "bar"],
        ],
        list.map(([layer, n, value, base]) => [
          ...[String(layer), String(n), fixed(value), fixed(base)],
          bar(value),
        ])
      )
    );
  }

  #cell(kind, layer, head) {
    const { score, control } = data.heads.kinds[kind];
    const value = this.#value(kind, layer, head);
    const numbers = `score ${fixed(score[layer][head])}, control ${fixed(control[layer][head])}`;
    const cell = make(
      "td",
      {
        role: "gridcell",
        tabindex: "-1",
        title: `layer ${layer}, head ${head}: ${numbers}`,
        "aria-label": `layer ${layer}, head ${head}: ${numbers}`,
        "data-layer": layer,
        "data-head": head,
        onclick: () => this.#open(layer, head),
      },
      value >= 0.095 ? value.toFixed(1).replace("0.", ".") : ""
    );
    const share = Math.round(value * 100);
    cell.style.background = `color-mix(in srgb, var(--heat) ${share}%, transparent)`;
    return cell;
  }

  #open(layer, head) {
    if (this.attention?.has(layer)) {
      this.attention.choose({ layer, head });
      this.attention.enter();
    } else if (this.attention) {
      say(`This document does not carry what layer ${layer} read; make it with --layers ${layer}`);
    }
  }

  #pressed(event) {
    const cell = event.target.closest("td[data-layer]");
    const steps = {
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
    }[event.key];
    const [layer, head] = [Number(cell.dataset.layer), Number(cell.dataset.head)];
    if (event.key === "Enter" || event.key === " ") this.#open(layer, head);
    else if (steps) this.#focus(cell, layer + steps[0], head + steps[1]);
    else if (event.key === "Home") this.#focus(cell, layer, 0);
    else if (event.key === "End") this.#focus(cell, layer, cell.parentNode.cells.length - 2);
    else return;
    event.preventDefault();
  }

  #focus(from, layer, head) {
    const to = this.map.querySelector(`td[data-layer="${layer}"][data-head="${head}"]`);
    if (to) moveFocus(from, to);
  }
}
