"""From a model's name to a generator: which backend runs it, and the export that one needs."""

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..runtime.errors import InputError

if TYPE_CHECKING:
    from ..mlx_model.checkpoints.checkpoint import Checkpoint
    from ..runtime.generator import Generator

BACKENDS = ("auto", "mlx", "onnx")
DEFAULT_WEIGHTS = "q4"

# (done, total) of one stage; total is None while it is unknown
StageProgress = Callable[[int, int | None], None]
# stages("download", "bytes") gives the callback of a stage: its title, and what it counts
Stages = Callable[[str, str], StageProgress]


@dataclass(frozen=True)
class Model:
    """A loaded model, and how its authors want it sampled."""

    generator: "Generator"
    generation_config: Mapping[str, Any]  # {} when it has none


def load_generator(name: str, backend: str = "auto", **options: Any) -> "Generator":
    """The generator of the model `name`; arguments and errors as of `load_model`."""
    return load_model(name, backend, **options).generator


def load_model(
    name: str,
    backend: str = "auto",
    *,
    weights: str | None = None,
    threads: int | None = None,
    precise: bool = False,
    repeatable: bool = False,
    kv_bits: int | None = None,
    adapter: Path | None = None,
    draft: str | None = None,
    fetch: bool = True,
    stages: Stages | None = None,
) -> Model:
    """Load the model `name`.

    `name` is what `checkpoints.store.resolve` takes, or a folder that `pippin export` wrote.
    `backend` "auto" is MLX on a Mac that has it, and onnxruntime elsewhere and for exported
    folders. "onnx" exports a checkpoint the first time (`weights`: "fp32", "fp16", "q4", "int8";
    q4 when None) and keeps the folder in the store. `threads` are onnxruntime's; `precise` has
    onnxruntime compute in floats, as MLX does, and `repeatable` lets no reused cache change a text
    (see `Generator.from_folder`); `kv_bits` (4 or 8) quantizes MLX's KV cache; `adapter` is the
    folder of one to fuse into the checkpoint; `draft` is a smaller model that guesses ahead
    (`Generator`), on the same backend unless it is an exported folder; `fetch` permits downloads;
    `stages` follows downloads and exports.

    Raises InputError: unknown model or backend, MLX asked for where there is none, options that
    the backend does not have, or a draft with other tokens.
    """
    path, backend = prepare(
        name,
        backend,
        weights=weights,
        threads=threads,
        kv_bits=kv_bits,
        adapter=adapter,
        fetch=fetch,
        stages=stages,
    )

    def load() -> Model:
        if backend == "mlx":
            return _load_mlx(open_with_adapter(path, adapter), name, kv_bits)
        return _load_onnx(path, weights, threads, precise=precise, repeatable=repeatable)

    if draft is None:
        return load()
    from ..runtime.ort_graph import sharing_cores

    with sharing_cores():
        engine = "onnx" if is_exported(Path(draft).expanduser()) else backend
        smaller = load_generator(draft, engine, threads=threads, fetch=fetch, stages=stages)
        return _drafted_by(smaller, load())


def prepare(
    name: str,
    backend: str = "auto",
    *,
    weights: str | None = None,
    threads: int | None = None,
    kv_bits: int | None = None,
    adapter: Path | None = None,
    fetch: bool = True,
    stages: Stages | None = None,
) -> tuple[Path, str]:
    """All of `load_generator` but the loading: download, choose, export.

    Returns the path to load, a checkpoint for "mlx" and an exported folder for "onnx", and which
    of the two it is.
    """
    if backend not in BACKENDS:
        raise InputError(f"there is no backend {backend!r}; choose {', '.join(BACKENDS)}")
    folder = Path(name).expanduser()
    if is_exported(folder):
        refuse_mlx(backend, name)
        _refuse_encoder(folder, name)
        _check_options("onnx", weights, threads, kv_bits)
        if adapter is not None:
            raise InputError(
                f"{name} is an exported folder, and an adapter is fused at export; "
                "export the checkpoint again with --adapter"
            )
        return folder, "onnx"
    backend = choose_backend(backend)
    _check_options(backend, weights, threads, kv_bits)
    from ..mlx_model.checkpoints import store

    progress = stages(f"fetching {name}", "bytes") if stages else None
    path = store.resolve(name, fetch=fetch, progress=progress)
    _refuse_encoder(path, name)
    if backend == "mlx":
        return path, "mlx"
    return export_once(path, name, weights or DEFAULT_WEIGHTS, adapter, stages), "onnx"


