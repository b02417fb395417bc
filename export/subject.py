"""An exported folder as its checks see it: each graph without its weights, and the files beside."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto

from ..runtime.layouts import TensorNames, int8_cache_path, read_layout
from .needs import all_nodes

Dims = list[int | str]


class DamagedError(Exception):
    """A file cannot be read or contradicts another; the message names it."""


@dataclass(frozen=True)
class Subject:
    """A folder and one graph of it."""

    folder: Path
    path: Path
    owner: Path  # the graph whose name its data files have; another where that shares them
    weights: str  # as `runtime.folder.open_folder` takes it
    model: onnx.ModelProto
    names: TensorNames
    sizes: dict[str, Any]  # config.json's, or what genai_config.json says in its place
    sizes_file: str  # the one of the two
    files: dict[str, dict[str, Any] | None]  # JSON files by name; None for one not there

    @property
    def place(self) -> str:
        """The graph's path in the folder, with forward slashes."""
        return self.path.relative_to(self.folder).as_posix()

    @property
    def inputs(self) -> dict[str, onnx.ValueInfoProto]:
        """What a caller must give; initializers that may be overridden are left out."""
        defaults = {tensor.name for tensor in self.model.graph.initializer}
        return {arg.name: arg for arg in self.model.graph.input if arg.name not in defaults}

    @property
    def outputs(self) -> dict[str, onnx.ValueInfoProto]:
        return {arg.name: arg for arg in self.model.graph.output}

    @property
    def layers(self) -> int:
        """N, the number of key caches that go in."""
        count = 0
        while self.names.past_key_names.replace("%d", str(count)) in self.inputs:
            count += 1
        return count

    @property
    def pasts(self) -> list[str]:
        return self._caches(self.names.past_key_names, self.names.past_value_names)

    @property
    def presents(self) -> list[str]:
        return self._caches(self.names.present_key_names, self.names.present_value_names)

    @property
    def data_files(self) -> list[str]:
        """Where the tensors outside the graph lie, in the order of their first one."""
        found = [
            entry.value
            for tensor in self.model.graph.initializer
            if tensor.data_location == TensorProto.EXTERNAL
            for entry in tensor.external_data
            if entry.key == "location"
        ]
        return list(dict.fromkeys(found))

    @property
    def stated_data_files(self) -> int | None:
        """How many of them config.json counts, as transformers.js reads it; None: it does not."""
        section = (self.files["config.json"] or {}).get("transformers.js_config")
        stated = section.get("use_external_data_format") if isinstance(section, dict) else None
        if isinstance(stated, dict):
            stated = stated.get(self.owner.name, stated.get("model"))
        return int(stated) if isinstance(stated, int) else None

    @property
    def named_data_files(self) -> list[str]:
        """What as many data files have to be called."""
        count = len(self.data_files)
        return [f"{self.owner.name}_data{f'_{k}' if k else ''}" for k in range(count)]

    @property
    def cache(self) -> tuple[int, Dims] | None:
        """Type and dims of the first layer's keys."""
        first = self.inputs.get(self.pasts[0]) if self.pasts else None
        return None if first is None else (element_type(first), dims(first))

    def nodes(self, operator: str) -> list[onnx.NodeProto]:
        return [node for node in all_nodes(self.model.graph) if node.op_type == operator]

    @property
    def sharing(self) -> bool:
        """Whether past and present may be one buffer: GroupQueryAttention alone writes in place."""
        made = {name for node in self.model.graph.node if _attends(node) for name in node.output}
        return bool(self.presents) and set(self.presents) <= made

    def _caches(self, *patterns: str) -> list[str]:
        return [p.replace("%d", str(n)) for n in range(self.layers) for p in patterns]


_FILES = ("config.json", "genai_config.json", "tokenizer_config.json", "tokenizer.json")


def read_subject(folder: Path, weights: str, kv: str) -> Subject:
    """One graph of `folder`, which `read_layout` can read; `kv` as `runtime.folder.open_folder`
    has it. Raises DamagedError.
    """
    layout = read_layout(folder)
    owner = layout.graphs[weights]
    path = int8_cache_path(owner) if kv == "int8" else owner
    try:
        model = onnx.load(path, load_external_data=False)
    except Exception as error:  # protobuf's exception is not public
        raise DamagedError(f"{path.name} is no ONNX model: {one_line(error)}") from error
    if not model.graph.node:
        raise DamagedError(f"{path.name} is empty")
    return Subject(
        folder=folder,
        path=path,
        owner=owner,
        weights=weights,
        model=model,
        names=layout.names,
        sizes=layout.config,
        sizes_file=layout.config_file,
        files={name: read_object(folder / name) for name in _FILES},
    )


def read_object(path: Path) -> dict[str, Any] | None:
    """A JSON object; None when the file is not there. Raises DamagedError for anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise DamagedError(f"{path.name} cannot be read: {one_line(error)}") from error
    if not isinstance(content, dict):
        raise DamagedError(f"{path.name} is no JSON object")
    return content


def _attends(node: onnx.NodeProto) -> bool:
    """Whether the node is GroupQueryAttention, or an If between two of them."""
    branches = [a.g for a in node.attribute if a.HasField("g")]
    ways = [all_nodes(branch) for branch in branches] or [[node]]
    return all(any(n.op_type == "GroupQueryAttention" for n in way) for way in ways)


def element_type(arg: onnx.ValueInfoProto) -> int:
    return arg.type.tensor_type.elem_type


def dims(arg: onnx.ValueInfoProto) -> Dims:
    return [
        dim.dim_value if dim.HasField("dim_value") else dim.dim_param
        for dim in arg.type.tensor_type.shape.dim
    ]


def one_line(error: Exception) -> str:
    return f"{' '.join(str(error).split()):.300}"
