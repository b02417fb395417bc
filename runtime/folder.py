"""The exported folder: which graph to run, and whether its files are all there.

The layout is that of DESIGN §6: `config.json`, tokenizer files, `onnx/model{suffix}.onnx` and its
external data `onnx/model{suffix}.onnx_data[_k]`. Nothing here opens a graph.
"""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import InputError

SUFFIXES = {"fp32": "", "fp16": "_fp16", "q4": "_q4", "q4f16": "_q4f16", "int8": "_int8"}
# Without a choice of the caller's: what a CPU runs fastest first. It computes half precision by
# converting to and fro, so that those graphs come last.
_PREFERENCE = ("q4", "int8", "fp32", "fp16", "q4f16")
_SAMPLES, _SAMPLE_BYTES = 16, 4096


@dataclass(frozen=True)
class ModelFolder:
    """An exported folder and the graph chosen in it."""

    path: Path
    weights: str  # a key of SUFFIXES
    graph: Path
    data: tuple[Path, ...]  # external data files, in order
    config: dict[str, Any]

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


def open_folder(path: Path | str, weights: str | None = None) -> ModelFolder:
    """Choose the graph with `weights` ("fp32", "fp16", "q4", "q4f16" or "int8") in a folder.

    Without a choice, the first of q4, int8, fp32, fp16, q4f16 that is there. Raises InputError when
    the folder is none, lacks the graph, or lacks an external data file that its config counts.
    """
    path = Path(path)
    config = _read_config(path)
    graphs = {
        name: path / "onnx" / f"model{suffix}.onnx"
        for name, suffix in SUFFIXES.items()
        if (path / "onnx" / f"model{suffix}.onnx").is_file()
    }
    if not graphs:
        raise InputError(
            f"{path} holds no onnx/model*.onnx; give a folder that `pippin export` wrote"
        )
    if weights is None:
        weights = next(name for name in _PREFERENCE if name in graphs)
    elif weights not in SUFFIXES:
        raise InputError(f"weights {weights!r} is none of {', '.join(SUFFIXES)}")
    elif weights not in graphs:
        raise InputError(f"{path} holds no {weights} weights; it has {', '.join(graphs)}")
    graph = graphs[weights]
    return ModelFolder(path, weights, graph, _data_files(graph, config), config)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise InputError(f"{path} is not a directory; give a folder that `pippin export` wrote")
    file = path / "config.json"
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(
            f"{path} holds no config.json; give a folder that `pippin export` wrote"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{file} cannot be read ({error}); export the model again") from error
    if not isinstance(config, dict):
        raise InputError(f"{file} is not a JSON object; export the model again")
    return config


def _data_files(graph: Path, config: dict[str, Any]) -> tuple[Path, ...]:
    """The external data files of `graph`: as many as its config counts, all of them present."""
    names = [f"{graph.name}_data", *(f"{graph.name}_data_{k}" for k in range(1, 1000))]
    count = _data_count(graph, config)
    if count is None:
        count = next(n for n, name in enumerate(names) if not (graph.parent / name).is_file())
    files = tuple(graph.parent / name for name in names[:count])
    for file in files:
        if not file.is_file():
            raise InputError(
                f"{file} is missing, one of {count} data files of {graph.name}; "
                "copy it too, or export the model again"
            )
    return files


def _data_count(graph: Path, config: dict[str, Any]) -> int | None:
    """Number of data files as `transformers.js_config` states it; None when it does not."""
    section = config.get("transformers.js_config")
    stated = section.get("use_external_data_format") if isinstance(section, dict) else None
    if isinstance(stated, dict):
        stated = stated.get(graph.name, stated.get("model"))
    if isinstance(stated, int) and 0 <= stated < 1000:  # true stands for one
        return int(stated)
    return None
