"""GGUF vocabularies against the public corpus' reference ids, and what is refused by name."""

import functools
import hashlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pippin.mlx_model.checkpoints.gguf import read_gguf_metadata
from pippin.mlx_model.checkpoints.gguf_pre_tokenizers import pre_tokenizer
from pippin.mlx_model.checkpoints.gguf_tokenizer import convert_gguf_tokenizer
from pippin.runtime.errors import InputError
from pippin.runtime.tokenizer import Tokenizer
from support import corpora
from support.sentence_piece import SentencePieceBPE
from support.wheels import smollm2_gguf

MATCHED = (
    *("bert-bge", "command-r", "deepseek-coder", "deepseek-llm", "falcon", "gemma-4", "gpt-2"),
    *("llama-bpe", "llama-spm", "mpt", "phi-3", "qwen2", "qwen35", "refact", "starcoder"),
)
WITHOUT_REFERENCE = ("baichuan",)  # no .inp and .out; compared with an own SentencePiece BPE
REFUSED = {
    "aquila": "tokenizer.ggml.pre",  # old files that do not say how text is split
    "gpt-neox": "tokenizer.ggml.pre",
    "nomic-bert-moe": "'t5'",
}


def test_every_vocabulary_of_the_corpus_is_matched_or_refused():
    assert corpora.vocabulary_names() == sorted((*MATCHED, *WITHOUT_REFERENCE, *REFUSED))


@pytest.mark.parametrize("name", MATCHED)
def test_ids_equal_the_reference(name):
    tokenizer = corpora.vocabulary(name)
    cases = corpora.reference_ids(name)
    assert len(cases) >= 45
    found = [(text, tokenizer.encode(text, add_special_tokens=False)) for text, _ in cases]
    assert found == cases


@pytest.mark.parametrize(("name", "reason"), REFUSED.items())
def test_an_unsupported_vocabulary_is_refused_by_name(name, reason):
    with pytest.raises(InputError, match="GGUF") as caught:
        corpora.converted(name)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_smollm2_splits_as_the_pre_tokenizer_it_names():
    # llama.cpp knows a pre-tokenizer by the hash of the ids of one long text; the corpus has the
    # text, conversion/base.py the hash of "smollm".
    text = next(text for text, _ in corpora.reference_ids("gpt-2") if text.startswith("\n \n\n"))
    metadata = read_gguf_metadata(smollm2_gguf())
    assert metadata["tokenizer.ggml.pre"] == "smollm"
    tokenizer = Tokenizer.from_parts(*convert_gguf_tokenizer(metadata), {}, {})
    digest = hashlib.sha256(str(tokenizer.encode(text)).encode()).hexdigest()
    assert digest == "855059429035d75a914d1eda9f10a876752e281a054a7a3d421ef0533e5b6249"


def test_patterns_equal_those_of_transformers():
    mapping = pytest.importorskip("transformers.integrations.gguf.gguf_tokenizer_mapping")
    compared = 0
    for name, pattern in mapping.GGUF_PRE_TOKENIZER_SPLITS.items():
        try:
            steps = pre_tokenizer(name).steps
        except InputError:
            continue
        assert [step["pattern"]["Regex"] for step in steps if step["type"] == "Split"] == [pattern]
        compared += 1
    assert compared >= 10


TEXTS = st.text(
    st.one_of(
        st.characters(exclude_categories=("Cs",)),
        st.sampled_from(" \n\t▁aeiost=-3.'你é🦙"),
    )
)


@functools.cache
def _sentence_piece(name):
    return SentencePieceBPE(corpora.vocabulary_metadata(name))


@pytest.mark.parametrize("name", ["llama-spm", "phi-3", "baichuan"])
@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
@example(text="aaaaa" * 7)
@example(text=" " * 37 + "x" + "=" * 41)
def test_derived_merges_give_what_sentence_piece_gives(name, text):
    tokenizer = corpora.vocabulary(name)
    reference = _sentence_piece(name)
    if not reference.holds_added_token(text):
        assert tokenizer.encode(text, add_special_tokens=False) == reference.encode(text)


@settings(max_examples=100, deadline=None)
@given(text=TEXTS)
def test_bytes_survive_a_round_trip(text):
    tokenizer = corpora.vocabulary("gpt-2")
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text


