// The folder in transformers.js: the library does the download, the session and the template.
import {
  AutoModelForCausalLM,
  AutoTokenizer,
  InterruptableStoppingCriteria,
  TextStreamer,
  env,
} from "@huggingface/transformers";

// All from this server; without these lines, from the hub and from a CDN.
env.allowLocalModels = true;
env.allowRemoteModels = false;
const here = new URL(".", location.href);
env.localModelPath = here.pathname;
env.backends.onnx.wasm.wasmPaths = new URL("node_modules/onnxruntime-web/dist/", here).href;
env.backends.onnx.wasm.proxy = true; // in a worker, so that the page draws and hears its buttons

export async function load({ weights, provider, maxTokens, onProgress, signal }) {
  const bytes = new Map();
  const progress_callback = ({ status, file, loaded, total }) => {
    signal.throwIfAborted();
    if (status !== "progress") return;
    bytes.set(file, { loaded, total });
    const sum = (key) => [...bytes.values()].reduce((all, one) => all + one[key], 0);
    onProgress(sum("loaded"), sum("total"));
  };
  const tokenizer = await AutoTokenizer.from_pretrained("model");
  const model = await AutoModelForCausalLM.from_pretrained("model", {
    dtype: weights,
    device: provider,
    progress_callback,
  });
  return new Chat(model, tokenizer, maxTokens);
}

class Chat {
  #ids = []; // what the cache holds
  #past = null;

  constructor(model, tokenizer, maxTokens) {
    Object.assign(this, { model, tokenizer, maxTokens });
  }

  async reply(messages, { signal, onStart, onPiece }) {
    const inputs = this.tokenizer.apply_chat_template(messages, {
      add_generation_prompt: true,
      return_dict: true,
    });
    const prompt = Array.from(inputs.input_ids.data, Number);
    // generate() takes a cache for the beginning of the prompt; another one cannot be used.
    const fits = this.#past && this.#ids.every((id, index) => id === prompt[index]);
    onStart(prompt.length, fits ? this.#ids.length : 0);
    const stopping_criteria = new InterruptableStoppingCriteria();
    signal.addEventListener("abort", () => stopping_criteria.interrupt());
    const streamer = new TextStreamer(this.tokenizer, {
      skip_prompt: true,
      skip_special_tokens: true,
      callback_function: onPiece,
    });
    const { sequences, past_key_values } = await this.model.generate({
      ...inputs,
      past_key_values: fits ? this.#past : null,
      max_new_tokens: this.maxTokens,
      do_sample: false,
      return_dict_in_generate: true,
      stopping_criteria,
      streamer,
    });
    this.#past = past_key_values;
    this.#ids = Array.from(sequences.data, Number).slice(0, -1); // the last was never fed
  }
}
