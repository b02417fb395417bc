"""What happens to a prompt that does not fit the context together with its reply."""

from collections.abc import Callable, Sequence
from typing import Any

from .errors import ContextError, InputError

ON_OVERFLOW = ("error", "drop_oldest")

Messages = Sequence[dict[str, Any]]


def check_overflow(on_overflow: str) -> None:
    """Raise InputError unless `on_overflow` is a known choice."""
    if on_overflow not in ON_OVERFLOW:
        raise InputError(f"on_overflow is {on_overflow!r}; it must be {' or '.join(ON_OVERFLOW)}")


def reply_budget(prompt: int, max_tokens: int | None, context: int) -> int:
    """Tokens that a reply may have after `prompt` tokens; all lengths in tokens.

    Raises ContextError when prompt and `max_tokens` (None: at least 1) exceed the context.
    """
    if prompt + (max_tokens or 1) <= context:
        return max_tokens or context - prompt
    if max_tokens is None:
        raise ContextError(
            f"the prompt's {prompt} tokens leave no room for a reply in the context of "
            f"{context} tokens; shorten the prompt"
        )
    raise ContextError(
        f"{prompt} prompt tokens and {max_tokens} of reply exceed the context of {context} "
        "tokens; shorten the prompt or lower max_tokens"
    )


def drop_oldest_tokens(tokens: list[int], max_tokens: int | None, context: int) -> list[int]:
    """`tokens` cut to fit: the first one, which may be a BOS, and the newest.

    Without `max_tokens` a quarter of the context is kept free for the reply.
    """
    room = context - _reserve(max_tokens, context)
    if len(tokens) <= room or room < 2:
        return tokens
    return [tokens[0], *tokens[len(tokens) - room + 1 :]]


def drop_oldest_turns(
    messages: Messages,
    encode: Callable[[Messages], list[int]],
    max_tokens: int | None,
    context: int,
) -> list[int]:
    """The tokens of the conversation, its oldest turns left out until it fits.

    System messages and the last turn stay; a turn begins with a user message.
    """
    return newest_turns(messages, encode, max_tokens, context)[1]


def newest_turns(
    messages: Messages,
    encode: Callable[[Messages], list[int]],
    max_tokens: int | None,
    context: int,
) -> tuple[Messages, list[int]]:
    """The messages that `drop_oldest_turns` leaves, and their tokens."""
    room = context - _reserve(max_tokens, context)
    tokens = encode(messages)
    while len(tokens) > room and (shorter := _without_first_turn(messages)):
        messages = shorter
        tokens = encode(messages)
    return messages, tokens


def _reserve(max_tokens: int | None, context: int) -> int:
    return max_tokens or max(1, context // 4)


def _without_first_turn(messages: Messages) -> Messages:
    """`messages` without the first turn; empty when there is only one."""
    users = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    if len(users) < 2:
        return []
    kept = [m for m in messages[: users[1]] if m.get("role") in ("system", "developer")]
    return [*kept, *messages[users[1] :]]
