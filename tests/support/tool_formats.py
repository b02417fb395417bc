"""Small chat templates of our own that write calls of tools, one for each format, and pieces of
what models write.
"""

from itertools import pairwise

from pippin.apps.tools.formats import FORMATS
from pippin.runtime.chat_template import ChatTemplate

_FRAME = (
    "{{% if tools %}}<tools>{{{{ tools | tojson }}}}</tools>\n{{% endif %}}"
    "{{% for m in messages %}}<{{{{ m.role }}}}>{{{{ m.content or '' }}}}"
    "{{% if m.tool_calls %}}{before}{{% for c in m.tool_calls %}}{{% set f = c.function %}}{call}"
    "{{% endfor %}}{after}{{% endif %}}<|end|>\n{{% endfor %}}"
    "{{% if add_generation_prompt %}}<assistant>{{% endif %}}"
)
_JSON = '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}'
_XML = (
    "\n<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments.items() %}<parameter="
    "{{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n"
    "</tool_call>"
)
_GLM = (
    "\n<tool_call>{{ f.name }}\n{% for k, v in f.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v if v is string else v | tojson }}</arg_value>\n{% endfor %}</tool_call>"
)
_COMMA = "{% if not loop.last %}, {% endif %}"

# format -> what stands before the calls, each call, what stands behind them
CALLS = {
    "hermes": ("", f"\n<tool_call>\n{_JSON}\n</tool_call>", ""),
    "llama3": (
        "",
        '{"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}'
        "{% if not loop.last %}; {% endif %}",
        "",
    ),
    "mistral": (
        "[TOOL_CALLS] [",
        '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}, "id": "{{ c.id }}"}'
        + _COMMA,
        "]",
    ),
    "mistral, second": (
        "",
        "[TOOL_CALLS]{{ f.name }}[CALL_ID]{{ c.id }}[ARGS]{{ f.arguments | tojson }}",
        "",
    ),
    "mistral, third": ("", "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}", ""),
    "qwen-xml": ("", _XML, ""),
    "glm": ("", _GLM, ""),
    "granite": ("<|tool_call|>[", _JSON + _COMMA, "]"),
    "nemotron": ("<TOOLCALL>[", _JSON + _COMMA, "]</TOOLCALL>"),
    "functionary": ("", "<function={{ f.name }}>{{ f.arguments | tojson }}</function>", ""),
    "deepseek": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ f.name }}\n```json\n"
        "{{ f.arguments | tojson }}\n```<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "deepseek, text": (
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>{{ f.name + '<｜tool▁sep｜>' + f.arguments }}<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    "harmony": (
        "",
        "<|start|>assistant<|channel|>commentary to=functions.{{ f.name }} <|constrain|>json"
        "<|message|>{{ f.arguments | tojson }}<|call|>",
        "",
    ),
    "pythonic": (
        "[",
        "{{ f.name }}({% for k, v in f.arguments.items() %}{{ k }}={{ v | tojson }}"
        + _COMMA
        + "{% endfor %})"
        + _COMMA,
        "]",
    ),
}


# What means something to any of the formats, and what does not.
MARKS = sorted(
    {mark for format in FORMATS for mark in (*format.begins, *format.shown)}
    | set("{}[]()\"'\\,:=; \n")
    | {'{"name": "add", "arguments": {}}', '{"name": "add", "parameters": {"a": 1}}', "```json"}
    | {"add", "[add(a=1)]", "</function>", "<parameter=a>", "</parameter>", "name", "x", "é😀"}
)


def tool_template(kind: str) -> ChatTemplate:
    """The template of one format of `CALLS`."""
    before, call, after = CALLS[kind]
    return ChatTemplate(_FRAME.format(before=before, call=call, after=after), {})


def cut(text: str, places: list[int]) -> list[str]:
    """The pieces of a text that is cut at these places, wherever they are."""
    bounds = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(bounds)]
