"""A model as found on disk, whatever its format."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...runtime.errors import InputError
from . import gguf_model, safetensors
from .files import read_json, read_text
from .gguf import read_gguf

if TYPE_CHECKING:
    import mlx.core as mx

    from ...runtime.tokenizer import Tokenizer
    from ..adapters.adapter import Adapter


@dataclass(frozen=True)
class Checkpoint:
    """A model as found on disk, before any family has translated it."""

    path: Path  # the directory, or the .gguf file
    config: dict[str, Any]  # config.json, or its equivalent built from a GGUF's metadata
    generation_config: dict[str, Any]  # {} when there is none
    tokenizer_json: str  # the text of tokenizer.json; "" when there is none
    tokenizer_config: dict[str, Any]  # "chat_template" in it, wherever it was kept
    fingerprint: str  # 16 hex digits; others when weights or config change
    adapter: "Adapter | None" = None  # fused into the weights; see `adapters.with_adapter`

    def load_weights(self) -> dict[str, "mx.array"]:
        """All weights under Hugging Face names.

        A layer quantized in MLX's affine layout has X.weight (uint32), X.scales and X.biases.
        From safetensors, the bytes are read when an array is first evaluated.
        """
        if self.path.is_dir():
            weights = safetensors.load(safetensors.find_weights(self.path))
        else:
            weights = gguf_model.load_weights(read_gguf(self.path))
        if self.adapter is None:
            return weights
        from ..adapters.fuse import apply_adapter

        return apply_adapter(weights, self.adapter)

    def tokenizer(self) -> "Tokenizer":
        """The checkpoint's tokenizer. Raises InputError when it has none that can be used."""
        from ...runtime.tokenizer import Tokenizer

        return Tokenizer.from_parts(
            self.tokenizer_json, self.tokenizer_config, self.config, self.generation_config
        )


def open_checkpoint(path: Path, *, tokenizer: bool = True) -> Checkpoint:
    """Read all but the weights of the model at `path`: a directory or a .gguf file.

    The weights' headers are checked against their files. `tokenizer` False leaves out a GGUF's,
    whose conversion takes longer than all the rest. Raises InputError when it is no model, or is
    incomplete or damaged.
    """
    if path.is_dir():
        return _open_directory(path)
    if not path.exists():
        raise InputError(f"{path} does not exist; expected a model directory or a .gguf file")
    if path.suffix == ".safetensors":
        raise InputError(f"{path} is one file of a model; give its directory, {path.parent}")
    return _open_gguf(path, tokenizer)


def _open_gguf(path: Path, tokenizer: bool) -> Checkpoint:
    file = read_gguf(path)
    config = gguf_model.read_config(file)
    tokenizer_json, tokenizer_config = "", {}
    if tokenizer:
        from .gguf_tokenizer import convert_gguf_tokenizer  # loads `tokenizers`

        tokenizer_json, tokenizer_config = convert_gguf_tokenizer(dict(file.metadata))
    return Checkpoint(
        path=path,
        config=config,
        generation_config=gguf_model.read_generation_config(file),
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config,
        fingerprint=_fingerprint(config, [path]),
    )


def _open_directory(folder: Path) -> Checkpoint:
    if not (folder / "config.json").is_file():
        raise _no_config(folder)
    config = read_json(folder / "config.json")
    files = safetensors.find_weights(folder)
    tokenizer = folder / "tokenizer.json"
    return Checkpoint(
        path=folder,
        config=config,
        generation_config=_read_optional(folder / "generation_config.json"),
        tokenizer_json=read_text(tokenizer) if tokenizer.is_file() else "",
        tokenizer_config=_tokenizer_config(folder),
        fingerprint=_fingerprint(config, files),
    )


def _no_config(folder: Path) -> InputError:
    ggufs = sorted(folder.glob("*.gguf"))
    if ggufs:
        return InputError(f"{folder} has no config.json; give the file itself, {ggufs[0]}")
    if (folder / "adapter_config.json").is_file():
        return InputError(f"{folder} holds an adapter; expected the model it was trained on")
    return InputError(f"{folder} is not a model directory: it has no config.json")


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    """tokenizer_config.json; a template in a file of its own wins, as in transformers."""
    config = _read_optional(folder / "tokenizer_config.json")
    if (path := folder / "chat_template.jinja").is_file():
        return config | {"chat_template": read_text(path)}
    if (path := folder / "chat_template.json").is_file():
        template = read_json(path).get("chat_template")
        if not isinstance(template, str):
            raise InputError(f"{path} has no text under 'chat_template'")
        return config | {"chat_template": template}
    return config


def _fingerprint(config: dict[str, Any], files: Iterable[Path]) -> str:
    """By the config's content and the weights' names, sizes and dates: nothing large is read."""
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for file in files:
        stat = file.stat()
        digest.update(f"\0{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
