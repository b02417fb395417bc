"""The README.md of an exported folder: what its graphs take, give and need."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ..mlx_model.config import ModelConfig
from ..runtime.layouts import int8_cache_path
from .requirements import minimum_onnxruntime, needed_releases
from .sampling_head import TOP
from .settings import Settings, WrittenGraph
from .snippets import snippets
from .targets import TARGETS

_WEIGHTS = {
    "fp32": "float32",
    "fp16": "float16, activations too",
    "q4": "4-bit codes in groups of a row, 8-bit for tables; float32 activations",
    "int8": "8-bit codes in groups of a row; float32 activations",
}
_KV = {"fp32": "float32", "fp16": "float16", "int8": "int8"}
_CACHES = ("past_key_values", "present")
_PADDING = {
    "gqa": """\
**Pad batches on the right.** `GroupQueryAttention` takes the sum of `attention_mask` for the length
of a sequence, so padding on the left would give wrong results. On a CPU the graph refuses it, by an
index out of bounds in a node that is named after the fault; other providers may not check bounds:
there, see that `attention_mask[:, 0]` is 1 before you call. With right padding the last row of
`logits` belongs to padding in the shorter sequences: set `num_logits` to 0 and take the
row of each sequence's last token.

`past_key_values.*` and `present.*` may be bound to the same buffer, longer than the sequence.
Several new tokens at once on top of a past are possible only with a batch of 1; a batch of several
sequences on a past takes one token each, written at the sum of the sequence's `attention_mask`.""",
    "standard": """\
Batches may be padded on either side; `attention_mask` is 0 for padding. The KV cache grows by
concatenation: feed each `present.*` back as `past_key_values.*`.""",
}
_INT8_CACHE = """
The int8 KV cache holds round(x / scale), one scale for each channel of a layer, in the graph. They
are from a short text and random tokens, with headroom; larger values are cut off. In a call of more
than 16 tokens these see one another unrounded.
"""
_TWICE = """
The graph with that cache, a quarter as large and faster to read, uses the data files of the other,
{names}. Pippin runs it where onnxruntime is new enough; everything else takes the other.
"""


def readme(
    config: ModelConfig,
    graphs: Sequence[WrittenGraph],
    twice: Sequence[WrittenGraph],
    eos: list[int],
    tokenizer: bool,
) -> str:
    """The text; the same for the same checkpoint and settings.

    `twice`: the graphs beside which there is one with an int8 KV cache. `eos` are the ids that end
    a reply; `tokenizer`: whether the folder holds one.
    """
    settings = graphs[0].settings
    names = ", ".join(graph.settings.weights for graph in graphs)
    kv = " or ".join(dict.fromkeys(_KV[graph.settings.kv] for graph in graphs))
    past, present = (f"`{stem}.0…{config.layers - 1}.key`, `.value`" for stem in _CACHES)
    cache = f"[batch_size, {config.kv_heads}, past_sequence_length, {config.head_dim}]"
    extra, rotation = _rotation(config, settings)
    calibrated = _INT8_CACHE if "int8" in kv or twice else ""
    if twice:
        calibrated += _TWICE.format(names=", ".join(f"`{one.name}`" for one in twice))
    return f"""\
# {config.family}, {config.layers} layers, {names}, exported by Pippin

| graph | weights | KV cache | onnxruntime |
|---|---|---|---|
{_graph_rows(config, graphs, twice)}
- A graph's weights are in the `.onnx_data` files beside it; copy them together
- Operators: {_operators(settings)}
- Context: {settings.context} tokens; the rotation tables end there, and so must a sequence
- Oldest onnxruntime that is right: {_features(config, graphs)}
{_target(graphs)}
| input | type | shape |
|---|---|---|
| `input_ids` | int64 | [batch_size, sequence_length] |
| `attention_mask` | int64 | [batch_size, total_sequence_length] |
| {past} | {kv} | {cache} |
| `num_logits` (optional) | int64 | [1]: 1, the default, for the last row of logits; 0 for all |
{extra}
| output | type | shape |
|---|---|---|
| `logits` | float32 | [batch_size, rows of logits, {config.vocab_size}] |
| {present} | {kv} | the past and the new tokens |
{_sampling(config, settings)}
`total_sequence_length` counts the tokens of the past and the new ones. Start with an empty past.

onnxruntime warns that `num_logits` is an initializer and an input at once: that is how an input is
optional. Set the log severity to errors to hide it.
{rotation}{calibrated}
{_PADDING[settings.dialect]}

{_programs(config, graphs[0], eos, tokenizer)}
The folder also runs in onnxruntime-genai (`genai_config.json`, which names {graphs[0].name}); names
and layout are those that transformers.js and optimum look for. `pippin verify` says who can use it.
The license is that of the model it was exported from.
"""


