"""Chat templates render as transformers renders them; hostile and broken ones end in one line."""

import datetime

import pytest
import transformers.utils.chat_template_utils as reference_module
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from pippin.runtime import chat_template as our_module
from pippin.runtime.chat_template import ChatTemplate, parse_chat_template
from pippin.runtime.errors import InputError
from support import corpora

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather <b>now</b> & "here"',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Ort, z. B. Zürich"},
                    "unit": {"type": "string", "enum": ["c", "f"]},
                },
                "required": ["city"],
            },
        },
    }
]


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **fields):
    return {"role": "assistant", "content": content, **fields}


def call(arguments):
    function = {"name": "get_weather", "arguments": arguments}
    return [{"id": "call12345", "type": "function", "function": function}]


SYSTEM = {"role": "system", "content": "Be brief."}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call12345", "content": '{"t": 3}'}
CLOSED = {"add_generation_prompt": False}
CONVERSATIONS = {
    "user": ([user('Hi "there" <é>')], {}),
    "user, closed": ([user("Hi")], CLOSED),
    "system": ([SYSTEM, user(" Hi \n")], {}),
    "turns": ([SYSTEM, user("1"), assistant("2 "), user("3"), assistant("4")], CLOSED),
    "earlier thinking": ([user("1"), assistant("<think>hm</think>2"), user("3")], {}),
    "reasoning": ([user("1"), assistant("2", reasoning_content="why"), user("3")], {}),
    "reasoning, other name": ([user("1"), assistant("2", reasoning="why")], CLOSED),
    "thinking on": ([user("1")], {"enable_thinking": True}),
    "thinking off": ([user("1")], {"enable_thinking": False}),
    "tools": ([user("w?")], {"tools": TOOLS}),
    "no tools": ([user("w?")], {"tools": []}),
    "system and tools": ([SYSTEM, user("w?")], {"tools": TOOLS}),
    "tool call": (
        [user("w?"), assistant("", tool_calls=call({"city": "Zürich"})), RESULT, user("ok")],
        {"tools": TOOLS},
    ),
    "tool call, text arguments": (
        [user("w?"), assistant(None, tool_calls=call('{"city": "Zürich"}')), RESULT],
        {"tools": TOOLS},
    ),
    "parts": ([user([{"type": "text", "text": "Hi"}, {"type": "text", "text": "you"}])], {}),
    "documents": ([user("q")], {"documents": [{"title": "T", "text": "x"}]}),
    "strange role": ([{"role": "nobody", "content": "x"}], {}),
    "two users": ([user("a"), user("b")], {}),
    "special token replaced": ([user("a")], {"bos_token": "<other>"}),
}


@pytest.fixture
def frozen_clock(monkeypatch):
    class Frozen(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2025, 3, 4, 5, 6, 7)

    monkeypatch.setattr(reference_module, "datetime", Frozen)
    monkeypatch.setattr(our_module, "datetime", Frozen)


