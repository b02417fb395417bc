"""The README.md of an exported encoder or encoder-decoder: what its graphs take and give."""

from ..mlx_model.encoder_config import EncoderConfig, Seq2SeqConfig
from ..runtime.recipe import Recipe
from .settings import Settings

_FOOT = "The license is that of the model it was exported from.\n"


def encoder_readme(config: EncoderConfig, recipe: Recipe, settings: Settings) -> str:
    """The text; the same for the same checkpoint and settings."""
    stack = config.stack
    types = (
        "| `token_type_ids` | int64 | [batch_size, sequence_length]: 0 for a text alone |\n"
        if config.token_types
        else ""
    )
    unit = ", then divided by its length" if recipe.normalize else ""
    return f"""\
# {config.family}, {stack.layers} layers, {settings.weights}, an encoder exported by Pippin

- Graph: `onnx/model{settings.suffix}.onnx`, opset 21 and onnxruntime's operators (com.microsoft)
- A text's vector: {" and ".join(recipe.pooling)} of its tokens' vectors{unit}
- At most {recipe.max_length or stack.context} tokens of a text

| input | type | shape |
|---|---|---|
| `input_ids` | int64 | [batch_size, sequence_length] |
| `attention_mask` | int64 | [batch_size, sequence_length]: 1 for tokens, 0 for padding |
{types}
| output | type | shape |
|---|---|---|
| `last_hidden_state` | float32 | [batch_size, sequence_length, {stack.hidden_size}] |

Layout and names are those that sentence-transformers, optimum and transformers.js look for.
{_FOOT}"""


def seq2seq_readme(config: Seq2SeqConfig, settings: Settings) -> str:
    """The text; the same for the same checkpoint and settings."""
    decoder, suffix = config.decoder, settings.suffix
    kv = f"[batch_size, {decoder.heads}, length, {decoder.head_dim}]"
    kind = "float16" if settings.weights == "fp16" else "float32"
    last = decoder.layers - 1
    return f"""\
# {config.family}, {settings.weights}, an encoder-decoder exported by Pippin

- Graphs: `onnx/encoder_model{suffix}.onnx`, `onnx/decoder_model_merged{suffix}.onnx`; opset 21 and
  onnxruntime's operators (com.microsoft)
- A reply begins with token {config.start_token}

`encoder_model` takes `input_ids` and `attention_mask` [batch_size, sequence_length], int64, and
gives `last_hidden_state` [batch_size, sequence_length, {decoder.hidden_size}], float32.

| input of `decoder_model_merged` | type | shape |
|---|---|---|
| `encoder_attention_mask` | int64 | [batch_size, encoder_sequence_length] |
| `input_ids` | int64 | [batch_size, sequence_length]: the reply's new tokens |
| `encoder_hidden_states` | float32 | what the encoder gave |
| `past_key_values.0…{last}.decoder.key`, `.value` | {kind} | {kv} |
| `past_key_values.0…{last}.encoder.key`, `.value` | {kind} | {kv} |
| `use_cache_branch` | bool | [1]: false in the first call, whose past has length 0 |

It gives `logits` [batch_size, sequence_length, {config.vocab_size}], float32, and a `present.…` for
each `past_key_values.…`, to be handed back as it in the next call.

Layout and names are those that optimum and transformers.js look for.
{_FOOT}"""
