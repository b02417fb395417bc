"""The messages of a conversation, as they are kept and as a chat template gets them.

A message is a plain dict: `role` ("system", "user", "assistant") and `content`; a user's may have
`attachments` [{"name", "text"}], of which passages that were found for it also have "document"
(sha256) and "page"; the model's `reasoning_content` and, unless it ended by itself,
`finish_reason` ("length", "cancelled", …).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ...runtime.errors import InputError

Message = dict[str, Any]

ROLES = ("system", "user", "assistant")
_TEXTS = ("role", "content", "reasoning_content", "finish_reason")
_TITLE_CHARS = 48


def user_message(text: str, attachments: Sequence[Mapping[str, str]] = ()) -> Message:
    """What the user says, with the texts of files that come along."""
    message: Message = {"role": "user", "content": text}
    if attachments:
        message["attachments"] = [dict(file) for file in attachments]
    return message


def assistant_message(text: str, reasoning: str = "", finish_reason: str = "stop") -> Message:
    """What the model said; an end that it did not choose itself is kept with it."""
    message: Message = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if finish_reason not in ("stop", "stop_string"):
        message["finish_reason"] = finish_reason
    return message


def for_template(messages: Iterable[Message]) -> list[Message]:
    """The messages as a chat template knows them: attachments in the text, no word on the end.

    What becomes of earlier `reasoning_content` is up to the template.
    """
    return [_for_template(message) for message in messages]


def _for_template(message: Message) -> Message:
    sent = {k: v for k, v in message.items() if k not in ("attachments", "finish_reason")}
    files = message.get("attachments", ())
    parts = [f'<file name="{file["name"]}">\n{file["text"]}\n</file>' for file in files]
    if parts:
        sent["content"] = "\n\n".join([*parts, message["content"]])
    return sent


def is_passage(attachment: Mapping[str, Any]) -> bool:
    """Whether it was found for its message, and is no file that the user sent with it."""
    return "document" in attachment


def without_old_passages(messages: Sequence[Message]) -> list[Message]:
    """The messages as they are sent: passages with the one that is to be answered, no other.

    The model has said what it took from earlier ones, and they would soon fill the context.
    """
    if not messages:
        return []
    *before, last = messages
    kept = last if last["role"] == "user" else _without_passages(last)
    return [*map(_without_passages, before), kept]


def _without_passages(message: Message) -> Message:
    files = message.get("attachments", ())
    own = [file for file in files if not is_passage(file)]
    return message if len(own) == len(files) else message | {"attachments": own}


def last_turn(messages: Sequence[Message]) -> int | None:
    """The index of the last user message; None when there is none."""
    users = [i for i, message in enumerate(messages) if message["role"] == "user"]
    return users[-1] if users else None


def title(messages: Sequence[Message]) -> str:
    """The first words of the conversation, on one line."""
    first = next((m["content"] for m in messages if m["role"] == "user"), "")
    text = " ".join(first.split())
    return text if len(text) <= _TITLE_CHARS else text[: _TITLE_CHARS - 1].rstrip() + "…"


def check_messages(value: Any, where: str) -> list[Message]:
    """`value` as messages. Raises InputError, naming the one of another form and `where` it is."""
    if not isinstance(value, list):
        raise InputError(f"{where} has no list of messages; it is no saved chat")
    for index, message in enumerate(value):
        if not _is_message(message):
            raise InputError(
                f"message {index} of {where} is none: expected an object with a role "
                f"({', '.join(ROLES)}) and a content; correct or delete the file"
            )
    return value


def _is_message(message: Any) -> bool:
    if not isinstance(message, dict) or message.get("role") not in ROLES:
        return False
    if not all(isinstance(message.get(name, ""), str) for name in _TEXTS):
        return False
    files = message.get("attachments", [])
    return "content" in message and isinstance(files, list) and all(map(_is_file, files))


def _is_file(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(name), str) for name in ("name", "text")
    )
