"""Pippin: a decoder transformer in MLX, exported to ONNX, that says the same thing everywhere.

    generator = pippin.load("smollm2")
    print(generator.generate("The sky is").text)

Everything here is imported when it is first used, so that `import pippin` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import export
    from .apps.embedders import load_embedder
    from .apps.models import load_generator as load
    from .runtime.errors import InputError, PippinError
    from .runtime.generator import Generator
    from .runtime.prompt_cache import PromptCache
    from .runtime.sampling import SamplingParams
    from .runtime.tokenizer import Tokenizer

    __version__: str

__all__ = [
    "Generator",
    "InputError",
    "PippinError",
    "PromptCache",
    "SamplingParams",
    "Tokenizer",
    "__version__",
    "export",
    "load",
    "load_embedder",
]

# public name -> module that has it, and its name there
_PUBLIC = {
    "Generator": (".runtime.generator", "Generator"),
    "InputError": (".runtime.errors", "InputError"),
    "PippinError": (".runtime.errors", "PippinError"),
    "PromptCache": (".runtime.prompt_cache", "PromptCache"),
    "SamplingParams": (".runtime.sampling", "SamplingParams"),
    "Tokenizer": (".runtime.tokenizer", "Tokenizer"),
    "load": (".apps.models", "load_generator"),
    "load_embedder": (".apps.embedders", "load_embedder"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value = _version()
    elif name == "export":  # a sub-package that can be called
        value = import_module(".export", __name__)
    elif name in _PUBLIC:
        module, attribute = _PUBLIC[name]
        value = getattr(import_module(module, __name__), attribute)
    else:
        raise AttributeError(f"module 'pippin' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pippin")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "0+unknown"