@pytest.fixture(scope="module")
def reference():
    vocab = {text: index for index, text in enumerate(SPECIAL.values())}
    backend = Backend(WordLevel(vocab, unk_token="<unk>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)


def rendered(render, refusals):
    try:
        return render()
    except refusals:
        return "refused"


@pytest.mark.usefixtures("frozen_clock")
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_the_corpus_renders_as_in_transformers(conversation, reference):
    messages, options = CONVERSATIONS[conversation]
    options = {"add_generation_prompt": True} | options
    ours, theirs = {}, {}
    for name, source in corpora.template_sources().items():
        template = _compiled(source)
        ours[name] = rendered(lambda t=template: t.render(messages, **options), InputError)
        theirs[name] = rendered(
            lambda s=source: reference.apply_chat_template(
                messages, chat_template=s, tokenize=False, **options
            ),
            Exception,
        )
    assert len(ours) == 70
    assert sum(text != "refused" for text in ours.values()) > 30
    assert ours == theirs


_templates = {}


def _compiled(source):
    return _templates.setdefault(source, ChatTemplate(source, SPECIAL))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0] | tojson }}",
        "{{ {'b': 1, 'a': '<é>'} | tojson(indent=2, sort_keys=True, ensure_ascii=True) }}",
        "{{ messages | tojson(separators=(',', ':')) }}",
        "  {% if true %}\n  x\n  {% endif %}\n",
        "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}",
        "{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}",
        "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}",
        "{{ dict(a=1).a }}{{ dict.fromkeys(['k'], 2) }}",
        "{{ documents is none }}{{ tools is none }}{{ nothing is defined }}{{ sep_token }}",
        "{{ 'ab' * 3 }}{{ 2 ** 10 }}{{ [1] * 2 }}",
        "{{ messages[0].content.upper() }}",
        "{{ messages[0].absent.deeper }}",
        "{{ namespace(_x=1) }}",
        "{{ messages[0].pop('role') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ raise_exception('no') }}",
        "{% if %}",
    ],
)
def test_the_language_is_the_one_of_transformers(source, reference):
    messages = [{"role": "user", "content": "Größe & <b>", "extra": None}]
    ours = rendered(lambda: ChatTemplate(source, SPECIAL).render(messages), InputError)
    theirs = rendered(
        lambda: reference.apply_chat_template(
            messages, chat_template=source, tokenize=False, add_generation_prompt=True
        ),
        Exception,
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ raise_exception('roles\nmust alternate') }}", "roles must alternate"),
        ("{{ undefined_name.x }}", "undefined_name"),
        ("{% for x in %}", "not valid"),
        ("{{ 'a' * 100000000 }}", "repeats"),
        ("{{ 100000000 * [0] }}", "repeats"),
        ("{{ 2 ** 100000000 }}", "power"),
        ("{{ range(10 ** 9) | list }}", "Range"),
        ("{% for i in range(99999) %}{{ 'a' * 4000000 }}{% endfor %}", "characters"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 1 / 0 }}", "division"),
        ("{{ raise_exception('x' * 9999) }}", "xxx…"),
    ],
)
def test_a_failing_template_is_one_line(source, said):
    with pytest.raises(InputError) as caught:
        ChatTemplate(source, {}).render([user("hi")])
    message = str(caught.value)
    assert said in message
    assert "\n" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "at least one message"),
        ("hi", "at least one message"),
        (["hi"], "message 0 is a str"),
        ([user("a"), {"content": "x"}], "message 1 has the role None"),
        ([{"role": "user"}], "message 0 (user) has no content"),
        ([user(5)], "a int as content"),
        ([user("a") | {"image": object()}], "object"),
    ],
)
def test_messages_of_another_form_are_refused(messages, said):
    with pytest.raises(InputError) as caught:
        ChatTemplate("{{ messages }}", {}).render(messages)
    assert said in str(caught.value)


def test_tools_of_another_form_are_refused():
    with pytest.raises(InputError, match="tools"):
        ChatTemplate("x", {}).render([user("a")], tools=["get_weather"])


def test_the_callers_messages_are_left_alone():
    messages = [user("a"), assistant("b", reasoning="r", name=None)]
    before = [dict(message) for message in messages]
    ChatTemplate("{{ messages }}", {}).render(messages)
    assert messages == before


def test_named_templates_are_chosen_as_in_transformers(reference):
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with tools"},
        {"name": "rag", "template": "rag"},
    ]
    ours = parse_chat_template(named, {})
    reference.chat_template = {entry["name"]: entry["template"] for entry in named}
    for tools in (None, [], TOOLS):
        theirs = reference.apply_chat_template([user("a")], tools=tools, tokenize=False)
        assert ours.render([user("a")], tools=tools) == theirs


def test_named_templates_without_a_default_are_named():
    template = parse_chat_template([{"name": "rag", "template": "x"}], {})
    with pytest.raises(InputError, match="rag"):
        template.render([user("a")])


@pytest.mark.parametrize("value", [5, {"default": "x"}, [{"name": "default"}], ["x"], []])
def test_a_template_of_another_form_is_refused(value):
    with pytest.raises(InputError, match="chat_template"):
        parse_chat_template(value, {})


def test_no_template_is_none():
    assert parse_chat_template(None, {}) is None
