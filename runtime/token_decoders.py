"""The decoders of tokenizer.json, each as a machine that takes one piece of text at a time.

The `tokenizers` library decodes a whole list of tokens; a reply arrives token by token. Each stage
here keeps just the state that its decoder needs, so that the pieces it gives out, joined, are what
the library gives for the whole list, at a cost per token that does not grow with the reply.
Reference: https://huggingface.co/docs/tokenizers/api/decoders
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol

from .errors import InputError

# the second byte of a UTF-8 character, where not every one may follow the first
_SECOND_BYTE = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Stage(Protocol):
    """One decoder: a stream of pieces in, a stream of pieces out."""

    def push(self, piece: str) -> Iterator[str]:
        """What becomes certain once `piece` has come."""

    def end(self) -> Iterator[str]:
        """What is left when no more comes."""


def build_stages(decoder: dict[str, Any] | None) -> list[Stage]:
    """The stages of a tokenizer.json's `decoder` (None: tokens are joined by spaces).

    Raises InputError, by name, for a decoder that cannot be run piece by piece.
    """
    if decoder is None:
        return [_Each(lambda token, first: token if first else " " + token)]
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    stages: list[Stage] = []
    fused = False  # whether the pieces are parts of one text, no longer tokens
    for part in parts:
        name = part["type"]
        make = _FUSED.get(name) if fused else _SINGLE.get(name)
        if make is None:
            where = "after the tokens are joined" if fused else "on tokens"
            raise InputError(f"tokenizer.json has the decoder {name!r} {where}: not implemented")
        stages.append(make(part))
        fused = fused or name in {"ByteLevel", "Fuse"}
    return stages


class ReplaceText:
    """str.replace on a text that arrives in pieces."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new = old, new
        self._held = ""

    def push(self, piece: str) -> Iterator[str]:
        *before, rest = (self._held + piece).split(self._old)
        keep = self._open_end(rest)
        self._held = rest[keep:]
        yield self._new.join([*before, rest[:keep]])

    def end(self) -> Iterator[str]:
        held, self._held = self._held, ""
        yield held

    def _open_end(self, text: str) -> int:
        for start in range(max(0, len(text) - len(self._old) + 1), len(text)):
            if self._old.startswith(text[start:]):
                return start
        return len(text)


class _Each:
    """A decoder that looks at one token at a time, and at whether it is the first."""

    def __init__(self, change: Callable[[str, bool], str]) -> None:
        self._change = change
        self._first = True

    def push(self, piece: str) -> Iterator[str]:
        first, self._first = self._first, False
        yield self._change(piece, first)

    def end(self) -> Iterator[str]:
        return iter(())


class _ByteLevel:
    """Tokens spelled in GPT-2's alphabet of bytes; wrong bytes become U+FFFD.

    The bytes of a character that is not complete at the end are dropped.
    """

    def __init__(self) -> None:
        self._held = b""

    def push(self, piece: str) -> Iterator[str]:
        data = self._held + token_bytes(piece)
        whole = len(data) - _incomplete(data)
        self._held = data[whole:]
        yield data[:whole].decode("utf-8", "replace")

    def end(self) -> Iterator[str]:
        self._held = b""
        return iter(())


class _ByteFallback:
    """Runs of byte tokens `<0x..>`: text when the whole run is UTF-8, else a U+FFFD for each byte.

    So a run is held until another token ends it. At the end of the reply, the bytes of a character
    that is not complete are dropped first.
    """

    def __init__(self) -> None:
        self._run = bytearray()

    def push(self, piece: str) -> Iterator[str]:
        if match := _BYTE_TOKEN.fullmatch(piece):
            self._run.append(int(match[1], 16))
            return
        if self._run:
            yield self._take_run()
        yield piece

    def end(self) -> Iterator[str]:
        del self._run[len(self._run) - _incomplete(self._run) :]
        if self._run:
            yield self._take_run()

    def _take_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            return run.decode("utf-8")
        except UnicodeDecodeError:
            return "\ufffd" * len(run)


class _StripText:
    """Strip on the joined text: `start` and `stop` characters `content` at most from its ends."""

    def __init__(self, content: str, start: int, stop: int) -> None:
        self._content, self._start, self._stop = content, start, stop
        self._held = ""

    def push(self, piece: str) -> Iterator[str]:
        while self._start and piece.startswith(self._content):
            piece, self._start = piece[1:], self._start - 1
        if piece:
            self._start = 0
        text = self._held + piece
        keep = len(text.rstrip(self._content))
        keep = max(keep, len(text) - self._stop)
        self._held = text[keep:]
        yield text[:keep]

    def end(self) -> Iterator[str]:
        self._held = ""
        return iter(())


