"""One way in which models write calls of tools."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .calls import Call, new_call_id
from .messages import prepare
from .parser import ToolParser
from .scanner import Scanner, Waiting

# Reads from where a call may begin; the tools that were offered, by name, tell argument types.
Block = Callable[[Scanner, Mapping[str, Mapping[str, Any]]], Waiting[list[Call]]]
_SHORT_ID = re.compile("[a-zA-Z0-9]{9}")


@dataclass(frozen=True)
class ToolFormat:
    """How calls are written, and how a template wants to be given earlier ones."""

    name: str
    block: Block
    begins: tuple[str, ...] = ()  # texts that begin a block of calls
    bare: str = ""  # the character that begins one at the beginning of a reply
    shown: tuple[str, ...] = ()  # special tokens that the parser has to see in the text
    hints: tuple[str, ...] = ()  # in a template that only describes calls and never renders one
    short_ids: bool = False  # ids of calls are nine letters or digits (Mistral)
    arguments_as_text: bool = False  # the template wants arguments as JSON text, not as an object
    opening: re.Pattern[str] | None = None  # what precedes the JSON of a call's arguments: its name

    def parser(
        self,
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        early: bool = False,
        new_id: Callable[[], str] | None = None,
    ) -> ToolParser:
        """A parser for one reply. `tools` are those that the model was offered; with none given,
        any name is taken. `early`: long calls are told before they are whole. `new_id` makes the
        ids of calls that the model gives none.
        """
        return ToolParser(self, tools, early, new_id or self.new_id)

    def new_id(self) -> str:
        """A random id: `call_` and 24 letters or digits, or nine of them where these are wanted."""
        return new_call_id("", 9) if self.short_ids else new_call_id()

    def takes_id(self, call_id: str | None) -> bool:
        """Whether an id that the model gave to its call can stand."""
        return self.short_ids and call_id is not None and bool(_SHORT_ID.fullmatch(call_id))

    def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Messages in OpenAI's form, as the chat template has to be given them.

        Raises InputError for a call without a name, or whose arguments are no JSON object.
        """
        return prepare(messages, arguments_as_text=self.arguments_as_text, short_ids=self.short_ids)
