"""The portable generator: it runs an exported folder on numpy, onnxruntime, tokenizers and jinja2.

    from pippin.runtime import Generator
    print(Generator.from_folder("smollm2-onnx").generate("The sky is").text)

Names are imported when they are first used, so that `import pippin.runtime` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import Cancelled, ContextError, InputError, PippinError
    from .generator import Chunk, Generator, Result, Stats
    from .ort_embedder import OrtEmbedder
    from .ort_engine import OrtEngine
    from .prompt_cache import PromptCache
    from .sampling import Sampler, SamplingParams
    from .tokenizer import Tokenizer

_MODULES = {
    "errors": ("Cancelled", "ContextError", "InputError", "PippinError"),
    "generator": ("Chunk", "Generator", "Result", "Stats"),
    "ort_embedder": ("OrtEmbedder",),
    "ort_engine": ("OrtEngine",),
    "prompt_cache": ("PromptCache",),
    "sampling": ("Sampler", "SamplingParams"),
    "tokenizer": ("Tokenizer",),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Cancelled",
    "Chunk",
    "ContextError",
    "Generator",
    "InputError",
    "OrtEmbedder",
    "OrtEngine",
    "PippinError",
    "PromptCache",
    "Result",
    "Sampler",
    "SamplingParams",
    "Stats",
    "Tokenizer",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_MODULE_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
