"""One line of the table that families are tested by."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DIALECTS = ("gqa", "standard")
NO_GQA_HEADS = "the dialect gqa takes multiples of 8 only"  # refuses heads of other sizes


@dataclass(frozen=True, eq=False)
class Row:
    """A family and variant: a tiny checkpoint, and what must hold for it."""

    name: str  # unique, kebab case
    family: str  # its model_type
    kind: str  # stem of the transformers class: "Qwen3Moe"
    config: Mapping[str, Any]  # keys of its config that `tiny.make_tiny` is given
    lengths: tuple[int, ...]  # of sequences, tokens: around every boundary that the row has
    notes: str  # what the variant has of its own, for docs/models.md
    # Words of the refusal by each dialect that cannot express the model; the others must work.
    refusals: Mapping[str, str] = field(default_factory=dict)
    switch: int | None = None  # tokens; longer sequences are rotated otherwise (longrope)
    grows: bool = False  # and each length of them in a way of its own (dynamic NTK)
    seed: int = 0  # of the weights; another where the choice among experts is too narrow

    @property
    def dialects(self) -> tuple[str, ...]:
        """The dialects that must work."""
        return tuple(dialect for dialect in DIALECTS if dialect not in self.refusals)
