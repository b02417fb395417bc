"""The programs in a folder's README: greedy tokens from the graph, in one language each.

The tests take them out of the README and run them.
"""

from dataclasses import dataclass

from ..mlx_model.config import ModelConfig
from .settings import WrittenGraph

_PYTHON = """\
import numpy as np
import onnxruntime as ort
from tokenizers import Tokenizer

session = ort.InferenceSession("onnx/{graph}", providers=["CPUExecutionProvider"])
tokenizer = Tokenizer.from_file("tokenizer.json")
names = [arg.name for arg in session.get_inputs() if arg.name.startswith("past_key_values.")]
past = {{name: np.zeros((1, {kv_heads}, 0, {head_dim}), np.{kv}) for name in names}}
outputs = ["{output}", *(name.replace("past_key_values", "present") for name in names)]

new = ids = tokenizer.encode("The sky is").ids
while len(ids) < 40:
    feeds = {{"input_ids": np.array([new]), "attention_mask": np.ones((1, len(ids)), int)}}
    {output}, *present = session.run(outputs, feeds | past)
    past = dict(zip(names, present))
    new = [{python_choice}]
    if new[0] in {eos}:
        break
    ids = ids + new
print(tokenizer.decode(ids))
"""
_WITHOUT_TOKENIZER = (
    ("from tokenizers import Tokenizer\n", ""),
    ('tokenizer = Tokenizer.from_file("tokenizer.json")\n', ""),
    ('tokenizer.encode("The sky is").ids', "[1, 2, 3]"),
    ("tokenizer.decode(ids)", "ids"),
)

_NODE = """\
// node snippet.mjs "[1, 2, 3]": the ids of a text come from a tokenizer, @huggingface/tokenizers
import {{ InferenceSession, Tensor }} from "onnxruntime-node";

const session = await InferenceSession.create("onnx/{graph}");
const names = session.inputNames.filter((name) => name.startsWith("past_key_values."));
const empty = () => new Tensor("{kv}", new {js_array}(0), [1, {kv_heads}, 0, {head_dim}]);
const int64 = (ids) => new Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
const outputs = ["{output}", ...names.map((name) => name.replace("past_key_values", "present"))];

let past = Object.fromEntries(names.map((name) => [name, empty()]));
let ids = JSON.parse(process.argv[2]);
let fresh = ids;
while (ids.length < 40) {{
  const mask = int64(ids.map(() => 1));
  const feeds = {{ input_ids: int64(fresh), attention_mask: mask, ...past }};
  const out = await session.run(feeds, outputs);
  past = Object.fromEntries(names.map((name, i) => [name, out[outputs[i + 1]]]));
  const best = {js_choice};
  if ({eos}.includes(best)) break;
  fresh = [best];
  ids = [...ids, best];
}}
console.log(JSON.stringify(ids));
"""

_BROWSER = """\
<script type="module">
  import {{ env, pipeline }} from "https://cdn.jsdelivr.net/npm/@huggingface/transformers@4";
  env.allowLocalModels = true; // this folder, served as /models/{name}/
  env.localModelPath = "/models/";
  const options = {{ dtype: "{weights}", device: "{device}" }};
  const generate = await pipeline("text-generation", "{name}", options);
  const [reply] = await generate("The sky is", {{ max_new_tokens: 40 }});
  document.body.textContent = reply.generated_text;
</script>
"""

