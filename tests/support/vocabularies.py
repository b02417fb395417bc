"""Small tokenizers with each kind of decoder, made with the `tokenizers` library."""

import functools
import json
from typing import Any

from tokenizers import AddedToken, decoders, models
from tokenizers import Tokenizer as Backend
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pippin.runtime.tokenizer import Tokenizer

_BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
_PIECES = ["▁", "▁▁", "▁a", "a", "b", ".", "▁.", "n't", "▁n't", "▁'", "'", "é", "🦙", "\ufffd"]
_WORDS = ["##", "##a", "a", "b", ".", "?", "'", "n't", "do", "not", "[x]", "é", "\ufffd"]


def _bpe(tokens):
    return models.BPE({token: index for index, token in enumerate(tokens)}, [])


def _byte_level():
    """A token for each byte, and tokens that begin or end inside a character."""
    letter = bytes_to_unicode()
    parts = ["".join(letter[byte] for byte in (char * 2).encode()) for char in "é你🦙\u200d\ufffd"]
    cuts = [part[start:end] for part in parts for start in range(4) for end in range(2, 6)]
    tokens = dict.fromkeys([*letter.values(), *filter(None, cuts)])
    return _bpe(tokens), decoders.ByteLevel()


def _sentence_piece():
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return [*steps, decoders.Strip(" ", 1, 0)]


_KINDS = {
    "byte-level": _byte_level,
    "sentence-piece": lambda: (
        _bpe([*_BYTE_TOKENS, *_PIECES]),
        decoders.Sequence(_sentence_piece()),
    ),
    "gemma": lambda: (_bpe([*_BYTE_TOKENS, *_PIECES]), decoders.Sequence(_sentence_piece()[:3])),
    "two stripped at the start": lambda: (
        _bpe(_PIECES),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " "), decoders.Strip(" ", 2, 0)]),
    ),
    "one stripped at the end": lambda: (
        _bpe(_PIECES),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    ),
    "each token stripped": lambda: (_bpe(_PIECES), decoders.Strip("▁", 1, 0)),
    "replaced after joining": lambda: (
        _bpe(["a", "b", "ab", "aab", "c"]),
        decoders.Sequence(
            [decoders.Fuse(), decoders.Replace("aab", "b"), decoders.Replace("bb", "a")]
        ),
    ),
    "metaspace": lambda: (_bpe(_PIECES), decoders.Metaspace(prepend_scheme="always")),
    "metaspace, never": lambda: (_bpe(_PIECES), decoders.Metaspace(prepend_scheme="never")),
    "unigram, cleaned up": lambda: (
        models.Unigram([(piece, -1.0) for piece in _PIECES], unk_id=0),
        decoders.Metaspace(),
    ),
    "merges, never cleaned up": lambda: (_bpe(_PIECES), decoders.Metaspace()),  # asked to, though
    "word-piece": lambda: (
        models.WordPiece({word: index for index, word in enumerate(_WORDS)}, unk_token="a"),
        decoders.WordPiece(),
    ),
    "word ends": lambda: (_bpe(["a", "b</w>", "</w>", "é</w>"]), decoders.BPEDecoder()),
    "no decoder": lambda: (_bpe(["a", "é", "", " "]), None),
}
KINDS = tuple(_KINDS)


@functools.cache
def tiny_files(kind: str) -> tuple[str, dict[str, Any]]:
    """tokenizer.json and tokenizer_config.json; the last token is special, two before it added."""
    model, decoder = _KINDS[kind]()
    backend = Backend(model)
    if decoder is not None:
        backend.decoder = decoder
    plain = [AddedToken("<tool é>", normalized=False), AddedToken("▁<x> ", normalized=False)]
    backend.add_tokens(plain)
    backend.add_special_tokens([AddedToken("<end>", normalized=False)])
    return backend.to_str(), {"clean_up_tokenization_spaces": "cleaned up" in kind}


@functools.cache
def tiny(kind: str) -> Tokenizer:
    return Tokenizer.from_parts(*tiny_files(kind), {}, {})


def byte_ids(kind: str) -> dict[int, int]:
    """The token of each byte, in a vocabulary that has one for every byte."""
    spelled = bytes_to_unicode() if kind == "byte-level" else dict(enumerate(_BYTE_TOKENS))
    vocab = json.loads(tiny_files(kind)[0])["model"]["vocab"]
    return {byte: vocab[token] for byte, token in spelled.items()}
