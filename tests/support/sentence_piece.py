"""A plain SentencePiece BPE, written from its definition, to compare converted ones with.

Join the neighbours whose joined text is the token with the highest score, leftmost first, until
none is left; what is no token becomes its bytes. Kudo and Richardson, https://arxiv.org/abs/1808.06226
"""

import heapq
from typing import Any

_NORMAL, _BYTE = 1, 6


class SentencePieceBPE:
    """For the metadata of a GGUF with a `llama` vocabulary."""

    def __init__(self, metadata: dict[str, Any]) -> None:
        tokens = metadata["tokenizer.ggml.tokens"]
        types = metadata["tokenizer.ggml.token_type"]
        scores = metadata["tokenizer.ggml.scores"]
        rows = list(enumerate(zip(tokens, types, scores, strict=True)))
        self._ids = {text: index for index, (text, _, _) in rows}
        self._scores = {text: score for _, (text, kind, score) in rows if kind == _NORMAL}
        self._bytes = {int(text[3:5], 16): i for i, (text, kind, _) in rows if kind == _BYTE}
        self._added = [text for _, (text, kind, _) in rows if kind not in (_NORMAL, _BYTE)]

    def holds_added_token(self, text: str) -> bool:
        return any(token in text for token in self._added)

    def encode(self, text: str) -> list[int]:
        if not text:
            return []
        parts = list("▁" + text.replace(" ", "▁"))
        after = [*range(1, len(parts)), -1]
        before = list(range(-1, len(parts) - 1))
        queue: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            joined = parts[left] + parts[right] if left >= 0 and right >= 0 else ""
            if joined in self._scores:
                heapq.heappush(queue, (-self._scores[joined], left, right, joined))

        for index in range(len(parts) - 1):
            offer(index, index + 1)
        while queue:
            _, left, right, joined = heapq.heappop(queue)
            if after[left] != right or parts[left] + parts[right] != joined:
                continue
            parts[left], parts[right] = joined, ""
            after[left] = after[right]
            if after[left] >= 0:
                before[after[left]] = left
            offer(before[left], left)
            offer(left, after[left])
        return [index for part in parts if part for index in self._ids_of(part)]

    def _ids_of(self, part: str) -> list[int]:
        if part in self._ids:
            return [self._ids[part]]
        return [self._bytes[byte] for byte in part.encode("utf-8")]
