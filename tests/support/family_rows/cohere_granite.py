"""Command-R, Granite."""

from .row import Row

ROWS: tuple[Row, ...] = ()
