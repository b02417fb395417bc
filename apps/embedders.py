"""From a model's name to an embedder: which backend runs it, and the export that one needs."""

from pathlib import Path
from typing import TYPE_CHECKING

from ..runtime.errors import InputError
from .models import BACKENDS, Stages, choose_backend, export_once, refuse_mlx

if TYPE_CHECKING:
    from ..runtime.embedder import Embedder

DEFAULT_WEIGHTS = "fp32"  # of the export that the onnx backend makes


def load_embedder(
    name: str,
    backend: str = "auto",
    *,
    weights: str | None = None,
    threads: int | None = None,
    fetch: bool = True,
    stages: Stages | None = None,
) -> "Embedder":
    """The embedder of the encoder `name`; arguments as of `models.load_model`.

    `name` may be a folder that `pippin export` wrote. Raises InputError: unknown model or backend,
    a model that is no encoder, options that the backend does not have.
    """
    if backend not in BACKENDS:
        raise InputError(f"there is no backend {backend!r}; choose {', '.join(BACKENDS)}")
    from ..runtime.ort_embedder import OrtEmbedder, is_exported_encoder

    folder = Path(name).expanduser()
    if is_exported_encoder(folder):
        refuse_mlx(backend, name)
        return OrtEmbedder.from_folder(folder, weights=weights, threads=threads)
    backend = choose_backend(backend)
    from ..mlx_model.checkpoints import store
    from ..mlx_model.checkpoints.checkpoint import open_checkpoint
    from ..mlx_model.encoder_families import has_encoder, is_encoder, read_encoder_family

    progress = stages(f"fetching {name}", "bytes") if stages else None
    path = store.resolve(name, fetch=fetch, progress=progress)
    checkpoint = open_checkpoint(path)
    if not is_encoder(checkpoint.config):
        if has_encoder(checkpoint.config):
            raise InputError(f"{name} writes text; `pippin generate` runs it")
        read_encoder_family(checkpoint.config)  # says what it is, and what is implemented
    if backend == "onnx":
        exported = export_once(path, name, weights or DEFAULT_WEIGHTS, None, stages)
        return OrtEmbedder.from_folder(exported, threads=threads)
    if weights or threads:
        option = "--weights" if weights else "--threads"
        raise InputError(
            f"{option} is for --backend onnx; the mlx backend runs the checkpoint as it is"
        )
    from ..mlx_model.embedder import MlxEmbedder

    return MlxEmbedder(checkpoint)