_C = """\
/* The token after ids 1, 2, 3. To go on, feed each present back as past, and the new id alone. */
#include <onnxruntime_c_api.h>
#include <stdio.h>
#define TRY(call) if ((status = (call))) return puts(ort->GetErrorMessage(status)), 1
enum {{ LAYERS = {layers}, INPUTS = 2 + 2 * LAYERS }};

int main(void) {{
  const OrtApi *ort = OrtGetApiBase()->GetApi(ORT_API_VERSION);
  OrtStatus *status;
  OrtEnv *env;
  OrtSessionOptions *options;
  OrtSession *session;
  OrtMemoryInfo *cpu;
  TRY(ort->CreateEnv(ORT_LOGGING_LEVEL_ERROR, "snippet", &env));
  TRY(ort->CreateSessionOptions(&options));
  TRY(ort->CreateSession(env, "onnx/{graph}", options, &session)); /* wchar_t on Windows */
  TRY(ort->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &cpu));
  int64_t ids[] = {{1, 2, 3}}, ones[] = {{1, 1, 1}}, row[] = {{1, 3}};
  int64_t none[] = {{1, {kv_heads}, 0, {head_dim}}};
  const char *names[INPUTS] = {{"input_ids", "attention_mask"}}, *wanted = "{output}";
  char past[2 * LAYERS][48];
  OrtValue *values[INPUTS] = {{0}}, *out = NULL;
  for (int i = 0; i < 2; i++)
    TRY(ort->CreateTensorWithDataAsOrtValue(cpu, i ? ones : ids, sizeof ids, row, 2,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, &values[i]));
  for (int i = 0; i < 2 * LAYERS; i++) {{
    snprintf(past[i], sizeof past[i], "past_key_values.%d.%s", i / 2, i % 2 ? "value" : "key");
    names[2 + i] = past[i];
    TRY(ort->CreateTensorWithDataAsOrtValue(cpu, past, 0, none, 4,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_{c_kv}, &values[2 + i]));
  }}
  TRY(ort->Run(session, NULL, names, (const OrtValue *const *)values, INPUTS, &wanted, 1, &out));
{c_choice}  printf("%d\\n", best);
  return 0;
}}
"""
_C_LOGITS = """\
  float *logits;
  TRY(ort->GetTensorMutableData(out, (void **)&logits));
  int best = 0;
  for (int i = 1; i < {vocab}; i++)
    if (logits[i] > logits[best]) best = i;
"""
_C_TOKEN = """\
  int64_t *token;
  TRY(ort->GetTensorMutableData(out, (void **)&token));
  int best = (int)token[0];
"""
_KV = {
    "fp32": ("float32", "Float32Array", "FLOAT"),
    "fp16": ("float16", "Uint16Array", "FLOAT16"),
    "int8": ("int8", "Int8Array", "INT8"),
}


@dataclass(frozen=True)
class Snippet:
    """One program; `fence` is what Markdown calls its language."""

    title: str
    fence: str
    code: str


def snippets(
    config: ModelConfig, graph: WrittenGraph, eos: list[int], tokenizer: bool
) -> list[Snippet]:
    """Python, Node, a browser's page and C, for one graph. The page needs a tokenizer."""
    settings = graph.settings
    kv, js_array, c_kv = _KV[settings.kv]
    sampling = settings.sampling
    maximum = "out.logits.data.reduce((top, x, i, all) => (x > all[top] ? i : top), 0)"
    fields = {
        "graph": graph.name,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "layers": config.layers,
        "kv": kv,
        "js_array": js_array,
        "c_kv": c_kv,
        "eos": eos,
        "output": "token" if sampling else "logits",
        "python_choice": "int(token[0])" if sampling else "int(logits[0, -1].argmax())",
        "js_choice": "Number(out.token.data[0])" if sampling else maximum,
        "c_choice": _C_TOKEN if sampling else _C_LOGITS.format(vocab=config.vocab_size),
        "name": "mine",
        "weights": settings.weights,
        "device": "webgpu" if graph.target == "webgpu" else "wasm",
    }
    python = _PYTHON.format(**fields)
    for old, new in () if tokenizer else _WITHOUT_TOKENIZER:
        python = python.replace(old, new)
    page = [Snippet("Browser (transformers.js)", "html", _BROWSER.format(**fields))]
    return [
        Snippet("Python", "python", python),
        Snippet("Node", "js", _NODE.format(**fields)),
        *(page if tokenizer else []),
        Snippet("C", "c", _C.format(**fields)),
    ]
