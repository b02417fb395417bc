"""How schemes of positions weigh distance: what a score owes to it, whatever the tokens say.

Shapes: H heads · D head_dim. A distance is query minus key, in tokens. Everything is computed from
the model's own tables and slopes (`mlx_model`), no formula is written a second time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...runtime.errors import InputError
from .series import Chart, Series

if TYPE_CHECKING:
    from ...mlx_model.positions import RopeConfig

_BASE = 10000.0  # of the rotations and of the sinusoids, as in their papers
_POINTS = 200  # distances of a chart, more than a screen has room for
_RELATIVE = "expected score of equal content, relative to no rotation"
_BIAS = "added to the score, in logits"


@dataclass(frozen=True)
class Curve:
    """One scheme, or one head of it."""

    scheme: str
    paper: str  # arXiv number
    formula: str
    meaning: str  # of the values
    values: np.ndarray  # float64 [furthest + 1], by distance
    # Pairs of dimensions whose angle at the furthest distance is one that no distance within the
    # trained length has: less than a full turn was seen, and now they turn further. None for
    # schemes without angles.
    unseen_pairs: int | None
    pairs: int | None


@dataclass(frozen=True)
class PositionCurves:
    """All schemes over the same distances."""

    trained: int  # tokens that the model is taken to have been trained on
    furthest: int  # the last distance
    heads: int  # H; the sinusoids are H·D wide
    head_dim: int  # D
    base: float  # theta of the rotations, and of the sinusoids
    curves: tuple[Curve, ...]

    def charts(self) -> list[Chart]:
        """One chart for schemes that turn, one for ALiBi's heads; distances from 1 on."""
        spaced = np.geomspace(1, self.furthest, _POINTS).round().astype(int)
        distances = np.unique([*spaced, self.trained])
        turning = [curve for curve in self.curves if curve.pairs is not None]
        falling = [curve for curve in self.curves if curve.pairs is None]
        trained = f"trained on {self.trained:,} tokens"
        return [
            _chart(f"Positions that turn ({trained})", _RELATIVE, turning, distances),
            _chart(f"ALiBi, head by head ({trained})", _BIAS, falling, distances),
        ]


def _chart(title: str, y_title: str, curves: Sequence[Curve], distances: np.ndarray) -> Chart:
    x = tuple(float(distance) for distance in distances)
    return Chart(
        title=title,
        x_title="distance, tokens",
        y_title=y_title,
        log_x=True,
        log_y=False,
        series=tuple(
            Series(curve.scheme, x, tuple(curve.values[distances].tolist()), "") for curve in curves
        ),
    )


def position_curves(
    trained: int = 2048, furthest: int = 8192, *, head_dim: int = 64, heads: int = 8
) -> PositionCurves:
    """The curves of sinusoids, RoPE, NTK, YaRN and ALiBi for distances 0…`furthest`.

    What stretches is given as much stretch as the furthest distance needs. Raises InputError unless
    2 <= trained < furthest, `heads` is positive, and `head_dim` is even and at least 4.
    """
    if not 2 <= trained < furthest:
        raise InputError(
            f"curves from a trained length of {trained} to a distance of {furthest} were asked "
            "for; give a length of at least 2 and a greater distance"
        )
    if head_dim < 4 or head_dim % 2 or heads < 1:
        raise InputError(
            f"curves for {heads} heads of {head_dim} dimensions were asked for; "
            "give at least 1 head and an even number of dimensions from 4 on"
        )
    ropes = _ropes(trained, furthest, head_dim)
    curves = (
        _sinusoidal(trained, furthest, heads * head_dim),
        *(_rotation(scheme, rope, trained, furthest) for scheme, rope in ropes.items()),
        *_alibi(heads, furthest),
    )
    return PositionCurves(trained, furthest, heads, head_dim, _BASE, curves)


def rope_curve(rope: "RopeConfig", furthest: int) -> np.ndarray:
    """The expected q·k of equal random content at distances 0…`furthest`, over D; float64.

    With q = k = x before they turn, x of independent standard normal dimensions, and R_d the
    rotation by distance d: E[xᵀ R_d x] / D = m² · mean_i cos(d·ω_i), ω_i the pairs' inverse
    frequencies (RoPE, arXiv:2104.09864, equation 16) and m YaRN's magnitude (arXiv:2309.00071,
    section 3.4). Unrelated q and k have expectation 0 at any distance. `rope` turns the whole
    head and must not depend on length (see `RopeConfig.at`).
    """
    from ...mlx_model.positions import rope_tables

    cos, sin = (table.astype(np.float64) for table in rope_tables(rope, furthest + 1))
    return (cos * cos[0] + sin * sin[0]).mean(axis=1)


