"""Which programs can use a folder, by rules about its files; nothing is run here.

Each rule was read in the consumer's source or seen when it ran, in the versions that stand in the
names: onnxruntime-genai 0.18 (`src/config.cpp`, `src/models/`), transformers.js 3.8.1 and 4.3.2
(`models/session.js`, `utils/model-loader.js`, `addPastKeyValues`), which bring onnxruntime 1.21 and
1.30, and optimum-onnx 0.1.0 (`modeling_decoder.py`) on transformers 4.57. "Our loop" is that of the
folder's README and of `examples/`.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from onnx import TensorProto

from ..runtime.layouts import SUFFIXES, TensorNames, head_dim, kv_heads
from .needs import ort_needs
from .subject import Subject, dims, element_type

_BROWSER_FILE = 2**31 - 1  # bytes of one buffer
_TOKENS = ("input_ids", "attention_mask")
_CACHE_TYPES = {
    TensorProto.FLOAT: "float32",
    TensorProto.FLOAT16: "float16",
    TensorProto.INT8: "int8",
}
# optimum's ORTModelForCausalLM: the model types whose K and D it reads from keys of their own;
# for the others K = num_attention_heads and D = hidden_size / num_attention_heads.
_OPTIMUM_K = {
    *("arcee", "deepseek_v3", "cohere", "gemma", "gemma3_text", "glm", "granite", "gpt_oss"),
    *("helium", "mistral", "llama", "nemotron", "qwen2", "qwen3", "qwen3_moe", "smollm3"),
    "stablelm",
}
_OPTIMUM_D = {"gemma", "gemma3_text", "gpt_oss", "nemotron"}
# onnxruntime-genai's decoder-only types, and the keys of model.decoder: it refuses any other.
_GENAI_TYPES = {
    *("chatglm", "decoder", "ernie4_5", "gemma", "gemma2", "gemma3_text", "gemma4_text", "gpt2"),
    *("gptoss", "granite", "granitemoehybrid", "hunyuandensev1", "internlm2", "lfm2", "llama"),
    *("mistral", "nemotron", "olmo", "phi", "phimoe", "phi3", "phi3small", "qwen2", "qwen3"),
    *("qwen3_5_moe_text", "qwen3_5_text", "smollm3"),
}
_GENAI_DECODER_KEYS = {
    *("filename", "hidden_size", "num_attention_heads", "num_hidden_layers", "head_size"),
    *("num_key_value_heads", "conv_cache_size", "session_options", "run_options", "inputs"),
    *("outputs", "sliding_window", "pipeline", "layer_types", "shared_initializers"),
}

Reasons = Iterator[str]


@dataclass(frozen=True)
class Verdict:
    """Whether one consumer can use one graph."""

    graph: str  # its path in the folder
    consumer: str
    works: bool
    reasons: tuple[str, ...]  # why not
    notes: tuple[str, ...] = ()  # what to mind where it works


def judge(subject: Subject, damage: tuple[str, ...], run_failure: str | None) -> list[Verdict]:
    """A verdict for each consumer.

    `damage` is what no consumer can do with, `run_failure` why our own engine cannot run the graph.
    """
    ours = damage or ((run_failure,) if run_failure else ())
    verdicts = [Verdict(subject.place, "pippin.runtime", not ours, ours)]
    for name, rules in _CONSUMERS.items():
        reasons = damage or tuple(reason for rule in rules for reason in rule(subject))
        notes = () if reasons else tuple(_notes(name, subject))
        verdicts.append(Verdict(subject.place, name, not reasons, reasons, notes))
    return verdicts


def _loop(subject: Subject) -> Reasons:
    """Names, types and shapes that a loop without any configuration takes for granted."""
    yield from _usual_names(subject)
    yield from _extra_inputs(subject, _TOKENS)
    if any(isinstance(dim, str) for dim in _cache_dims(subject)):
        yield f"K and D of the caches are names, not numbers: {_cache_dims(subject)}"
    if _cache_type(subject) == TensorProto.INT8:
        yield "the caches are INT8, and the loop makes FLOAT and FLOAT16 ones"
    logits = subject.outputs.get("logits")
    if logits is not None and element_type(logits) != TensorProto.FLOAT:
        yield f"the logits are {_type_name(element_type(logits))}, not FLOAT"
    if logits is not None and dims(logits)[1] != 1:
        yield "the logits are those of all tokens, not of the last one"
    yield from _placed(subject)


def _genai(subject: Subject) -> Reasons:
    content = subject.files["genai_config.json"]
    if content is None:
        yield "there is no genai_config.json"
        return
    yield from _genai_config(subject, content)
    shared = (content.get("search") or {}).get("past_present_share_buffer")
    if shared and not subject.sharing:
        yield "past_present_share_buffer is true, but the graph returns caches of a new length"
    names = subject.names
    tokens = (names.input_ids, names.attention_mask, names.position_ids)
    yield from _extra_inputs(subject, tokens)
    yield from _tokenizer_files(subject)


def _genai_config(subject: Subject, content: dict) -> Reasons:
    """What it refuses in genai_config.json before it opens a graph."""
    file = "genai_config.json"
    model = content.get("model") or {}
    decoder = model.get("decoder") or {}
    if decoder.get("filename") != subject.place:
        yield f"{file} names {decoder.get('filename')}"
    if model.get("type") not in _GENAI_TYPES:
        yield f"{file} has the type {model.get('type')}, which it does not know"
    missing = [key for key in ("vocab_size", "context_length") if not model.get(key)]
    if missing:
        yield f"{file} has no model.{' and no model.'.join(missing)}"
    unknown = sorted(decoder.keys() - _GENAI_DECODER_KEYS)
    if unknown:
        yield f"{file} has in model.decoder, where it knows no such key: {', '.join(unknown)}"
    if nulls := list(_nulls(content, "")):
        yield f"{file} has null for {', '.join(nulls)}"
    if providers := [name for entry in _providers(decoder) for name in entry]:
        yield f"{file} asks for the execution provider {', '.join(providers)}"
    if any(isinstance(dim, str) for dim in _cache_dims(subject)):
        sizes = (decoder.get("num_key_value_heads"), decoder.get("head_size"))
        yield from _sizes_agree(subject, sizes, file)


def _transformers_js(subject: Subject) -> Reasons:
    """What versions 3 and 4 have in common, in Node, where onnxruntime finds the data files."""
    if subject.files["config.json"] is None:
        yield "there is no config.json"
    yield from _placed(subject)
    yield from _usual_names(subject)
    yield from _extra_inputs(subject, (*_TOKENS, "position_ids", "use_cache_branch"))
    yield from _tokenizer_files(subject)


def _transformers_js_3(subject: Subject) -> Reasons:
    yield from _sizes_agree(
        subject, (kv_heads(subject.sizes), head_dim(subject.sizes)), subject.sizes_file
    )
    kind = _CACHE_TYPES.get(_cache_type(subject), "of another type")
    stated = _stated_cache_type(subject)
    if kind != stated:
        yield f"the caches are {kind}; transformers.js_config.kv_cache_dtype makes them {stated}"
    yield from _newer_than(subject, (1, 21))


def _transformers_js_4(subject: Subject) -> Reasons:
    if any(isinstance(dim, str) for dim in _cache_dims(subject)):
        yield f"it takes K and D from the graph, which has names for them: {_cache_dims(subject)}"
    yield from _newer_than(subject, (1, 30))


def _counted(subject: Subject) -> Reasons:
    """Only config.json tells transformers.js in a browser which data files to fetch."""
    found, stated = len(subject.data_files), subject.stated_data_files or 0
    if found != stated:
        yield f"use_external_data_format counts {stated} data files, the graph has {found}"


def _webgpu_bundle(subject: Subject) -> Reasons:
    """transformers.js 4 runs on WASM too by onnxruntime-web's bundle for WebGPU."""
    if subject.nodes("GatherBlockQuantized"):
        yield "its bundle of onnxruntime-web has no GatherBlockQuantized"


