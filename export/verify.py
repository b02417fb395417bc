"""`verify_folder`: does a folder keep the contract of exported folders, and who can use it?"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from onnx import TensorProto

from ..runtime.errors import InputError, PippinError
from ..runtime.folder import check_data_files, open_folder
from ..runtime.graph_file import read_graph_file
from ..runtime.layouts import int8_cache_path, read_layout
from .consumers import Verdict, judge
from .external_data import tensor_bytes
from .greedy import greedy_check
from .settings import PADDED_ON_THE_LEFT
from .subject import DamagedError, Dims, Subject, dims, element_type, one_line, read_subject

_KV_TYPES = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT8)
_TYPE_NAMES = TensorProto.DataType.Name


@dataclass(frozen=True)
class Check:
    """One thing that was looked at in one graph."""

    graph: str  # its path in the folder
    name: str
    ok: bool
    detail: str  # what was found; where it failed, what was expected too
    damaged: bool = False  # a file is missing, cut off, or contradicts another


@dataclass(frozen=True)
class Report:
    """What was found in a folder."""

    checks: list[Check]
    consumers: list[Verdict]  # of each graph that could be read

    @property
    def ok(self) -> bool:
        """Whether the contract holds."""
        return all(check.ok for check in self.checks)

    @property
    def damaged(self) -> bool:
        """Whether files are missing, cut off, or contradict each other."""
        return any(check.damaged for check in self.checks)


class _FailedError(Exception):
    """The contract does not hold; the message says what was found and expected."""


def verify_folder(path: Path) -> Report:
    """Check every graph of a folder with a decoder, whoever wrote it.

    Data files, names, types, shapes, the cache contract, tokenizer against vocabulary, and a greedy
    run; then, by rule, what each consumer needs. Where a check fails that others rest on, those are
    left out. Raises InputError when `path` is no folder or holds no decoder's graph.
    """
    folder = Path(path)
    if (folder / "modules.json").is_file():
        raise InputError(f"{folder} holds an encoder; decoders are verified: try `pippin embed`")
    if any(folder.glob("onnx/encoder_model*.onnx")):
        raise InputError(f"{folder} holds an encoder-decoder; only decoders are verified")
    graphs = read_layout(folder).graphs
    if not graphs:
        open_folder(folder)  # says what is there in place of a graph
    reports = []
    for weights, graph in graphs.items():
        reports.append(_verify(folder, weights, "float"))
        if int8_cache_path(graph).is_file():
            reports.append(_verify(folder, weights, "int8"))
    return Report(
        [check for report in reports for check in report.checks],
        [verdict for report in reports for verdict in report.consumers],
    )


def _verify(folder: Path, weights: str, kv: str) -> Report:
    graph = read_layout(folder).graphs[weights]
    graph = int8_cache_path(graph) if kv == "int8" else graph
    place = graph.relative_to(folder).as_posix()
    checks: list[Check] = []
    subject: Subject | None = None

    def look(name: str, step: Callable[[], str]) -> bool:
        try:
            checks.append(Check(place, name, True, step()))
        except (_FailedError, DamagedError) as failure:
            damaged = isinstance(failure, DamagedError)
            checks.append(Check(place, name, False, str(failure), damaged))
        return checks[-1].ok

    def read() -> str:
        nonlocal subject
        subject = read_subject(folder, weights, kv)
        return f"{len(subject.model.graph.node)} nodes, {subject.layers} layers"

    if not look("graph", read) or subject is None:
        return Report(checks, [])
    for name, step in _STEPS.items():
        look(name, lambda step=step: step(subject))
    damage = tuple(check.detail for check in checks if check.damaged)
    failure = None
    if not damage and not look("greedy run", lambda: _greedy(subject, kv)):
        failure = checks[-1].detail
    return Report(checks, judge(subject, damage, failure))


def _require(holds: bool, complaint: str) -> None:
    if not holds:
        raise _FailedError(complaint)


def _agree(holds: bool, complaint: str) -> None:
    """Unlike `_require`, about what no folder of any layout may have."""
    if not holds:
        raise DamagedError(complaint)


def _data_files(subject: Subject) -> str:
    """Every external tensor lies inside a file beside the graph, with the bytes its shape takes."""
    try:
        files = check_data_files(subject.path, read_graph_file(subject.path))
    except InputError as error:
        raise DamagedError(str(error)) from error
    for tensor in subject.model.graph.initializer:
        place = {entry.key: entry.value for entry in tensor.external_data}
        if tensor.data_location == TensorProto.EXTERNAL and "length" in place:
            length = int(place["length"])
            wanted = tensor_bytes(tensor.data_type, tuple(tensor.dims))
            _agree(length == wanted, f"{tensor.name} has {length} bytes, its shape takes {wanted}")
    names = [file.name for file in files]
    wanted = subject.named_data_files
    _require(names == wanted, f"they are {', '.join(names)}; expected {', '.join(wanted)}")
    return f"{len(files)} with {sum(file.stat().st_size for file in files):,} bytes"


def _config(subject: Subject) -> str:
    """config.json is there, and counts the data files."""
    config = subject.files["config.json"]
    _require(config is not None, "there is none")
    _require(subject.path.parent.name == "onnx", f"the graph is {subject.place}, not in onnx/")
    count, found = subject.stated_data_files, len(subject.data_files)
    complaint = f"config.json counts {count} data files, {subject.path.name} has {found}"
    _agree(count is None or count == found, complaint)
    _require(count is not None or not found, f"it does not count {subject.path.name}'s data files")
    return f"{config.get('model_type')}"


def _inputs(subject: Subject) -> str:
    wanted = {
        "input_ids": ["batch_size", "sequence_length"],
        "attention_mask": ["batch_size", "total_sequence_length"],
    }
    optional = {"position_ids": ["batch_size", "sequence_length"]}
    for name, shape in wanted.items():
        _expect(subject.inputs, name, TensorProto.INT64, shape)
    for name in optional.keys() & subject.inputs.keys():
        _expect(subject.inputs, name, TensorProto.INT64, optional[name])
    known = wanted.keys() | optional.keys() | set(subject.pasts)
    extra = sorted(subject.inputs.keys() - known)
    _require(not extra, f"the graph also requires {', '.join(extra)}")
    overridable = {arg.name for arg in subject.model.graph.input} - subject.inputs.keys()
    _require("num_logits" in overridable, "num_logits is no overridable initializer")
    return f"{', '.join([*wanted, 'num_logits'])}{_padding(subject)}"


def _padding(subject: Subject) -> str:
    """What to mind of batches, where attention counts a mask's ones."""
    if not subject.nodes("GroupQueryAttention"):
        return ""
    refused = any(node.name == PADDED_ON_THE_LEFT for node in subject.model.graph.node)
    return f"; pad on the right, padding on the left is {'refused' if refused else 'taken wrongly'}"


