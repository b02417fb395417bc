"""Who can be compared: the rows of the table, and the files that each of them runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pippin.runtime.errors import InputError


@dataclass(frozen=True)
class Entry:
    """A row of the table, before its program and its files are there."""

    name: str
    peer: str  # a key of `peer_env.known_peers`; "" for Pippin
    files: str  # a key of `peer_files.FILES`
    options: dict[str, Any] = field(default_factory=dict)  # of its "load" request


OURS = (
    Entry("pippin onnx q4", "", "onnx-q4", {"backend": "onnx"}),
    Entry("pippin onnx int8", "", "onnx-int8", {"backend": "onnx"}),
    Entry("pippin mlx", "", "gguf-q4_1", {"backend": "mlx"}),
)

THEIRS = (
    Entry("llama.cpp q4_1", "llama.cpp", "gguf-q4_1"),
    Entry("llama.cpp q4_1 flash", "llama.cpp", "gguf-q4_1", {"flash": True}),
    Entry("llama.cpp q4_1 kv8", "llama.cpp", "gguf-q4_1", {"flash": True, "kv_bits": 8}),
    Entry("llama.cpp q4_0", "llama.cpp", "gguf-q4_0"),
    Entry("llama.cpp q4_0 flash", "llama.cpp", "gguf-q4_0", {"flash": True}),
    Entry("llama.cpp q8_0", "llama.cpp", "gguf-q8_0"),
    Entry("llama.cpp q8_0 flash", "llama.cpp", "gguf-q8_0", {"flash": True}),
    Entry("genai pippin q4", "onnxruntime-genai", "onnx-q4"),
    Entry("genai int4 b32", "onnxruntime-genai", "rtn-32"),
    Entry("genai int4 b128", "onnxruntime-genai", "rtn-128"),
    Entry("openvino q4_1", "openvino-genai", "openvino-q4_1"),
    Entry("openvino q4_0", "openvino-genai", "openvino-q4_0"),
    Entry("openvino q8_0", "openvino-genai", "openvino-q8_0"),
)


def option_names(entries: Sequence[Entry]) -> list[str]:
    """How the options call them: "llama.cpp-q4_1-flash"."""
    return [_option_name(entry) for entry in entries]


def choose(kind: str, text: str, entries: Sequence[Entry]) -> list[Entry]:
    """The entries that a comma-separated list names; the beginning of a name is all with it.

    Raises InputError for what is no entry's.
    """
    chosen: dict[str, Entry] = {}
    for wanted in filter(None, (part.strip() for part in text.split(","))):
        exact = [entry for entry in entries if _option_name(entry) == wanted]
        found = exact or [e for e in entries if _option_name(e).startswith(f"{wanted}-")]
        if not found:
            known = ", ".join(option_names(entries))
            raise InputError(f"no {kind} is called {wanted!r}; there are {known}")
        chosen |= {entry.name: entry for entry in found}
    return list(chosen.values())


def _option_name(entry: Entry) -> str:
    return entry.name.removeprefix("pippin ").replace(" ", "-")
