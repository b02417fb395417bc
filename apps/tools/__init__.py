"""Tool calling in the format that a model's own chat template has.

    tools = [{"type": "function", "function": {"name": …, "parameters": {…JSON schema…}}}]
    format = detect(tokenizer.chat_template)
    messages = format.messages(messages)  # earlier calls and results, as the template wants them
    parser = format.parser(tools)
    for chunk in generator.stream(messages, params, tools=tools, shown=format.shown):
        for event in parser.feed(chunk.text): …
    for event in parser.finish(): …

An event is a `Content(text)` or a `ToolCall(index, id, name, arguments)`. A call is told when it is
whole: what only begins like one has to come back as the text that it is.
"""

from .calls import Content, Event, ToolCall, new_call_id
from .detect import detect
from .format import ToolFormat
from .parser import ToolParser

__all__ = [
    "Content",
    "Event",
    "ToolCall",
    "ToolFormat",
    "ToolParser",
    "detect",
    "new_call_id",
]
