"""The tokenizer as transformers' fast one, with every end-of-turn id, and its refusals."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from pippin.runtime.errors import InputError
from pippin.runtime.tokenizer import Tokenizer
from support import corpora
from support.vocabularies import tiny, tiny_files

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = st.lists(
    st.one_of(
        st.text(max_size=8),
        st.sampled_from(
            [
                " ",
                "  ",
                "\n",
                "Hello",
                "<s>",
                "</s>",
                "<|im_end|>",
                "<|eot_id|>",
                "<|begin_of_text|>",
            ]
        ),
    ),
    max_size=6,
).map("".join)


def write_folder(path, name, **changes):
    document, config = corpora.converted(name)
    (path / "tokenizer.json").write_text(document, "utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(config | changes), "utf-8")
    (path / "config.json").write_text("{}", "utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Our tokenizer and transformers' from the same folder."""
    made = {}

    def pair(name):
        if name not in made:
            folder = write_folder(tmp_path_factory.mktemp(name), name)
            made[name] = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
        return made[name]

    return pair


@pytest.mark.parametrize("name", ["llama-spm", "deepseek-coder", "gpt-2", "bert-bge"])
@settings(max_examples=80, deadline=None)
@given(text=TEXTS)
def test_ids_and_text_are_those_of_transformers(name, text, pairs):
    ours, theirs = pairs(name)
    for add in (True, False):
        ids = ours.encode(text, add_special_tokens=add)
        assert ids == theirs.encode(text, add_special_tokens=add)
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip)
            assert ours.decode(ids, skip_special_tokens=skip) == expected


@pytest.mark.parametrize("flag", [True, False])
def test_tokenizer_json_alone_decides_about_bos(flag, tmp_path):
    folder = write_folder(tmp_path, "llama-spm", add_bos_token=flag, add_eos_token=True)
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.encode("Hi") == theirs.encode("Hi") == [1, 6324]


def test_tokens_that_only_the_config_declares(tmp_path):
    declared = {"5": {"content": "<0x02>", "special": True}}
    folder = write_folder(
        tmp_path,
        "llama-spm",
        pad_token="▁the",
        extra_special_tokens=["▁you"],
        added_tokens_decoder=declared,
    )
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    text = "x▁the▁you<0x02>y"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(
        theirs.encode(text), skip_special_tokens=True
    )


def test_a_declared_token_outside_the_vocabulary_gets_no_id():
    document, config = corpora.converted("llama-spm")
    ours = Tokenizer.from_parts(document, config | {"pad_token": "[NEW]"}, {}, {})
    assert ours.vocab_size == 32000
    assert max(ours.encode("[NEW]")) < 32000


@pytest.mark.parametrize(("name", "bos"), [("llama-spm", 1), ("deepseek-coder", 1), ("gpt-2", 0)])
def test_a_conversation_has_the_ids_of_transformers_and_one_bos(name, bos, tmp_path):
    template = "{{ bos_token }}" + CHATML if bos else CHATML
    folder = write_folder(tmp_path, name, chat_template=template)
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " Hi  é"}]
    for prompt in (True, False):
        ids = ours.encode_chat(messages, add_generation_prompt=prompt)
        reference = theirs.apply_chat_template(messages, add_generation_prompt=prompt)
        assert ids == reference["input_ids"]
        assert ids.count(ours.bos_token_id) == bos


def test_every_source_of_end_of_turn_ids_counts():
    document, _ = tiny_files("byte-level")  # its last token is <end>
    end = tiny("byte-level").vocab_size - 1
    (letter,) = tiny("byte-level").encode("a")
    template = "{% for m in messages %}{{ m.content }}<end>{% endfor %}"
    cases = [
        ({}, {}, {}, set()),
        ({"eos_token_id": 2}, {}, {}, {2}),
        ({"eos_token_id": 2}, {"eos_token_id": [2, 7]}, {}, {2, 7}),
        ({"eos_token_id": None}, {"eos_token_id": [7]}, {"eos_token": "<tool é>"}, {7, end - 2}),
        ({}, {}, {"chat_template": template}, {end}),
        (
            {"eos_token_id": [2]},
            {},
            {"chat_template": template, "eos_token": "a"},
            {2, end, letter},
        ),
        ({}, {}, {"eos_token": {"content": "<end>"}}, {end}),
        ({}, {}, {"eos_token": "no such token"}, set()),
    ]
    for model, generation, tokenizer, expected in cases:
        found = Tokenizer.from_parts(document, tokenizer, model, generation).eos_token_ids
        assert found == expected


