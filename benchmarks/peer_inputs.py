"""The token ids that all contestants are given."""

from pathlib import Path

from pippin.apps.parity_text import TEXT
from pippin.mlx_model.checkpoints.checkpoint import open_checkpoint
from pippin.runtime.errors import InputError

# in pydoc_data: prose about Python, more than 12,000 tokens
_TOPICS = ("execmodel", "objects", "types")


def running_text(model: Path, length: int) -> list[int]:
    """Token ids of a running text of `length` tokens.

    The text is what Python says about itself: every machine that runs this has it.
    Raises InputError when it is too short.
    """
    from pydoc_data.topics import topics

    text = _encode(model, "\n".join(topics[name] for name in _TOPICS))
    if len(text) < length:
        raise InputError(f"the text for the prompts has {len(text)} tokens, not {length}")
    return text[:length]


def quality_text(model: Path) -> list[int]:
    """Token ids of the text whose perplexity is computed; each contestant reads it from the start.

    It is `pippin parity`'s: written for it, so that no model has seen it.
    """
    return _encode(model, TEXT)


def _encode(model: Path, text: str) -> list[int]:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(open_checkpoint(model).tokenizer_json).encode(text).ids