def _outputs(subject: Subject) -> str:
    """One row of logits is stated; `num_logits` may ask for more."""
    size = subject.sizes.get("vocab_size")
    name = subject.names.logits
    _require(name in subject.outputs, f"there is no {name}")
    last = dims(subject.outputs[name])[-1]
    _agree(
        last == size or not (isinstance(last, int) and isinstance(size, int)),
        f"{subject.path.name} has logits of {last}, {subject.sizes_file} says vocab_size = {size}",
    )
    _expect(subject.outputs, "logits", TensorProto.FLOAT, ["batch_size", 1, size])
    first = subject.model.graph.output[0].name
    _require(first == "logits", f"the first output is {first}, expected logits")
    return f"logits of {size} tokens"


def _cache(subject: Subject) -> str:
    """Past and present of each layer, K and D as numbers that config.json agrees with."""
    config, name, cache = subject.sizes, subject.sizes_file, subject.cache
    _require(cache is not None, f"there is no input {subject.names.past_key_names % 0}")
    dtype, shape = cache
    found = {"num_hidden_layers": subject.layers}
    found |= dict(zip(("num_key_value_heads", "head_dim"), shape[1::2], strict=False))
    for key, value in found.items():
        stated = config.get(key)
        both = isinstance(value, int) and isinstance(stated, int)
        complaint = f"{subject.path.name} has {value} where {name} says {key} = {stated}"
        _agree(not both or value == stated, complaint)
    layers, heads, size = (config.get(key) for key in found)
    _require(
        dtype in _KV_TYPES, f"{subject.pasts[0]} is {_TYPE_NAMES(dtype)}, not FLOAT or FLOAT16"
    )
    for index in range(subject.layers):
        for part in ("key", "value"):
            wanted = ["batch_size", heads, "past_sequence_length", size]
            _expect(subject.inputs, f"past_key_values.{index}.{part}", dtype, wanted)
            wanted[2] = "total_sequence_length"
            _expect(subject.outputs, f"present.{index}.{part}", dtype, wanted)
    return f"{layers} layers of {heads} heads × {size}, {_TYPE_NAMES(dtype)}"


def _tokenizer(subject: Subject) -> str:
    path, size = subject.folder / "tokenizer.json", subject.sizes.get("vocab_size")
    if not path.exists():
        return "none in the folder; the model takes and gives ids"
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise DamagedError(f"tokenizer.json cannot be read: {one_line(error)}") from error
    last = max(tokenizer.get_vocab().values(), default=-1)
    _agree(
        not isinstance(size, int) or last < size,
        f"tokenizer.json has id {last}, the model has {size} tokens",
    )
    settings = subject.files["tokenizer_config.json"] or {}
    name = settings.get("tokenizer_class")
    _require(
        name == "PreTrainedTokenizerFast",
        f"tokenizer_config.json has the class {name}, expected PreTrainedTokenizerFast",
    )
    template = settings.get("chat_template", "")
    _require(isinstance(template, str), "tokenizer_config.json has a chat_template that is no text")
    beside = (subject.folder / "chat_template.jinja").is_file()
    _require(bool(template) or not beside, "the chat template is in a file of its own alone")
    return f"{last + 1} tokens, {'a' if template else 'no'} chat template"


def _genai(subject: Subject) -> str:
    """genai_config.json describes one graph of the folder; its sizes are those of config.json."""
    content = subject.files["genai_config.json"]
    _require(content is not None, "there is none")
    model = content.get("model", {})
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
        stated = (subject.files["config.json"] or {}).get(key, value)
        _require(value == stated, f"it has {value} where config.json has {key} = {stated}")
    return f"{decoder['filename']}, context {model.get('context_length')}"


def _greedy(subject: Subject, kv: str) -> str:
    """Through the very engine that `Generator.from_folder` uses."""
    try:
        complaint, detail = greedy_check(open_folder(subject.folder, subject.weights, kv))
    except PippinError as error:
        raise _FailedError(one_line(error)) from error
    _require(not complaint, complaint)
    return detail


_STEPS: dict[str, Callable[[Subject], str]] = {
    "data files": _data_files,
    "config.json": _config,
    "inputs": _inputs,
    "outputs": _outputs,
    "cache": _cache,
    "tokenizer": _tokenizer,
    "genai_config.json": _genai,
}


def _expect(found: dict, name: str, dtype: int, shape: Dims) -> None:
    _require(name in found, f"there is no {name}")
    kind, has = element_type(found[name]), dims(found[name])
    _require(
        kind == dtype and has == shape,
        f"{name} is {_TYPE_NAMES(kind)} {has}; expected {_TYPE_NAMES(dtype)} {shape}",
    )
