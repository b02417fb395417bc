"""A report as plain data: what `--json` prints, and what the page's program draws."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ...runtime.errors import InputError
from ...runtime.sampling import SamplingParams
from .explanation import CAVEAT, TokenText
from .heads import HeadReport, describe
from .packing import LOG_FLOOR, MOST_BYTES, choose_layers, layer_bytes, pack_layer
from .position_curves import PositionCurves
from .reading import Reading
from .trace import chosen_layers, trace
from .walkthrough import Walkthrough

_TOGETHER = 64_000_000  # numbers of queries, keys and values held while layers are packed


def reading_data(reading: Reading) -> dict[str, Any]:
    """The text, its step, and its reply with what was read for each token."""
    data: dict[str, Any] = {
        "backend": reading.generator.engine.info.backend,
        "caveat": CAVEAT,
        "tokens": [asdict(token) for token in reading.tokens],
        "prompt_tokens": reading.prompt_tokens,
        "step": asdict(reading.step),
    }
    if reading.walk is not None:
        data["walkthrough"] = walk_data(reading.walk) | {
            "reads": [[_key(*pair) for pair in row] for row in reading.reads],
            "reads_of_other_graph": reading.other_graph,
        }
    return data


def walk_data(walk: Walkthrough) -> dict[str, Any]:
    """A reply, step by step; of its parameters those that are not at their defaults."""
    return {
        "text": walk.text,
        "finish_reason": walk.finish_reason,
        "params": _params(walk.params),
        "steps": [asdict(step) for step in walk.steps],
    }


def heads_data(report: HeadReport) -> dict[str, Any]:
    """By rule: scores and controls [N, H]."""
    return {
        kind: {
            "description": describe(kind),
            "score": scores.score.tolist(),
            "control": scores.control.tolist(),
            "uniform": scores.uniform,
            "queries": scores.queries,
        }
        for kind, scores in report.kinds.items()
    }


def positions_data(curves: PositionCurves) -> dict[str, Any]:
    """The curves at the distances of their charts."""
    schemes = [_without(curve, "values") for curve in curves.curves]
    charts = [asdict(chart) for chart in curves.charts()]
    return _without(curves, "curves") | {"schemes": schemes, "charts": charts}


def attention_data(
    reading: Reading,
    layers: Sequence[int] | None,
    top: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[dict[str, Any], str]:
    """The top keys of every token in `layers` (None: as many as fit), and in words what it holds.

    `progress(done, total)` counts layers. Raises InputError for a layer that there is none of, and
    for more than the page has room for.
    """
    ids, view = reading.ids, reading.view
    shapes = trace(reading.generator, ids[:1]).layers
    count, spec = len(shapes), view.trace.spec
    wanted = None if layers is None else chosen_layers(layers, count)
    each = layer_bytes(spec.heads, spec.kv_heads, len(ids), top)
    chosen, partly = choose_layers(wanted, view.trace.layer, count, each)
    if any(shapes[n].spec.heads != spec.heads for n in chosen):
        raise InputError(
            "the layers have different numbers of heads; give those alike with --layers"
        )
    numbers = (spec.heads + 2 * spec.kv_heads) * spec.head_dim * len(ids)
    step = max(1, _TOGETHER // numbers)
    packed = {}
    for start in range(0, len(chosen), step):
        found = trace(reading.generator, ids, chosen[start : start + step]).layers
        for number in sorted(found):
            packed[str(number)] = pack_layer(found[number], top)
            if progress:
                progress(len(packed), len(chosen))
    of = f"layers {', '.join(map(str, chosen))} of {count}" if partly else f"all {count} layers"
    held = f"{of}, {top} keys of each token and head"
    note = f"First shown: {view.why}. This page holds {held}."
    if partly and layers is None:
        note += f" All layers would not fit {MOST_BYTES / 1e6:.0f} MB; --layers chooses others."
    return {
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "tokens": len(ids),
        "top": top,
        "log_floor": LOG_FLOOR,
        "wide_keys": len(ids) > 2**16,
        "layers": packed,
        "chosen": {"layer": view.trace.layer, "head": view.head, "token": view.query},
        "note": note,
    }, held


def _key(token: TokenText, weight: float) -> dict[str, Any]:
    return {"index": token.index, "text": token.text, "weight": weight}


def _without(record: Any, name: str) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in fields(record) if f.name != name}


def _params(params: SamplingParams) -> dict[str, Any]:
    defaults = SamplingParams()
    values = {f.name: getattr(params, f.name) for f in fields(params)}
    values.pop("dry_sequence_breakers")  # token ids of a whole vocabulary
    found = {name: v for name, v in values.items() if v != getattr(defaults, name)}
    if isinstance(bias := found.get("logit_bias"), Mapping):
        found["logit_bias"] = {
            str(token): value if math.isfinite(value) else "-inf" for token, value in bias.items()
        }
    return found | {"temperature": params.temperature, "seed": params.seed}
