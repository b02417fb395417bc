"""How one token attends in one head, as a report: which head is shown, and what it read.

Shapes: S tokens · N layers · H query heads · K key/value heads · D head_dim.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...runtime.engine import Progress
from ...runtime.errors import InputError
from ...runtime.ort_engine import OrtEngine
from .attention import step, top_keys, weights
from .heads import token_spans
from .trace import LayerTrace, Trace, trace

if TYPE_CHECKING:
    from ...runtime.generator import Generator
    from ...runtime.tokenizer import Tokenizer

CAVEAT = (
    "Attention is not an explanation: a weight says what a head read, not why the model answered "
    "as it did, and other weights can give the same answer (arXiv:1902.10186; for the other side, "
    "arXiv:1908.04626)."
)
DEFAULT_TOP = 8  # keys of a query that are shown
_TRACE_BYTES = 512 << 20  # of operands that a choice of layers may hold


@dataclass(frozen=True)
class TokenText:
    """A token of the text."""

    index: int  # from 0
    id: int
    text: str  # as `Tokenizer.token_text` writes it


@dataclass(frozen=True)
class KeyRow:
    """What one key was to the query."""

    token: TokenText
    k_norm: float  # length of the key vector
    product: float  # q·k
    scaled: float  # q·k times the scale
    score: float  # after softcap and ALiBi, where the model has them
    weight: float  # after the softmax
    mean_weight: float  # of all heads of the layer, on average
    v_norm: float  # length of the value vector


@dataclass(frozen=True)
class StepReport:
    """One query of one head, from its vectors to the weighted sum."""

    query: TokenText
    layer: int  # from 0
    head: int  # from 0
    kv_head: int  # whose keys and values the head reads
    why: str  # how token, layer and head came to be chosen
    tokens: int  # S
    heads: int  # H, of the layer
    kv_heads: int  # K
    head_dim: int  # D; q is [D], keys and values are [S, D]
    scale: float
    softcap: float | None
    slope: float | None  # of ALiBi
    window: int | None  # W, keys
    q_norm: float
    seen: int  # keys
    masked: int  # keys: those that come after the query or are outside the window
    top: tuple[KeyRow, ...]  # by falling weight
    other_weight: float  # of all keys that are not in `top`
    sink_weight: float  # of the head's own sink, which has no key
    first_weight: float  # of the first token
    output_norm: float  # length of the weighted sum of values


@dataclass(frozen=True)
class View:
    """The layer and head that are shown for a query."""

    trace: LayerTrace
    logits: np.ndarray  # [V], of the text's last token
    query: int
    head: int
    why: str


@dataclass(frozen=True)
class Likely:
    """A token that might have come."""

    rank: int  # from 0
    token: int
    text: str
    logit: float
    probability: float  # softmax of the model's logits: no temperature, nothing cut


def likeliest(
    tokenizer: "Tokenizer", logits: np.ndarray, chosen: int, count: int
) -> tuple[Likely, ...]:
    """The `count` likeliest tokens by logits [V], and `chosen` where it is none of them."""
    order = np.argsort(-logits, kind="stable")
    mass = np.exp(logits.astype(np.float64) - logits.max())
    mass /= mass.sum()
    own = int(np.flatnonzero(order == chosen)[0])
    ranks = sorted({*range(min(count, len(order))), own})
    return tuple(
        Likely(rank, token, tokenizer.token_text(token), float(logits[token]), float(mass[token]))
        for rank, token in ((rank, int(order[rank])) for rank in ranks)
    )


def token_texts(tokenizer: "Tokenizer", tokens: Sequence[int]) -> list[TokenText]:
    """The tokens of a text, for display."""
    return [TokenText(i, int(t), tokenizer.token_text(int(t))) for i, t in enumerate(tokens)]


def find_token(tokenizer: "Tokenizer", tokens: Sequence[int], wanted: str | None) -> int:
    """The index of the token that `wanted` means; None is the last one.

    A whole number is an index, from the end when it is negative. Anything else is a piece of the
    text: the token with which its last occurrence ends. Raises InputError when there is none.
    """
    count = len(tokens)
    if wanted is None:
        return count - 1
    try:
        index = int(wanted)
    except ValueError:
        return _find_text(tokenizer, tokens, wanted)
    if not -count <= index < count:
        raise InputError(f"there is no token {index}; the text has {count}, give 0 to {count - 1}")
    return index % count


def _find_text(tokenizer: "Tokenizer", tokens: Sequence[int], wanted: str) -> int:
    texts = [tokenizer.token_text(int(token)) for token in tokens]
    special = [i for i, text in enumerate(texts) if text == wanted]
    if special:  # a token of its own, perhaps one that the text does not show
        return special[-1]
    at = tokenizer.decode(tokens).rfind(wanted) if wanted else -1
    if at < 0:
        raise InputError(
            f"{wanted!r:.60} does not stand in the text; give a piece of it or an index, "
            f"0 to {len(tokens) - 1}"
        )
    end = at + len(wanted)
    spans = token_spans(tokenizer, tokens)
    return max(i for i, (low, high) in enumerate(spans) if low < end and high > at)


def choose_view(
    generator: "Generator",
    tokens: Sequence[int],
    query: int,
    layer: int | None = None,
    head: int | None = None,
    progress: Progress | None = None,
    read: Callable[..., Trace] = trace,
) -> View:
    """The operands of the head to show for token `query`.

    What is not given is chosen: of the middle third of the layers, the head that gives least
    weight to the first token, where idle heads look, to the token before the query and to the
    query itself. Of a long text fewer layers are held, around the middle. Raises InputError for a
    layer or head that the model does not have, and as `trace` does; `read` is that, or a server's
    way to call it.
    """
    # One token is enough to learn how many layers and heads there are.
    shapes = read(generator, tokens[:1], None if layer is None else [layer]).layers
    layers = _middle(list(shapes.values()), len(tokens)) if layer is None else [layer]
    if head is not None:
        _check_head(head, max(shapes[number].spec.heads for number in layers))
    traced = read(generator, tokens, layers, progress)
    found, logits = traced.layers, traced.logits
    best: tuple[float, int, int] | None = None
    for number in sorted(found):
        one = found[number]
        if layer is not None and head is not None:
            return View(one, logits, query, head, "as asked for")
        rows = weights(one, [query])[:, 0]
        idle = rows[:, sorted({0, max(query - 1, 0), query})].sum(axis=-1)
        for candidate in range(one.spec.heads) if head is None else [head]:
            if candidate < len(idle) and (best is None or idle[candidate] < best[0] - 1e-6):
                best = (float(idle[candidate]), number, candidate)
    share, number, chosen = best
    return View(found[number], logits, query, chosen, _why(layers, layer, head, share))


def _middle(shapes: Sequence[LayerTrace], tokens: int) -> list[int]:
    """The middle third of the layers, or as many around its middle as there is memory for.

    `shapes` are all layers' operands for one token.
    """
    count = len(shapes)
    third = list(range(count // 3, max(2 * count // 3, count // 3 + 1)))
    size = tokens * max(one.q.nbytes + one.k.nbytes + one.v.nbytes for one in shapes)
    left_out = len(third) - min(len(third), max(1, _TRACE_BYTES // size))
    return third[left_out // 2 : len(third) - (left_out + 1) // 2]


def _why(layers: Sequence[int], layer: int | None, head: int | None, share: float) -> str:
    rule = f"least weight to the first token, the one before and itself ({100 * share:.0f} %)"
    if layer is not None:
        return f"layer {layer} as asked for; of its heads, the one that gives {rule}"
    several = f"layers {layers[0]} to {layers[-1]}" if layers[1:] else f"layer {layers[0]}"
    if head is not None:
        return f"head {head} as asked for; of {several}, the one in which it gives {rule}"
    return f"of the heads of {several}, the one that gives {rule}"


def _check_head(head: int, heads: int) -> None:
    if not 0 <= head < heads:
        raise InputError(f"there is no head {head}; a layer has {heads}, give 0 to {heads - 1}")


def report_step(texts: Sequence[TokenText], view: View, top: int = DEFAULT_TOP) -> StepReport:
    """The numbers of `view`, with the `top` keys of the largest weights."""
    layer, spec, query = view.trace, view.trace.spec, view.query
    found = step(layer, view.head, query)
    mean = weights(layer, [query])[:, 0].mean(axis=0)
    seen = np.flatnonzero(found.seen)
    order = seen[np.argsort(-found.weights[seen], kind="stable")][:top]
    rows = tuple(
        KeyRow(
            token=texts[key],
            k_norm=float(found.k_norms[key]),
            product=float(found.products[key]),
            scaled=float(found.scaled[key]),
            score=float(found.scores[key]),
            weight=float(found.weights[key]),
            mean_weight=float(mean[key]),
            v_norm=float(found.v_norms[key]),
        )
        for key in order
    )
    shown = float(found.weights[order].sum(dtype=np.float64))
    return StepReport(
        query=texts[query],
        layer=layer.layer,
        head=view.head,
        kv_head=view.head // (spec.heads // spec.kv_heads),
        why=view.why,
        tokens=layer.q.shape[1],
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        scale=spec.scale,
        softcap=spec.softcap,
        slope=None if layer.slopes is None else float(layer.slopes[view.head]),
        window=spec.window,
        q_norm=found.q_norm,
        seen=len(seen),
        masked=layer.k.shape[1] - len(seen),
        top=rows,
        other_weight=max(1.0 - shown - found.sink_weight, 0.0),
        sink_weight=found.sink_weight,
        first_weight=float(found.weights[0]),
        output_norm=float(np.linalg.norm(found.output)),
    )


def read_by(
    texts: Sequence[TokenText], view: View, queries: Sequence[int], top: int
) -> list[list[tuple[TokenText, float]]]:
    """For each of `queries`, the `top` keys of the largest weights in the head of `view`."""
    ids, found = top_keys(view.trace, top, queries)
    return [
        [(texts[key], float(weight)) for key, weight in zip(*row, strict=True) if key >= 0]
        for row in zip(ids[view.head], found[view.head], strict=True)
    ]


def traced_apart(generator: "Generator") -> bool:
    """Whether replies are made by another graph than attention is shown of: the one that rounds
    activations and keys to int8, which is the quicker.
    """
    engine = generator.engine
    if not isinstance(engine, OrtEngine):
        return False
    from ...runtime.folder import open_folder

    folder = engine.folder
    return open_folder(folder.path, folder.weights, "float").graph != folder.graph
