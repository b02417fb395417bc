"""Incremental text equals transformers' one-shot text, for any tokens."""

import functools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from pippin.runtime.detokenizer import Detokenizer
from pippin.runtime.errors import InputError
from pippin.runtime.token_decoders import build_stages
from support import corpora
from support.vocabularies import KINDS, byte_ids, tiny, tiny_files

PUBLIC = ("gpt-2", "llama-spm", "bert-bge")
TRICKY = (
    "🇩🇪🇫🇷",
    "👩‍👩‍👧‍👦",
    "e\u0301o\u0308",
    "\ufffd",
    "a\ufffd\ufffdb",
    "你好, 世界",
    "ក្រ",
    "🦙\n\t don't . x ?",
)
BYTE_OF = {char: byte for byte, char in bytes_to_unicode().items()}


class Reference:
    """transformers' decode, without the character that is cut at the end (the one difference)."""

    def __init__(self, tokenizer_json, tokenizer_config):
        self._backend = Backend.from_str(tokenizer_json)
        self._theirs = PreTrainedTokenizerFast(
            tokenizer_object=self._backend,
            clean_up_tokenization_spaces=tokenizer_config.get(
                "clean_up_tokenization_spaces", False
            ),
        )
        added = self._backend.get_added_tokens_decoder()
        self._special = {index for index, token in added.items() if token.special}
        self._decoder = repr(json.loads(tokenizer_json)["decoder"])

    def decode(self, ids, skip_special_tokens=True):
        if skip_special_tokens:
            ids = [index for index in ids if index not in self._special]
        ids = [index for index in ids if self._backend.id_to_token(index) is not None]
        pieces = [self._backend.id_to_token(index) for index in ids]
        if not ids:
            return ""  # some decoders of the library cannot take an empty list
        if "'ByteLevel'" in self._decoder:
            text = self._theirs.decode(ids)
            return text[:-1] if dangling(b"".join(map(byte_level, pieces))) else text
        cut = 0
        if "'ByteFallback'" in self._decoder:
            cut = dangling(byte_run(pieces))
        kept = ids[: len(ids) - cut]
        return self._theirs.decode(kept) if kept else ""


def byte_level(piece):
    if all(char in BYTE_OF for char in piece):
        return bytes(BYTE_OF[char] for char in piece)
    return piece.encode("utf-8")


def byte_run(pieces):
    """The bytes of the byte tokens at the end."""
    run = []
    for piece in reversed(pieces):
        if not (piece.startswith("<0x") and len(piece) == 6):
            break
        run.insert(0, int(piece[3:5], 16))
    return bytes(run)


def dangling(data):
    """How many bytes at the end begin a character that more bytes could complete."""
    for size in (3, 2, 1):
        for byte in (0x80, 0x90, 0xA0, 0xBF):
            if any(is_one_character(data[-size:] + bytes([byte]) * n) for n in (1, 2, 3)):
                return min(size, len(data))
    return 0


def is_one_character(data):
    try:
        return len(data.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


def stream(tokenizer, ids, **options):
    detokenizer = tokenizer.detokenizer(**options)
    return [*(detokenizer.add(token) for token in ids), detokenizer.finish()]


@functools.cache
def tiny_reference(kind):
    return Reference(*tiny_files(kind))


@functools.cache
def public_reference(name):
    return Reference(*corpora.converted(name))


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_tokens_of_a_tiny_vocabulary(kind, data, skip):
    tokenizer = tiny(kind)
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=25))
    expected = tiny_reference(kind).decode(ids, skip)
    assert "".join(stream(tokenizer, ids, skip_special_tokens=skip)) == expected
    assert tokenizer.decode(ids, skip_special_tokens=skip) == expected


@settings(max_examples=200, deadline=None)
@given(
    data=st.lists(
        st.sampled_from(
            b"\x00a \xc3\xa9\xe2\x80\x8d\xef\xbf\xbd\xf0\x9f\xa6\x99\xff\xed\xa0\xf4\x90\xe0\xc1"
        )
    )
)
@example(data=list(b"\xf0\x9f\xa6\x99\xf0\x9f\xa6"))
@example(data=list(b"\xff" * 40))
@example(data=list(b"\xed\xa1"))
@pytest.mark.parametrize("kind", ["byte-level", "sentence-piece", "gemma"])
def test_any_bytes(kind, data):
    tokenizer = tiny(kind)
    token_of = byte_ids(kind)
    ids = [token_of[byte] for byte in data]
    assert "".join(stream(tokenizer, ids)) == tiny_reference(kind).decode(ids)


@pytest.mark.parametrize("name", PUBLIC)
@settings(max_examples=100, deadline=None)
@given(data=st.data(), skip=st.booleans())
def test_any_tokens_of_a_public_vocabulary(name, data, skip):
    tokenizer = corpora.vocabulary(name)
    texts = st.sampled_from(TRICKY).map(
        lambda text: tokenizer.encode(text, add_special_tokens=False)
    )
    parts = st.one_of(texts, st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=4))
    ids = [index for part in data.draw(st.lists(parts, max_size=6)) for index in part]
    ids = ids[: data.draw(st.integers(0, len(ids)))]
    expected = public_reference(name).decode(ids, skip)
    assert "".join(stream(tokenizer, ids, skip_special_tokens=skip)) == expected


@pytest.mark.parametrize("name", ["gpt-2", "llama-spm"])
@pytest.mark.parametrize("text", TRICKY)
def test_a_reply_cut_anywhere_shows_no_half_character(name, text):
    tokenizer = corpora.vocabulary(name)
    ids = tokenizer.encode(text, add_special_tokens=False)
    for length in range(len(ids) + 1):
        shown = "".join(stream(tokenizer, ids[:length]))
        assert text.startswith(shown)
    assert shown == text


@pytest.mark.parametrize("text", TRICKY)
def test_bytes_are_shown_as_soon_as_their_character_is_complete(text):
    tokenizer = corpora.vocabulary("gpt-2")
    *chunks, rest = stream(tokenizer, tokenizer.encode(text))
    assert "".join(chunks) == text
    assert rest == ""


def test_a_token_costs_the_same_however_long_the_reply_is():
    tokenizer = tiny("sentence-piece")
    looked_up = []

    def piece_of(token):
        looked_up.append(token)
        return "▁a"

    detokenizer = Detokenizer(piece_of, build_stages(json.loads(tiny_files("gemma")[0])["decoder"]))
    assert [detokenizer.add(index) for index in range(1000)] == [" a"] * 1000
    assert looked_up == list(range(1000))
    assert tokenizer.detokenizer().finish() == ""


@pytest.mark.parametrize(
    ("decoder", "named"),
    [
        ({"type": "CTC"}, "'CTC'"),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "WordPiece"}]}, "WordPiece"),
        ({"type": "Replace", "pattern": {"Regex": "a+"}, "content": ""}, "regex"),
    ],
)
def test_a_decoder_that_cannot_run_piece_by_piece_is_refused_by_name(decoder, named):
    with pytest.raises(InputError, match=named):
        build_stages(decoder)
