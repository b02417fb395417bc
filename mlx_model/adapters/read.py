"""From an adapter's folder to an `Adapter`: which format it is, its config and its headers."""

import hashlib
import json
from pathlib import Path

from ...runtime.errors import InputError
from ..checkpoints.files import file_sha256, read_json
from ..checkpoints.safetensors import read_header
from .adapter import Adapter
from .mlx_lm import read_mlx_lm
from .peft import read_peft

CONFIG = "adapter_config.json"
_FLOATS = frozenset(["F16", "BF16", "F32"])


def read_adapter(folder: Path) -> Adapter:
    """Read the adapter in `folder`; its tensors stay in their file.

    Raises InputError when it is none, incomplete or damaged and, by name, for whatever changes
    the output and is not implemented.
    """
    if not folder.exists():
        raise InputError(f"{folder} does not exist; expected an adapter's folder")
    config_file = folder / CONFIG
    if not config_file.is_file():
        raise InputError(f"{folder} holds no adapter: it has no {CONFIG}")
    config = read_json(config_file)
    is_peft = "peft_type" in config
    if not is_peft and config.keys().isdisjoint(("fine_tune_type", "lora_parameters")):
        raise InputError(
            f"{config_file} has neither 'peft_type' nor 'fine_tune_type'; Pippin reads the "
            "adapters that PEFT and mlx-lm write"
        )
    file = _tensor_file(folder, "adapter_model" if is_peft else "adapters")
    header = read_header(file)
    for name, tensor in header.items():
        if tensor.dtype not in _FLOATS:
            raise InputError(f"{file} has {name!r} in {tensor.dtype}; expected F16, BF16 or F32")
    shapes = {name: tensor.shape for name, tensor in header.items()}
    read = read_peft if is_peft else read_mlx_lm
    updates, replaced, ties_head = read(config, str(config_file), file, shapes)
    if not updates and not replaced:
        raise InputError(f"{file} has no tensors: the adapter changes nothing")
    both = json.dumps(config, sort_keys=True) + file_sha256(file)
    return Adapter(
        path=folder,
        file=file,
        format="PEFT" if is_peft else "mlx-lm",
        updates=updates,
        replaced=replaced,
        ties_head=ties_head,
        digest=hashlib.sha256(both.encode()).hexdigest()[:16],
    )


def _tensor_file(folder: Path, stem: str) -> Path:
    file = folder / f"{stem}.safetensors"
    if file.is_file():
        return file
    if any((folder / f"{stem}{suffix}").is_file() for suffix in (".bin", ".npz")):
        raise InputError(
            f"{folder} has its tensors in another format than safetensors; save them again as "
            f"{file.name}"
        )
    raise InputError(f"{folder} lacks {file.name}; the adapter is incomplete")
