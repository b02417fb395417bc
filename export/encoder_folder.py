"""`export_encoder`: an encoder becomes a folder in sentence-transformers' layout."""

import json
from pathlib import Path
from typing import Any

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.checkpoints.whole_folder import check_target, written_whole
from ..mlx_model.encoder_load import load_encoder
from ..runtime.errors import InputError
from ..runtime.recipe import read_recipe
from .encoder_graph import write_encoder
from .folder import check_choice, is_ours
from .graph import Progress
from .quantize import quantize_decoder
from .settings import WEIGHTS, Settings
from .sidecars import write_text
from .stack_readme import encoder_readme

DEFAULT_WEIGHTS = "fp32"
_DROPPED = ("quantization", "quantization_config", "transformers.js_config")


def export_encoder(
    checkpoint: Checkpoint,
    out: Path,
    *,
    weights: str | None = None,
    dialect: str | None = None,
    context: int | None = None,
    exact: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Export an encoder to the folder `out`, which is returned.

    Arguments and errors as of `export_folder`; without `weights`, fp32. There is one dialect, of
    onnxruntime's operators, and the context is the model's own.
    """
    weights = weights or DEFAULT_WEIGHTS
    check_choice("weights", weights, WEIGHTS)
    refuse_decoder_options("encoder", dialect, context)
    target = Path(out).resolve()
    check_target(target, overwrite, is_ours, "export")
    recipe = read_recipe(checkpoint.path)
    encoder = load_encoder(checkpoint)
    stack = encoder.config.stack
    settings = Settings(weights, context=stack.context, exact=exact)
    if settings.quantized:
        quantize_decoder(encoder, weights)
    with written_whole(target) as folder:
        graph = folder / "onnx" / f"model{settings.suffix}.onnx"
        graph.parent.mkdir()
        data = {graph.name: len(write_encoder(encoder, graph, settings, progress))}
        files = recipe.files(stack.hidden_size, stack.context)
        write_files(folder, checkpoint, settings, data, files)
        write_text(folder / "README.md", encoder_readme(encoder.config, recipe, settings))
    return Path(out)


def refuse_decoder_options(kind: str, dialect: str | None, context: int | None) -> None:
    """Raise InputError for what only decoders have."""
    if dialect not in (None, "gqa"):
        raise InputError(f"an {kind} has no dialect {dialect!r}; leave --dialect out")
    if context is not None:
        raise InputError(f"an {kind} keeps its own context; leave --context out")


def write_files(
    folder: Path,
    checkpoint: Checkpoint,
    settings: Settings,
    data: dict[str, int],
    files: dict[str, Any],
    config: dict[str, Any] | None = None,
) -> None:
    """The JSON files of a folder: config.json, the tokenizer's, and `files`, by name.

    `data` is the number of data files of each graph; `config` goes into config.json.
    """
    config = {k: v for k, v in checkpoint.config.items() if k not in _DROPPED} | (config or {})
    config["transformers.js_config"] = {
        "dtype": settings.weights,
        "kv_cache_dtype": {"fp16": "float16"},
        "use_external_data_format": data,
    }
    contents = {"config.json": config, **files}
    if checkpoint.tokenizer_json:
        kept = {k: v for k, v in checkpoint.tokenizer_config.items() if k != "auto_map"}
        contents["tokenizer_config.json"] = kept
        write_text(folder / "tokenizer.json", checkpoint.tokenizer_json)
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
