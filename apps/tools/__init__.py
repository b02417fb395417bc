"""Tool calling in the format that a model's own chat template has.

    tools = [{"type": "function", "function": {"name": …, "parameters": {…JSON schema…}}}]
    format = detect(tokenizer.chat_template)
    messages = format.messages(messages)  # earlier calls and results, as the template wants them
    parser = format.parser(tools)
    for chunk in generator.stream(messages, params, tools=tools, shown=format.shown):
        for event in parser.feed(chunk.text): …
    for event in parser.finish(): …

An event is a `Content(text)`, or a `CallStart(index, id, name)` and then its
`CallArguments(index, text)`; `gather(events)` puts them together. A call is told when it is whole:
what only begins like one has to come back as the text that it is. With `parser(tools, early=True)`
long arguments come in pieces, while the model writes them.
"""

from .calls import CallArguments, CallStart, Content, Event, ToolCall, gather, new_call_id
from .detect import detect
from .format import ToolFormat
from .formats.llama3 import FORMAT as BARE_JSON
from .parser import ToolParser

__all__ = [
    "BARE_JSON",
    "CallArguments",
    "CallStart",
    "Content",
    "Event",
    "ToolCall",
    "ToolFormat",
    "ToolParser",
    "detect",
    "gather",
    "new_call_id",
]
