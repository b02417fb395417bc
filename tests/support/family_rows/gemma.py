"""Gemma 1, 2 and 3."""

from .row import Row

ROWS: tuple[Row, ...] = ()
