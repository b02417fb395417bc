"""From a model's name to a quantized folder, and what that costs in perplexity."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .models import Stages, default_output, load_model, open_with_adapter, require_mlx
from .perplexity import CONTEXT, Report, built_in_text, evaluate

if TYPE_CHECKING:
    from ..mlx_model.quantize import Quantized


@dataclass(frozen=True)
class Outcome:
    """What was written and, where it was asked for, the perplexity of both models on MLX."""

    quantized: "Quantized"
    before: Report | None = None
    after: Report | None = None


def quantize_model(
    name: str,
    output: Path | None = None,
    *,
    adapter: Path | None = None,
    measure: bool = False,
    fetch: bool = True,
    stages: Stages | None = None,
    **options: Any,
) -> Outcome:
    """Quantize the checkpoint `name` to the folder `output`.

    Without `output`, to the model's name with its bits or mode ("-4bit", "-mxfp4") in the current
    directory. `adapter` is the folder of one to fuse in first. `measure` computes the perplexity
    of both on one window of the built-in text. `options` are those of
    `mlx_model.quantize.quantize_checkpoint`. Raises InputError as `resolve`, `open_with_adapter`
    and that do.
    """
    require_mlx("quantizing")
    from ..mlx_model.checkpoints import store
    from ..mlx_model.quantize import quantize_checkpoint

    fetching = stages(f"fetching {name}", "bytes") if stages else None
    path = store.resolve(name, fetch=fetch, progress=fetching)
    checkpoint = open_with_adapter(path, adapter)
    progress = stages(f"quantizing {name}", "bytes") if stages else None
    output = output or default_output(name, _ending(**options))
    quantized = quantize_checkpoint(checkpoint, output, progress=progress, **options)
    if not measure:
        return Outcome(quantized)
    before = _measure(path, adapter, stages)
    return Outcome(quantized, before, _measure(quantized.path, None, stages))


def _ending(
    mode: str = "affine", bits: int | None = None, recipe: str | None = None, **_: Any
) -> str:
    if recipe is not None:
        return recipe
    return f"{bits or 4}bit" if mode == "affine" else mode


def _measure(path: Path, adapter: Path | None, stages: Stages | None) -> Report:
    generator = load_model(str(path), "mlx", adapter=adapter, stages=stages).generator
    progress = stages(f"reading a text with {path}", "tokens") if stages else None
    return evaluate(generator, built_in_text(), max_tokens=CONTEXT, progress=progress)
