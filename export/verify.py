"""`verify_folder`: does an exported folder keep its contract, in plain onnxruntime?"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from ..runtime.errors import InputError
from .external_data import tensor_bytes
from .greedy import greedy_check, open_session

_KV_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16)
_TYPE_NAMES = TensorProto.DataType.Name


@dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    ok: bool
    detail: str  # what was found; where it failed, what was expected too


class _FailedError(Exception):
    """A check does not hold; the message says what was found and expected."""


@dataclass(frozen=True)
class _Subject:
    """A folder, and one graph of it without its weights."""

    folder: Path
    path: Path
    model: onnx.ModelProto
    config: dict[str, Any]

    @property
    def layers(self) -> int:
        return sum(
            arg.name.startswith("past_key_values.") and arg.name.endswith(".key")
            for arg in self.model.graph.input
        )


def verify_folder(path: Path) -> list[Check]:
    """Check every graph of an exported folder.

    Data files, names, dtypes, shapes, the cache contract, tokenizer against vocabulary, and a
    greedy run. Where a check fails that later ones rest on, those are left out. Raises InputError
    when `path` holds no exported graph at all.
    """
    folder = Path(path)
    graphs = sorted(folder.glob("onnx/model*.onnx"))
    if not graphs:
        raise InputError(f"{folder} holds no onnx/model*.onnx; give a folder that an export wrote")
    checks = []
    for graph in graphs:
        prefix = f"{graph.name}: " if len(graphs) > 1 else ""
        checks += [Check(prefix + c.name, c.ok, c.detail) for c in _verify(folder, graph)]
    return checks


def _verify(folder: Path, graph: Path) -> list[Check]:
    """The checks of one graph, up to the first that fails."""
    subject: _Subject | None = None

    def read() -> str:
        nonlocal subject
        subject = _read(folder, graph)
        return f"{len(subject.model.graph.node)} nodes, {subject.layers} layers"

    checks = []
    steps: list[tuple[str, Callable[[], str]]] = [
        ("graph", read),
        ("data files", lambda: _data_files(subject)),
        ("inputs", lambda: _inputs(subject)),
        ("outputs", lambda: _outputs(subject)),
        ("cache", lambda: _cache(subject)),
        ("tokenizer", lambda: _tokenizer(subject)),
        ("genai_config.json", lambda: _genai(subject)),
        ("greedy run", lambda: _greedy(subject)),
    ]
    for name, step in steps:
        try:
            checks.append(Check(name, True, step()))
        except _FailedError as failure:
            checks.append(Check(name, False, str(failure)))
            break
    return checks


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise _FailedError(complaint)


def _read(folder: Path, graph: Path) -> _Subject:
    try:
        model = onnx.load(graph, load_external_data=False)
    except Exception as error:  # protobuf's exception is not public
        raise _FailedError(f"{graph.name} is no ONNX model: {_line(error)}") from error
    _require(bool(model.graph.node), f"{graph.name} is empty")
    return _Subject(folder, graph, model, _json(folder / "config.json"))


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _FailedError(f"{path.name} cannot be read: {_line(error)}") from error
    _require(isinstance(content, dict), f"{path.name} is no JSON object")
    return content


def _data_files(subject: _Subject) -> str:
    """Every external tensor lies inside a file beside the graph, with the bytes its shape takes."""
    sizes: dict[str, int] = {}
    for tensor in subject.model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        name = place.get("location", "")
        _require(
            name == Path(name).name != "", f"{tensor.name} lies in {name!r}, not beside the graph"
        )
        file = subject.path.with_name(name)
        _require(file.is_file(), f"{name} is missing")
        sizes[name] = file.stat().st_size
        offset, length = int(place.get("offset", 0)), int(place.get("length", 0))
        wanted = tensor_bytes(tensor.data_type, tuple(tensor.dims))
        _require(length == wanted, f"{tensor.name} has {length} bytes, its shape takes {wanted}")
        _require(
            offset + length <= sizes[name],
            f"{name} has {sizes[name]} bytes, {tensor.name} ends at {offset + length}",
        )
    stated = subject.config.get("transformers.js_config", {}).get("use_external_data_format", {})
    count = stated.get(subject.path.name) if isinstance(stated, dict) else None
    _require(
        count is None or count == len(sizes),
        f"config.json counts {count} data files, the graph has {len(sizes)}",
    )
    return f"{len(sizes)} with {sum(sizes.values()):,} bytes"


def _inputs(subject: _Subject) -> str:
    wanted = {
        "input_ids": ["batch_size", "sequence_length"],
        "attention_mask": ["batch_size", "total_sequence_length"],
    }
    found = {arg.name: arg for arg in subject.model.graph.input}
    for name, dims in wanted.items():
        _expect(found, name, TensorProto.INT64, dims)
    defaults = {tensor.name for tensor in subject.model.graph.initializer}
    known = set(wanted) | {name for name in found if name.startswith("past_key_values.")}
    extra = sorted(found.keys() - known - defaults)
    _require(not extra, f"the graph also requires {', '.join(extra)}")
    _require("num_logits" in found.keys() & defaults, "num_logits is no overridable initializer")
    return ", ".join([*wanted, "num_logits"])


def _outputs(subject: _Subject) -> str:
    """One row of logits is stated; `num_logits` may ask for more."""
    found = {arg.name: arg for arg in subject.model.graph.output}
    size = subject.config.get("vocab_size")
    _expect(found, "logits", TensorProto.FLOAT, ["batch_size", 1, size])
    last = subject.model.graph.output[0].name
    _require(last == "logits", f"the first output is {last}, expected logits")
    return f"logits of {size} tokens"


def _cache(subject: _Subject) -> str:
    """Past and present of each layer, K and D as numbers that config.json agrees with."""
    graph, config = subject.model.graph, subject.config
    inputs, outputs = ({arg.name: arg for arg in args} for args in (graph.input, graph.output))
    layers, heads, size = (
        config.get(key) for key in ("num_hidden_layers", "num_key_value_heads", "head_dim")
    )
    _require(subject.layers == layers, f"{subject.layers} layers, config.json says {layers}")
    dtype = None
    for index in range(subject.layers):
        for part in ("key", "value"):
            past, present = f"past_key_values.{index}.{part}", f"present.{index}.{part}"
            _require(past in inputs, f"there is no input {past}")
            dtype = dtype or inputs[past].type.tensor_type.elem_type
            _require(dtype in _KV_TYPES, f"{past} is {_TYPE_NAMES(dtype)}, not FLOAT or FLOAT16")
            _expect(inputs, past, dtype, ["batch_size", heads, "past_sequence_length", size])
            _expect(outputs, present, dtype, ["batch_size", heads, "total_sequence_length", size])
    return f"{layers} layers of {heads} heads × {size}, {_TYPE_NAMES(dtype)}"


def _tokenizer(subject: _Subject) -> str:
    path = subject.folder / "tokenizer.json"
    if not path.exists():
        return "none in the folder; the model takes and gives ids"
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise _FailedError(f"tokenizer.json cannot be read: {_line(error)}") from error
    last, size = max(tokenizer.get_vocab().values(), default=-1), subject.config["vocab_size"]
    _require(last < size, f"tokenizer.json has id {last}, the model has {size} tokens")
    settings = _json(subject.folder / "tokenizer_config.json")
    template = settings.get("chat_template", "")
    _require(isinstance(template, str), "tokenizer_config.json has a chat_template that is no text")
    return f"{last + 1} tokens, {'a' if template else 'no'} chat template"


def _genai(subject: _Subject) -> str:
    """genai_config.json describes one graph of the folder; its sizes are those of config.json."""
    model = _json(subject.folder / "genai_config.json").get("model", {})
    decoder = model.get("decoder", {})
    _require(
        (subject.folder / decoder.get("filename", "-")).is_file(),
        f"it names {decoder.get('filename')!r}, which is not there",
    )
    pairs = {
        "vocab_size": model.get("vocab_size"),
        "num_hidden_layers": decoder.get("num_hidden_layers"),
        "num_key_value_heads": decoder.get("num_key_value_heads"),
        "head_dim": decoder.get("head_size"),
    }
    for key, value in pairs.items():
        stated = subject.config.get(key)
        _require(value == stated, f"it has {value} where config.json has {key} = {stated}")
    return f"{decoder['filename']}, context {model.get('context_length')}"


def _greedy(subject: _Subject) -> str:
    try:
        session = open_session(subject.path)
        complaint, detail = greedy_check(session, subject.config["vocab_size"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        raise _FailedError(_line(error)) from error
    _require(not complaint, complaint)
    return detail


def _expect(found: dict[str, Any], name: str, dtype: int, dims: list[int | str | None]) -> None:
    _require(name in found, f"there is no {name}")
    kind, shape = found[name].type.tensor_type.elem_type, _dims(found[name])
    _require(
        kind == dtype and shape == dims,
        f"{name} is {_TYPE_NAMES(kind)} {shape}; expected {_TYPE_NAMES(dtype)} {dims}",
    )


def _dims(arg: onnx.ValueInfoProto) -> list[int | str]:
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param
        for dim in arg.type.tensor_type.shape.dim
    ]


def _line(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.300}"