@pytest.mark.parametrize("value", ["2", True, [2, "x"], 2.0])
def test_an_end_of_turn_id_that_is_no_number_is_refused(value):
    with pytest.raises(InputError, match=r"generation_config.json has eos_token_id"):
        Tokenizer.from_parts(*tiny_files("byte-level"), {}, {"eos_token_id": value})


def test_bos_and_sizes():
    tokenizer = corpora.vocabulary("llama-spm")
    assert tokenizer.bos_token_id == 1
    assert tokenizer.vocab_size == 32000
    assert tokenizer.special_ids == {0, 1, 2}
    assert tiny("byte-level").bos_token_id is None


def test_nul_is_a_character_and_a_lone_surrogate_is_not():
    tokenizer = corpora.vocabulary("gpt-2")
    assert tokenizer.decode(tokenizer.encode("a\0b")) == "a\0b"
    with pytest.raises(InputError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")


def test_a_conversation_with_a_lone_surrogate_is_refused():
    document, _ = tiny_files("byte-level")
    tokenizer = Tokenizer.from_parts(document, {"chat_template": CHATML}, {}, {})
    with pytest.raises(InputError, match="surrogate"):
        tokenizer.encode_chat([{"role": "user", "content": "\udc00"}])


def test_a_character_without_a_token_is_refused():
    document, _ = tiny_files("unigram, cleaned up")
    without_unknown = json.loads(document)
    without_unknown["model"]["unk_id"] = None
    tokenizer = Tokenizer.from_parts(json.dumps(without_unknown), {}, {}, {})
    with pytest.raises(InputError, match="cannot encode"):
        tokenizer.encode("字")


def test_truncation_and_padding_of_the_file_are_not_applied():
    backend = Backend.from_str(tiny_files("byte-level")[0])
    backend.enable_truncation(3)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer.from_parts(backend.to_str(), {}, {}, {})
    assert len(tokenizer.encode("abcde")) == 5


@pytest.mark.parametrize(
    ("name", "token", "text"),
    [
        ("gpt-2", 18435, " Hello"),
        ("gpt-2", 447, "<0xE2><0x80>"),
        ("gpt-2", 50256, "<|endoftext|>"),
        ("gpt-2", 60000, ""),
        ("llama-spm", 15043, " Hello"),
        ("llama-spm", 13, "\n"),
        ("llama-spm", 3 + 0xE2, "<0xE2>"),
        ("llama-spm", 1, "<s>"),
        ("bert-bge", 7592, " hello"),
        ("bert-bge", 2015, "s"),
    ],
)
def test_one_token_for_display(name, token, text):
    assert corpora.vocabulary(name).token_text(token) == text


def test_a_template_in_a_file_of_its_own_goes_first(tmp_path):
    folder = write_folder(tmp_path, "gpt-2", chat_template="from the config")
    (folder / "chat_template.jinja").write_text("from the file", "utf-8")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.chat_template.render([{"role": "user", "content": "x"}]) == "from the file"


def test_no_template_no_chat():
    with pytest.raises(InputError, match="no chat template"):
        tiny("byte-level").encode_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", "{", "cannot be read"),
        ("tokenizer.json", '{"model": {"type": "Other"}}', "cannot be read"),
        ("tokenizer_config.json", "{", "not valid JSON"),
        ("tokenizer_config.json", "[]", "expected an object"),
        ("tokenizer_config.json", '{"chat_template": 5}', "chat_template"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"0": "<s>"}}', "added token 0"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"0": {"x": 1}}}', "added token 0"),
        ("config.json", '{"eos_token_id": "x"}', "config.json has eos_token_id"),
        ("generation_config.json", "\xff", "cannot be read"),
    ],
)
def test_a_damaged_folder_is_named_in_one_line(name, content, said, tmp_path):
    folder = write_folder(tmp_path, "gpt-2")
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(InputError) as caught:
        Tokenizer.from_folder(folder)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
