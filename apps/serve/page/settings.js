// The dialog for the system prompt and the sampling settings.
import { askIn, byId, el } from "./dom.js";

// Fields of the API, with bounds inside which every server of this kind takes them.
const LARGEST = Number.MAX_SAFE_INTEGER;
const SAMPLING = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.01 }, "0 always takes the likeliest"],
  ["top_p", "Top p", { min: 0.01, max: 1, step: 0.01 }, "1 leaves all tokens in"],
  ["top_k", "Top k", { min: 0, max: 1000, step: 1 }, "0 leaves all tokens in"],
  ["max_tokens", "Longest reply", { min: 1, max: 1000000, step: 1 }, "in tokens"],
  ["seed", "Seed", { min: 0, max: LARGEST, step: 1 }, "same seed, same reply"],
];

const inputs = new Map();

/** Fill the dialog with its fields, once. */
export function buildSettings() {
  for (const [name, label, bounds, hint] of SAMPLING) {
    const id = `set-${name}`;
    const attributes = { id, name, type: "number", "aria-describedby": `${id}-hint`, ...bounds };
    const input = el("input", { ...attributes, inputmode: "decimal", placeholder: "model’s own" });
    inputs.set(name, input);
    byId("sampling").append(
      el(
        "p",
        { class: "field" },
        el("label", { for: id }, label),
        input,
        el("span", { id: `${id}-hint`, class: "muted small" }, hint),
      ),
    );
  }
  byId("reset-settings").addEventListener("click", () => {
    for (const input of inputs.values()) input.value = "";
    byId("system").value = "";
  });
}

/** The user's new { system, sampling }, or null when nothing is to change. */
export async function editSettings({ system, sampling }) {
  byId("system").value = system;
  for (const [name, input] of inputs) input.value = sampling[name] ?? "";
  if ((await askIn(byId("settings"))) !== "save") return null;
  const given = [...inputs].filter(([, input]) => input.value !== "");
  return {
    system: byId("system").value.trim(),
    sampling: Object.fromEntries(given.map(([name, input]) => [name, input.valueAsNumber])),
  };
}
