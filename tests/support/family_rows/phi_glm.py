"""Phi-3 and GLM-4."""

from .row import Row

ROWS: tuple[Row, ...] = ()
