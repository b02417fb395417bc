// A chat with an exported folder in Node: onnxruntime-node, a tokenizer and a template engine.
//
//   npm install
//   node chat.mjs FOLDER [--weights q4] [--max-tokens 256] [--system TEXT]
//
// One line of standard input is one message. Replies are streamed to standard output; standard
// error tells, for each turn, how many tokens the prompt had and how many were still cached.
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { parseArgs } from "node:util";
import { Template } from "@huggingface/jinja";
import { Tokenizer } from "@huggingface/tokenizers";
import { InferenceSession, Tensor } from "onnxruntime-node";

const SUFFIXES = { fp32: "", fp16: "_fp16", q4: "_q4", int8: "_int8" };

// The graph, the keys and values of the tokens so far, and the ids of these tokens.
class Model {
  static async load(path) {
    const options = { logSeverityLevel: 3 }; // errors: it warns of the optional num_logits
    return new Model(await InferenceSession.create(path, options));
  }

  constructor(session) {
    this.session = session;
    this.ids = [];
    this.past = {};
    for (const { name, type, shape } of session.inputMetadata) {
      if (!name.startsWith("past_key_values.")) continue;
      const data = type === "float16" ? new Uint16Array(0) : new Float32Array(0);
      this.past[name] = new Tensor(type, data, [1, shape[1], 0, shape[3]]);
    }
  }

  // Forget what follows the common beginning with `ids`; returns its length.
  keepPrefix(ids) {
    let length = 0;
    const most = Math.min(this.ids.length, ids.length - 1);
    while (length < most && this.ids[length] === ids[length]) length++;
    for (const name in this.past) this.past[name] = firstPositions(this.past[name], length);
    this.ids.length = length;
    return length;
  }

  // Run new tokens; the logits of the token that follows them.
  async append(ids) {
    this.ids.push(...ids);
    const total = this.ids.length;
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

// The first `length` positions of keys or values [1, heads, positions, size].
function firstPositions(tensor, length) {
  const [batch, heads, positions, size] = tensor.dims;
  if (positions === length) return tensor;
  const data = new tensor.data.constructor(heads * length * size);
  for (let head = 0; head < heads; head++) {
    const start = head * positions * size;
    data.set(tensor.data.subarray(start, start + length * size), head * length * size);
  }
  return new Tensor(tensor.type, data, [batch, heads, length, size]);
}

// The tokenizer and the chat template of the folder.
class Text {
  constructor(folder) {
    const read = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
    this.config = read("tokenizer_config.json");
    this.tokenizer = new Tokenizer(read("tokenizer.json"), this.config);
    this.template = new Template(this.config.chat_template);
    this.eos = new Set([read("generation_config.json").eos_token_id].flat());
  }

  prompt(messages) {
    const { bos_token, eos_token } = this.config;
    const text = this.template.render({
      messages, bos_token, eos_token, add_generation_prompt: true,
    });
    // The template has written the special tokens already.
    return this.tokenizer.encode(text, { add_special_tokens: false }).ids;
  }
}

// Yields the reply piece by piece; a piece ends where its text is certain.
async function* reply(model, text, messages, maxTokens) {
  const prompt = text.prompt(messages);
  const kept = model.keepPrefix(prompt);
  console.error(`[${prompt.length} tokens, ${kept} of them cached]`);
  const tokens = [];
  let told = "";
  let logits = await model.append(prompt.slice(kept));
  for (;;) {
    // Greedy; to sample, draw from the softmax of the logits here.
    const token = logits.reduce((best, value, id) => (value > logits[best] ? id : best), 0);
    if (text.eos.has(token)) return;
    tokens.push(token);
    const said = text.tokenizer.decode(tokens);
    if (!said.endsWith("\ufffd")) { // else half of a character
      yield said.slice(told.length);
      told = said;
    }
    if (tokens.length === maxTokens) return;
    logits = await model.append([token]);
  }
}

const { values: options, positionals: [folder] } = parseArgs({
  allowPositionals: true,
  options: {
    weights: { type: "string", default: "q4" },
    "max-tokens": { type: "string", default: "256" },
    system: { type: "string" },
  },
});
const model = await Model.load(join(folder, "onnx", `model${SUFFIXES[options.weights]}.onnx`));
const text = new Text(folder);
const messages = options.system ? [{ role: "system", content: options.system }] : [];
for await (const line of createInterface({ input: process.stdin })) {
  messages.push({ role: "user", content: line.trim() });
  let said = "";
  for await (const piece of reply(model, text, messages, Number(options["max-tokens"]))) {
    process.stdout.write(piece);
    said += piece;
  }
  process.stdout.write("\n");
  messages.push({ role: "assistant", content: said });
}
