"""From a chat request to what the scheduler takes, and how its replies are taken apart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...runtime.constraints import Constraint
from ...runtime.errors import InputError
from ...runtime.generator import Generator
from .. import reasoning, structured, tools
from .chat_request import ChatRequest
from .content import Reply
from .errors import ApiError
from .parsers import ReplyParser
from .prompts import make_ask
from .run import Ask

if TYPE_CHECKING:
    from .service import Service


@dataclass(frozen=True)
class Prompt:
    """A conversation as the model reads it."""

    text: str
    tokens: list[int]
    format: tools.ToolFormat | None  # how calls are written, where there are any


@dataclass(frozen=True)
class Prepared:
    """A chat request, ready for the scheduler."""

    asked: ChatRequest
    ask: Ask
    prompt: Prompt
    marks: reasoning.Marks | None  # what is written around thinking

    def new_replies(self) -> list[Reply]:
        """The replies, of which nothing is known yet."""
        parallel = self.asked.tools.parallel
        return [Reply(self._parser(), parallel) for _ in range(self.asked.count)]

    def _parser(self) -> ReplyParser:
        splitter = self.marks.splitter(self.prompt.text) if self.marks else None
        offered, format = self.asked.tools.offered, self.prompt.format
        if not offered:
            return ReplyParser(splitter, None)
        if self.asked.tools.forced:  # to {"name": …, "arguments": …}, whatever the template writes
            format = replace(tools.BARE_JSON, short_ids=format.short_ids)
        return ReplyParser(splitter, format.parser(offered, early=self.asked.stream))


def prepare(service: "Service", asked: ChatRequest) -> Prepared:
    """Render and tokenize the conversation. Raises InputError and ApiError."""
    generator = service.model.generator
    prompt = render(generator, asked)
    constraint = _constraint(generator, asked)
    marks = None if constraint else reasoning.find_marks(generator.tokenizer.chat_template)
    shown = (marks.shown if marks else ()) + (prompt.format.shown if prompt.format else ())
    ask = make_ask(
        service.model,
        service.scheduler.capacity,
        prompt.tokens,
        asked.given,
        count=asked.count,
        top_logprobs=asked.top_logprobs,
        constraint=constraint,
        shown=tuple(dict.fromkeys(shown)),
    )
    return Prepared(asked, ask, prompt, marks)


def render(generator: Generator, asked: ChatRequest) -> Prompt:
    """The conversation, to where the reply begins. Raises InputError and ApiError."""
    template, offered = generator.tokenizer.chat_template, asked.tools.offered
    format, messages = None, asked.messages
    if offered or any("tool_calls" in message for message in messages):
        try:
            format = tools.detect(template)
        except InputError as error:
            raise ApiError(400, f"tools: {error}", param="tools") from None
        messages = format.messages(messages)
    if template is None:
        raise InputError(
            f"{generator.engine.info.model} has no chat template, so it is not made for chat; "
            "use /v1/completions"
        )
    text = template.render(messages, tools=offered, **asked.template)
    return Prompt(text, generator.tokenizer.encode(text, add_special_tokens=False), format)


def _constraint(generator: Generator, asked: ChatRequest) -> Constraint | None:
    """What holds the replies to a form, or to a call. Raises ApiError."""
    form = asked.format
    if form is None:
        if not asked.tools.forced:
            return None
        return _held(generator, "tools", lambda: structured.json_schema(_any_call(asked)))
    name = "response_format" if "json" in next(iter(form)) else "structured_outputs"
    if asked.tools.offered:
        raise ApiError(400, f"{name}: does not go with tools; leave one of them out", param=name)
    return _held(generator, name, lambda: _grammar(form))


def _held(generator: Generator, name: str, make: Any) -> Constraint:
    try:
        return structured.constraint_for(generator, make())
    except InputError as error:
        raise ApiError(400, f"{name}: {error}", param=name) from None


def _grammar(form: Mapping[str, Any]) -> structured.Grammar:
    match form:
        case {"json_schema": schema}:
            return structured.json_schema(schema)
        case {"regex": pattern}:
            return structured.regex(pattern)
        case {"choice": options}:
            return structured.choice(options)
    return structured.json_object()


def _any_call(asked: ChatRequest) -> dict[str, Any]:
    """The schema of a call of the function that is wanted, or of any."""
    functions: Sequence[dict[str, Any]] = [tool["function"] for tool in asked.tools.functions]
    if asked.tools.name is not None:
        functions = [f for f in functions if f["name"] == asked.tools.name]
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": f["name"]},
                # An id of its own makes "#/$defs/…" mean those of this function.
                "arguments": {"type": "object", **f["parameters"], "$id": f"urn:function:{index}"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for index, f in enumerate(functions)
    ]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}