class _WordEnd:
    """BPEDecoder: the suffix that ends a word becomes a space, but not in the last token."""

    def __init__(self, suffix: str) -> None:
        self._suffix = suffix
        self._last: str | None = None

    def push(self, piece: str) -> Iterator[str]:
        if self._last is not None:
            yield self._last.replace(self._suffix, " ")
        self._last = piece

    def end(self) -> Iterator[str]:
        if self._last is not None:
            yield self._last.replace(self._suffix, "")
        self._last = None


def _incomplete(data: bytes | bytearray) -> int:
    """How many bytes at the end begin a character whose rest could still come.

    Unicode, table 3-7. (Python's incremental decoder also waits after ED A0, which begins none.)
    """
    for size in range(1, min(3, len(data)) + 1):
        lead = data[-size]
        if 0x80 <= lead < 0xC0:
            continue  # a byte inside a character: look for its first
        length = 2 if 0xC2 <= lead < 0xE0 else 3 if 0xE0 <= lead < 0xF0 else 4
        low, high = _SECOND_BYTE.get(lead, (0x80, 0xBF))
        fits = size < length and 0xC2 <= lead <= 0xF4
        return size if fits and (size == 1 or low <= data[1 - size] <= high) else 0
    return 0


def token_bytes(token: str) -> bytes:
    """The bytes of a token in GPT-2's byte alphabet; of any other token, its UTF-8."""
    table = _byte_alphabet()
    try:
        return bytes([table[char] for char in token])
    except KeyError:
        return token.encode("utf-8")


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's alphabet: a printable Latin-1 byte is itself, the others are U+0100 and up."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def _make_replace(part: dict[str, Any]) -> tuple[str, str]:
    old = part["pattern"].get("String")
    if not old:
        raise InputError("tokenizer.json has a decoder 'Replace' with a regex: not implemented")
    return old, part["content"]


def _replace_each(part: dict[str, Any]) -> Stage:
    old, new = _make_replace(part)
    return _Each(lambda token, first: token.replace(old, new))


def _strip_each(part: dict[str, Any]) -> Stage:
    content, start, stop = part["content"], part["start"], part["stop"]

    def strip(token: str, first: bool) -> str:
        left = min(start, len(token) - len(token.lstrip(content)))
        right = min(stop, len(token) - len(token.rstrip(content)))
        return token[left : max(left, len(token) - right)]

    return _Each(strip)


def _metaspace(part: dict[str, Any]) -> Stage:
    mark = part["replacement"]
    in_first = " " if part.get("prepend_scheme", "always") == "never" else ""
    return _Each(lambda token, first: token.replace(mark, in_first if first else " "))


# What the `tokenizers` library tidies in a WordPiece token, in this order.
_WORDPIECE_CLEANUP = (
    (" .", "."),
    (" ?", "?"),
    (" !", "!"),
    (" ,", ","),
    (" ' ", "'"),
    (" n't", "n't"),
    (" 'm", "'m"),
    (" do not", " don't"),
    (" 's", "'s"),
    (" 've", "'ve"),
    (" 're", "'re"),
)


def _word_piece(part: dict[str, Any]) -> Stage:
    prefix, cleanup = part["prefix"], part["cleanup"]

    def join(token: str, first: bool) -> str:
        if not first:
            token = token[len(prefix) :] if token.startswith(prefix) else " " + token
        for old, new in _WORDPIECE_CLEANUP if cleanup else ():
            token = token.replace(old, new)
        return token

    return _Each(join)


_SINGLE: dict[str, Callable[[dict[str, Any]], Stage]] = {
    "ByteLevel": lambda part: _ByteLevel(),
    "ByteFallback": lambda part: _ByteFallback(),
    "Fuse": lambda part: _Each(lambda token, first: token),
    "Replace": _replace_each,
    "Strip": _strip_each,
    "Metaspace": _metaspace,
    "WordPiece": _word_piece,
    "BPEDecoder": lambda part: _WordEnd(part["suffix"]),
}
_FUSED: dict[str, Callable[[dict[str, Any]], Stage]] = {
    "Fuse": lambda part: _Each(lambda token, first: token),
    "Replace": lambda part: ReplaceText(*_make_replace(part)),
    "Strip": lambda part: _StripText(part["content"], part["start"], part["stop"]),
}
