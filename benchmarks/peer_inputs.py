"""What all contestants are given: the exported weights and the prompts' token ids."""

from collections.abc import Callable, Sequence
from pathlib import Path

from pippin.mlx_model.checkpoints.checkpoint import Checkpoint, open_checkpoint
from pippin.runtime.errors import InputError

# in pydoc_data: the first is prose to beyond 2,048 tokens
_TOPICS = ("execmodel", "objects", "types", "specialnames")
_SHORT = "The history of the printing press begins in"


def export_weights(
    model: Path, weights: Sequence[str], folder: Path, note: Callable[[str], None]
) -> dict[str, Path]:
    """Export `model` anew with each of `weights` into `folder`; returns the folders by weights."""
    from pippin.export.folder import export_folder

    checkpoint, exports = open_checkpoint(model), {}
    for name in weights:
        note(f"exporting {name}")
        exports[name] = folder / name
        export_folder(checkpoint, exports[name], weights=name, dialect="gqa")
    return exports


def prepare_prompts(model: Path, length: int) -> tuple[list[int], list[int]]:
    """Token ids of a short prompt and of a running text of `length` tokens.

    The text is what Python says about itself: every machine that runs this has it.
    Raises InputError when it is too short.
    """
    tokenizer = _tokenizer(open_checkpoint(model))
    short = tokenizer.encode(_SHORT).ids
    long = tokenizer.encode(_running_text()).ids[:length]
    if len(long) < length:
        raise InputError(f"the text for the prompts has {len(long)} tokens, not {length}")
    return short, long


def _running_text() -> str:
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in _TOPICS)


def _tokenizer(checkpoint: Checkpoint):
    from tokenizers import Tokenizer

    return Tokenizer.from_str(checkpoint.tokenizer_json)
