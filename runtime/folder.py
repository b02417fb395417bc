"""A folder with a graph: which graph to run, and whether its files are all there, and whole."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError
from .graph_file import MINIMUM_METADATA, GraphFile, read_graph_file
from .layouts import Layout, TensorNames, int8_cache_path, read_layout

_CACHES = ("float", "int8")
_SAMPLES, _SAMPLE_BYTES = 16, 4096


@dataclass(frozen=True)
class ModelFolder:
    """A folder and the graph chosen in it."""

    path: Path
    weights: str  # a key of SUFFIXES, or what a graph outside onnx/ is called
    graph: Path
    data: tuple[Path, ...]  # external data files
    config: dict[str, Any]
    config_file: str  # config.json, or genai_config.json where it stands in its place
    names: TensorNames
    operators: dict[str, str]  # the operator that makes a value, by the value's name
    metadata: dict[str, str]  # the graph's

    @property
    def weight_bytes(self) -> int:
        """Size of the graph and its data on disk, which is what the weights take in memory."""
        return sum(file.stat().st_size for file in (self.graph, *self.data))

    def fingerprint(self) -> str:
        """Changes with the graph, the data's sizes and samples of the data; cheap to compute."""
        digest = hashlib.sha256(self.graph.read_bytes() if self.data else b"")
        for file in (self.graph, *self.data):
            size = file.stat().st_size
            digest.update(f"{file.name} {size}\n".encode())
            with file.open("rb") as stream:
                for sample in range(_SAMPLES + 1):
                    stream.seek(max(0, size - _SAMPLE_BYTES) * sample // _SAMPLES)
                    digest.update(stream.read(_SAMPLE_BYTES))
        return digest.hexdigest()[:16]


def open_folder(path: Path | str, weights: str | None = None, kv: str | None = None) -> ModelFolder:
    """Choose the graph with `weights` in a folder that Pippin, optimum or others wrote.

    `weights` is "fp32", "fp16", "q4", "q4f16" or "int8" in a folder of Pippin's, a graph's name
    without .onnx in those that have no onnx/; None for what runs fastest. `kv`: of two graphs with
    these weights, "float" for the one that every program can run and "int8" for the one with the
    smaller KV cache; None for the latter, where onnxruntime is new enough for it. Raises InputError
    when the folder is none, lacks the graph, or a data file of it is missing or too short.
    """
    path = Path(path)
    layout = read_layout(path)
    chosen = _choose(path, layout, weights)
    graph, file = _choose_cache(layout.graphs[chosen], kv)
    return ModelFolder(
        path=path,
        weights=chosen,
        graph=graph,
        data=check_data_files(graph, file),
        config=layout.config,
        config_file=layout.config_file,
        names=layout.names,
        operators=file.operators,
        metadata=file.metadata,
    )


def runs_right(minimum: str | None) -> bool:
    """Whether the onnxruntime at hand is not older than the release `minimum`, "1.24"."""
    import onnxruntime as ort

    return minimum is None or _release(ort.__version__) >= _release(minimum)


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])


def _choose_cache(graph: Path, kv: str | None) -> tuple[Path, GraphFile]:
    if kv is not None and kv not in _CACHES:
        raise InputError(f"there is no KV cache {kv!r}; choose {' or '.join(_CACHES)}")
    other = int8_cache_path(graph)
    if kv == "int8" or (kv is None and other.is_file()):
        if not other.is_file():
            raise InputError(f"{graph.parent} holds no {other.name}; export the model again")
        file = read_graph_file(other)
        if kv == "int8" or runs_right(file.metadata.get(MINIMUM_METADATA)):
            return other, file
    return graph, read_graph_file(graph)


def _choose(path: Path, layout: Layout, weights: str | None) -> str:
    if not layout.graphs:
        raise InputError(
            f"{path} holds {_no_graph(path)}; give a folder that `pippin export` wrote"
        )
    if weights is None:
        return next(iter(layout.graphs))
    if weights not in layout.graphs:
        raise InputError(f"{path} holds no {weights} weights; it has {', '.join(layout.graphs)}")
    return weights


def _no_graph(path: Path) -> str:
    """What there is in place of a graph that can be run."""
    parts = sorted(f.name for f in (*path.glob("*.onnx"), *path.glob("onnx/*.onnx")))
    if any(name.startswith("decoder_with_past") for name in parts):
        return f"its first step and the others as two graphs ({', '.join(parts)}), not one"
    return "no onnx/model*.onnx or model*.onnx"


def check_data_files(graph: Path, file: GraphFile) -> tuple[Path, ...]:
    """The data files of `graph`, in the order of their first tensors.

    Raises InputError for one that is missing, shorter than its tensors, or outside the folder.
    """
    needed: dict[str, int] = {}
    for tensor in file.external:
        end = tensor.offset + (tensor.length or 0)
        needed[tensor.location] = max(needed.get(tensor.location, 0), end)
    for location, size in needed.items():
        data = graph.parent / location
        if not location or ".." in Path(location).parts or Path(location).is_absolute():
            raise InputError(
                f"{graph} keeps weights in {location!r}, outside its folder; export it again"
            )
        if not data.is_file():
            raise InputError(
                f"{data} is missing, one of {len(needed)} data files of {graph.name}; "
                "copy it too, or export the model again"
            )
        if (found := data.stat().st_size) < size:
            raise InputError(
                f"{data} has {found:,} bytes where {graph.name} needs {size:,}; "
                "copy it again, or export the model again"
            )
    return tuple(graph.parent / location for location in needed)
