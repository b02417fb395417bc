"""What `pippin explain` shows, in words, tables and charts, for the terminal and the page alike."""

from collections.abc import Sequence
from math import floor, log10
from typing import TYPE_CHECKING

from ..apps.insight.html import Part, Table
from .console import format_bytes

if TYPE_CHECKING:
    from ..apps.bench import Figure
    from ..apps.insight.block import BlockNumbers
    from ..apps.insight.explanation import StepReport, TokenText
    from ..apps.insight.heads import HeadReport
    from ..apps.insight.position_curves import PositionCurves
    from ..apps.insight.recurrence.report import RecurrenceReport
    from ..apps.insight.walkthrough import Candidate, Step

_BEST = 3  # heads of each rule in the terminal's table
HEADS_NOTE = (
    "A score is a mean of attention weights on stated probe texts, 0 to 1, beside that of the same "
    "places when the text's tokens are shuffled. It says what a head did there, not what it is for."
)


def visible(text: str) -> str:
    """A token's text with its white space and control characters written out."""
    marks = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}
    shown = "".join(marks.get(c) or (c if c.isprintable() else ascii(c)[1:-1]) for c in text)
    return shown or "∅"


def counted(count: int, noun: str) -> str:
    """`1 token`, `2,000 tokens`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def percent(share: float) -> str:
    """A share of 1."""
    if 0 < share < 1e-4:
        return "<0.01 %"
    return f"{share:.2%}".replace("%", " %") if share < 0.01 else f"{share:.1%}".replace("%", " %")


def step_facts(report: "StepReport") -> list[str]:
    """What was computed, in its order, with shapes and lengths."""
    size, keys = report.head_dim, report.tokens
    root = f"1/√{size}" if abs(report.scale * size**0.5 - 1) < 1e-6 else "the model's scale"
    facts = [
        f"q [{size}] of length {report.q_norm:.3f}; k and v [{keys}, {size}] of key/value head "
        f"{report.kv_head} (the layer has {report.heads} heads and {report.kv_heads} of those)",
        f"q·k [{keys}], times {report.scale:.4g} ({root})",
    ]
    if report.softcap is not None:
        facts.append(f"softcap {report.softcap:g}: c·tanh(score/c)")
    if report.slope is not None:
        facts.append(f"ALiBi: less {report.slope:.4g} for each token of distance")
    window = "" if report.window is None else f", and those outside the window of {report.window}"
    facts.append(f"mask: {report.seen} of {keys} keys are seen; later ones{window} get nothing")
    sink = f"; the head's sink takes {percent(report.sink_weight)}" if report.sink_weight else ""
    facts.append(
        f"softmax over what is seen; the first token gets {percent(report.first_weight)}{sink}"
    )
    facts.append(f"weighted sum of the values: [{size}] of length {report.output_norm:.3f}")
    return facts


def step_table(report: "StepReport") -> Table:
    """Query → key, score, weight."""
    plain = report.softcap is None and report.slope is None
    headers = ["key", "token", "|k|", "q·k", "scaled", *([] if plain else ["score"])]
    rows = []
    for row in report.top:
        scores = [f"{row.product:.3f}", f"{row.scaled:.3f}"]
        scores += [] if plain else [f"{row.score:.3f}"]
        rows.append(
            [
                *(str(row.token.index), visible(row.token.text), f"{row.k_norm:.2f}", *scores),
                *(percent(row.weight), percent(row.mean_weight), f"{row.v_norm:.2f}"),
            ]
        )
    rest = report.seen - len(report.top)
    if rest:
        blank = [""] * (3 if plain else 4)
        rows.append(
            [
                "",
                counted(rest, "other"),
                *blank,
                percent(report.other_weight),
                "",
                "",
            ]
        )
    headers += ["weight", "all heads", "|v|"]
    return Table("", tuple((name, "") for name in headers), rows)


def why_chosen(step: "Step", settings: str) -> str:
    """One sentence on how the token of a step came to be chosen."""
    chosen = step.chosen
    text = f"“{visible(chosen.text)}”"
    if step.draw is None:
        first = step.candidates[0] if step.candidates else chosen
        if first.token == chosen.token:
            return f"{text} has the largest logit, and temperature 0 takes that."
        return (
            f"{text} has the largest logit once “{visible(first.text)}” and others are adjusted; "
            "temperature 0 takes it."
        )
    draw, left = step.draw, step.stages[-1].left
    tokens = f"{counted(left, 'token')} {'was' if left == 1 else 'were'}"
    return (
        f"{tokens} left to draw from; the draw {draw.number:.4f} ({settings}) fell into "
        f"{text}'s part, {draw.low:.4f} to {draw.high:.4f}."
    )


def candidate_rows(step: "Step") -> list[list[str]]:
    """The candidates of a step, and the chosen token where it is none of them."""
    listed: list[Candidate] = list(step.candidates)
    if step.chosen.token not in [one.token for one in listed]:
        listed.append(step.chosen)
    return [
        [
            "→" if one.token == step.chosen.token else "",
            str(one.rank + 1),
            visible(one.text),
            f"{one.logit:.2f}",
            "-∞" if one.adjusted is None else f"{one.adjusted:.2f}",
            percent(one.probability),
            f"cut by {one.cut_by}" if one.cut_by else percent(one.final),
        ]
        for one in listed
    ]


def stage_line(step: "Step") -> str:
    """What each of the sampler's steps did, in one line; "" where there is none."""
    parts = []
    for stage in step.stages:
        values = [
            f"{value:g}" for value in stage.settings.values() if isinstance(value, int | float)
        ]
        name = f"{stage.name} {values[0]}" if len(values) == 1 else stage.name
        if stage.removed and stage.name != "temperature":
            share = percent(stage.removed_probability)
            parts.append(f"{name} cut {stage.removed:,} ({share})")
        elif stage.changed and stage.name != "temperature":
            parts.append(f"{name} changed {stage.changed:,}")
        else:
            parts.append(name if stage.name == "temperature" else f"{name} cut none")
    return "; ".join(parts)


