"""Pictures of layers by heads in the terminal."""

import shutil
import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import numpy as np

    from ..apps.insight.heads import HeadReport

_GAP = 3
LEGEND = "Tenths: 9 is a score of 0.9 and more, a dot is less than 0.1."


def print_maps(report: "HeadReport") -> None:
    """A picture for each rule: a row a layer, a column a head; as many side by side as fit."""
    maps = [(kind, scores.score) for kind, scores in report.kinds.items()]
    layers, heads = maps[0][1].shape
    label = len(str(layers - 1)) + 1
    width = max(label + heads, *(len(kind) for kind, _ in maps))
    room = max(1, (shutil.get_terminal_size().columns + _GAP) // (width + _GAP))
    for start in range(0, len(maps), room):
        band = maps[start : start + room]
        click.echo()
        click.echo((" " * _GAP).join(kind.ljust(width) for kind, _ in band).rstrip())
        for layer in range(layers):
            _print_row(band, layer, label, width)


def _print_row(band: "list[tuple[str, np.ndarray]]", layer: int, label: int, width: int) -> None:
    name = str(layer).rjust(label - 1) + " "
    if not sys.stdout.isatty():
        rows = (name + "".join(_digit(v) for v in score[layer]) for _, score in band)
        click.echo((" " * _GAP).join(row.ljust(width) for row in rows).rstrip())
        return
    from rich.console import Console
    from rich.text import Text

    line = Text()
    for _, score in band:
        line.append(name, "dim")
        for value in score[layer]:
            line.append(_digit(value), _style(value))
        line.append(" " * (width - label - score.shape[1] + _GAP))
    Console(highlight=False, soft_wrap=True).print(line)


def _digit(value: float) -> str:
    return str(min(int(value * 10), 9)) if value >= 0.1 else "·"


def _style(value: float) -> Any:
    """Darker to brighter amber, under a text that stays readable."""
    from rich.style import Style

    if value < 0.1:
        return Style(dim=True)
    part = min(max(value, 0.0), 1.0)
    red, green = round(70 + 175 * part), round(40 + 125 * part)
    text = "black" if part > 0.5 else "white"
    return Style(color=text, bgcolor=f"rgb({red},{green},20)")
