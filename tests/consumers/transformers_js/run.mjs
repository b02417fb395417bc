// transformers.js (v3 and v4 alike) in Node, with the files of the folder and no network.
// usage: run.mjs FOLDER WEIGHTS REQUEST.json    prints one JSON document
import { readFileSync } from "node:fs";
import { basename, dirname } from "node:path";
import { AutoModelForCausalLM, AutoTokenizer, Tensor, env } from "@huggingface/transformers";

const [folder, weights, request] = process.argv.slice(2);
const asked = JSON.parse(readFileSync(request, "utf8"));
env.allowRemoteModels = false;
env.localModelPath = dirname(folder);
const started = performance.now();
const name = basename(folder);
// No dtype: what the folder's config.json states must be enough.
const model = await AutoModelForCausalLM.from_pretrained(name);
const loaded = (performance.now() - started) / 1000;
const numbers = (tensor) => Array.from(tensor.data, Number);
const inputs = asked.messages ? await fromMessages() : fromIds();
const output = await model.generate({
  ...inputs,
  max_new_tokens: asked.new_tokens,
  do_sample: false,
});
const prompt = numbers(inputs.input_ids);
console.log(
  JSON.stringify({
    prompt_ids: prompt,
    tokens: numbers(output).slice(prompt.length),
    load_s: loaded,
  }),
);
process.exit(0);

async function fromMessages() {
  const tokenizer = await AutoTokenizer.from_pretrained(name);
  const options = { add_generation_prompt: true, return_dict: true };
  return tokenizer.apply_chat_template(asked.messages, options);
}

function fromIds() {
  const int64 = (values) => {
    return new Tensor("int64", BigInt64Array.from(values, BigInt), [1, values.length]);
  };
  const ids = asked.prompt_ids;
  return { input_ids: int64(ids), attention_mask: int64(ids.map(() => 1)) };
}
