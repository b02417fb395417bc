"""`export_folder`: a checkpoint becomes a folder, whole or not at all."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.config import ModelConfig
from ..mlx_model.load import load_decoder
from ..runtime.errors import InputError
from .builder import PRODUCER
from .graph import write_graph
from .quantize import quantize_decoder
from .settings import DIALECTS, WEIGHTS, Settings
from .sidecars import write_sidecars

_GQA_HEAD_MULTIPLE = 16  # onnxruntime's GroupQueryAttention rotates heads of such sizes only
_FULL = {errno.ENOSPC, errno.EDQUOT}


def export_folder(
    checkpoint: Checkpoint,
    out: Path,
    *,
    weights: str = "q4",
    dialect: str = "gqa",
    context: int | None = None,
    exact: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Export a checkpoint to the folder `out`, which is returned.

    `weights`: "fp32", "fp16", "q4" or "int8"; what the checkpoint has quantized is taken over as
    it is. `dialect`: "gqa" for onnxruntime's fused operators, "standard" for ONNX's own. `context`
    is the longest sequence in tokens, the model's own when None. `exact` makes the graph that
    parity is measured with: no int8 activations, no dropped residuals; slow. `overwrite` permits
    replacing a folder that an export wrote. `progress(done, total)` counts bytes of the
    checkpoint's weights.

    The folder appears under its name when it is complete; what fails or is interrupted leaves
    nothing. Raises InputError for settings that do not fit the model, an `out` that exists and may
    not be replaced, weights beyond float16's range, and a disk that is full.
    """
    _check_choice("weights", weights, WEIGHTS)
    _check_choice("dialect", dialect, DIALECTS)
    target = Path(out).resolve()
    _check_target(target, overwrite)
    decoder = load_decoder(checkpoint)
    config = decoder.config
    settings = Settings(weights, dialect, _context(config, context), exact)
    _check_dialect(config, settings)
    if settings.quantized:
        quantize_decoder(decoder, weights)
    with _written_whole(target) as folder:
        graph = folder / "onnx" / f"model{settings.suffix}.onnx"
        graph.parent.mkdir()
        data_files = write_graph(decoder, graph, settings, progress)
        write_sidecars(folder, checkpoint, config, settings, len(data_files))
    return Path(out)


def is_exported(folder: Path) -> bool:
    """Whether `folder` holds a graph that Pippin wrote."""
    for graph in sorted(folder.glob("onnx/*.onnx")):
        try:
            if onnx.load(graph, load_external_data=False).producer_name == PRODUCER:
                return True
        except Exception:  # no protobuf message; the parser's exception type is not public
            continue
    return False


def best_dialect(config: ModelConfig) -> str:
    """The dialect that onnxruntime runs fastest, of those that take the model's heads."""
    return "standard" if config.head_dim % _GQA_HEAD_MULTIPLE else "gqa"


def _check_choice(what: str, choice: str, known: tuple[str, ...]) -> None:
    if choice not in known:
        raise InputError(f"there is no {what} {choice!r}; choose {', '.join(known)}")


def _check_target(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise InputError(f"{target} is a file; choose a directory that does not exist")
    if not any(target.iterdir()):
        return
    if not is_exported(target):
        raise InputError(f"{target} exists and no export wrote it; choose another directory")
    if not overwrite:
        raise InputError(f"{target} exists; allow overwriting it or choose another directory")


def _context(config: ModelConfig, wanted: int | None) -> int:
    if wanted is not None and not 1 <= wanted <= config.context:
        raise InputError(
            f"context {wanted} is out of range: the model was made for 1 to {config.context} tokens"
        )
    return wanted or config.context


def _check_dialect(config: ModelConfig, settings: Settings) -> None:
    if settings.dialect == "gqa" and config.head_dim % _GQA_HEAD_MULTIPLE:
        raise InputError(
            f"the model's heads have {config.head_dim} dimensions, the dialect gqa takes multiples "
            f"of {_GQA_HEAD_MULTIPLE} only; export it with the dialect standard"
        )


@contextmanager
def _written_whole(target: Path) -> Iterator[Path]:
    """A directory beside `target` that takes its place at the end, or is removed."""
    partial, old = (
        target.with_name(f".{target.name}.{os.getpid()}.{part}") for part in ("partial", "old")
    )
    created = [parent for parent in target.parents if not parent.exists()]
    try:
        partial.mkdir(parents=True)
        yield partial
        _replace(target, partial, old)
    except OSError as error:
        raise _disk_error(error, target) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        if not target.exists():
            for parent in created:
                parent.rmdir()


def _replace(target: Path, partial: Path, old: Path) -> None:
    """Two renames where there was a folder before; it comes back if the second fails."""
    if not target.exists():
        partial.rename(target)
        return
    target.rename(old)
    try:
        partial.rename(target)
    except BaseException:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _disk_error(error: OSError, target: Path) -> InputError:
    if error.errno in _FULL:
        return InputError(
            f"no space left on the disk of {target}; nothing was kept: free some, or choose a "
            "directory on another disk"
        )
    return InputError(f"cannot write {error.filename or target}: {error.strerror or error}")