def reads_line(read: Sequence[tuple["TokenText", float]]) -> str:
    """Keys and their weights, in one line."""
    return ", ".join(f"{visible(key.text)} ({key.index}) {percent(w)}" for key, w in read)


def heads_part(report: "HeadReport") -> Part:
    """The best heads by each rule; the picture of all is drawn apart."""
    rows = []
    for kind, scores in report.kinds.items():
        for place, one in enumerate(scores.best(_BEST)):
            rows.append(
                [
                    "" if place else kind,
                    *(str(one.layer), str(one.head), f"{one.score:.3f}", f"{one.control:.3f}"),
                    *(("", "") if place else (f"{scores.uniform:.3f}", str(scores.queries))),
                ]
            )
    names = ("rule", "layer", "head", "score", "control", "uniform", "tokens")
    table = Table("", tuple((name, "") for name in names), rows)
    return Part("heads", "Heads by what they do", (HEADS_NOTE,), (table,))


def block_part(numbers: "BlockNumbers") -> Part:
    """Parameters, arithmetic and memory of a model at a length."""
    config, length = numbers.config, numbers.length
    total = sum(numbers.parameters.values())
    shares = [[n, f"{c:,}", percent(c / total)] for n, c in numbers.parameters.items()]
    flops = numbers.flops
    attention = flops.projections + flops.scores
    work = [
        ["attention, projections", flops.projections],
        [f"attention, scores and sum over {length:,} keys", flops.scores],
        ["attention, together", attention],
        ["MLP", flops.mlp],
        ["head (logits)", flops.head],
        ["all", flops.total],
    ]
    memory = [
        [f"KV cache, {kv.dtype}", format_bytes(kv.per_token), format_bytes(kv.total)]
        for kv in numbers.kv
    ]
    memory += [
        ["scores H×S×S, one layer, unfused", "", format_bytes(numbers.scores_layer)],
        ["scores H×S×S, all layers, unfused", "", format_bytes(numbers.scores_all)],
        ["flash attention's row sums H×S, one layer", "", format_bytes(numbers.row_sums)],
    ]
    for tile in numbers.tiles:
        name = f"flash attention's tile {tile.queries}×{tile.keys}, {tile.dtype}"
        held = format_bytes(tile.memory + tile.scores)
        memory.append([f"{name} ({tile.refused})" if tile.refused else name, "", held])
    note = (
        f"{numbers.model}: {config.layers} layers, hidden size {config.hidden_size}, "
        f"{config.heads} heads ({config.kv_heads} for keys and values) of {config.head_dim}; "
        f"at {length:,} tokens."
    )
    right = "number"
    return Part(
        "block",
        "The block in numbers",
        (note,),
        (
            Table("Parameters", (("part", ""), ("parameters", right), ("share", right)), shares),
            Table(
                "Work for the last token",
                (("part", ""), ("FLOPs", right), ("share", right)),
                [[name, f"{value:,}", percent(value / flops.total)] for name, value in work],
            ),
            Table(
                "Memory",
                (("what", ""), ("per token", right), (f"{length:,} tokens", right)),
                memory,
            ),
        ),
    )