def _optimum(subject: Subject) -> Reasons:
    config = subject.files["config.json"]
    if config is None:
        yield "there is no config.json"
        return
    yield from _usual_names(subject)
    yield from _extra_inputs(subject, (*_TOKENS, "position_ids", "use_cache_branch"))
    kind = config.get("model_type")
    heads = config.get("num_attention_heads") or config.get("n_head")
    hidden = config.get("hidden_size") or config.get("n_embd")
    if isinstance(heads, int) and isinstance(hidden, int):
        k = config.get("num_key_value_heads") if kind in _OPTIMUM_K else heads
        d = config.get("head_dim") if kind in _OPTIMUM_D else hidden // heads
        yield from _sizes_agree(subject, (k, d), f"its rule for {kind}")
    if _tokenizer_class(subject) == "TokenizersBackend":
        yield "tokenizer_config.json has the class TokenizersBackend, new in transformers 5"


def _usual_names(subject: Subject) -> Reasons:
    if subject.names != TensorNames():
        yield "the tensors have other names than input_ids, past_key_values.0.key and the like"


def _extra_inputs(subject: Subject, known: tuple[str, ...]) -> Reasons:
    lacking = sorted(set(known[:2]) - subject.inputs.keys())
    if lacking:
        yield f"the graph has no input {', '.join(lacking)}"
    extra = sorted(subject.inputs.keys() - set(known) - set(subject.pasts))
    if extra:
        yield f"the graph asks for {', '.join(extra)}"
    if not subject.pasts:
        yield "the graph has no caches"