def open_with_adapter(path: Path, adapter: Path | None, *, tokenizer: bool = True) -> "Checkpoint":
    """The checkpoint at `path`, with the adapter in the folder `adapter` if there is one.

    `tokenizer`, and what is raised, are as `open_checkpoint` and `with_adapter` have them.
    """
    from ..mlx_model.adapters import with_adapter
    from ..mlx_model.checkpoints.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path, tokenizer=tokenizer)
    return checkpoint if adapter is None else with_adapter(checkpoint, Path(adapter).expanduser())


def export_model(
    name: str,
    output: Path | None = None,
    *,
    adapter: Path | None = None,
    fetch: bool = True,
    stages: Stages | None = None,
    **options: Any,
) -> Path:
    """Export the checkpoint `name` to the folder `output`, which is returned.

    Without `output`, to the model's name with "-onnx" in the current directory. `adapter` is the
    folder of one to fuse in; `options` are those of `export.dispatch.export_checkpoint`. Raises
    InputError as `resolve` and that do.
    """
    require_mlx("exporting")
    from ..mlx_model.checkpoints import store

    fetching = stages(f"fetching {name}", "bytes") if stages else None
    path = store.resolve(name, fetch=fetch, progress=fetching)
    checkpoint = open_with_adapter(path, adapter)
    from ..export.dispatch import export_checkpoint

    progress = stages(f"exporting {name}", "bytes") if stages else None
    output = output or default_output(name, "onnx")
    return export_checkpoint(checkpoint, output, progress=progress, **options)


def default_output(name: str, ending: str) -> Path:
    """A folder in the current directory: the model's name with -`ending`."""
    stem = re.split(r"[/\\]", name.rstrip("/\\"))[-1].removesuffix(".gguf").partition("@")[0]
    return Path(re.sub(r"[^\w.-]+", "-", stem).strip("-.") + f"-{ending}")


def is_exported(path: Path) -> bool:
    """Whether `path` is a folder with a decoder's graph, whoever wrote it, and no checkpoint."""
    from ..runtime.layouts import has_graph

    return has_graph(path) and not any(path.glob("*.safetensors"))


def refuse_mlx(backend: str, name: str) -> None:
    """Raise InputError for an exported folder that MLX is asked to run."""
    if backend == "mlx":
        raise InputError(
            f"{name} is an exported folder, which onnxruntime runs; "
            "use --backend onnx, or give the checkpoint that it was exported from"
        )


def _refuse_encoder(path: Path, name: str) -> None:
    """Raise InputError for a model that writes no text; a .gguf file never is one."""
    from ..mlx_model.checkpoints.files import read_json
    from ..mlx_model.encoder_families import is_encoder

    config = path / "config.json"
    if config.is_file() and is_encoder(read_json(config)):
        raise InputError(f"{name} is an encoder, which writes no text; `pippin embed` runs it")


def has_mlx() -> bool:
    """Whether MLX can be imported here."""
    try:
        import_module("mlx.core")
    except ImportError:
        return False
    return True


def require_mlx(what: str) -> None:
    """Raise InputError, saying where MLX is to be had, unless it can be imported."""
    if not has_mlx():
        raise InputError(
            f"{what} needs MLX, which cannot be imported here; it runs on macOS (arm64) and Linux: "
            "export the model there, and run the folder here with --backend onnx"
        )


def choose_backend(backend: str) -> str:
    """What runs a checkpoint. Raises InputError for MLX where there is none."""
    if backend == "auto":
        return "mlx" if sys.platform == "darwin" and has_mlx() else "onnx"
    if backend == "mlx":
        require_mlx("--backend mlx")
    return backend


def _check_options(
    backend: str, weights: str | None, threads: int | None, kv_bits: int | None
) -> None:
    """Raise InputError for an option that the other backend has."""
    if backend == "mlx" and (weights or threads):
        option = "--weights" if weights else "--threads"
        raise InputError(
            f"{option} is for --backend onnx; the mlx backend runs the checkpoint as it is"
        )
    if backend == "onnx" and kv_bits is not None:
        raise InputError(
            "--kv-bits is for --backend mlx, on a checkpoint; "
            "the onnx backend keeps its KV cache as the model was exported"
        )