def _second(graph: WrittenGraph) -> str:
    """The file of the same graph with an int8 KV cache."""
    return int8_cache_path(Path(graph.name)).name


def _graph_rows(
    config: ModelConfig, graphs: Sequence[WrittenGraph], twice: Sequence[WrittenGraph]
) -> str:
    files = [(graph.name, graph.settings) for graph in graphs]
    files += [(_second(graph), replace(graph.settings, kv="int8")) for graph in twice]
    return "".join(
        f"| `onnx/{name}` | {_WEIGHTS[settings.weights]} | {_KV[settings.kv]} "
        f"| {minimum_onnxruntime(config, settings)} or newer |\n"
        for name, settings in files
    )


def _features(config: ModelConfig, graphs: Sequence[WrittenGraph]) -> str:
    """The union of what the graphs need."""
    needed: dict[str, str] = {}
    for graph in graphs:
        needed |= needed_releases(config, graph.settings)
    return ", ".join(f"{release} for {feature}" for feature, release in needed.items())


def _target(graphs: Sequence[WrittenGraph]) -> str:
    """Whom the graphs were made for, where that is not the CPU."""
    target = TARGETS[graphs[0].target]
    if graphs[0].target == "cpu":
        return ""
    text = f"- Made for {target.provider}. {target.differences}"
    if not target.ran:
        text += " It has not been run there, only compared with the provider's list of operators."
    left = sorted({operator for graph in graphs for operator in graph.left_over})
    if left:
        text += f" By that list, the CPU keeps at least some nodes of {', '.join(left)}"
    return f"{text}\n"


def _sampling(config: ModelConfig, settings: Settings) -> str:
    if not settings.sampling:
        return ""
    count = min(TOP, config.vocab_size)
    return f"""\
| `token` | int64 | [batch_size]: the likeliest token after the last row |
| `top_ids`, `top_logits` | int64, float32 | [batch_size, {count}]: the likeliest tokens, falling |

Ask for `token`, or the two others, in place of `logits`, and these stay on their device.
"""


def _programs(config: ModelConfig, graph: WrittenGraph, eos: list[int], tokenizer: bool) -> str:
    return "\n".join(
        f"## {one.title}\n\n```{one.fence}\n{one.code}```\n"
        for one in snippets(config, graph, eos, tokenizer)
    )


def _rotation(config: ModelConfig, settings: Settings) -> tuple[str, str]:
    """A line for the table of inputs and a paragraph, where the rotation depends on length."""
    switch = config.rope_switch
    if switch is None or switch >= settings.context:
        return "", ""
    line = "| `rotation_length` (optional) | int64 | [1]: rotate as for so many tokens at least |\n"
    which = "Each longer sequence is" if config.rope_grows else "Longer sequences are"
    again = "with each further token" if config.rope_grows else "once"
    paragraph = f"""
**Beyond {switch} tokens** the keys of a past no longer fit. {which} rotated otherwise,
from the first token on: compute all tokens anew from an empty past, {again}.
In several calls, set `rotation_length` to the length of the whole in each of them.
"""
    return line, paragraph


def _operators(settings: Settings) -> str:
    if settings.dialect == "gqa":
        return "onnxruntime's own (com.microsoft), opset 21"
    return "ONNX opset 23 only"
