"""The README.md of an exported folder: what its graph takes, gives and needs."""

from ..mlx_model.config import ModelConfig
from .settings import Settings

_WEIGHTS = {
    "fp32": "float32",
    "fp16": "float16, the KV cache too; logits are float32",
    "q4": "4-bit codes in groups of a row, 8-bit for tables; activations and KV cache are float32",
    "int8": "8-bit codes in groups of a row; activations and KV cache are float32",
}
_PADDING = {
    "gqa": """\
**Pad batches on the right.** `GroupQueryAttention` takes the sum of `attention_mask` for the length
of a sequence, so padding on the left gives wrong results without an error. With right padding the
last row of `logits` belongs to padding in the shorter sequences: set `num_logits` to 0 and take
the row of each sequence's last token.

`past_key_values.*` and `present.*` may be bound to the same buffer, longer than the sequence.
Several new tokens at once on top of a past are possible only with a batch of 1.""",
    "standard": """\
Batches may be padded on either side; `attention_mask` is 0 for padding. The KV cache grows by
concatenation: feed each `present.*` back as `past_key_values.*`.""",
}


def readme(config: ModelConfig, settings: Settings) -> str:
    """The text; the same for the same checkpoint and settings."""
    cache = f"[batch_size, {config.kv_heads}, past_sequence_length, {config.head_dim}]"
    kv_type = "float16" if settings.weights == "fp16" else "float32"
    return f"""\
# {config.family}, {config.layers} layers, {settings.weights}, exported by Pippin

- Graph: `onnx/model{settings.suffix}.onnx`, its weights in the `.onnx_data` files beside it
- Weights: {_WEIGHTS[settings.weights]}
- Operators: {_operators(settings)}
- Context: {settings.context} tokens; the rotation tables end there, and so must a sequence
- Needs onnxruntime {settings.minimum_onnxruntime} or newer

| input | type | shape |
|---|---|---|
| `input_ids` | int64 | [batch_size, sequence_length] |
| `attention_mask` | int64 | [batch_size, total_sequence_length] |
| `past_key_values.0…{config.layers - 1}.key`, `.value` | {kv_type} | {cache} |
| `num_logits` (optional) | int64 | [1]: 1, the default, for the last row of logits; 0 for all |

| output | type | shape |
|---|---|---|
| `logits` | float32 | [batch_size, rows of logits, {config.vocab_size}] |
| `present.0…{config.layers - 1}.key`, `.value` | {kv_type} | the past and the new tokens |

`total_sequence_length` counts the tokens of the past and the new ones. Start with an empty past.

{_PADDING[settings.dialect]}

The folder also runs in onnxruntime-genai (`genai_config.json`); names and layout are those that
transformers.js and optimum look for.
The license is that of the model it was exported from.
"""


def _operators(settings: Settings) -> str:
    if settings.dialect == "gqa":
        return "onnxruntime's own (com.microsoft), opset 21"
    return "ONNX opset 23 only"
