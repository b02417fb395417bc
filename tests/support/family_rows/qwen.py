"""Qwen2, Qwen3 and their mixtures of experts."""

from .row import Row

ROWS: tuple[Row, ...] = ()
