"""Which format a chat template has: it is made to write a call, and the formats try to read it."""

import json
from dataclasses import replace
from typing import Any

from ...runtime.chat_template import ChatTemplate
from ...runtime.errors import InputError
from .calls import gather
from .format import ToolFormat
from .formats import FORMATS

# Plain words that no template changes.
_QUESTION, _NAME = "zqxquestion", "zqx_function"
_ARGUMENTS = {"zqx_key": "zqx value"}
_ID = "zqx000001"  # short enough for Mistral
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "zqxdescription",
        "parameters": {
            "type": "object",
            "properties": {"zqx_key": {"type": "string", "description": "zqxkey"}},
            "required": ["zqx_key"],
        },
    },
}


def detect(template: ChatTemplate | None) -> ToolFormat:
    """The format in which the model that `template` belongs to writes its calls.

    A template that writes earlier calls shows it; one that only describes calls is searched for
    their marks. Raises InputError when there is no template, it knows no tools, or its format is
    none of those in `formats`.
    """
    if template is None:
        raise InputError("the model has no chat template, so it cannot be offered tools")
    source = template.sources.get("tool_use") or template.sources.get("default", "")
    if "tools" not in source:
        raise InputError(
            "the model's chat template has no place for tools; leave them out, or take a model "
            "that was trained to call tools"
        )
    shows = False
    for as_text in (False, True):
        written = _written(template, as_text)
        shows = shows or _NAME in written
        for format in FORMATS if written else ():
            if _reads(format, written):
                return replace(format, arguments_as_text=as_text)
    for format in () if shows else FORMATS:
        if any(hint in source for hint in format.hints):
            return format
    names = ", ".join(format.name for format in FORMATS)
    raise InputError(
        f"the model's chat template writes tool calls in a format that is none of: {names}"
    )


def _written(template: ChatTemplate, as_text: bool) -> str:
    """What the template makes of a reply that is one call; "" when it refuses it."""
    arguments = json.dumps(_ARGUMENTS) if as_text else _ARGUMENTS
    function = {"name": _NAME, "arguments": arguments}
    call = {"id": _ID, "type": "function", "function": function}
    question = {"role": "user", "content": _QUESTION}
    answer: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    try:
        before = template.render([question], tools=[_TOOL])
        whole = template.render([question, answer], tools=[_TOOL], add_generation_prompt=False)
    except InputError:
        return ""
    return (
        whole.removeprefix(before) if whole.startswith(before) else whole.rpartition(_QUESTION)[2]
    )


def _reads(format: ToolFormat, written: str) -> bool:
    parser = format.parser([_TOOL])
    _, calls = gather([*parser.feed(written), *parser.finish()])
    return [(c.name, json.loads(c.arguments)) for c in calls] == [(_NAME, _ARGUMENTS)]