@settings(max_examples=100, deadline=None)
@given(text=TEXTS.map(lambda text: text.replace("▁", " ")))  # to SentencePiece they are the same
def test_sentence_piece_survives_a_round_trip(text):
    tokenizer = corpora.vocabulary("llama-spm")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize(
    ("name", "around"),
    [
        ("llama-spm", ([1], [])),  # add_bos_token in the file
        ("deepseek-coder", ([32013], [])),
        ("gpt-2", ([], [])),
        ("bert-bge", ([101], [102])),
    ],
)
def test_tokens_around_a_text(name, around):
    tokenizer = corpora.vocabulary(name)
    plain = tokenizer.encode("some text", add_special_tokens=False)
    assert tokenizer.encode("some text") == [*around[0], *plain, *around[1]]


def test_control_tokens_in_a_text_are_special_and_user_defined_ones_are_not():
    tokenizer = corpora.vocabulary("phi-3")  # <|user|> is a control token, </s> user-defined
    ids = tokenizer.encode("<|user|>a</s>", add_special_tokens=False)
    assert ids == [32010, 263, 2]
    assert tokenizer.decode(ids) == "a</s>"


def _tiny(**changes):
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "ab", "<end>"],
        "token_type": [1, 1, 1, 3],
        "merges": ["a b"],
        "eos_token_id": 3,
    }
    metadata |= changes
    return {f"tokenizer.ggml.{key}": item for key, item in metadata.items() if item is not None}


def test_the_tiny_vocabulary_that_the_damaged_ones_start_from_is_sound():
    document, config = convert_gguf_tokenizer(_tiny())
    assert Tokenizer.from_parts(document, config, {}, {}).encode("abab<end>") == [2, 2, 3]
    assert config["eos_token"] == "<end>"


def test_bos_when_the_file_does_not_say():
    for pre, bos in (("llama-bpe", [3]), ("gpt-2", [])):
        files = convert_gguf_tokenizer(_tiny(pre=pre, bos_token_id=3))
        assert Tokenizer.from_parts(*files, {}, {}).encode("a") == [*bos, 0]


def test_named_templates_are_all_kept():
    plain, named = "tokenizer.chat_template", "tokenizer.chat_template.tool_use"
    _, config = convert_gguf_tokenizer(_tiny() | {plain: "x"})
    assert config["chat_template"] == "x"
    _, config = convert_gguf_tokenizer(_tiny() | {plain: "x", named: "y"})
    assert config["chat_template"] == [
        {"name": "default", "template": "x"},
        {"name": "tool_use", "template": "y"},
    ]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": None}, "tokenizer.ggml.model is missing"),
        ({"model": "rwkv"}, "'rwkv'"),
        ({"pre": "xyz"}, "tokenizer.ggml.pre 'xyz'"),
        ({"pre": None}, "no tokenizer.ggml.pre"),
        ({"tokens": None}, "tokenizer.ggml.tokens is missing"),
        ({"tokens": ["a", "b", "a", "<end>"]}, "'a' twice"),
        ({"token_type": [1, 1]}, "2 token_type for 4 tokens"),
        ({"merges": ["ab"]}, "the merge 'ab'"),
        ({"eos_token_id": 4}, "eos_token_id = 4"),
        ({"add_bos_token": True}, "no tokenizer.ggml.bos_token_id"),
        ({"suppress_tokens": [1]}, "tokenizer.ggml.suppress_tokens"),
        ({"add_space_prefix": True}, "add_space_prefix"),
        ({"model": "llama"}, "tokenizer.ggml.scores is missing"),
        ({"model": "llama", "scores": [0.0]}, "1 scores for 4 tokens"),
        ({"model": "llama", "scores": [0.0] * 4, "bos_token_id": 0}, "no unknown token"),
        ({"model": "bert", "unknown_token_id": 3}, "WordPiece vocabulary is damaged"),
        ({"model": "bert", "tokens": ["▁a", "b", "[UNK]", "[c]"]}, "cls_token_id"),
    ],
)
def test_a_damaged_vocabulary_is_named_in_one_line(changes, named):
    with pytest.raises(InputError) as caught:
        convert_gguf_tokenizer(_tiny(**changes))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_merge_of_unknown_tokens_is_refused_when_it_is_read():
    document, config = convert_gguf_tokenizer(_tiny(merges=["a c"]))
    with pytest.raises(InputError, match="tokenizer"):
        Tokenizer.from_parts(document, config, {}, {})
