"""Models from before Llama: learned positions, ALiBi, parallel blocks."""

from .row import Row

ROWS: tuple[Row, ...] = ()
