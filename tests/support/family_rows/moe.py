"""Mixtures of experts."""

from .row import Row

ROWS: tuple[Row, ...] = ()
