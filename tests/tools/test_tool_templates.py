"""Public chat templates: their format is found, and the calls that they write are read again."""

import json

import pytest

from pippin.apps.tools import detect, gather
from pippin.runtime.chat_template import ChatTemplate
from pippin.runtime.errors import InputError
from support.corpora import template_sources

FOUND = {
    "hermes": [
        *("Bielik-11B-v3.0-Instruct", "MiMo-VL", "Qwen-QwQ-32B", "Qwen-Qwen2.5-7B-Instruct"),
        *("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "Qwen-Qwen3-0.6B", "Reka-Edge"),
        *("NousResearch-Hermes-3-Llama-3.1-8B-tool_use", "ibm-granite-granite-4.0"),
    ],
    "llama3": [
        *("meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.2-3B-Instruct"),
        "meta-llama-Llama-3.3-70B-Instruct",
    ],
    "mistral": [
        *("mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"),
        *("unsloth-mistral-Devstral-Small-2507", "mistralai-Ministral-3-14B-Reasoning-2512"),
    ],
    "qwen-xml": [
        *("Qwen3-Coder", "Qwen3.5-4B", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16"),
        *("StepFun3.5-Flash", "ByteDance-Seed-OSS"),
    ],
    "glm": ["GLM-4.6", "GLM-4.7-Flash", "Spark2.5", "inclusionai-ling-3.0-flash"],
    "functionary": ["meetkai-functionary-medium-v3.1"],
    "harmony": ["openai-gpt-oss-120b"],
    "nemotron": ["NVIDIA-Nemotron-Nano-v2"],
    "pythonic": ["LFM2.5-8B-A1B"],
}
ONE_CALL = ("llama3", "harmony")  # their templates refuse or drop several at once
ARGUMENTS = {
    "city": 'Zürich "x" </tool_call>',
    "days": 3,
    "exact": True,
    "units": ["°C", {"a": None}],
}
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where."},
                "days": {"type": "integer", "description": "How many."},
                "exact": {"type": "boolean", "description": "How."},
                "units": {"type": "array", "description": "Which."},
            },
            "required": ["city"],
        },
    },
}
QUESTION = {"role": "user", "content": "How is the weather?"}


def template(name: str) -> ChatTemplate:
    return ChatTemplate(template_sources()[name], {"bos_token": "<s>", "eos_token": "</s>"})


def answer(count: int) -> dict:
    """As OpenAI's clients send it: arguments are text, ids their own."""
    function = {"name": "get_weather", "arguments": json.dumps(ARGUMENTS)}
    calls = [
        {"id": f"call_{i}{'x' * 20}", "type": "function", "function": function}
        for i in range(count)
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, names in FOUND.items() for name in names],
    ids=[name for names in FOUND.values() for name in names],
)
def test_the_calls_of_a_public_template_are_read_again(kind: str, name: str) -> None:
    made = template(name)
    format = detect(made)
    assert format.name == kind
    number = 1 if kind in ONE_CALL else 2
    messages = format.messages([QUESTION, answer(number)])
    before = made.render([QUESTION], tools=[TOOL])
    whole = made.render(messages, tools=[TOOL], add_generation_prompt=False)
    written = whole.removeprefix(before) if whole.startswith(before) else whole
    start = 0 if whole.startswith(before) else whole.rindex(QUESTION["content"])
    parser = format.parser([TOOL])
    events = [event for char in written[start:] for event in parser.feed(char)] + parser.finish()
    content, calls = gather(events)
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("get_weather", ARGUMENTS)
    ] * number
    assert "get_weather" not in content


@pytest.mark.parametrize("name", [names[0] for names in FOUND.values()], ids=FOUND.keys())
def test_results_are_given_back_to_a_public_template(name: str) -> None:
    made = template(name)
    asked = answer(1)
    call_id = asked["tool_calls"][0]["id"]
    result = {"role": "tool", "tool_call_id": call_id, "content": "14 degrees, windy"}
    messages = detect(made).messages([QUESTION, asked, result])
    assert "14 degrees, windy" in made.render(messages, tools=[TOOL])


@pytest.mark.parametrize(
    ("name", "named"),
    [("google-gemma-2-2b-it", "no place for tools"), ("MiniMax-M3", "none of: mistral, ")],
)
def test_a_public_template_that_cannot_be_used_is_refused(name: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        detect(template(name))


def test_a_template_that_only_describes_calls_is_known_by_their_marks() -> None:
    described = "{{ tools }} Write [func_name1(params_name1=value)]. {{ messages[0].content }}"
    assert detect(ChatTemplate(described, {})).name == "pythonic"
    assert detect(template("ibm-granite-granite-3.3-2B-Instruct")).name == "granite"


def test_no_template_no_tools() -> None:
    with pytest.raises(InputError, match="no chat template"):
        detect(None)


def test_mistral_gets_ids_of_nine_characters_that_belong_together() -> None:
    format = detect(template("mistralai-Mistral-Nemo-Instruct-2407"))
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "x"}
        for call in answer(2)["tool_calls"]
    ]
    messages = format.messages([QUESTION, answer(2), *results])
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in messages[2:]]
    assert len(set(ids)) == 2
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert [message["name"] for message in messages[2:]] == ["get_weather"] * 2


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ({"function": {"name": "f", "arguments": "{"}}, "no JSON object"),
        ({"function": {"name": "f", "arguments": [1]}}, "no JSON object"),
        ({"function": {}}, "without a function's name"),
        ("f", "without a function's name"),
    ],
)
def test_earlier_calls_that_are_none_are_refused(call, named: str) -> None:
    format = detect(template("Qwen-Qwen2.5-7B-Instruct"))
    with pytest.raises(InputError, match=named) as caught:
        format.messages([QUESTION, {"role": "assistant", "tool_calls": [call]}])
    assert "\n" not in str(caught.value)