def recurrence_part(report: "RecurrenceReport") -> Part:
    """An LSTM beside a decoder: time by length, gradient by distance."""
    right = "number"
    differences = "; ".join(f"{name} {value:.1e}" for name, value in report.differences.items())
    measured = (
        f"Measured here: {report.cpu}, onnxruntime {report.onnxruntime}, {report.threads} threads; "
        f"medians, with extremes, of {report.rounds} rounds, and medians of {report.seeds} seeds. "
        f"Largest deviation of what is timed from what the gradient is taken of, relative to the "
        f"largest logit: {differences}."
    )
    gains = [f"{name} {figure.median:.2f} ×" for name, figure in report.thread_gains.items()]
    threads = (
        f"Gain of {report.threads} threads over one, {report.gain_length:,} tokens in one call: "
        f"{', '.join(gains)}."
    )
    times = [
        [f"{length:,}", *(_milliseconds(timing.seconds[i]) for timing in report.timings)]
        for i, length in enumerate(report.timings[0].lengths)
    ]
    times.append(["growth", *(f"{timing.growth:.2f}" for timing in report.timings)])
    reaches = [
        [r.name, *(f"{share.median:.2g}" for share in r.shares), f"{r.kept_per_token:.3f}"]
        for r in report.reaches
    ]
    return Part(
        "recurrence",
        "Beside a recurrent network",
        (measured, *((threads,) if gains else ()), *report.notes),
        (
            Table(
                "Networks, of random weights",
                (("network", ""), ("parameters", right), ("shape", "")),
                [[n.name, f"{n.parameters:,}", n.shape] for n in report.networks],
            ),
            Table(
                "Milliseconds to read a text; growth is the exponent of time by length, from "
                f"{report.fit_from:,} tokens on",
                (
                    ("tokens", right),
                    *((f"{t.network}, {t.reading}", right) for t in report.timings),
                ),
                times,
            ),
            Table(
                "Gradient that reaches the first token, relative to the last token's, by distance",
                (
                    ("network", ""),
                    *((f"{n:,}", right) for n in report.reaches[0].distances),
                    ("left by each token", right),
                ),
                reaches,
            ),
        ),
        tuple(report.charts()),
    )


def _milliseconds(seconds: "Figure") -> str:
    """The median with three digits at least, and the extremes with as many decimals."""
    decimals = max(0, 2 - floor(log10(1e3 * seconds.median)))
    low, median, high = (
        f"{1e3 * s:,.{decimals}f}" for s in (seconds.low, seconds.median, seconds.high)
    )
    return f"{median} ({low}–{high})"


def positions_part(curves: "PositionCurves") -> Part:
    """Schemes of positions by distance."""
    right = "number"
    shown = [d for d in (1, 8, 64, 512, curves.trained, curves.furthest) if d <= curves.furthest]
    distances = sorted(set(shown))
    rows = [
        [
            *(curve.scheme, f"arXiv:{curve.paper}"),
            *(f"{curve.values[d]:,.3f}" for d in distances),
            "" if curve.pairs is None else f"{curve.unseen_pairs} of {curve.pairs}",
        ]
        for curve in curves.curves
    ]
    meanings = {curve.meaning: None for curve in curves.curves}
    return Part(
        "positions",
        "Positions by distance",
        (
            f"Schemes as a model trained on {curves.trained:,} tokens would have them, out to "
            f"{curves.furthest:,}; values: {'; for ALiBi '.join(meanings)}. Unseen pairs turn to "
            "angles that no distance had in training.",
        ),
        (
            Table(
                "By distance in tokens",
                (
                    *(("scheme", ""), ("paper", "")),
                    *((f"{d:,}", right) for d in distances),
                    ("unseen pairs", ""),
                ),
                rows,
            ),
        ),
        tuple(curves.charts()),
    )