def _drafted_by(smaller: "Generator", model: Model) -> Model:
    from ..runtime.generator import Generator

    generator = Generator(model.generator.engine, model.generator.tokenizer, smaller)
    return replace(model, generator=generator)


def _load_mlx(checkpoint: "Checkpoint", name: str, kv_bits: int | None) -> Model:
    from ..mlx_model.encoder_families import has_encoder
    from ..runtime.generator import Generator

    tokenizer = checkpoint.tokenizer()
    if has_encoder(checkpoint.config):
        from ..mlx_model.seq2seq_engine import MlxSeq2SeqEngine

        if kv_bits is not None:
            raise InputError("--kv-bits is for decoders; an encoder-decoder keeps its KV cache")
        engine = MlxSeq2SeqEngine(checkpoint, name)
    else:
        from ..mlx_model.engine import MlxEngine

        engine = MlxEngine.from_checkpoint(checkpoint, name, kv_bits)
    return Model(Generator(engine, tokenizer), checkpoint.generation_config)


def _load_onnx(folder: Path, weights: str | None, threads: int | None, **how: bool) -> Model:
    from ..mlx_model.checkpoints.files import read_json
    from ..runtime.generator import Generator

    generator = Generator.from_folder(folder, weights=weights, threads=threads, **how)
    file = folder / "generation_config.json"
    return Model(generator, read_json(file) if file.is_file() else {})


def export_once(
    path: Path, name: str, weights: str, adapter: Path | None, stages: Stages | None
) -> Path:
    """The folder of this checkpoint in the store, exported now if it is not there.

    With an adapter it stands beside those of the checkpoint alone, and goes when they go.
    """
    from ..mlx_model.checkpoints import store
    from ..mlx_model.checkpoints.lock import locked

    checkpoint = base = open_with_adapter(path, None, tokenizer=False)
    kind = weights
    if adapter is not None:
        checkpoint = open_with_adapter(path, adapter, tokenizer=False)
        kind = f"{weights}+{checkpoint.fingerprint}"
    exports = store.exports_dir(base.fingerprint)
    folder = exports / f"{kind}-{_digest(checkpoint)}"
    if is_exported(folder):
        return folder
    require_mlx(f"exporting {name}")
    with locked(store.home() / "locks" / f"export-{base.fingerprint}-{folder.name}.lock"):
        if is_exported(folder):  # another process was faster
            return folder
        from ..export.dispatch import export_checkpoint

        progress = stages(f"exporting {name}", "bytes") if stages else None
        dialect = _fastest_dialect(checkpoint)
        checkpoint = open_with_adapter(path, adapter)
        export_checkpoint(checkpoint, folder, weights=weights, dialect=dialect, progress=progress)
    for other in exports.glob(f"{kind}-*"):
        if other != folder:  # of another tokenizer, or by another version of the exporter
            shutil.rmtree(other, ignore_errors=True)
    return folder


def _recipe(checkpoint: "Checkpoint") -> str:
    """What an encoder's folder says beside its config; "" of other models."""
    from ..mlx_model.encoder_families import is_encoder
    from ..runtime.recipe import read_recipe

    return repr(read_recipe(checkpoint.path)) if is_encoder(checkpoint.config) else ""


def _fastest_dialect(checkpoint: "Checkpoint") -> str | None:
    """None where there is no choice."""
    from ..mlx_model.encoder_families import has_encoder

    if has_encoder(checkpoint.config):
        return None
    from ..export.folder import best_dialect
    from ..mlx_model.families import read_family

    return best_dialect(read_family(checkpoint.config).config)


def _digest(checkpoint: "Checkpoint") -> str:
    """8 hex digits of what an export depends on beside the checkpoint's fingerprint.

    The tokenizer (a GGUF's is in its fingerprint), the defaults, and the exporter's own source: an
    export made before a correction is not used again after it.
    """
    package = Path(__file__).parent.parent
    texts = [
        checkpoint.tokenizer_json,
        json.dumps(checkpoint.tokenizer_config, sort_keys=True),
        json.dumps(checkpoint.generation_config, sort_keys=True),
        _recipe(checkpoint),
        *(
            source.read_text("utf-8")
            for part in ("export", "mlx_model")
            for source in sorted((package / part).rglob("*.py"))
        ),
    ]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:8]