def _placed(subject: Subject) -> Reasons:
    wanted = {f"onnx/model{suffix}.onnx" for suffix in SUFFIXES.values()}
    if subject.place not in wanted:
        yield f"it looks for onnx/model.onnx and the like, not {subject.place}"


def _fetchable(subject: Subject) -> Reasons:
    """A browser fetches files by name, each into one buffer."""
    name = subject.path.name
    wanted = subject.named_data_files
    if subject.data_files != wanted:
        yield f"the data files are {', '.join(subject.data_files)}, not {', '.join(wanted)}"
    for file in (name, *subject.data_files):
        path = subject.path.with_name(file)
        if path.is_file() and path.stat().st_size > _BROWSER_FILE:
            yield f"{file} is larger than 2 GB"


def _sizes_agree(subject: Subject, stated: tuple, source: str) -> Reasons:
    """Caches are made of the sizes that a config states; the graph must take them."""
    for letter, found, wanted in zip("KD", _cache_dims(subject), stated, strict=False):
        real = found if isinstance(found, int) else _config_size(subject, letter)
        if wanted is None:
            yield f"{source} has no {letter} for the caches"
        elif real is not None and real != wanted:
            yield f"{source} gives the caches {letter} = {wanted}, the graph has {real}"


def _config_size(subject: Subject, letter: str) -> int | None:
    return (kv_heads if letter == "K" else head_dim)(subject.sizes)


def _newer_than(subject: Subject, release: tuple[int, int]) -> Reasons:
    for need in ort_needs(subject.model):
        if need.release > release:
            version = ".".join(map(str, need.release))
            yield f"{need.what} needs onnxruntime {version}, it has {'.'.join(map(str, release))}"


def _tokenizer_files(subject: Subject) -> Reasons:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if subject.files[name] is None:
            yield f"there is no {name}"


def _notes(consumer: str, subject: Subject) -> Reasons:
    """What to mind where a consumer works."""
    config = subject.files["tokenizer_config.json"] or {}
    beside = (subject.folder / "chat_template.jinja").is_file()
    if consumer.startswith("transformers.js") and beside and not config.get("chat_template"):
        yield "it does not read chat_template.jinja: pass the template to apply_chat_template"
    model = (subject.files["genai_config.json"] or {}).get("model") or {}
    if consumer.startswith("onnxruntime-genai") and model.get("eos_token_id") is None:
        yield "genai_config.json has no model.eos_token_id: replies end at max_length only"


def _cache_dims(subject: Subject) -> list[int | str]:
    """K and D, or the names that the graph has for them."""
    return [] if subject.cache is None else subject.cache[1][1::2]


def _cache_type(subject: Subject) -> int | None:
    return None if subject.cache is None else subject.cache[0]


def _type_name(kind: int) -> str:
    return TensorProto.DataType.Name(kind)


def _tokenizer_class(subject: Subject) -> str | None:
    return (subject.files["tokenizer_config.json"] or {}).get("tokenizer_class")


def _stated_cache_type(subject: Subject) -> str:
    """The caches' type in transformers.js 3: by the type of weights, float32 when not stated."""
    section = (subject.files["config.json"] or {}).get("transformers.js_config") or {}
    stated = section.get("kv_cache_dtype") or "float32"
    return stated.get(subject.weights, "float32") if isinstance(stated, dict) else stated


def _providers(decoder: dict) -> list[dict]:
    options = (decoder.get("session_options") or {}).get("provider_options") or []
    return [entry for entry in options if isinstance(entry, dict)]


def _nulls(content: object, place: str) -> Iterator[str]:
    if content is None:
        yield place
    elif isinstance(content, dict):
        for key, value in content.items():
            yield from _nulls(value, f"{place}.{key}".lstrip("."))


_JS3 = (_transformers_js, _transformers_js_3)
_JS4 = (_transformers_js, _transformers_js_4)
_CONSUMERS: dict[str, tuple[Callable[[Subject], Reasons], ...]] = {
    "onnxruntime, our loop": (_loop,),
    "onnxruntime-web, our loop": (_loop, _fetchable),
    "onnxruntime-genai 0.18": (_genai,),
    "transformers.js 4.3, Node": _JS4,
    "transformers.js 4.3, browser": (*_JS4, _fetchable, _counted, _webgpu_bundle),
    "transformers.js 3.8, Node": _JS3,
    "transformers.js 3.8, browser": (*_JS3, _fetchable, _counted),
    "optimum-onnx 0.1": (_optimum,),
}
