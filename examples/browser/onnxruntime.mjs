// The folder in plain onnxruntime-web: download, session, cache, tokenizer, template.
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";

const SUFFIXES = { fp32: "", fp16: "_fp16", q4: "_q4", int8: "_int8" };
const fetchJson = async (name) => (await fetch(`model/${name}`)).json();

export async function load({ weights, provider, maxTokens, onProgress, signal }) {
  const ort = await import(`onnxruntime-web/${provider}`);
  const graph = `model${SUFFIXES[weights]}.onnx`;
  const config = await fetchJson("config.json");
  const count = config["transformers.js_config"].use_external_data_format[graph];
  const parts = Array.from({ length: count }, (_, k) => `${graph}_data${k ? `_${k}` : ""}`);
  const [bytes, ...data] = await download([graph, ...parts], onProgress, signal);
  const session = await ort.InferenceSession.create(bytes, {
    executionProviders: [provider],
    externalData: parts.map((path, index) => ({ path, data: data[index] })),
    logSeverityLevel: 3, // errors: it warns of the optional num_logits
  });
  return new Chat(new Model(ort, session), await Text.load(), maxTokens);
}

// Files of the folder as bytes; `onProgress(done, total)` counts the bytes of all of them.
async function download(names, onProgress, signal) {
  const ask = (name, method) => fetch(`model/onnx/${name}`, { method, signal });
  const heads = await Promise.all(names.map((name) => ask(name, "HEAD")));
  const sizes = heads.map((response) => Number(response.headers.get("Content-Length")));
  const total = sizes.reduce((a, b) => a + b);
  let done = 0;
  const files = [];
  for (const [index, name] of names.entries()) {
    const response = await ask(name, "GET");
    if (!response.ok) throw new Error(`${name}: status ${response.status}`);
    const bytes = new Uint8Array(sizes[index]);
    const reader = response.body.getReader();
    for (let start = 0; ; ) {
      const { value, done: end } = await reader.read();
      if (end) break;
      bytes.set(value, start);
      start += value.length;
      onProgress((done += value.length), total);
    }
    files.push(bytes);
  }
  return files;
}

// The graph, the keys and values of the tokens so far, and the ids of these tokens.
class Model {
  constructor(ort, session) {
    Object.assign(this, { ort, session, ids: [], past: {} });
    for (const { name, type, shape } of session.inputMetadata) {
      if (!name.startsWith("past_key_values.")) continue;
      const data = type === "float16" ? new Uint16Array(0) : new Float32Array(0);
      this.past[name] = new ort.Tensor(type, data, [1, shape[1], 0, shape[3]]);
    }
  }

  // Forget what follows the common beginning with `ids`; returns its length.
  keepPrefix(ids) {
    let length = 0;
    const most = Math.min(this.ids.length, ids.length - 1);
    while (length < most && this.ids[length] === ids[length]) length++;
    for (const name in this.past) this.past[name] = this.#firstPositions(name, length);
    this.ids.length = length;
    return length;
  }

  // The first `length` positions of keys or values [1, heads, positions, size].
  #firstPositions(name, length) {
    const { type, data, dims: [batch, heads, positions, size] } = this.past[name];
    if (positions === length) return this.past[name];
    const kept = new data.constructor(heads * length * size);
    for (let head = 0; head < heads; head++) {
      const start = head * positions * size;
      kept.set(data.subarray(start, start + length * size), head * length * size);
    }
    return new this.ort.Tensor(type, kept, [batch, heads, length, size]);
  }

  // Run new tokens; the logits of the token that follows them.
  async append(ids) {
    this.ids.push(...ids);
    const total = this.ids.length;
    const { Tensor } = this.ort;
    const { logits, ...present } = await this.session.run({
      input_ids: new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]),
      attention_mask: new Tensor("int64", new BigInt64Array(total).fill(1n), [1, total]),
      ...this.past,
    });
    for (const name in this.past) {
      this.past[name] = present[name.replace("past_key_values", "present")];
    }
    return logits.data;
  }
}

// The tokenizer and the chat template of the folder.
class Text {
  static async load() {
    const text = new Text();
    text.config = await fetchJson("tokenizer_config.json");
    text.tokenizer = new Tokenizer(await fetchJson("tokenizer.json"), text.config);
    text.template = new Template(text.config.chat_template);
    text.eos = new Set([(await fetchJson("generation_config.json")).eos_token_id].flat());
    return text;
  }

  prompt(messages) {
    const { bos_token, eos_token } = this.config;
    const values = { messages, bos_token, eos_token, add_generation_prompt: true };
    // The template writes the special tokens.
    const { ids } = this.tokenizer.encode(this.template.render(values), {
      add_special_tokens: false,
    });
    return ids;
  }
}

class Chat {
  constructor(model, text, maxTokens) {
    Object.assign(this, { model, text, maxTokens });
  }

  // Tell the reply piece by piece; a piece ends where its text is certain.
  async reply(messages, { signal, onStart, onPiece }) {
    const { model, text } = this;
    const prompt = text.prompt(messages);
    const kept = model.keepPrefix(prompt);
    onStart(prompt.length, kept);
    const tokens = [];
    let told = "";
    let logits = await model.append(prompt.slice(kept));
    while (!signal.aborted) {
      // Greedy; to sample, draw from the softmax of the logits here.
      const token = logits.reduce((best, value, id) => (value > logits[best] ? id : best), 0);
      if (text.eos.has(token)) break;
      tokens.push(token);
      const said = text.tokenizer.decode(tokens);
      if (!said.endsWith("\ufffd")) { // else half of a character
        onPiece(said.slice(told.length));
        told = said;
      }
      if (tokens.length === this.maxTokens) break;
      await new Promise((done) => setTimeout(done)); // lets the page draw, and hear its buttons
      logits = await model.append([token]);
    }
  }
}
