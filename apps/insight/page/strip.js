const shownAs = (text) =>
  text.replace(/\n/g, "⏎\n").replace(/^ +$/, (spaces) => "·".repeat(spaces.length)) || "∅";

// The text as a strip of tokens, one of which is the query; its keys are coloured by weight.
class Strip {
  constructor(label, texts, { made = texts.length, choose }) {
    this.texts = texts;
    this.choose = choose;
    this.heated = [];
    this.query = -1;
    this.later = 0;
    this.node = make("div", {
      class: "strip token",
      role: "listbox",
      "aria-label": label,
      "aria-orientation": "horizontal",
      onclick: (event) => this.#clicked(event),
      onkeydown: (event) => this.#pressed(event),
    });
    texts.forEach((text, index) => {
      const plain = text.trim() !== "" && !/[\n\r\t]/.test(text);
      this.node.append(
        make(
          "span",
          {
            role: "option",
            tabindex: "-1",
            "aria-selected": "false",
            "aria-label": plain ? null : visible(text),
            class: index >= made ? "made" : null,
            "data-at": index,
          },
          plain ? text : shownAs(text)
        )
      );
    });
  }

  // Marks the query, and the keys with their weights, of which the largest is coloured in full.
  show(query, keys) {
    const spans = this.node.children;
    for (const at of this.heated) spans[at].style.removeProperty("background");
    if (this.query >= 0) {
      spans[this.query].setAttribute("aria-selected", "false");
      spans[this.query].tabIndex = -1;
    }
    const most = Math.max(...keys.map(([, weight]) => weight), 1e-9);
    this.heated = keys.map(([at]) => at);
    for (const [at, weight] of keys) {
      const share = Math.round(15 + 85 * (weight / most));
      spans[at].style.background = `color-mix(in srgb, var(--heat) ${share}%, transparent)`;
    }
    this.#fade(query);
    this.query = query;
    spans[query].setAttribute("aria-selected", "true");
    spans[query].tabIndex = 0;
  }

  // Tokens after the query cannot be seen from it.
  #fade(query) {
    const spans = this.node.children;
    const [low, high] = [Math.min(query, this.query), Math.max(query, this.query)];
    const begin = this.query < 0 ? 0 : low;
    const end = this.query < 0 ? spans.length - 1 : high;
    for (let at = begin; at <= end; at += 1) spans[at].classList.toggle("later", at > query);
  }

  focus() {
    this.node.children[this.query].focus();
  }

  #clicked(event) {
    const span = event.target.closest("[data-at]");
    if (span) this.#go(Number(span.dataset.at));
  }

  #pressed(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.texts.length - 1;
    const to = {
      ArrowLeft: this.query - 1,
      ArrowRight: this.query + 1,
      ArrowUp: this.#line(-1),
      ArrowDown: this.#line(1),
      PageUp: this.query - 20,
      PageDown: this.query + 20,
      Home: 0,
      End: last,
    }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    this.#go(Math.max(0, Math.min(last, to)));
  }

  // The token above or below the query, as the lines are broken now.
  #line(way) {
    const spans = this.node.children;
    const from = spans[this.query].getBoundingClientRect();
    let best = this.query;
    for (let at = this.query + way; at >= 0 && at < spans.length; at += way) {
      const box = spans[at].getBoundingClientRect();
      const lines = (way * (box.top - from.top)) / from.height;
      if (lines < 0.5) continue;
      const top = spans[best].getBoundingClientRect().top;
      if (best !== this.query && Math.abs(box.top - top) > 2) break;
      const off = (span) => Math.abs(span.getBoundingClientRect().left - from.left);
      if (best === this.query || off(spans[at]) < off(spans[best])) best = at;
    }
    return best;
  }

  #go(at) {
    this.choose(at);
    this.focus();
    this.node.children[at].scrollIntoView({ block: "nearest" });
  }
}