def _ropes(trained: int, furthest: int, head_dim: int) -> dict[str, "RopeConfig"]:
    """The rotations, read from settings as a checkpoint's config.json has them."""
    from ...mlx_model.families.common.reader import ConfigReader
    from ...mlx_model.families.common.rope import RopeDefaults, read_rope

    length = furthest + 1  # the fewest tokens that have that distance
    scalings = {
        "RoPE": {"rope_type": "default"},
        # With factor 1 the base grows just so far that the slowest pair turns as far as trained.
        "NTK": {"rope_type": "dynamic", "factor": 1.0},
        "YaRN": {
            "rope_type": "yarn",
            "factor": length / trained,
            "original_max_position_embeddings": trained,
        },
    }
    ropes = {}
    for scheme, scaling in scalings.items():
        content = {"max_position_embeddings": trained, "rope_theta": _BASE, "rope_scaling": scaling}
        reader = ConfigReader(content)
        ropes[scheme] = read_rope(reader, RopeDefaults(head_dim, trained)).at(length)
    return ropes


_ROPE_TEXTS = {
    "RoPE": ("2104.09864", "mean_i cos(d·ω_i), ω_i = base^(−2i/D)"),
    "NTK": ("2309.00071", "RoPE's, base times (length/trained)^(D/(D−2))"),
    "YaRN": ("2309.00071", "(0.1·ln s + 1)² · mean_i cos(d·ω_i), slow ω_i divided by s"),
}


def _rotation(scheme: str, rope: "RopeConfig", trained: int, furthest: int) -> Curve:
    from ...mlx_model.positions import RopeConfig, inverse_frequencies

    seen = inverse_frequencies(RopeConfig(_BASE, rope.dims))  # unstretched, as in training
    paper, formula = _ROPE_TEXTS[scheme]
    return Curve(
        scheme=scheme,
        paper=paper,
        formula=formula,
        meaning=_RELATIVE,
        values=rope_curve(rope, furthest),
        unseen_pairs=_unseen(seen * trained, inverse_frequencies(rope) * furthest),
        pairs=len(seen),
    )


def _sinusoidal(trained: int, furthest: int, width: int) -> Curve:
    """The dot product of two rows of the table (arXiv:1706.03762, section 3.5), over its largest.

    Sines and cosines of the same angles make it a sum of cos(d·ω_i), wherever the two rows stand.
    """
    from ...mlx_model.encoder_families.common import sinusoids
    from ...mlx_model.positions import RopeConfig, inverse_frequencies

    table = sinusoids(furthest + 1, width).astype(np.float64)
    frequencies = inverse_frequencies(RopeConfig(_BASE, width))  # those of the paper, too
    return Curve(
        scheme="sinusoidal",
        paper="1706.03762",
        formula="mean_i cos(d·ω_i), ω_i = 10000^(−2i/E), of the embeddings and not of q and k",
        meaning=_RELATIVE,
        values=table @ table[0] / (width / 2),
        unseen_pairs=_unseen(frequencies * trained, frequencies * furthest),
        pairs=width // 2,
    )


def _alibi(heads: int, furthest: int) -> list[Curve]:
    """The bias −slope_h·d of each head (arXiv:2108.12409, section 3), in logits."""
    from ...mlx_model.families.common.alibi import alibi

    distances = np.arange(furthest + 1, dtype=np.float64)
    return [
        Curve(
            scheme=f"ALiBi, head {head}",
            paper="2108.12409",
            formula=f"−{slope:.4g}·d",
            meaning=_BIAS,
            values=0.0 - slope * distances,
            unseen_pairs=None,
            pairs=None,
        )
        for head, slope in enumerate(alibi(heads).slopes)
    ]


def _unseen(trained: np.ndarray, now: np.ndarray) -> int:
    """Pairs that made no full turn in training [radians] and turn further now."""
    return int(((trained < 2 * np.pi) & (now > trained)).sum())
