"""Incremental detokenization: tokens in one by one, text out as soon as it is certain."""

from collections.abc import Callable, Sequence

from .token_decoders import Stage


class Detokenizer:
    """Turns the tokens of one reply into text.

    No chunk ends inside a character, and the chunks with what `finish` returns, joined, are the
    text that `Tokenizer.decode` gives for all the tokens. A reply that was cut inside a character
    (`max_tokens` was reached between its bytes) ends before that character: its first bytes are
    shown neither as text nor as U+FFFD. A U+FFFD in the text means that the model wrote one, or
    wrote bytes that no further byte can make valid.
    """

    def __init__(self, piece_of: Callable[[int], str | None], stages: Sequence[Stage]) -> None:
        """`piece_of` gives a token's spelling in the vocabulary, None for one without text."""
        self._piece_of = piece_of
        self._stages = stages

    def add(self, token: int) -> str:
        """The text that this token made certain; often ""."""
        piece = self._piece_of(token)
        return "" if piece is None else self._run([piece], self._stages)

    def finish(self) -> str:
        """The rest of the text; no token may follow."""
        text = ""
        for index, stage in enumerate(self._stages):
            text += self._run(list(stage.end()), self._stages[index + 1 :])
        return text

    def _run(self, pieces: list[str], stages: Sequence[Stage]) -> str:
        for stage in stages:
            pieces = [out for piece in pieces for out in stage.push(piece)]
        return "".join(pieces)
