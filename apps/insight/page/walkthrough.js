// A reply, token by token: what could have come next and why it was this one.
const CUTS = {
  logit_bias: "logit bias",
  penalties: "penalties",
  dry: "DRY",
  temperature: "temperature (too unlikely)",
  top_k: "top-k",
  top_p: "top-p",
  min_p: "min-p",
  typical_p: "typical-p",
  xtc: "XTC",
};

class Walk {
  constructor(attention) {
    this.attention = attention;
    const { steps } = data.walkthrough;
    this.section = addSection("walkthrough", "How the reply was chosen");
    this.strip = new Strip(
      "Tokens of the reply",
      steps.map((step) => step.chosen.text),
      { choose: (at) => this.#draw(at, true) }
    );
    this.panel = make("div", { "aria-live": "off" });
    this.section.append(
      make("p", { class: "muted" }, data.walkthrough.note),
      this.strip.node,
      this.panel
    );
    attention.watch(() => this.#draw(this.at, false));
    this.#draw(0, false);
  }

  #draw(at, chosen) {
    this.at = at;
    const step = data.walkthrough.steps[at];
    this.strip.show(at, []);
    this.panel.replaceChildren(
      make("h3", {}, `Token ${at} of the reply: “${visible(step.chosen.text)}”`),
      make("p", {}, step.why),
      make(
        "div",
        { class: "columns" },
        this.#candidates(step),
        ...this.#stages(step),
        this.#read(step)
      )
    );
    if (chosen) say(`Token ${at}, ${visible(step.chosen.text)}. ${step.why}`);
  }

  #candidates(step) {
    const listed = step.candidates.some(({ token }) => token === step.chosen.token)
      ? step.candidates
      : [...step.candidates, step.chosen];
    const most = Math.max(...listed.map(({ probability }) => probability));
    const rows = listed.map((one) => [
      String(one.rank + 1),
      make("span", { class: "token" }, visible(one.text)),
      fixed(one.logit, 2),
      one.adjusted === null ? "−∞" : fixed(one.adjusted, 2),
      percent(one.probability),
      bar(one.probability / most),
      one.cut_by ? `cut by ${CUTS[one.cut_by]}` : percent(one.final),
      one.token === step.chosen.token ? "chosen" : "",
    ]);
    return makeTable(
      "Candidates by the model's probability",
      [
        ["rank", "number"],
        ["token", "token"],
        ["logit", "number"],
        ["adjusted", "number"],
        ["probability", "number"],
        ["probability as a bar", "bar"],
        ["after the filters", ""],
        ["choice", ""],
      ],
      rows,
      { chosen: (index) => listed[index].token === step.chosen.token }
    );
  }

  #stages(step) {
    if (!step.stages.length) return [];
    const rows = step.stages.map((stage) => [
      CUTS[stage.name].replace(" (too unlikely)", ""),
      Object.entries(stage.settings)
        .map(([name, value]) => `${name} ${value}`)
        .join(", "),
      stage.changed ? count(stage.changed) : "–",
      this.#removed(stage),
      count(stage.left),
    ]);
    return [
      makeTable(
        "Steps of the sampler, in their order",
        [
          ["step", ""],
          ["setting", ""],
          ["logits changed", "number"],
          ["tokens removed", "number"],
          ["left", "number"],
        ],
        rows
      ),
    ];
  }

  #removed({ removed, removed_probability: share }) {
    if (!removed) return "–";
    return share ? `${count(removed)} (${percent(share)})` : count(removed);
  }

  #read(step) {
    const { layer, head } = this.attention.state;
    const top = this.attention.layer(layer).top(head, step.position);
    const heads = data.attention.heads;
    const name = head === heads ? "all heads' mean" : `head ${head}`;
    const show = () => {
      this.attention.choose({ query: step.position });
      this.attention.enter();
    };
    return make(
      "div",
      {},
      makeTable(
        `What it read while choosing: layer ${layer}, ${name}, at token ${step.position}`,
        [["key", "number"], ["token", "token"], ["weight", "number"], ["weight as a bar", "bar"]],
        top.map(({ key, weight }) => [
          String(key),
          visible(data.tokens[key]),
          percent(weight),
          bar(weight),
        ])
      ),
      make("p", {}, make("button", { type: "button", onclick: show }, "Show it in the text"))
    );
  }
}
