"""`export_folder`: a checkpoint becomes a folder, whole or not at all."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx

from ..mlx_model.checkpoints.checkpoint import Checkpoint
from ..mlx_model.checkpoints.whole_folder import check_target, written_whole
from ..mlx_model.config import ModelConfig
from ..mlx_model.decoder import Decoder
from ..mlx_model.load import load_decoder
from ..runtime.errors import InputError
from ..runtime.folder import runs_right
from ..runtime.memory import return_freed_memory
from .builder import PRODUCER
from .find_outliers import find_outliers
from .graph import Progress, write_graph
from .int8_cache import calibration_ids
from .quantize import quantize_decoder
from .requirements import minimum_onnxruntime
from .settings import DIALECTS, KV_TYPES, WEIGHTS, Settings
from .sidecars import WrittenGraph, write_sidecars
from .targets import TARGETS
from .targets import check_target as check_target_fits

_GQA_HEAD_MULTIPLE = 8  # onnxruntime's GroupQueryAttention attends with heads of such sizes only


def export_folder(
    checkpoint: Checkpoint,
    out: Path,
    *,
    weights: str | Sequence[str] | None = None,
    dialect: str | None = None,
    context: int | None = None,
    kv: str | None = None,
    target: str = "cpu",
    sampling: bool = False,
    exact: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Path:
    """Export a checkpoint to the folder `out`, which is returned.

    `weights`: "fp32", "fp16", "q4" or "int8", or several of them for as many graphs, of which
    genai_config.json names the first; what the checkpoint has quantized is taken over as it is.
    `dialect`: "gqa" for onnxruntime's fused operators, "standard" for ONNX's own. `context` is the
    longest sequence in tokens, the model's own when None. `kv`: what the KV cache holds, "int8" or
    the activations' type; None for the latter, and for quantized weights in gqa graphs for the CPU
    the former too, as a second graph on the same data files. For int8 the graph is run here on two
    short sequences. `target`
    is whom the graphs are made for, a key of `targets.TARGETS`; it decides on weights and dialect
    where they are None. `sampling` adds the outputs of `sampling_head`. `exact` makes
    the graph that parity is measured with: no int8 activations, no dropped residuals; slow.
    `overwrite` permits replacing a folder that an export wrote. `progress(done, total)` counts
    bytes of the checkpoint's weights, once a graph.

    The folder appears under its name when it is complete; what fails or is interrupted leaves
    nothing. Raises InputError for settings that do not fit the model or the target, an `out` that
    exists and may not be replaced, weights beyond float16's range, and a disk that is full.
    """
    check_choice("target", target, tuple(TARGETS))
    kinds = [weights] if isinstance(weights, str) else weights or [TARGETS[target].default_weights]
    place = Path(out).resolve()
    check_target(place, overwrite, is_ours, "export")
    config = load_decoder(checkpoint).config
    wanted = Settings(
        dialect=dialect or TARGETS[target].dialects[0],
        context=_context(config, context),
        exact=exact,
        packed=TARGETS[target].packed,
        sampling=sampling,
    )
    each = [_settings(config, wanted, kind, kv, target) for kind in dict.fromkeys(kinds)]
    overall = _Overall(progress, len(each))
    with written_whole(place) as folder:
        (folder / "onnx").mkdir()
        graphs = [
            _write(
                checkpoint,
                folder,
                config,
                settings,
                target,
                kv in (None, "int8") and _is_quick(settings, target),
                overall.next(),
            )
            for settings in each
        ]
        write_sidecars(folder, checkpoint, config, graphs)
    return Path(out)


def _settings(
    config: ModelConfig, wanted: Settings, weights: str, kv: str | None, target: str
) -> Settings:
    """Those of one graph. Raises InputError for what does not fit."""
    check_choice("weights", weights, WEIGHTS)
    check_choice("dialect", wanted.dialect, DIALECTS)
    settings = replace(wanted, weights=weights, kv=_kv_type(wanted.dialect, weights, kv))
    check_target_fits(target, config, settings)
    _check_dialect(config, settings)
    return settings


def _write(
    checkpoint: Checkpoint,
    folder: Path,
    config: ModelConfig,
    settings: Settings,
    target: str,
    quick: bool,
    progress: Progress | None,
) -> WrittenGraph:
    quick = quick and runs_right(minimum_onnxruntime(config, settings))
    calibration: list[list[int]] = []
    if quick or settings.kv == "int8":
        calibration = calibration_ids(checkpoint, config.vocab_size, settings.context)
    if quick:
        outliers = _outliers(checkpoint, folder, config, settings, calibration)
        settings = replace(settings, outliers=outliers)
    path = folder / "onnx" / f"model{settings.suffix}.onnx"
    decoder = _decoder(checkpoint, settings)
    data_files = write_graph(decoder, path, settings, progress, calibration)
    left_over = TARGETS[target].left_over(onnx.load(path, load_external_data=False))
    return WrittenGraph(settings, len(data_files), target, tuple(left_over))


def _is_quick(settings: Settings, target: str) -> bool:
    """Whether a quick variant stands beside such a graph, if there may be two."""
    fits = TARGETS[target].int8 and settings.dialect == "gqa"
    return fits and settings.quantized and not settings.exact


def _decoder(checkpoint: Checkpoint, settings: Settings) -> Decoder:
    """A decoder for one graph, which uses it up."""
    return_freed_memory()
    decoder = load_decoder(checkpoint)
    if settings.quantized:
        quantize_decoder(decoder, settings.weights)
    return_freed_memory()
    return decoder


def _outliers(
    checkpoint: Checkpoint,
    folder: Path,
    config: ModelConfig,
    settings: Settings,
    calibration: list[list[int]],
) -> dict[str, tuple[int, ...]]:
    """What `find_outliers` finds on the exact graph, which is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=folder) as place:
        path = Path(place) / "exact.onnx"
        exact = replace(settings, exact=True, kv="fp32", sampling=False)
        write_graph(_decoder(checkpoint, settings), path, exact)
        return find_outliers(path, config, calibration)


class _Overall:
    """Progress of several graphs as one; of those to come, each is taken to be as large."""

    def __init__(self, report: Progress | None, graphs: int):
        self._report, self._left = report, graphs + 1
        self._before = self._total = 0  # bytes of the graphs that are done; of this one

    def next(self) -> Progress | None:
        """What the next graph reports to."""
        self._before, self._total, self._left = self._before + self._total, 0, self._left - 1
        return self._report and self._add

    def _add(self, done: int, total: int) -> None:
        self._total = total
        self._report(self._before + done, self._before + total * self._left)


def is_ours(folder: Path) -> bool:
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


def check_choice(what: str, choice: str, known: tuple[str, ...]) -> None:
    if choice not in known:
        raise InputError(f"there is no {what} {choice!r}; choose {', '.join(known)}")


def _kv_type(dialect: str, weights: str, kv: str | None) -> str:
    """What the cache of such a graph holds. Raises InputError for what no CPU kernel takes."""
    own = "fp16" if weights == "fp16" else "fp32"
    if kv in (None, own):
        return own
    check_choice("type of KV cache", kv, KV_TYPES)
    if kv == "int8" and dialect == "standard":
        raise InputError("ONNX's Attention takes no int8 KV cache; export with the dialect gqa")
    if kv != "int8":
        raise InputError(
            f"with {weights} weights onnxruntime's attention takes a KV cache in {own} or int8, "
            f"not in {kv}; choose one of these, or fp16 weights for a cache in fp16"
        )
    return kv


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
