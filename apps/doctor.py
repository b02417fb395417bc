"""What this machine has, and whether Pippin can work on it."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from ..mlx_model.checkpoints import store
from ..runtime.errors import InputError
from ..runtime.memory import available_bytes

_PACKAGES = ("mlx", "onnxruntime", "onnx", "numpy", "tokenizers", "huggingface_hub", "gguf")
_LOW_DISK = 2**30  # bytes; less free space than this is worth a word


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    value: str
    ok: bool = True  # False: something does not work here


def examine() -> list[Finding]:
    """Look at versions, devices and the store. A finding that is not `ok` needs the user."""
    return [
        Finding("pippin", _version("pippin") or "not installed"),
        Finding("python", f"{platform.python_version()} ({sys.executable})"),
        Finding("platform", f"{platform.platform()}, {os.cpu_count()} cores"),
        Finding("memory", _memory()),
        *(Finding(name, _version(name) or "not installed") for name in _PACKAGES),
        _try("mlx devices", _mlx_devices, required=False),
        _try("onnxruntime providers", _providers, required=True),
        _try("store", _store, required=True),
        _try("models", _models, required=True),
    ]


def _try(name: str, look: Callable[[], str], required: bool) -> Finding:
    """Whatever goes wrong in a look is what was found."""
    try:
        return Finding(name, look())
    except ImportError as error:
        return Finding(name, f"cannot be imported: {error}", ok=not required)
    except Exception as error:
        return Finding(name, f"failed: {type(error).__name__}: {error}", ok=False)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory() -> str:
    available = available_bytes()
    return "unknown" if available is None else f"{available / 2**30:.1f} GiB available"


def _mlx_devices() -> str:
    mx = import_module("mlx.core")
    if not mx.metal.is_available():
        return f"{mx.default_device()}, no Metal"
    info = mx.device_info()
    return f"{mx.default_device()}, {info.get('device_name', 'Metal')}"


def _providers() -> str:
    return ", ".join(import_module("onnxruntime").get_available_providers())


def _store() -> str:
    """The store's directory and free space; it must be possible to write there."""
    home = store.home()
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=home):
        pass
    free = shutil.disk_usage(home).free
    low = ", which is little" if free < _LOW_DISK else ""
    return f"{home}, {free / 2**30:.1f} GiB free{low}"


def _models() -> str:
    return ", ".join(model.name for model in store.list_models()) or "none; see pippin pull"


@dataclass(frozen=True)
class Served:
    """An attention call, and who computes it."""

    case: str
    here: str  # "mlx", "decode", "prefill" or "fallback"; see `kernels.dispatch.Choice`
    reason: str
    on_metal: str  # who would, on a Mac's GPU
    metal_reason: str


def explain_kernels() -> list[Served]:
    """Who computes which attention call. Raises InputError for a bad PIPPIN_ATTENTION."""
    try:
        from .attention_calls import CALLS
    except ImportError as error:
        raise InputError(f"mlx cannot be imported: {error}; the onnx backend needs none") from error
    served = []
    for call in CALLS:
        try:
            here = call.choice()
        except ValueError as error:
            raise InputError(str(error)) from None
        metal = call.choice(metal=True, mode="auto")
        served.append(Served(call.name, here.name, here.reason, metal.name, metal.reason))
    return served
